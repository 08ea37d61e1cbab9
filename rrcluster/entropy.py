"""Random numbers that nobody can regenerate: every bit from the operating system, none of them kept.

`SecureStreams` has the calls of `rng.Streams`, but a name stands for nothing: each call answers afresh, and two calls
with the same arguments share nothing. Behind it, `SecureRng` turns words of the kernel's cryptographic generator
(`os.urandom`) into the draws that this package makes. It holds no state: there is no seed and no key that could be
written down, repeated, or shared with a forked process.

What must be unpredictable is the noise, the cohort and the privatised identifiers; all three read the operating system
directly. Draws keyed by client (softened choices, coins, batches) use Philox, which is not cryptographic, under a
fresh key of 64 operating-system bits per round and purpose: the guarantee holds given any value of those draws
(docs/privacy.md, Theorem 1 and "Soundness"), so they must be independent of the data and need not be secret.
"""

import os
from typing import Any, NoReturn, Protocol, cast

import numpy as np

from rrcluster.errors import PrivacyError
from rrcluster.rng import Rng
from rrcluster.types import Array

Shape = int | tuple[int, ...]


class StreamSource(Protocol):
    """Where a run's randomness comes from: `rng.Streams` (seeded) or `SecureStreams`."""

    def __call__(self, name: str, *key: int) -> Rng:
        """A generator for the consumer `name` at position `key`."""

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The key under which every client of this round draws for the purpose `name`."""


class SecureStreams:
    """A bundle of streams like `rng.Streams`, each fresh from the operating system. It has no state and no seed."""

    def __call__(self, name: str, *key: int) -> Rng:  # noqa: ARG002 (one interface with Streams)
        """A generator; whatever the name and the key, calling twice gives independent draws."""
        return secure_rng()

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:  # noqa: ARG002 (one interface with Streams)
        """A fresh key of 64 operating-system bits: ask once per round and purpose."""
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
    drawn = _words(count, size)
    while usable < 1 << 8 * size and len(wrong := np.flatnonzero(drawn >= usable)):
        drawn[wrong] = _words(len(wrong), size)
    return (drawn % drawn.dtype.type(bound)).astype(np.int64) if bound < 1 << 8 * size else drawn.astype(np.int64)


def _words(count: int, size: int) -> Array:
    """(count,) fresh words of `size` bytes."""
    return np.frombuffer(bytearray(os.urandom(size * count)), dtype=f"<u{size}")


def fresh_bits(count: int) -> int:
    """A whole number of `count` fresh bits."""
    return int.from_bytes(os.urandom((count + 7) // 8), "little") >> (-count % 8)


def secure_rng() -> Rng:
    """What to pass as `rng` where nobody may regenerate the draws: it offers the methods listed in `SecureRng`."""
    return cast(Rng, SecureRng())


def check_secure(rng: Rng) -> None:
    """Refuse a seeded generator where the statement promises noise that nobody can regenerate."""
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
    identifiers, never for released noise, which is exact (privacy/discrete.py). A method that is not here raises
    instead of falling back.
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
        """Whole numbers in low..high-1, or in 0..low-1."""
        least, most = (0, low) if high is None else (low, high)
        return least + below(most - least, int(np.prod(size))).reshape(size)

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
        """How many of so many coins fall on their side."""
        return int((self.random(trials) < probability).sum())

    def geometric(self, probability: float) -> int:
        """How many coins it takes until the first falls on its side: at least 1, and exactly geometric.

        Every coin is fresh and falls on its side with exactly the probability given, all digits of the float counted.
        """
        if not 0 < probability <= 1:
            raise ValueError(f"probability = {probability!r} must lie in (0, 1].")
        side, faces = probability.as_integer_ratio()  # faces is a power of two
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
        """Everything else that a numpy generator offers is refused, never drawn from a weaker source."""
        raise AttributeError(f"secure randomness has no {name!r}; write it in rrcluster/entropy.py over os_words.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("operating-system randomness cannot be stored or sent.")
