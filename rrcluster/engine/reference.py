"""The engine to believe: one client and one batch at a time, a plain `nn.Module`. The oracle for tests."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.protocol import CPU, LocalSettings, Updates, changes_by_training
from rrcluster.models.loss import sample_losses
from rrcluster.models.model import Model
from rrcluster.types import Array


@dataclass(frozen=True)
class ReferenceEngine:
    """A loop over clients."""

    model: Model
    device: torch.device = CPU

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k)."""
        result = np.zeros((len(cohort.clients), len(vectors)))
        for place, size in enumerate(cohort.sizes):
            inputs, targets = self._samples(cohort, place, np.arange(size))
            for cluster, vector in enumerate(vectors):
                if size:
                    result[place, cluster] = self._loss(vector, inputs, targets)
        return result

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        loss, accuracy = np.zeros((2, len(cohort.clients), len(vectors)))
        for place, size in enumerate(cohort.sizes):
            if size:
                own = TestSet(cohort.targets[place, :size], partial(_samples_of, cohort, place))
                loss[place], accuracy[place] = self.test(vectors, own)
        return loss, accuracy

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
        moving = np.ones(self.model.num_parameters, dtype=bool) if trainable is None else trainable
        orders = batch_orders(key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        trained = np.array(start, dtype=np.float32)
        for place, size in enumerate(cohort.sizes):
            self._load(trained[place])
            for epoch in range(local.local_epochs):
                for first in range(0, int(size), local.batch_size):
                    chosen = orders[place, epoch, first : min(first + local.batch_size, size)]
                    self._step(*self._samples(cohort, place, chosen), local, anchors[place], moving)
            trained[place] = self._dump()
        return trained

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """(k, d), (G,) -> (G, d)."""
        return changes_by_training(self, vectors, clusters, cohort, local=local, key=key)

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        inputs = torch.as_tensor(tests.inputs, device=self.device)
        targets = torch.as_tensor(tests.targets, device=self.device)
        losses, accuracies = [], []
        for vector in vectors:
            self._load(vector)
            with torch.no_grad():
                outputs = self.model.module(inputs)
            losses.append(float(sample_losses(outputs, targets).mean()))
            correct = (outputs.argmax(-1) == targets).float().mean()
            accuracies.append(float("nan") if targets.is_floating_point() else float(correct))
        return np.array(losses), np.array(accuracies)

    def _samples(self, cohort: Cohort, place: int, chosen: Array) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.as_tensor(cohort.inputs[place][chosen], device=self.device)
        return inputs, torch.as_tensor(cohort.targets[place][chosen], device=self.device)

    def _loss(self, vector: Array, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        self._load(vector)
        with torch.no_grad():
            return float(sample_losses(self.model.module(inputs), targets).mean())

    def _step(
        self, inputs: torch.Tensor, targets: torch.Tensor, local: LocalSettings, anchor: Array, moving: Array
    ) -> None:
        parameters = list(self.model.module.parameters())
        loss = sample_losses(self.model.module(inputs), targets).mean()
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)]).cpu().numpy()
        now = self._dump()
        gradient = gradient + np.float32(local.proximal) * (now - anchor.astype(np.float32))
        self._load(now - np.float32(local.local_lr) * np.where(moving, gradient, np.float32(0)))

    def _load(self, vector: Array) -> None:
        values = self.model.unflatten(torch.as_tensor(np.asarray(vector, dtype=np.float32)))
        with torch.no_grad():
            for name, parameter in self.model.module.named_parameters():
                parameter.copy_(values[name])

    def _dump(self) -> Array:
        parameters = [parameter.detach().reshape(-1) for parameter in self.model.module.parameters()]
        return np.asarray(torch.cat(parameters).cpu().numpy())


def _samples_of(cohort: Cohort, place: int) -> Array:
    return cohort.inputs[place, : cohort.sizes[place]]
