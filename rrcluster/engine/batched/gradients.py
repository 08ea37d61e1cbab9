"""Gradients of stacked clients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rrcluster.models.losses import losses_of, plain_losses
from rrcluster.models.model import Model


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer."""

    def __init__(self, model: Model, device: torch.device) -> None:
        """Nothing is compiled before the first use."""
        self._model, self._losses_of = model, losses_of(model, device)

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Of params (G, d) on a batch (G, s, ...); `masks` are those of dropout."""
        leaves = {name: value.detach().requires_grad_() for name, value in self._model.unflatten(params).items()}
        losses_of = plain_losses(self._model, masks) if masks else self._losses_of
        losses = losses_of(leaves, batch, targets, present)
        return torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
