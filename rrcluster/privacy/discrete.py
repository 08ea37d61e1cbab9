"""The discrete Gaussian, sampled exactly: P(x) proportional to exp(-x^2 / (2 sigma^2)) on the whole numbers.

With a *whole* sigma (after Karney 2016, "Sampling exactly from the normal distribution", Algorithm D), x is
+-(k sigma + j) with 0 <= j < sigma, and

    exp(-x^2 / (2 sigma^2)) = exp(-k^2 / 2) * exp(-g),    g = j (2 k sigma + j) / (2 sigma^2),

so: draw k by its own law, j uniformly, a sign, and accept with probability exp(-g). Both real probabilities are
compared with a uniform U of unlimited precision, of which as many bits are drawn as the comparison needs. Floating
point decides only where its error cannot matter: U is 53 bits, and where it lies within one part in 2^40 of the
probability (numpy's is within 2^-46 of it), the next bits are drawn and the comparison is made with `decimal`, whose
exponential is correctly rounded, at a precision that grows until it is decided. So the law is exact: nothing is
rounded and no tail is cut. The bits come from the operating system, fresh for each call, and are not kept.

How long a draw takes depends on the draw; that time is not covered by any guarantee.

**Noise shares** (`share_sigma`, docs/privacy.md). In a secure aggregation each client adds a share of the
noise to its message, and nobody knows the noise of the sum. Let a sum hold messages of norm at most S and shares from
at least h = `least_honest` clients that follow the protocol. Then towards everybody else, the server included, its
noise is that of one discrete Gaussian of std at least `noise_std`, up to a factor of 1 +- 8 h exp(-40000) on every
probability: Proposition 4 and the accountants carry over. The relation is *zero-out*: the neighbour takes part with a
zero message and its share. Add-remove does not hold, since an absent client's share is absent too, and the noise level
of many coordinates shows how many there were. Shares are calibrated to the clients that must be honest, never to those
that happen to take part; fewer than agreed on are never unmasked (federation/secagg/terms.py).
"""

import itertools
import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cache, partial

import numpy as np

from rrcluster import checks
from rrcluster.entropy import below, fresh_bits, os_words
from rrcluster.errors import ConfigError
from rrcluster.types import Array

LEAST_SIGMA, MOST_SIGMA = 64, 2**56
_MARGIN = 2.0**-40  # relative distance to a probability below which floating point does not decide
_FIRST_BITS = 53


def grid_sigma(noise_std: float, step: float) -> int:
    """The integer number of grid steps for `noise_std`: rounded up, plus one part in 2^40 and one step.

    The surplus covers everything the proof of Proposition 4 (docs/privacy.md) needs: sigma^2 - 8^2 is still at least
    (noise_std
    step)^2, also after the rounding of `noise_std` itself (a few parts in 2^53). ConfigError outside of 64..2^56 steps,
    beyond which that argument or 64-bit integers would fail.
    """
    exact = math.ceil(Fraction(noise_std) / Fraction(step))
    sigma = exact + (exact >> 40) + 1
    if not LEAST_SIGMA <= sigma <= MOST_SIGMA:
        raise ConfigError(
            f"noise of {sigma} grid steps cannot be drawn exactly, which needs {LEAST_SIGMA} to 2^56; bring "
            "noise_multiplier closer to 1."
        )
    return sigma


def discrete_gaussian(sigma: int, count: int) -> Array:
    """(count,) int64 independent draws of the discrete Gaussian with the whole parameter `sigma` >= 1."""
    drawn = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        value, accepted = _propose(sigma, len(missing))
        drawn[missing[accepted]] = value[accepted]
        missing = missing[~accepted]
    return drawn


def _propose(sigma: int, count: int) -> tuple[Array, Array]:
    """One proposal each, and whether it is accepted."""
    k, j, negative = _whole_sigmas(count), below(sigma, count), below(2, count) == 1
    value = k * sigma + j
    accepted = _accept(k, j, sigma, (os_words(count) >> np.uint64(64 - _FIRST_BITS)).astype(np.int64))
    accepted &= ~(negative & (value == 0))  # zero has one sign, not two
    return np.where(negative, -value, value), accepted


def _accept(k: Array, j: Array, sigma: int, bits: Array, *, margin: float = _MARGIN) -> Array:
    """(n,) whether U < exp(-g), where `bits` are the first 53 of U; further bits are drawn on demand."""
    x = j / sigma
    probability = np.exp(-x * (k + x / 2))
    below_u, above_u = bits * 2.0**-_FIRST_BITS, (bits + 1) * 2.0**-_FIRST_BITS
    accepted = above_u <= probability * (1 - margin)
    for place in np.flatnonzero(~accepted & (below_u < probability * (1 + margin))):
        g = Fraction(int(j[place]) * (2 * int(k[place]) * sigma + int(j[place])), 2 * sigma**2)
        accepted[place] = _Uniform(int(bits[place]), _FIRST_BITS).is_below(partial(_exp_minus, g))
    return accepted


def _whole_sigmas(count: int) -> Array:
    """(count,) k >= 0 with P(k) proportional to exp(-k^2 / 2): how many of P(<= 0), P(<= 1), ... are at most U."""
    words, table = os_words(count), _cumulative_words()
    k = np.searchsorted(table, words, side="left")
    for place in np.flatnonzero(table[np.minimum(k, len(table) - 1)] == words):  # the digits after these decide
        uniform = _Uniform(int(words[place]), 64)
        k[place] = next(k for k in itertools.count(int(k[place])) if uniform.is_below(partial(_cumulative, k)))
    return k


@cache
def _cumulative_words() -> Array:
    """The first 64 bits of P(k <= 0), P(k <= 1), ..., up to the first that are all ones."""
    context = Context(prec=60)
    words = [math.floor(Fraction(_cumulative(k, context)) * 2**64) for k in range(12)]
    assert words[-1] == 2**64 - 1
    return np.array(words, dtype=np.uint64)


def _cumulative(k: int, context: Context) -> Decimal:
    """P(at most k), to the precision of the context less its last ten digits."""
    with localcontext(context):
        weights = [_exp_minus(Fraction(i * i, 2), context) for i in range(k + 2 + math.isqrt(5 * context.prec))]
        return sum(weights[: k + 1], Decimal(0)) / sum(weights, Decimal(0))


def _exp_minus(g: Fraction, context: Context) -> Decimal:
    """exp(-g), to the precision of the context less its last ten digits."""
    with localcontext(context):
        return (-Decimal(g.numerator) / Decimal(g.denominator)).exp()


class _Uniform:
    """A uniform number in [0, 1) with its first bits fixed; comparisons draw more as needed."""

    def __init__(self, bits: int, count: int) -> None:
        self._bits, self._count = bits, count

    def is_below(self, probability: Callable[[Context], Decimal]) -> bool:
        """Whether it is below a probability, which is computed to any requested precision."""
        while True:
            context = Context(prec=self._count // 3 + 30)  # more digits than the bits have
            value, error = Fraction(probability(context)), Fraction(10) ** (10 - context.prec)
            if Fraction(self._bits + 1, 1 << self._count) <= value - error:
                return True
            if Fraction(self._bits, 1 << self._count) >= value + error:
                return False
            self._bits, self._count = self._bits << 64 | fresh_bits(64), self._count + 64


SUM_BITS = 32  # words of a secure aggregation are integers modulo 2^32
FINEST_GRID, COARSEST_GRID = 20, 14  # bits of the clip: finer gains nothing, coarser loses a percent of an update
DEVIATIONS = 16  # standard deviations of noise within which sums must not wrap


def share_sigma(noise_std: float, step: float, *, least_honest: int) -> int:
    """The parameter of one client's share in grid steps: h shares have at least the variance of `grid_sigma`.

    ConfigError below 64 steps, where a sum of shares is no longer one discrete Gaussian for all purposes.
    """
    checks.count(least_honest=least_honest)
    total = grid_sigma(noise_std, step)
    sigma = math.isqrt((total**2 - 1) // least_honest) + 1
    if sigma < LEAST_SIGMA:
        raise ConfigError(
            f"noise shares of {sigma} grid steps are too coarse for {least_honest} clients, {LEAST_SIGMA} at least are "
            "needed; use a finer grid."
        )
    return sigma


def bits_needed(*, num_messages: int, largest: int, sigma: int, num_shares: int) -> int:
    """Bits of a signed word that holds any sum of messages with coordinates up to `largest`, and 16 std of noise."""
    most = num_messages * largest + math.ceil(DEVIATIONS * sigma * math.sqrt(num_shares))
    return most.bit_length() + 1


def finest_grid(*, num_messages: int, longest: float, noise_std: float, least_honest: int, num_shares: int) -> int:
    """The most grid bits, up to 20, whose sums fit 32-bit words; `longest` and `noise_std` are in units of the clip.

    ConfigError where only grids coarser than 14 bits fit: rounding would cost more than a percent of an update.
    """
    for bits in range(FINEST_GRID, COARSEST_GRID - 1, -1):
        step = 2.0 ** -(bits + 1)  # a step is more than half of 2^-bits of the clip
        sigma = share_sigma(noise_std, step, least_honest=least_honest)
        largest = math.ceil(longest / step)
        if bits_needed(num_messages=num_messages, largest=largest, sigma=sigma, num_shares=num_shares) <= SUM_BITS:
            return bits
    raise ConfigError(
        f"sums of {num_messages} messages do not fit {SUM_BITS} bits on a grid of {COARSEST_GRID} bits or finer; lower "
        "num_clients, count_weight or private_evaluation, or ask for less noise."
    )
