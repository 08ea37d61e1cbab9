"""Gradients of stacked clients."""

import copy
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from rrcluster.engine.batched.recording import Program, recorded
from rrcluster.models.losses import losses_of, plain_losses
from rrcluster.models.model import Model

_SECONDS_BEFORE = 2.0  # on steps of equal shapes: recording the first program takes about one
_MOST_RECORDED = 32


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer.

    Of a network that a user brings, vmap, autograd and the network's own Python code take a large part of a step on a
    CPU. So what steps of some shapes compute is recorded once they have taken seconds, and then computed without them:
    the same operations in the same order, hence the same bits, so that it does not matter when that happens.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is compiled or recorded before it is used."""
        self._model, self._device, self._losses_of = model, device, losses_of(model, device)
        self._records = model.own and device.type == "cpu"
        self._spent: defaultdict[Hashable, float] = defaultdict(float)  # seconds on steps of each form
        self._programs: dict[Hashable, Program | None] = {}  # None: not to be recorded

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        arguments = (params, batch, targets, present, *masks)
        if not self._records:
            return self._computed(*arguments)
        form = tuple((value.shape, value.stride()) for value in arguments)
        program = self._programs.get(form)
        if program is not None:
            with torch.no_grad():
                return program(*arguments)
        began = time.perf_counter()
        gradients = self._computed(*arguments)
        self._spent[form] += time.perf_counter() - began
        if self._spent[form] > _SECONDS_BEFORE and form not in self._programs and len(self._programs) < _MOST_RECORDED:
            self._programs[form] = self._recorded(arguments, gradients)
        return gradients

    def _recorded(self, arguments: Sequence[Tensor], gradients: Sequence[Tensor]) -> Program | None:
        """Recorded from a copy of the model: what a network keeps of a call (a mask, say) would have no values."""
        try:
            aside = Gradients(copy.deepcopy(self._model), self._device)
        except Exception:  # whatever a network may raise
            return None
        return recorded(aside._computed, arguments, gradients)

    def _computed(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, *masks: Tensor
    ) -> Sequence[Tensor]:
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self._model.unflatten(params).items()}
            losses_of = plain_losses(self._model, masks) if masks else self._losses_of
            losses = losses_of(leaves, batch, targets, present)
            return torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
