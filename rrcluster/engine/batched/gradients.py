"""Gradients of stacked clients."""

from collections.abc import Sequence

import torch
from torch import Tensor

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
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer."""

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is compiled before it is used."""
        self._given, self._device, self.model, self._losses_of = model, device, model, losses_of(model, device)

    def forget(self) -> None:
        """Drop what a user's network and loss keep of the clients before."""
        self.model = unused(self._given, self._device)
        self._losses_of = losses_of(self.model, self._device) if self._given.own else self._losses_of

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        states = generator_states() if self.model.own else None
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self.model.unflatten(params).items()}
            losses_of = plain_losses(self.model, masks) if masks else self._losses_of
            losses = losses_of(leaves, batch, targets, present)
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        if states is not None and states != generator_states():
            raise ConfigError(
                f"model {self.model.name} or its loss draws random numbers for some samples, which clients that are "
                "computed together would share; draw them for all samples alike, or use engine = reference."
            )
        return gradients
