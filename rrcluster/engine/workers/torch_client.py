"""One client at a time by PyTorch's own kernels, on one thread: images and their weights channels last."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.engine.workers.single_client import Measure, Steps
from rrcluster.models.loss import sample_losses
from rrcluster.types import Array


class TorchAlone:
    """One module, reused for every client."""

    def __init__(self, module: nn.Module, samples_at_once: int) -> None:
        """`samples_at_once`: most samples of one forward pass without gradients."""
        self._module, self._parameters = module, list[Tensor](module.parameters())
        for parameter in self._parameters:
            parameter.data = _channels_last(parameter.data)
        self._samples_at_once = samples_at_once

    def train(
        self,
        start: Array,
        inputs: Array,
        targets: Array,
        *,
        orders: Array,
        steps: Steps,
        anchor: Array,
        moving: Array | None,
    ) -> Array:
        """(d,) -> (d,)."""
        self._load(start)
        samples, answers, visits = _tensor(inputs), _tensor(targets), _tensor(orders)
        pull = self._parts(anchor) if steps.proximal else None
        masks = None if moving is None else [part > 0 for part in self._parts(moving)]
        for epoch in visits:
            for chosen in torch.split(epoch, steps.batch_size):
                self._step(_channels_last(samples[chosen]), answers[chosen], steps, pull, masks)
        return self._dump()

    def measuring(self, vectors: Array) -> Measure:
        """(k, d) -> (k, 2)."""
        return partial(self._sums, vectors)

    @torch.no_grad()
    def _sums(self, vectors: Array, inputs: Array, targets: Array) -> Array:
        samples, answers = _channels_last(_tensor(inputs)), _tensor(targets)
        sums = np.zeros((len(vectors), 2))
        for place, vector in enumerate(vectors):
            self._load(vector)
            batches, rights = torch.split(samples, self._samples_at_once), torch.split(answers, self._samples_at_once)
            for batch, right in zip(batches, rights, strict=True):
                outputs = self._module(batch)
                sums[place, 0] += sample_losses(outputs, right).double().sum().item()
                sums[place, 1] += (outputs.argmax(-1) == right).sum().item()
        return sums

    def _step(
        self, inputs: Tensor, targets: Tensor, steps: Steps, pull: list[Tensor] | None, masks: list[Tensor] | None
    ) -> None:
        loss = sample_losses(self._module(inputs), targets).mean()
        gradients = list(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():
            if pull is not None:
                away = [now - then for now, then in zip(self._parameters, pull, strict=True)]
                torch._foreach_add_(gradients, away, alpha=steps.proximal)
            if masks is not None:
                gradients = [torch.where(mask, part, 0.0) for mask, part in zip(masks, gradients, strict=True)]
            torch._foreach_add_(self._parameters, gradients, alpha=-steps.rate)

    def _parts(self, vector: Array) -> list[Tensor]:
        """A flat vector in the shapes of the parameters."""
        flat = _tensor(np.asarray(vector, dtype=np.float32))
        pieces = torch.split(flat, [part.numel() for part in self._parameters])
        return [piece.reshape(part.shape) for piece, part in zip(pieces, self._parameters, strict=True)]

    @torch.no_grad()
    def _load(self, vector: Array) -> None:
        for parameter, value in zip(self._parameters, self._parts(vector), strict=True):
            parameter.copy_(value)

    def _dump(self) -> Array:
        parts = [parameter.detach().contiguous().reshape(-1) for parameter in self._parameters]
        return np.asarray(torch.cat(parts).numpy())


def _tensor(values: Array) -> Tensor:
    """A copy of its own: where in shared memory it lay must not matter."""
    return torch.from_numpy(np.array(values))


def _channels_last(samples: Tensor) -> Tensor:
    return samples.contiguous(memory_format=torch.channels_last) if samples.dim() == 4 else samples
