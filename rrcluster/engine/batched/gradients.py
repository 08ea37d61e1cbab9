"""Gradients of stacked clients."""

import copy
from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor

from rrcluster.engine.recording import Arguments, Form, Program, RecordedFunction, in_form, made_up_parameters
from rrcluster.errors import ConfigError
from rrcluster.models.client_state import generator_states
from rrcluster.models.losses import losses_of, plain_losses
from rrcluster.models.model import Model


def unused(model: Model, device: torch.device) -> Model:
    """Copies of a user's network and loss for one pass, that keep nothing of clients before.

    Not on a CUDA device: captured steps run no Python code, and read the tensors of the model that was captured.
    """
    return model.copied() if model.own and device.type == "cpu" else model


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer.

    Of a network that a user brings, vmap, autograd and the network's own Python code take a large part of a step on a
    CPU, so worker processes record its steps (spread.py).
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is compiled or recorded before it is used."""
        self._given, self._device, self.model, self._losses_of = model, device, model, losses_of(model, device)
        self.recorder = RecordedFunction(self._computed, self._copied) if model.trial and device.type == "cpu" else None
        self._compute: Program = self.recorder or self._computed

    def forget(self) -> None:
        """Drop what a user's network and loss keep of the clients before."""
        self.model = unused(self._given, self._device)
        self._losses_of = losses_of(self.model, self._device) if self._given.own else self._losses_of

    def record(self, forms: Iterable[Form]) -> None:
        """Record steps of these forms; only in a process that has seen no client."""
        if self.recorder is not None:
            for form in forms:
                self.recorder.record(form, self._made_up, samples=prod(form[3][0]))

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        states = generator_states() if self.model.own else None
        gradients = self._compute(params, batch, targets, present, *masks)
        if states is not None and states != generator_states():
            raise ConfigError(
                f"model {self.model.name} or its loss draws random numbers for some samples, which clients that are "
                "computed together would share; draw them for all samples alike, or use engine = reference."
            )
        return gradients

    def _computed(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, *masks: Tensor
    ) -> Sequence[Tensor]:
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self.model.unflatten(params).items()}
            losses_of = plain_losses(self.model, masks) if masks else self._losses_of
            losses = losses_of(leaves, batch, targets, present)
            return torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)

    def _copied(self) -> Program:
        return Gradients(copy.deepcopy(self.model), self._device)._computed

    def _made_up(self, form: Form, generator: torch.Generator) -> Arguments:
        assert self.model.trial is not None
        (params, _, _), _, _, (present, _, _), *masks = form
        rows = torch.randint(len(self.model.trial[0]), present, generator=generator)
        inputs, labels = (values[rows] for values in self.model.trial)
        given = torch.as_tensor(self.model.given).expand(params)
        some = torch.rand(present, generator=generator) < 0.8
        some[:, 0] = True
        drawn = [made_up_parameters(given, generator), inputs, labels, some]
        drawn += [1.25 * torch.randint(2, shape, generator=generator) for shape, _, _ in masks]
        return [in_form(one, new) for one, new in zip(form, drawn, strict=True)]
