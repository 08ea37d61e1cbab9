"""A client's local steps: the order of its samples, the seeds of its random layers, and its optimiser.

Order and seeds are functions of (seed, round, client id) alone; the state of an optimiser is fresh in every round.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcluster.registry import ACCELERATORS
from rrcluster.rng import client_words
from rrcluster.settings import LocalSettings
from rrcluster.types import Array

_LAST = 2**32  # sorts after every draw
_LONGEST_SORTED = 2048  # samples of a client that one program sorts


def batch_orders(key: tuple[int, int], clients: Array, sizes: Array, *, epochs: int) -> Array:
    """(n, epochs, s) positions: for each client and epoch a uniform permutation of its samples, then its padding.

    Drawn per client, so neither the cohort around it nor the padding changes a client's order.
    """
    longest = int(sizes.max(initial=0))
    orders = np.empty((len(clients), epochs, longest), dtype=np.int64)
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        words = client_words(key, np.asarray(clients, dtype=np.int64)[same], epochs * int(size))
        shuffled = words.reshape(len(same), epochs, int(size)).argsort(axis=-1, kind="stable")
        orders[same, :, :size] = shuffled
        orders[same, :, size:] = np.arange(size, longest)
    return orders


def step_rows(integers: Tensor, *, epochs: int, width: int, step: int) -> Tensor:
    """(steps, n, step) rows of a table for every step, -1 where a client has no sample left.

    `integers` (n, 6) is `ClientBatch.integers`. By one kernel on a CUDA device, as int32; elsewhere by torch.
    """
    per_epoch = -(-width // step)
    if integers.is_cuda and per_epoch * step <= _LONGEST_SORTED and (kernels := _draw_kernels()):
        return kernels.rows(integers, epochs, per_epoch, step)  # type: ignore[no-any-return]
    clients, starts, sizes, keys = integers[:, 1], integers[:, 2], integers[:, 3], integers[:, 4:6]
    order = visits(keys, clients, sizes, epochs=epochs, width=width)
    rows = torch.where(order >= 0, order + starts[:, None, None], -1)
    rows = torch.nn.functional.pad(rows, (0, per_epoch * step - width), value=-1)
    return rows.reshape(len(clients), epochs * per_epoch, step).transpose(0, 1).contiguous()


def visits(keys: Tensor, clients: Tensor, sizes: Tensor, *, epochs: int, width: int) -> Tensor:
    """The same permutations on any device, and a key for every client: (n, 2), (n,), (n,) -> (n, epochs, width).

    Positions beyond a client's size are -1. No size may be above `width`.
    """
    count = epochs * width
    words = words_on(keys, clients, count)
    position = torch.arange(width, device=clients.device)
    epoch = torch.arange(epochs, device=clients.device)
    real = (position < sizes[:, None])[:, None, :]  # (n, 1, width)
    place = epoch[None, :, None] * sizes[:, None, None] + position  # index of a draw among the client's own
    sort_keys = words.gather(1, place.clamp(max=count - 1).flatten(1)).reshape(place.shape)
    order = torch.where(real, sort_keys, _LAST).argsort(dim=-1, stable=True)
    return torch.where(real, order, -1)


def words_on(keys: Tensor, clients: Tensor, count: int) -> Tensor:
    """(n, 2), (n,) int64 -> (n, count): the words of `rng.client_words`, with a key for every client.

    Drawn by one kernel on a CUDA device where there is one, elsewhere by torch.
    """
    blocks = -(-count // 4)
    if clients.is_cuda and (kernels := _draw_kernels()):
        return kernels.words(keys, clients, blocks)[:, :count]  # type: ignore[no-any-return]
    like = torch.arange(blocks, device=clients.device)
    drawn: Tensor = client_words((keys[:, :1], keys[:, 1:]), clients, count, like=like)
    return drawn


def _draw_kernels() -> Any:
    """Kernels that draw on a CUDA device; None if their distribution, or Triton, is not installed."""
    try:
        return ACCELERATORS.load("draws") if "draws" in ACCELERATORS else None
    except ImportError:
        return None


BETAS, SMALL = (0.9, 0.999), 1e-8  # of Adam (Kingma and Ba 2015), PyTorch's defaults
_STEPS = 0x73746570  # separates the words for steps from those for the order of samples


def step_seeds(key: tuple[Any, Any], clients: Array, count: int) -> Array:
    """(n, count) seeds, one for each step of each client, for random layers (dropout) in that step.

    A function of the key and the client's id alone, so that nobody's draws depend on who else takes part. The two
    halves of the key are numbers, or one number per client, (n, 1).
    """
    first, second = key
    words = client_words((first ^ _STEPS, second), np.asarray(clients, dtype=np.int64), 2 * count)
    return np.asarray(words[:, 0::2] | (words[:, 1::2] & 0x7FFFFFFF) << 32)


def direction(momentum: float, state: Sequence[Tensor], gradient: Tensor, steps: Any) -> Tensor:
    """The direction that a step of size 1 subtracts: SGD with momentum for one state tensor, Adam for two.

    The state is updated in place. `steps` counts the steps so far, this one included: a number, or (n, 1) for n
    clients.
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
    """Numbers per coordinate in the optimiser's state."""
    return 2 if optimizer == "adam" else 1 if momentum else 0


class Optimiser:
    """Moves the parameters of one client, in place."""

    def __init__(
        self, parameters: Sequence[Tensor], local: LocalSettings, anchor: Array, trainable: Array | None = None
    ) -> None:
        """`anchor` (d,) is the centre of the proximal term; `trainable` (d,) marks the coordinates that move."""
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
        for parameter, move in zip(self._parameters, moves, strict=True):  # one by one: both are still in the cache
            parameter.sub_(move * local.local_lr)


def _parts(vector: Array, parameters: Sequence[Tensor]) -> list[Tensor]:
    """A flat vector in the shapes of the parameters."""
    flat = torch.as_tensor(vector, device=parameters[0].device)
    pieces = torch.split(flat, [part.numel() for part in parameters])
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parameters, strict=True)]
