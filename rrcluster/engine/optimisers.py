"""A client's optimiser (SGD, with momentum, or Adam) and the seeds of its steps. Its state is fresh in every round."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcluster.rng import client_words
from rrcluster.settings import LocalSettings
from rrcluster.types import Array

BETAS, SMALL = (0.9, 0.999), 1e-8  # of Adam (Kingma and Ba 2015), PyTorch's defaults
_STEPS = 0x73746570  # sets the words for steps apart from those for the order of samples


def step_seeds(key: tuple[Any, Any], clients: Array, count: int) -> Array:
    """(n, count) seeds, one for each step of each client: what random layers (dropout) draw from in that step.

    A function of the key and the client's id alone, so that nobody's draws depend on who else takes part. The two
    halves of the key are numbers, or one number per client, (n, 1).
    """
    first, second = key
    words = client_words((first ^ _STEPS, second), np.asarray(clients, dtype=np.int64), 2 * count)
    return np.asarray(words[:, 0::2] | (words[:, 1::2] & 0x7FFFFFFF) << 32)


def direction(momentum: float, state: Sequence[Tensor], gradient: Tensor, steps: Any) -> Tensor:
    """What a step of size 1 subtracts: SGD with momentum where the state is one tensor, Adam where it is two.

    The state is updated in place. `steps` is how many steps have been taken, this one included: a number, or (n, 1)
    for n clients.
    """
    if len(state) == 1:
        (velocity,) = state
        return velocity.mul_(momentum).add_(gradient)
    mean, square = state
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    size = (square / (1 - BETAS[1] ** steps)).sqrt() + SMALL
    moved: Tensor = mean / (1 - BETAS[0] ** steps) / size
    return moved


def state_size(optimizer: str, momentum: float) -> int:
    """How many numbers per coordinate the optimiser remembers from step to step."""
    return 2 if optimizer == "adam" else 1 if momentum else 0


class Optimiser:
    """Moves the parameters of one client, in place."""

    def __init__(
        self, parameters: Sequence[Tensor], local: LocalSettings, anchor: Array, trainable: Array | None = None
    ) -> None:
        """`anchor` (d,) is the centre of the proximal term; `trainable` (d,) says which coordinates move."""
        self._parameters, self._local, self._steps = list(parameters), local, 0
        self._anchor = _parts(anchor, parameters) if local.proximal else None
        self._masks = None if trainable is None else _parts(trainable, parameters)
        size = state_size(local.local_optimizer, local.local_momentum)
        self._states = [[torch.zeros_like(part) for _ in range(size)] for part in parameters] if size else None

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step. Products and differences are rounded separately, as in numpy."""
        local, moves = self._local, list(gradients)
        self._steps += 1
        if self._anchor is not None:
            gaps = torch._foreach_sub(self._parameters, self._anchor)
            moves = list(torch._foreach_add(moves, torch._foreach_mul(gaps, local.proximal)))
        if self._masks is not None:
            moves = [torch.where(mask, move, 0.0) for mask, move in zip(self._masks, moves, strict=True)]
        if self._states is not None:
            pairs = zip(self._states, moves, strict=True)
            moves = [direction(local.local_momentum, state, move, self._steps) for state, move in pairs]
        torch._foreach_sub_(self._parameters, torch._foreach_mul(moves, local.local_lr))


def _parts(vector: Array, parameters: Sequence[Tensor]) -> list[Tensor]:
    """A flat vector in the shapes of the parameters."""
    flat = torch.as_tensor(vector, device=parameters[0].device)
    pieces = torch.split(flat, [part.numel() for part in parameters])
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parameters, strict=True)]
