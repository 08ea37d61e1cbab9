"""Random numbers that nobody can regenerate: every bit from the operating system, none of them stored.

`SecureStreams` has the interface of `rng.Streams`, but ignores names: each call draws afresh, and two calls with the
same arguments share nothing. Behind it, `SecureRng` turns words of the kernel's cryptographic generator (`os.urandom`)
into the draws that this package makes. It has no state: there is no seed and no key that could be recorded, repeated,
or shared with a forked process.

Noise, cohorts and privatised identifiers must be unpredictable; all three read the operating system directly. Draws
keyed by client (softened choices, coins, batches) use Philox, which is not cryptographic, under a fresh key of 64
operating-system bits per round and purpose: the guarantee holds given any value of those draws (docs/privacy.md,
Theorem 1 and "Soundness"), so they must be independent of the data and need not be secret.
"""

import os
from typing import Any, NoReturn, Protocol, cast

import numpy as np

from rrcluster.errors import PrivacyError
from rrcluster.rng import Rng
from rrcluster.types import Array

Shape = int | tuple[int, ...]


class StreamSource(Protocol):
    """The source of a run's randomness: `rng.Streams` (seeded) or `SecureStreams`."""

    def __call__(self, name: str, *key: int) -> Rng:
        """A generator for the consumer `name` at position `key`."""

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The key under which every client of this round draws for the purpose `name`."""


class SecureStreams:
    """Streams with the interface of `rng.Streams`, each fresh from the operating system. No state and no seed."""

    def __call__(self, name: str, *key: int) -> Rng:  # noqa: ARG002 (one interface with Streams)
        """A generator; two calls give independent draws, whatever the name and key."""
        return secure_rng()

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:  # noqa: ARG002 (one interface with Streams)
        """A fresh key of 64 operating-system bits; to be requested once per round and purpose."""
        word = int(os_words(1)[0])
        return word & 0xFFFFFFFF, word >> 32


def os_words(count: int) -> Array:
    """(count,) uint64 straight from the operating system."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def below(bound: int, count: int) -> Array:
    """(count,) int64, exactly uniform in 0..bound-1, for bounds up to 2^62.

    Remainders of words from the shortest type that holds the bound; a word at or above the largest multiple of the
    bound is drawn again.
    """
    size = next(size for size in (1, 2, 4, 8) if bound <= 1 << 8 * size)
    usable = (1 << 8 * size) // bound * bound
    words = _words(count, size)
    while usable < 1 << 8 * size and len(wrong := np.flatnonzero(words >= usable)):
        words[wrong] = _words(len(wrong), size)
    return (words % words.dtype.type(bound)).astype(np.int64) if bound < 1 << 8 * size else words.astype(np.int64)


def _words(count: int, size: int) -> Array:
    """(count,) fresh words of `size` bytes."""
    return np.frombuffer(bytearray(os.urandom(size * count)), dtype=f"<u{size}")


def fresh_bits(count: int) -> int:
    """An integer of `count` fresh bits."""
    return int.from_bytes(os.urandom((count + 7) // 8), "little") >> (-count % 8)


def secure_rng() -> Rng:
    """A generator for `rng` arguments whose draws nobody may regenerate, with the methods of `SecureRng`."""
    return cast(Rng, SecureRng())


def check_secure(rng: Rng) -> None:
    """Refuse a seeded generator where the statement promises secure noise."""
    if not isinstance(cast(object, rng), SecureRng):
        raise PrivacyError(
            "a secure plan needs randomness from the operating system, and this generator is seeded; pass "
            "rrcluster.entropy.secure_rng(), or make the plan without secure."
        )


class SecureRng:
    """The part of `numpy.random.Generator` that this package uses, on operating-system entropy alone.

    Integers, permutations and subsets are exactly uniform, and `geometric` has exactly its law. Events of probability p
    happen with a probability within 2^-53 of p: uniforms are odd multiples of 2^-53, in (0, 1). `standard_normal` is
    the rounded inverse of the normal distribution function at such a uniform: for first models and for the argmax of
    identifiers, never for released noise, which is exact (privacy/discrete.py). Missing methods raise instead of
    falling back.
    """

    def random(self, size: Shape = 1) -> Array:
        """Uniforms in (0, 1): odd multiples of 2^-53, all of them floating-point numbers, so never 0 or 1."""
        words = os_words(int(np.prod(size))) >> np.uint64(12)
        return np.asarray((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(size)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Shape = 1) -> Array:
        """Uniforms in (low, high)."""
        return low + (high - low) * self.random(size)

    def standard_normal(self, size: Shape = 1) -> Array:
        """Normal draws to floating-point precision."""
        from scipy.special import ndtri

        return np.asarray(ndtri(self.random(size)))

    def integers(self, low: int, high: int | None = None, size: Shape = 1) -> Array:
        """Integers in low..high-1, or in 0..low-1."""
        first, end = (0, low) if high is None else (low, high)
        return first + below(end - first, int(np.prod(size))).reshape(size)

    def permutation(self, values: int | Array) -> Array:
        """A uniformly random order. Sort keys are drawn again until no two agree, so that no order is favoured."""
        items = np.arange(values) if isinstance(values, int) else np.asarray(values)
        keys = os_words(len(items))
        while len(np.unique(keys)) < len(keys):
            keys = os_words(len(items))
        return np.asarray(items[np.argsort(keys)])

    def choice(self, values: int | Array, size: int, *, replace: bool, shuffle: bool = True) -> Array:  # noqa: ARG002
        """A uniformly random subset, in random order."""
        if replace:
            raise NotImplementedError("secure draws with replacement are not offered; use integers.")
        return self.permutation(values)[:size]

    def binomial(self, trials: int, probability: float) -> int:
        """The number of heads among so many coins."""
        return int((self.random(trials) < probability).sum())

    def geometric(self, probability: float) -> int:
        """The number of coins up to the first head: at least 1, and exactly geometric.

        Every coin is fresh and its probability of heads is exact, to the last digit of the float.
        """
        if not 0 < probability <= 1:
            raise ValueError(f"probability = {probability!r} must lie in (0, 1].")
        side, faces = probability.as_integer_ratio()  # the denominator is a power of two
        tosses = 1
        while fresh_bits(faces.bit_length() - 1) >= side:
            tosses += 1
        return tosses

    def logseries(self, ratio: float) -> int:
        """P(n) = ratio^n / (n log(1 / (1 - ratio))): geometric with probability (1 - ratio)^U, U uniform in (0, 1).

        Integrated over U that is the law. Its coins are exact as in `geometric`; U is an odd multiple of 2^-53, and the
        power of it is rounded as floats are.
        """
        if not 0 < ratio < 1:
            raise ValueError(f"ratio = {ratio!r} must lie in (0, 1).")
        return self.geometric(float((1 - ratio) ** self.random()[0]))

    def __getattr__(self, name: str) -> Any:
        """Refuse all other methods of numpy generators, rather than draw from a weaker source."""
        raise AttributeError(f"secure randomness has no {name!r}; write it in rrcluster/entropy.py over os_words.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("operating-system randomness cannot be stored or sent.")
