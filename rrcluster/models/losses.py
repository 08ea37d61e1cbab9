"""Clients' mean losses as one program.

The program is compiled by torch where that is faster and possible.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rrcluster.models.model import Model, Parameters


def masked_mean(losses: Tensor, present: Tensor) -> Tensor:
    """Mean over the last axis of the entries that are present, 0 where there are none: (..., s), (..., s) -> (...).

    Padding is excluded by `where`, never by multiplying: a NaN in the padding does not pass.
    """
    total = torch.where(present, losses, 0.0).sum(-1)
    return total / present.sum(-1).clamp(min=1)


Losses = Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]


def losses_of(model: Model, device: torch.device) -> Losses:
    """A function of parameters, inputs (G, s, ...), targets (G, s) and what is present (G, s): mean losses (G,).

    Compiled for convolutions on a CUDA device, whose normalisations and pools are otherwise separate passes over
    memory. torch caches compiled programs between processes.
    """
    if device.type == "cuda" and model.convolutional:
        return _Compiled(model)
    return plain_losses(model)


def plain_losses(model: Model, masks: Sequence[Tensor] = ()) -> Losses:
    """The same function, not compiled; `masks` are those of dropout."""

    def losses(parameters: Parameters, inputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
        return masked_mean(model.task.losses(model.grouped(parameters, inputs, masks), targets, axes=2), present)

    return losses


class _Compiled:
    """Compiles at the first call; where that fails (no compiler, say), warns and runs uncompiled."""

    def __init__(self, model: Model) -> None:
        self._plain = plain_losses(model)
        self._losses: Losses | None = None

    def __call__(self, parameters: Parameters, inputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
        """Mean losses (G,)."""
        if self._losses is None:
            try:
                self._losses = torch.compile(self._plain, dynamic=False)
                return self._losses(parameters, inputs, targets, present)
            except Exception as error:  # whatever a compiler may raise
                kind = type(error).__name__  # not its text, which may reveal the number of clients
                logging.getLogger("rrcluster").warning("torch.compile failed (%s); running uncompiled.", kind)
                self._losses = self._plain
        return self._losses(parameters, inputs, targets, present)
