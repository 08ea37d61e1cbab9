"""The order in which a client visits its samples: a function of (seed, round, client id) only."""

import numpy as np
import torch
from torch import Tensor

from rrcluster.rng import client_words
from rrcluster.types import Array

_LAST = 2**32  # sorts behind every draw
_TILE = 128
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
    if integers.is_cuda and per_epoch * step <= _LONGEST_SORTED:
        try:
            return _rows_by_kernel(integers, epochs, per_epoch, step)
        except ImportError:  # torch without Triton
            pass
    clients, starts, sizes, keys = integers[:, 1], integers[:, 2], integers[:, 3], integers[:, 4:6]
    order = visits(keys, clients, sizes, epochs=epochs, width=width)
    rows = torch.where(order >= 0, order + starts[:, None, None], -1)
    rows = torch.nn.functional.pad(rows, (0, per_epoch * step - width), value=-1)
    return rows.reshape(len(clients), epochs * per_epoch, step).transpose(0, 1).contiguous()


def _rows_by_kernel(integers: Tensor, epochs: int, per_epoch: int, step: int) -> Tensor:
    from rrcluster.engine.batched import kernels_triton

    count = len(integers)
    out = torch.empty(epochs * per_epoch, count, step, dtype=torch.int32, device=integers.device)
    width = 1 << (per_epoch * step - 1).bit_length()
    kernels_triton.step_rows[(count, epochs)](integers, out, count, step, per_epoch, WIDTH=width)
    return out


def visits(keys: Tensor, clients: Tensor, sizes: Tensor, *, epochs: int, width: int) -> Tensor:
    """The same permutations on any device, and a key for every client: (n, 2), (n,), (n,) -> (n, epochs, width).

    Positions beyond a client's size are -1. No size may be above `width`.
    """
    count = epochs * width
    words = words_on(keys, clients, count)
    position = torch.arange(width, device=clients.device)
    epoch = torch.arange(epochs, device=clients.device)
    real = (position < sizes[:, None])[:, None, :]  # (n, 1, width)
    place = epoch[None, :, None] * sizes[:, None, None] + position  # of a draw among the client's own
    drawn = words.gather(1, place.clamp(max=count - 1).flatten(1)).reshape(place.shape)
    order = torch.where(real, drawn, _LAST).argsort(dim=-1, stable=True)
    return torch.where(real, order, -1)


def words_on(keys: Tensor, clients: Tensor, count: int) -> Tensor:
    """(n, 2), (n,) int64 -> (n, count): the words of `rng.client_words`, with a key for every client.

    Drawn by one kernel on a CUDA device (kernels_triton.py), elsewhere by torch.
    """
    blocks = -(-count // 4)
    if clients.is_cuda:
        try:
            return drawn_by_kernel(keys, clients, blocks)[:, :count]
        except ImportError:  # torch without Triton
            pass
    like = torch.arange(blocks, device=clients.device)
    drawn: Tensor = client_words((keys[:, :1], keys[:, 1:]), clients, count, like=like)
    return drawn


def drawn_by_kernel(keys: Tensor, clients: Tensor, blocks: int) -> Tensor:
    """(n, 4 blocks), by the kernel."""
    from rrcluster.engine.batched.kernels_triton import words

    out = torch.empty(len(clients), 4 * blocks, dtype=torch.int64, device=clients.device)
    if len(clients) and blocks:
        words[(len(clients), -(-blocks // _TILE))](keys.contiguous(), clients.contiguous(), out, blocks, TILE=_TILE)
    return out
