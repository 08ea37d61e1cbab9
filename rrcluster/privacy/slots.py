"""Slots: the rounds in which a client may take part, fixed before anybody enrols; and noise correlated over rounds.

A client's slot is a keyed hash of its id, so that adding or removing a client changes nobody else's; slots by order of
enrolment would change, and slots chosen by hand may depend on data. In round t only clients of slot t mod b may take
part: at most once in any b rounds, and at most ceil(T
b) times.

Correlated noise cancels in sums over rounds (docs/privacy.md, Theorem 5). C is the lower triangular Toeplitz matrix of
c_0 .. c_{b-1}, whose squares add up to 1. A round releases x_t + n_t, where C n = z S Z with independent Z: the release
is a function of C x + z S Z.

Coefficients are whole multiples of 1/256 of c_0. Exact noise is on a grid 256 times finer than the messages', so that
coefficients times messages are whole numbers of its steps: rounding then reads released values alone, and the exact
form costs no more than the real one (docs/privacy.md, Proposition 6).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.types import Array

_TABLE = 2**16  # clients below this number are looked up in a table
_MOST_EMPTY = 0.1  # average number of empty slots over keys


@dataclass(frozen=True)
class Slots:
    """`count` slots (b) under a public key, for a plan of `num_rounds` rounds (T). One slot: everybody, always."""

    count: int = 1
    key: str = ""
    num_rounds: int = 0

    def __post_init__(self) -> None:
        checks.count(slots=self.count)

    def most_rounds(self, num_rounds: int) -> int:
        """R = ceil(T / b): the most rounds, of `num_rounds`, in which a client takes part."""
        return -(-num_rounds // self.count)

    def of(self, clients: Array | Sequence[int | str | bytes]) -> Array:
        """(n,) the slot of every client, by its id."""
        if isinstance(clients, np.ndarray):
            if clients.dtype.kind in "iu" and clients.size and 0 <= clients.min() <= clients.max() < _TABLE:
                return _slots_of(1 << int(clients.max()).bit_length(), self.key, self.count)[clients]
            clients = clients.tolist()
        return np.array([_slot(client, self.key, self.count) for client in clients], dtype=np.int32)

    def eligible(self, population: int | tuple[str, ...], round_index: int) -> Array:
        """Sorted numbers of the clients that may take part in a round; `population` is their number, or their names.

        Clients with names have slots by name: numbers in the order of names would change as others join or leave. The
        cap on participations is enforced here, where cohorts are drawn: PrivacyError beyond the plan's last round.
        """
        if not 0 <= round_index < self.num_rounds:
            raise PrivacyError(
                f"round {round_index} is outside of the plan's {self.num_rounds} rounds: its clients would take part "
                f"more often than the {self.most_rounds(self.num_rounds)} times that epsilon covers; start a new run."
            )
        return np.flatnonzero(_slots_of(population, self.key, self.count) == round_index % self.count)

    def check_filled(self, num_clients: int) -> None:
        """Refuse a number of slots that may leave some empty, judged by the declared number of clients alone.

        Whether one *is* empty depends on the clients: refusing because of that would reveal it.
        """
        empty = self.count * (1 - 1 / self.count) ** num_clients
        if empty > _MOST_EMPTY:
            raise ConfigError(
                f"slots = {self.count} for {num_clients} clients would leave {empty:.2g} slots without any client on "
                "average; use fewer slots."
            )


ONE_SLOT = Slots()


@lru_cache(maxsize=2**16, typed=True)  # a client is looked up in each of its rounds
def _slot(client: int | str | bytes, key: str, count: int) -> int:
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()
    spelled = client if isinstance(client, bytes) else str(client).encode()
    kind = b"number:" if isinstance(client, int) else b"text:" if isinstance(client, str) else b"bytes:"
    digest = hashlib.blake2b(kind + spelled, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "little") % count


@lru_cache(maxsize=4)
def _slots_of(population: int | tuple[str, ...], key: str, count: int) -> Array:
    """(population,) slots of the clients numbered from 0, or of those named; about a microsecond each, once."""
    clients = range(population) if isinstance(population, int) else population
    slots = np.fromiter((_slot(client, key, count) for client in clients), np.int32, count=len(clients))
    slots.flags.writeable = False
    return slots


FINER = 256  # steps of exact correlated noise in one step of the messages' grid, and parts of c_0 in a coefficient
MOST_SPREAD = 8.0  # limit on a single round's noise, relative to independent noise
MOST_BYTES = 4 * 2**30  # limit on the noise vectors in memory
_MOST_DEVIATIONS = 100  # bound on a discrete Gaussian draw; larger ones have a probability below exp(-5000)


@dataclass(frozen=True)
class PastNoise:
    """The noise of the last b - 1 rounds before `round_index`, the latest first. Private: it reveals exact sums."""

    round_index: int
    vectors: tuple[Array, ...]  # b - 1 of (width,): float64 in grid steps, or int64 in 1/256 of them if noise is exact

    def tensors(self) -> dict[str, Array]:
        """As named arrays, for the checkpoint."""
        vectors = np.stack(self.vectors) if self.vectors else np.zeros((0, 0))
        return {"noise.round": np.array([self.round_index]), "noise.vectors": vectors}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "PastNoise | None":
        """The inverse of `tensors`; None if they contain no noise."""
        if "noise.vectors" not in tensors:
            return None
        return cls(int(tensors["noise.round"][0]), tuple(tensors["noise.vectors"]))


@dataclass(frozen=True)
class ModelNoise:
    """Noise std of the released models, for independent noise of std 1 on each round's sums."""

    independent: float
    chosen: float


@dataclass(frozen=True)
class Correlation:
    """Coefficients in parts of c_0 / 256, the first of them 256, for a plan of `num_rounds` rounds."""

    parts: tuple[int, ...] = (FINER,)
    num_rounds: int = 1
    model_noise: ModelNoise | None = None  # the result of these coefficients

    def __post_init__(self) -> None:
        if not self.parts or self.parts[0] != FINER:
            raise ConfigError(f"correlation: the first of the coefficients must be 1 ({FINER} parts of itself).")
        if not self.spread <= MOST_SPREAD:
            raise ConfigError(
                f"correlation: with these coefficients the noise of a single round grows to {self.spread:.3g} times "
                f"that of independent noise over {self.num_rounds} rounds, more than {MOST_SPREAD:g}: their inverse "
                "grows."
            )

    @property
    def relative(self) -> Array:
        """(b,) coefficients divided by c_0."""
        return np.array(self.parts) / FINER

    @cached_property
    def lengthening(self) -> float:
        """1 / c_0: the factor by which fresh noise is larger than independent noise would be."""
        return math.sqrt(sum(part * part for part in self.parts)) / FINER

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c_0 .. c_{b-1}, of squares that add up to 1."""
        return tuple((self.relative / self.lengthening).tolist())

    @cached_property
    def inverse(self) -> Array:
        """(num_rounds,) first column of the inverse of C / c_0; by recursion, without the matrix."""
        relative, inverse = self.relative, np.zeros(self.num_rounds)
        for t in range(self.num_rounds):
            earlier = inverse[max(0, t - len(relative) + 1) : t][::-1]
            inverse[t] = (t == 0) - relative[1 : len(earlier) + 1] @ earlier
            if not abs(inverse[t]) < 1e6:  # it diverges: its size no longer matters
                inverse[t:] = math.inf
                break
        return inverse

    @cached_property
    def spread(self) -> float:
        """Std of the noise of the last round, relative to independent noise; no round has more."""
        return float(self.lengthening * math.sqrt(self.inverse @ self.inverse))

    def describe(self) -> dict[str, Any]:
        """The entry of the statement."""
        gain = {} if self.model_noise is None else {"noise_of_models_handed_out": asdict(self.model_noise)}
        return {"coefficients": list(self.coefficients), "noise_of_a_round": self.spread, **gain}

    def next_noise(self, fresh: Array, past: PastNoise) -> Array:
        """The round's noise from fresh independent noise, which is larger than z S by `lengthening`."""
        if not past.vectors:
            return fresh
        if fresh.dtype.kind == "f":
            noise, share = fresh.copy(), np.empty_like(fresh)  # one allocation for all vectors is faster
            for part, vector in zip(self.parts[1:], past.vectors, strict=True):
                noise -= np.multiply(vector, part / FINER, out=share)
            return noise
        owed = np.zeros_like(fresh)
        for part, vector in zip(self.parts[1:], past.vectors, strict=True):
            owed += part * vector
        return np.asarray(fresh - ((owed + FINER // 2) >> 8))

    def first_past(self, width: int, *, exact: bool) -> PastNoise:
        """The noise before the first round: zero."""
        zero = np.zeros(width, dtype=np.int64 if exact else np.float64)
        return PastNoise(0, (zero,) * (len(self.parts) - 1))

    def check_applies(self, *, slots: int, width: int) -> None:
        """Refuse more coefficients than slots, and noise vectors that take too much memory."""
        if len(self.parts) > slots:
            raise ConfigError(
                f"correlated noise of {len(self.parts)} coefficients needs as many slots, not {slots}: a "
                "client must not take part again while noise still depends on its last message."
            )
        needed = 8 * width * (len(self.parts) - 1)
        if needed > MOST_BYTES:
            raise ConfigError(
                f"correlated noise keeps the last {len(self.parts) - 1} noise vectors of {width} numbers, "
                f"{needed / 2**30:.3g} GiB, more than {MOST_BYTES / 2**30:g} GiB; use fewer slots, a smaller model, or "
                "participation = everybody or poisson, which keep none."
            )

    def check_past(self, past: PastNoise | None, round_index: int, *, width: int, exact: bool) -> PastNoise:
        """The noise that a round builds on; PrivacyError where it is lost, or from another run or round."""
        if past is None:
            raise PrivacyError(
                f"round {round_index} builds on the noise of the rounds before it, which is missing from "
                "checkpoint/. Fresh noise would not cancel, and the guarantee would change; start a new run."
            )
        vectors, kind = len(self.parts) - 1, "i" if exact else "f"
        fit = [vector.shape == (width,) and vector.dtype.kind == kind for vector in past.vectors]
        if past.round_index != round_index or fit != [True] * vectors:
            raise PrivacyError(
                f"round {round_index} builds on the noise of the {vectors} rounds before, and checkpoint/ holds that "
                "of another round or shape: it was changed. Start a new run."
            )
        return past

    def check_fits(self, sigma: int) -> None:
        """Refuse exact noise whose weighted sums could leave 64 bits."""
        largest = _MOST_DEVIATIONS * sigma * float(np.abs(self.inverse).sum())
        if largest * sum(map(abs, self.parts)) >= 2.0**62:
            raise ConfigError(
                "exact correlated noise of this size does not fit 64-bit whole numbers; lower noise_multiplier or "
                "slots, or use participation = everybody or poisson."
            )


INDEPENDENT = Correlation()


def after(past: PastNoise, noise: Array) -> PastNoise:
    """The past noise that later rounds need after a round with this noise; it shares memory with both."""
    return PastNoise(past.round_index + 1, (noise, *past.vectors)[: len(past.vectors)])


def make_correlation(*, slots: int, num_rounds: int, momentum: float = 0.0, average_last: float = 0.5) -> Correlation:
    """The square root of the matrix of prefix sums, truncated: the least noise in sums over rounds."""
    if slots == 1:
        return INDEPENDENT
    parts = np.rint(square_root(slots) * FINER).astype(int)
    chosen = Correlation(tuple(parts.tolist()), num_rounds)
    stds = [_model_noise(each, num_rounds, momentum, average_last) for each in (INDEPENDENT, chosen)]
    return replace(chosen, model_noise=ModelNoise(*stds))


def square_root(slots: int) -> Array:
    """(slots,) coefficients, relative to the first."""
    j = np.arange(1, slots)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def _model_noise(correlation: Correlation, num_rounds: int, momentum: float, average_last: float) -> float:
    """Noise std in the released models, if they move by released sums (means divide by sizes that vary)."""
    from scipy.signal import lfilter

    t = np.arange(num_rounds)
    moved = (1 - momentum ** (t + 1.0)) / (1 - momentum)  # by a sum, in the models so many rounds later
    num_averaged = max(1, int((t + 1 > num_rounds * (1 - average_last)).sum()))
    added_up = np.cumsum(moved)[::-1]  # over all models from round t on
    before = np.concatenate([added_up[num_averaged:], np.zeros(num_averaged)])
    handed_out = (added_up - before) / num_averaged
    whitened = lfilter([1.0], correlation.relative, handed_out[::-1])
    return float(np.sqrt(correlation.lengthening**2 * (whitened @ whitened)))
