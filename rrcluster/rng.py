"""Named random streams, and draws that belong to a client.

One seed per run. Every consumer has its own *named* stream, so adding a consumer shifts nobody else's draws, and two
seeds share no stream. A draw that belongs to a client (batch order, coin, dropout) is keyed by (seed, stream, round,
client id), never by the client's place in the cohort: stacking, padding, sharding and resuming change nothing.

These generators are for simulation. They are not cryptographic: anybody with the seed can subtract the noise, which is
why the statement of a seeded run says that its artefacts are NOT PRIVATE.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

Rng = np.random.Generator

_MASK = 0xFFFFFFFF


def stream(seed: int, name: str, *key: int) -> Rng:
    """An independent generator for the consumer `name`, at position `key` (a round, a client, ...)."""
    return np.random.Generator(np.random.Philox(key=_digest(seed, name, *key)))


@dataclass(frozen=True)
class Streams:
    """A bundle of named streams: `streams("release", round_index)` is an independent generator."""

    seed: int

    def __call__(self, name: str, *key: int) -> Rng:
        """The stream called `name` at position `key`."""
        return stream(self.seed, name, *key)

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The key under which every client of this round draws for the purpose `name`."""
        digest = _digest(self.seed, name, round_index)
        return digest & _MASK, (digest >> 32) & _MASK


def client_words(key: tuple[Any, Any], clients: Any, count: int, like: Any = None) -> Any:
    """32 random bits per draw, (n, count), a function of `key` and each client's id alone.

    Philox4x32-10 (Salmon et al. 2011) with counter (id low, id high, block, 0), written with integer operators only:
    the same bits from numpy int64 arrays and from torch int64 tensors on any device. `like` is an int64 arange
    (0, 1, ..., blocks - 1) of the same kind as `clients`; by default numpy's. The two halves of the key are numbers, or
    one number per client, (n, 1).
    """
    blocks = -(-count // 4)
    counter = np.arange(blocks, dtype=np.int64) if like is None else like[:blocks]
    zero = counter * 0
    low, high = clients & _MASK, (clients >> 32) & _MASK
    words = [low[:, None] + zero[None, :], high[:, None] + zero[None, :], (clients * 0)[:, None] + counter[None, :]]
    words.append(words[2] * 0)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [((p1 >> 32) & _MASK) ^ words[1] ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ words[3] ^ k1, p0 & _MASK]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    if like is None:
        return np.stack(words, axis=-1).reshape(len(clients), 4 * blocks)[:, :count]
    import torch

    return torch.stack(words, dim=-1).reshape(len(clients), 4 * blocks)[:, :count]


def client_uniforms(key: tuple[int, int], clients: np.ndarray, count: int = 1) -> np.ndarray:
    """Uniform draws in (0, 1), (n, count), keyed by client id."""
    if not count:
        return np.zeros((len(clients), 0))
    words = client_words(key, np.asarray(clients, dtype=np.int64), count)
    return np.asarray((words.astype(np.float64) + 0.5) / 2.0**32)


def _digest(*parts: int | str) -> int:
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
