"""Random words of clients: drawn by one kernel on a CUDA device (words_triton.py), elsewhere by torch."""

import torch
from torch import Tensor

from rrcluster.rng import client_words

_TILE = 128


def words_on(keys: Tensor, clients: Tensor, count: int) -> Tensor:
    """(n, 2), (n,) int64 -> (n, count): the words of `rng.client_words`, with a key for every client."""
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
    from rrcluster.engine.batched.words_triton import words

    out = torch.empty(len(clients), 4 * blocks, dtype=torch.int64, device=clients.device)
    if len(clients) and blocks:
        words[(len(clients), -(-blocks // _TILE))](keys.contiguous(), clients.contiguous(), out, blocks, TILE=_TILE)
    return out
