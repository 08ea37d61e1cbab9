"""Privacy loss distributions of one round, built with dp-accounting from the profiles of `profiles.py`.

Every distribution here is pessimistic: its delta at each epsilon is at least the true one, at every step size, and
stays so under composition ("connect the dots": Doroshenko et al. 2022, arXiv 2207.04380). A coarser step is faster
and looser, never unsound. What is left out: floating-point rounding, about 1e-13 in delta.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from rrcluster.privacy import profiles
from rrcluster.privacy.events import FixedSizeGaussian, FixedSizeKary, PoissonGaussian

STEP = 1e-4  # privacy loss per cell, at most, while a round fits into MAX_CELLS
MAX_CELLS = 500_000
COARSER = 10  # the search for a noise multiplier starts on a grid this many times coarser
_STEPS_PER_DEVIATION = 20
_TAIL = 9.6  # standard deviations of noise; the mass beyond, below 1e-21, is counted as a certain failure
_LOWEST = -45.0  # the mass at losses below it is under exp(-45), and is moved up to it


def sample_rate(event: PoissonGaussian | FixedSizeGaussian | FixedSizeKary) -> float:
    """The fraction of clients in one cohort, expected or exact."""
    if isinstance(event, PoissonGaussian):
        return event.sample_rate
    return event.cohort_size / event.num_clients


def poisson_pld(event: PoissonGaussian, *, coarse: bool = False) -> Any:
    """Both directions (add, remove) of the Poisson-sampled Gaussian, from dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution

    z, q = event.noise_multiplier, event.sample_rate
    top = profiles.after_sampling(_gaussian_top(z), q)
    return privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=_step(2 * top, q, _chi_square(z), coarse)
    )


def fixed_size_pld(event: FixedSizeGaussian | FixedSizeKary, *, coarse: bool = False) -> Any:
    """The pair that dominates one round on a fixed-size cohort under replace-one; symmetric, so one direction.

    Valid for any round that is itself dominated by the event's base pair; see `profiles.fixed_size_delta`.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    q, z = sample_rate(event), event.noise_multiplier
    top, chi_square = _gaussian_top(z), _chi_square(z)
    base: profiles.Profile = partial(profiles.gaussian_delta, noise_multiplier=z)
    if isinstance(event, FixedSizeKary):
        p, k = event.keep_probability, event.num_clusters
        base = partial(profiles.kary_gaussian_delta, noise_multiplier=z, keep_probability=p, num_clusters=k)
        top += profiles.kary_loss(p, k)
        chi_square = (1 + chi_square) * math.exp(float(profiles.kary_rdp(2, p, k))) - 1
    upper = profiles.after_sampling(top, q)
    lower = max(-upper, _LOWEST)
    step = _step(upper - lower, q, chi_square, coarse)
    first, last = math.floor(lower / step), math.ceil(upper / step)
    deltas = profiles.fixed_size_delta(np.arange(first, last + 1) * step, base, q)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, first, last, np.clip(deltas, 0.0, 1.0))
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _gaussian_top(noise_multiplier: float) -> float:
    return 1 / (2 * noise_multiplier**2) + _TAIL / noise_multiplier


def _chi_square(noise_multiplier: float) -> float:
    return math.expm1(min(1 / noise_multiplier**2, 50.0))


def _step(width: float, q: float, chi_square: float, coarse: bool) -> float:
    """A step fine against the spread of the loss (about q times the chi distance), in at most MAX_CELLS cells."""
    fine = max(min(STEP, q * math.sqrt(chi_square) / _STEPS_PER_DEVIATION), width / MAX_CELLS)
    return COARSER * fine if coarse else fine
