"""Gradients of stacked clients."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rrcluster.engine.recording import Arguments, Program, RecordedFunction, in_form_of, made_up_parameters
from rrcluster.models.losses import losses_of, plain_losses
from rrcluster.models.model import Model


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer.

    Of a network that a user brings, vmap, autograd and the network's own Python code take a large part of a step on a
    CPU, so its steps are recorded.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is compiled or recorded before it is used."""
        self._model, self._device, self._losses_of = model, device, losses_of(model, device)
        self._compute: Program = self._computed
        if model.trial is not None and device.type == "cpu":
            self._compute = RecordedFunction(self._computed, self._copied, self._made_up)

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        return self._compute(params, batch, targets, present, *masks)

    def _computed(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, *masks: Tensor
    ) -> Sequence[Tensor]:
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self._model.unflatten(params).items()}
            losses_of = plain_losses(self._model, masks) if masks else self._losses_of
            losses = losses_of(leaves, batch, targets, present)
            return torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)

    def _copied(self) -> Program:
        return Gradients(copy.deepcopy(self._model), self._device)._computed

    def _made_up(self, arguments: Arguments, generator: torch.Generator) -> Arguments:
        assert self._model.trial is not None
        params, _, _, present, *masks = arguments
        rows = torch.randint(len(self._model.trial[0]), present.shape, generator=generator)
        inputs, labels = (values[rows] for values in self._model.trial)
        given = torch.as_tensor(self._model.given).expand(params.shape)
        some = torch.rand(present.shape, generator=generator) < 0.8
        some[:, 0] = True
        drawn = [made_up_parameters(given, generator), inputs, labels, some]
        drawn += [1.25 * torch.randint(2, mask.shape, generator=generator) for mask in masks]
        return [in_form_of(value, new) for value, new in zip(arguments, drawn, strict=True)]
