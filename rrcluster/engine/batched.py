"""Many clients at once: each training step is one tensor program over all G clients of the cohort."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rrcluster.contract import CPU, LocalSettings
from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.order import batch_orders
from rrcluster.models.loss import masked_mean, sample_losses
from rrcluster.models.model import Model
from rrcluster.types import Array

Figure = Callable[[Tensor, Tensor, Tensor], Tensor]  # outputs (G, s, o), targets (G, s), present (G, s) -> (G,)


@dataclass(frozen=True)
class BatchedEngine:
    """Stacks clients along one axis. At most `capacity` clients are stacked; a larger cohort takes several passes."""

    model: Model
    device: torch.device = CPU
    capacity: int = 1024

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k): one pass per model over the samples of all clients together."""
        return self._by_client(_mean_loss, vectors, cohort)

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        return self.losses(vectors, cohort), self._by_client(_accuracy, vectors, cohort)

    def train(
        self,
        start: Array,
        cohort: Cohort,
        *,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array | None = None,
        trainable: Array | None = None,
    ) -> Array:
        """(G, d) -> (G, d)."""
        anchors = start if anchor is None else anchor
        chunks = []
        for first, part in zip(range(0, len(start), self.capacity), _passes(cohort, self.capacity), strict=True):
            rows = slice(first, first + self.capacity)
            chunks.append(self._train(start[rows], part, local, key, anchors[rows], trainable))
        return np.concatenate(chunks) if chunks else np.array(start, dtype=np.float32)

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        inputs, targets = self._tensor(tests.inputs), self._tensor(tests.targets)
        losses, accuracies = [], []
        for vector in vectors:
            outputs = self._outputs(vector, inputs)
            losses.append(sample_losses(outputs, targets).mean().item())
            correct = (outputs.argmax(-1) == targets).double().mean().item()
            accuracies.append(float("nan") if targets.is_floating_point() else correct)
        return np.array(losses), np.array(accuracies)

    def _by_client(self, figure: Figure, vectors: Array, cohort: Cohort) -> Array:
        chunks = [self._figures(figure, vectors, part) for part in _passes(cohort, self.capacity)]
        return np.concatenate(chunks) if chunks else np.zeros((0, len(vectors)))

    def _figures(self, figure: Figure, vectors: Array, cohort: Cohort) -> Array:
        inputs, targets = self._tensor(cohort.inputs), self._tensor(cohort.targets)
        present = _present(self._tensor(cohort.sizes), inputs.shape[1])
        columns = []
        for vector in vectors:
            outputs = self._outputs(vector, inputs.flatten(0, 1)).reshape(*targets.shape, -1)
            columns.append(figure(outputs, targets, present))
        return np.asarray(torch.stack(columns, dim=1).double().cpu().numpy())

    def _train(
        self,
        start: Array,
        cohort: Cohort,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array,
        trainable: Array | None,
    ) -> Array:
        longest = cohort.inputs.shape[1]
        parameters, anchors = self._parameters(start), self._parameters(anchor) if local.proximal else None
        moving = None if trainable is None else self._parameters(trainable[None])
        inputs, targets = self._tensor(cohort.inputs).flatten(0, 1), self._tensor(cohort.targets).flatten()
        sizes = self._tensor(cohort.sizes)
        rows = torch.arange(len(sizes), device=self.device)[:, None] * longest
        orders = self._tensor(batch_orders(key, cohort.clients, cohort.sizes, epochs=local.local_epochs))
        for epoch in range(local.local_epochs):
            for first in range(0, longest, local.batch_size):
                chosen = rows + orders[:, epoch, first : first + local.batch_size]
                present = _present(sizes - first, chosen.shape[1])
                batch = inputs.index_select(0, chosen.flatten()).reshape(*chosen.shape, *inputs.shape[1:])
                gradients = self._gradients(parameters, batch, targets[chosen], present)
                parameters = _descend(parameters, gradients, present.any(1), local, anchors, moving)
        return np.asarray(self.model.flatten(parameters).cpu().numpy())

    def _gradients(
        self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, present: Tensor
    ) -> dict[str, Tensor]:
        """Of every client's mean loss on its batch; zero for a client with no sample left in this one."""
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        losses = masked_mean(sample_losses(self.model.grouped(leaves, inputs), targets), present)
        return dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values())), strict=True))

    def _parameters(self, vectors: Array) -> dict[str, Tensor]:
        return self.model.unflatten(self._tensor(np.asarray(vectors, dtype=np.float32)))

    @torch.no_grad()
    def _outputs(self, vector: Array, inputs: Tensor) -> Tensor:
        parameters = self.model.unflatten(self._tensor(np.asarray(vector, dtype=np.float32)))
        if not len(inputs):
            return self.model.single(parameters, inputs)
        chunks = torch.split(inputs, self.model.samples_at_once)
        return torch.cat([self.model.single(parameters, chunk) for chunk in chunks])

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self.device)


def _mean_loss(outputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    return masked_mean(sample_losses(outputs, targets), present)


def _accuracy(outputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    if targets.is_floating_point():
        return torch.full(targets.shape[:1], float("nan"), device=targets.device)
    return masked_mean((outputs.argmax(-1) == targets).double(), present)


@torch.no_grad()
def _descend(
    parameters: dict[str, Tensor],
    gradients: dict[str, Tensor],
    active: Tensor,
    local: LocalSettings,
    anchors: dict[str, Tensor] | None,
    moving: dict[str, Tensor] | None,
) -> dict[str, Tensor]:
    """One SGD step of the active clients, with the proximal term and the mask of moving coordinates if any."""
    stepped = {}
    for name, value in parameters.items():
        gradient = gradients[name]
        if anchors is not None:
            pull = local.proximal * (value - anchors[name])
            gradient = gradient + torch.where(active.reshape(-1, *[1] * (value.dim() - 1)), pull, 0.0)
        if moving is not None:
            gradient = torch.where(moving[name] > 0, gradient, 0.0)
        stepped[name] = torch.sub(value, gradient, alpha=local.local_lr)
    return stepped


def _present(sizes: Tensor, length: int) -> Tensor:
    """(G, length) bool: which positions hold a real sample."""
    return torch.arange(length, device=sizes.device)[None, :] < sizes[:, None]


def _passes(cohort: Cohort, capacity: int) -> list[Cohort]:
    """The cohort in order, in parts of at most `capacity` clients."""
    parts = []
    for first in range(0, len(cohort.clients), capacity):
        part = slice(first, first + capacity)
        longest = int(cohort.sizes[part].max(initial=0))
        parts.append(
            Cohort(
                cohort.clients[part],
                cohort.inputs[part, :longest],
                cohort.targets[part, :longest],
                cohort.sizes[part],
            )
        )
    return parts
