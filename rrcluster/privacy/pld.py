"""Privacy loss distributions of one round, built with dp-accounting from the profiles of `profiles.py`.

Every distribution here is pessimistic: its delta at each epsilon is at least the true one, at every step size, and
stays so under composition ("connect the dots": Doroshenko et al. 2022, arXiv 2207.04380). A coarser step is faster and
looser, never unsound. Floating-point rounding is not covered here; `evidence.py` bounds it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, cast

import numpy as np

from rrcluster.privacy import profiles
from rrcluster.privacy.events import Event, FixedSize, PoissonGaussian

STEP = 1e-4  # privacy loss per cell, at most, while a round fits into MAX_CELLS
MAX_CELLS = 500_000
COARSER = 10  # the search for a noise multiplier starts on a grid this many times coarser
_STEPS_PER_DEVIATION = 40
_TAIL = 9.6  # standard deviations of noise; the mass beyond, below 1e-21, counts as certain failure
_LOWEST = -45.0  # losses below it have mass under exp(-45), which is moved up to it


class LossDistribution(Protocol):
    """The methods that we use of dp-accounting's `PrivacyLossDistribution`."""

    def self_compose(self, num_times: int) -> Self:
        """The distribution after `num_times` rounds."""

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """The delta at `epsilon`."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose delta is at most `delta`; `math.inf` if there is none."""


@dataclass(frozen=True)
class GridProfile:
    """Profiles of one round at 0, step, 2 step, ...: `deltas` for one order of the neighbours, `reverse` for the other.

    `reverse` is None if the two are alike.
    """

    step: float
    deltas: profiles.Array
    reverse: profiles.Array | None = None

    def directions(self) -> list[tuple[profiles.Array, profiles.Array]]:
        """(profile, profile of the neighbours exchanged), for every order that has to be accounted."""
        if self.reverse is None:
            return [(self.deltas, self.deltas)]
        return [(self.deltas, self.reverse), (self.reverse, self.deltas)]


def poisson_pld(event: PoissonGaussian, *, coarse: bool = False) -> LossDistribution:
    """Both directions (add, remove) of the Poisson-sampled Gaussian, from dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution

    z, q = event.noise_multiplier, event.sample_rate
    step = poisson_step(event, coarse=coarse)
    pld = privacy_loss_distribution.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=step)
    return cast(LossDistribution, pld)


def poisson_step(event: PoissonGaussian, *, coarse: bool = False) -> float:
    """Privacy loss per cell."""
    top = profiles.after_sampling(_gaussian_top(event.noise_multiplier), event.sample_rate)
    return _step(2 * top, event.sample_rate, _chi_square(event.noise_multiplier), coarse)


def poisson_profile(event: PoissonGaussian) -> GridProfile:
    """Profiles of one round: a client removed, and a client added."""
    step = poisson_step(event)
    top = profiles.after_sampling(_gaussian_top(event.noise_multiplier), event.sample_rate)
    at = np.arange(math.ceil(top / step) + 1) * step
    removed = event.sample_rate * profiles.gaussian_delta(
        profiles.before_sampling(at, event.sample_rate), event.noise_multiplier
    )
    added = profiles.poisson_added_delta(at, event.noise_multiplier, event.sample_rate)
    return GridProfile(step, removed, added)


def fixed_size_pld(event: FixedSize, *, coarse: bool = False) -> LossDistribution:
    """The pair that dominates one round on a fixed-size cohort under replace-one; both directions alike.

    Valid for any round that is itself dominated by the event's base pair; see `profiles.fixed_size_delta`.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    grid = fixed_size_profile(event, coarse=coarse)
    lower = max(-_fixed_size_top(event), _LOWEST)
    first, masses = _connect_dots(grid.deltas, grid.step, math.floor(lower / grid.step))
    pmf = pld_pmf.DensePLDPmf(grid.step, first, masses, float(grid.deltas[-1]), pessimistic_estimate=True)
    return cast(LossDistribution, privacy_loss_distribution.PrivacyLossDistribution(pmf))


def fixed_size_profile(event: FixedSize, *, coarse: bool = False) -> GridProfile:
    """Profile of one round under replace-one, the same for both orders of the neighbours."""
    q, z, choice = event.sample_rate, event.noise_multiplier, event.choice
    chi_square = (1 + _chi_square(z)) * math.exp(float(choice.rdp(2))) - 1
    upper = _fixed_size_top(event)
    step = _step(upper - max(-upper, _LOWEST), q, chi_square, coarse)
    base = partial(choice.gaussian_delta, noise_multiplier=z)
    return GridProfile(step, profiles.fixed_size_delta(np.arange(math.ceil(upper / step) + 1) * step, base, q))


PROFILES: dict[type, Callable[..., GridProfile]] = {PoissonGaussian: poisson_profile, FixedSize: fixed_size_profile}


def grid_profile(event: Event) -> GridProfile:
    """Profiles of one round of `event` on the grid of its loss distribution, which it must have."""
    return PROFILES[type(event)](event)


def _fixed_size_top(event: FixedSize) -> float:
    return profiles.after_sampling(_gaussian_top(event.noise_multiplier) + event.choice.largest_loss, event.sample_rate)


def _connect_dots(deltas: profiles.Array, step: float, first: int) -> tuple[int, profiles.Array]:
    """The masses of a symmetric pair on the losses first * step, ..., given its deltas at 0, step, 2 step, ...

    The curve through the deltas that is linear in exp(epsilon) between them lies on or above the convex
    true one, and is the profile of a pair with masses on the grid only; deltas[-1] is its mass at infinity.
    The negative half follows from symmetry, mass(-x) = exp(-x) mass(x), which loses no precision where delta
    is close to 1. What symmetry puts below `first`, and rounding, are moved up to 0.
    """
    slopes = np.diff(deltas) / math.expm1(step)
    above = np.append(slopes[1:] - slopes[:-1] * math.exp(step), -slopes[-1] * math.exp(step))
    above = np.maximum(above, 0.0)
    below = above[:-first] * np.exp(-step * np.arange(1, min(len(above), -first) + 1))
    middle = max(0.0, 1 - deltas[-1] - above.sum() - below.sum())
    return -len(below), np.concatenate([below[::-1], [middle], above])


def _gaussian_top(noise_multiplier: float) -> float:
    return 1 / (2 * noise_multiplier**2) + _TAIL / noise_multiplier


def _chi_square(noise_multiplier: float) -> float:
    return math.expm1(min(1 / noise_multiplier**2, 50.0))


def _step(width: float, q: float, chi_square: float, coarse: bool) -> float:
    """Fine against the spread of the loss (about q times the chi distance), in at most MAX_CELLS cells."""
    fine = max(min(STEP, q * math.sqrt(chi_square) / _STEPS_PER_DEVIATION), width / MAX_CELLS)
    return COARSER * fine if coarse else fine
