"""Bounds on epsilon from both sides, with all rounding: against mpmath, exact fractions, and each other."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy import evidence as brackets
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.evidence import bracket
from rrcluster.privacy.pld import PROFILES, grid_profile, poisson_profile

mpmath.mp.dps = 40


class Unsampled(PoissonGaussian):
    """Everybody takes part, composed like a sampled round, so that the closed form is there to compare with."""

    plain_gaussian = False


def gaussian_delta(eps, z):
    return mpmath.ncdf(1 / (2 * z) - eps * z) - mpmath.exp(eps) * mpmath.ncdf(-1 / (2 * z) - eps * z)


def removed_delta(eps, z, q):
    """Profile of (1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), at any epsilon."""
    grown = mpmath.exp(eps) - (1 - q)
    return q * gaussian_delta(mpmath.log(grown / q), z) if grown > 0 else 1 - mpmath.exp(eps)


def twice_removed_delta(eps, z, q):
    """The same after two rounds: the first loss integrated, the second in closed form."""

    def at(x):
        ratio = (1 - q) + q * mpmath.exp((2 * x - 1) / (2 * z * z))
        return ratio * mpmath.npdf(x / z) / z * removed_delta(eps - mpmath.log(ratio), z, q)

    return mpmath.quad(at, mpmath.linspace(-10 * z, 1 + 10 * z, 9))


def holds(made, delta_at, delta):
    """Whether the exact epsilon is between the two ends: delta falls."""
    return delta_at(mpmath.mpf(made.most)) <= delta <= delta_at(mpmath.mpf(made.least))


@pytest.mark.parametrize(("z", "q", "delta"), [(1.0, 0.1, 1e-4), (1.2, 0.02, 1e-8), (3.0, 0.5, 1e-3)])
def test_one_round_holds_the_exact_epsilon(z, q, delta):
    made = bracket(PoissonGaussian(z, q), num_rounds=1, delta=delta)
    assert holds(made, lambda eps: removed_delta(eps, mpmath.mpf(z), mpmath.mpf(q)), delta)
    assert made.most - made.least < 1e-3 * made.most


def test_two_rounds_hold_the_exact_epsilon():
    made = bracket(PoissonGaussian(1.0, 0.3), num_rounds=2, delta=1e-5)
    with mpmath.workdps(20):
        assert holds(made, lambda eps: twice_removed_delta(eps, mpmath.mpf(1), mpmath.mpf(0.3)), 1e-5)
    assert made.most - made.least < 1e-4 * made.most


@pytest.mark.parametrize(("z", "rounds", "delta"), [(8.0, 200, 1e-6), (1.0, 3, 1e-9)])
def test_unsampled_rounds_hold_the_exact_epsilon(z, rounds, delta, monkeypatch):
    monkeypatch.setitem(PROFILES, Unsampled, poisson_profile)
    made = bracket(Unsampled(z, 1.0), num_rounds=rounds, delta=delta)
    assert holds(made, lambda eps: gaussian_delta(eps, mpmath.mpf(z) / mpmath.sqrt(rounds)), delta)
    assert made.most - made.least < 1e-3 * made.most


@pytest.mark.parametrize(
    ("event", "rounds", "delta"),
    [
        (PoissonGaussian(1.0, 0.1), 100, 1e-4),
        (PoissonGaussian(30.0, 0.3), 5000, 1e-6),
        (PoissonGaussian(0.8, 0.02), 5, 1e-9),
        (FixedSize(1.5, 100, 1000), 100, 1e-4),
        (FixedSize(1.5, 100, 1000, KaryChoice(0.7, 4)), 100, 1e-4),
    ],
)
def test_the_stated_epsilon_is_at_most_rounding_below_the_upper_end(event, rounds, delta):
    stated = epsilon(event, num_rounds=rounds, delta=delta)
    made = bracket(event, num_rounds=rounds, delta=delta)
    assert made.least <= stated
    assert made.most <= stated * (1 + 1e-7)
    assert made.most - made.least < 2e-2 * stated


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
def test_rounding_of_a_composition_stays_within_its_bound(rounds):
    rng = np.random.default_rng(rounds)
    masses = rng.dirichlet(np.ones(9))
    step, first = 0.125, -4
    exact = [Fraction(1)]
    for _ in range(rounds):
        longer = [Fraction(0)] * (len(exact) + len(masses) - 1)
        for place, mass in enumerate(exact):
            for shift, other in enumerate(masses):
                longer[place + shift] += mass * Fraction(float(other))
        exact = [Fraction(round(mass * 2**300), 2**300) for mass in longer]  # keeps fractions short: 1e-90
    near = step * (first * rounds + (len(exact) - 1) * 0.6)
    composed = brackets._Composed(masses, first, step, rounds, near)
    for eps in (near, near + 0.02 * rounds):
        losses = [(place + first * rounds) * step for place in range(len(exact))]
        terms = [
            mpmath.mpf(m.numerator) / m.denominator * -mpmath.expm1(eps - loss)
            for m, loss in zip(exact, losses, strict=True)
            if loss > eps
        ]
        value, error = composed.delta(eps)
        assert abs(value - mpmath.fsum(terms)) <= error + 1e-13 * rounds * value
        assert error < 1e-6 * value


def test_masses_dominate_and_are_dominated():
    grid = grid_profile(PoissonGaussian(1.0, 0.1))
    for deltas, reverse in grid.directions():
        places = np.arange(0, len(deltas) - 1, 1997) + 0.5  # between the points of the grid, too
        for part in (places, np.floor(places)):
            eps = part * grid.step
            removed = deltas is grid.deltas
            exact = [float(removed_delta(e, 1, mpmath.mpf(0.1))) if removed else float(added(e)) for e in eps]
            above = profile(brackets._dominating(deltas, reverse, grid.step), grid.step, eps) + deltas[-1]
            below = profile(brackets._dominated(deltas, reverse, grid.step, 100, 1e-4), grid.step, eps)
            assert np.all(above >= np.array(exact) * (1 - 1e-12))
            assert np.all(below <= np.array(exact) * (1 + 1e-12) + 1e-17)


def added(eps):
    left = 1 - (1 - mpmath.mpf(0.1)) * mpmath.exp(eps)
    return left * gaussian_delta(eps + mpmath.log(mpmath.mpf(0.1) / left), mpmath.mpf(1)) if left > 0 else 0


def profile(made, step, epsilons):
    masses, first = made
    losses = (np.arange(len(masses)) + first) * step
    return np.array([np.sum(masses[losses > e] * -np.expm1(e - losses[losses > e])) for e in epsilons])


def test_where_there_is_nothing_to_bracket():
    assert bracket(PoissonGaussian(1.0, 1e-12), num_rounds=10, delta=1e-4).most == 0
    closed = bracket(PoissonGaussian(2.0, 1.0), num_rounds=4, delta=1e-5)
    assert closed.least == closed.most == epsilon(PoissonGaussian(2.0, 1.0), num_rounds=4, delta=1e-5)
    with pytest.raises(UnsupportedEvent):
        bracket(RepeatAndSelect(PoissonGaussian(1.0, 0.1), 10, 5.0, "geometric"), num_rounds=1, delta=1e-4)
    assert math.isfinite(bracket(PoissonGaussian(0.5, 0.001), num_rounds=3, delta=1e-8).most)


def test_tiny_noise_is_bracketed_without_overflow():
    """Losses beyond exp's range, where a run with little noise ended in an OverflowError."""
    event = PoissonGaussian(0.02, 0.9)
    found = bracket(event, num_rounds=2, delta=1e-3)
    assert 2000 < found.least <= found.most
    assert found.least <= epsilon(event, num_rounds=2, delta=1e-3)
