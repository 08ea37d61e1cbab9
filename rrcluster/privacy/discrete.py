"""The discrete Gaussian, sampled exactly: P(x) proportional to exp(-x^2 / (2 sigma^2)) on the whole numbers.

Canonne, Kamath, Steinke 2020 (arXiv 2004.00010): rejection with Bernoulli(exp(-gamma)) made of Bernoulli(gamma / K)
only (their Algorithm 1). With a *whole* sigma the proposal can be Karney's (2016, "Sampling exactly from the normal
distribution", Algorithm D): x = k sigma + j, with 0 <= j < sigma, for which

    exp(-x^2 / (2 sigma^2)) = exp(-k^2 / 2) * exp(-j / sigma)^k * exp(-(j / sigma)^2 / 2),

so that every coin is a product of coins of probability 1/2, 1/K and j / sigma. Those are comparisons of uniform whole
numbers below 2^62 (entropy.below): no floating point, no rounding, no truncation of the tail, and vectors at a time.
The bits come from the operating system, fresh for each call, and are not kept.

How long a draw takes depends on the draw; that time is not covered by any guarantee.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from rrcluster.entropy import below
from rrcluster.errors import ConfigError
from rrcluster.types import Array

LEAST_SIGMA, MOST_SIGMA = 64, 2**56
Coins = Callable[[Array], Array]  # places -> one fresh coin for each of them


def grid_sigma(noise_std: float, step: float) -> int:
    """The whole number of grid steps that stands for `noise_std`: rounded up, and one part in 2^40 and one step more.

    The surplus pays for everything the proof of Proposition 4 (docs/privacy.md) needs: sigma^2 - 8^2 is still at least
    (noise_std / step)^2, also after the rounding of `noise_std` itself (a few parts in 2^53). ConfigError outside of
    64..2^56 steps, where that argument or 64-bit whole numbers would give out.
    """
    exact = math.ceil(Fraction(noise_std) / Fraction(step))
    sigma = exact + (exact >> 40) + 1
    if not LEAST_SIGMA <= sigma <= MOST_SIGMA:
        raise ConfigError(
            f"noise of {sigma} grid steps cannot be drawn exactly, only {LEAST_SIGMA} to 2^56; bring noise_multiplier "
            "closer to 1."
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
    """One proposal each, and whether it is accepted: with probability exp(-x^2 / (2 sigma^2)) over the proposal's."""
    k = _half_steps(count)
    j, negative = below(sigma, count), below(2, count) == 1
    accepted = ~(negative & (k == 0) & (j == 0))  # zero has one sign, not two
    accepted &= _all(k * (k - 1), _root_e, among=accepted)  # k came with exp(-k/2): exp(-k^2/2) is wanted
    accepted &= _all(k, lambda places: _exp(places, lambda some: below(sigma, len(some)) < j[some]), among=accepted)
    accepted &= _all(np.ones_like(k), lambda places: _exp(places, _half_square(j, sigma)), among=accepted)
    if k[accepted].max(initial=0) > 100:
        raise OverflowError("a draw beyond 100 sigma: the operating system's generator is broken.")  # p < e^-5000
    value = np.where(accepted, k, 0) * sigma + j
    return np.where(negative, -value, value), accepted


def _half_square(j: Array, sigma: int) -> Coins:
    """Coins of probability (j / sigma)^2 / 2."""

    def flip(places: Array) -> Array:
        n = len(places)
        fits = (below(sigma, n) < j[places]) & (below(sigma, n) < j[places])
        return np.asarray(fits & (below(2, n) == 0))

    return flip


def _half_steps(count: int) -> Array:
    """(count,) geometric: how many coins of probability exp(-1/2) fall true in a row."""
    steps, going = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(going):
        going = going[_root_e(going)]
        steps[going] += 1
    return steps


def _root_e(places: Array) -> Array:
    """Coins of probability exp(-1/2)."""
    return _exp(places, lambda some: below(2, len(some)) == 0)


def _all(times: Array, coins: Coins, *, among: Array) -> Array:
    """Whether as many coins as `times` says all fall true, flipped only for places `among` and while undecided."""
    won, flipped = among.copy(), 0
    while len(places := np.flatnonzero(won & (times > flipped))):
        won[places] = coins(places)
        flipped += 1
    return won


def _exp(places: Array, coins: Coins) -> Array:
    """Coins of probability exp(-gamma), from coins of probability gamma <= 1 (Algorithm 1 of Canonne et al. 2020).

    Count coins of probability gamma / 1, gamma / 2, gamma / 3, ... until the first that falls false: the number of it
    is odd with probability exp(-gamma).
    """
    odd, going, trial = np.zeros(len(places), dtype=bool), np.arange(len(places)), 1
    while len(going):
        true = coins(places[going]) & (below(trial, len(going)) == 0)
        odd[going[~true]] = trial % 2 == 1
        going, trial = going[true], trial + 1
    return odd
