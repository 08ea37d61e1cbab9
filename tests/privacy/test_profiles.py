import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from rrcluster.errors import ConfigError
from rrcluster.privacy import pld as loss
from rrcluster.privacy import profiles
from rrcluster.privacy.events import FixedSize, KaryChoice

multipliers = st.floats(0.2, 20)
losses = st.floats(-6, 6)


def brute_force_delta(epsilon, z, p=None, k=None):
    """Integral of (P - exp(epsilon) Q)+, outcome by outcome of the response; written without profiles.py."""
    r = (1 - p) / (k - 1) if k else 0
    pairs = [(p, r), (r, p), *[(r, r)] * (k - 2)] if k else [(1, 1)]
    x = np.linspace(-14, 15, 150_001) * z  # noise std z, shift 1
    x = np.concatenate([x, x + 1])
    x.sort()
    old, new = stats.norm.pdf(x, 1, z), stats.norm.pdf(x, 0, z)
    parts = (np.maximum(a * old - math.exp(epsilon) * b * new, 0) for a, b in pairs)
    return sum(integrate.trapezoid(part, x) for part in parts)


@pytest.mark.parametrize("epsilon", [-2, -0.3, 0, 0.5, 1, 2, 3])
@pytest.mark.parametrize("z", [0.5, 1, 2])
def test_gaussian_delta_is_the_integral(epsilon, z):
    assert profiles.gaussian_delta(epsilon, z) == pytest.approx(brute_force_delta(epsilon, z), rel=1e-6)


def test_gaussian_delta_by_hand():
    # z = 1, epsilon = 0: total variation of N(0,1) and N(1,1) = 2 Phi(1/2) - 1
    assert profiles.gaussian_delta(0.0, 1.0) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=1e-13)


def test_gaussian_delta_keeps_its_precision_in_the_tail():
    # mpmath, 60 digits: ncdf(1/(2z) - e z) - exp(e) ncdf(-1/(2z) - e z)
    got = profiles.gaussian_delta([5.0, 20.0, 35.0], 1.0)
    want = [5.79372169192e-7, 2.66470670537e-86, 1.12797121451e-262]
    assert got == pytest.approx(want, rel=1e-11)
    assert profiles.gaussian_delta(500.0, 1.0) == 0
    assert profiles.gaussian_delta(-500.0, 1.0) == 1


def test_vectors_and_scalars_agree():
    grid = np.linspace(-3, 3, 13)
    assert profiles.gaussian_delta(grid, 0.7).tolist() == [float(profiles.gaussian_delta(e, 0.7)) for e in grid]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.545708), (1, 0.431942), (2, 0.123391), (3, 0.003657)])
def test_folding_vectors(epsilon, delta):
    got = profiles.kary_gaussian_delta(epsilon, 2, keep_probability=0.7, num_clusters=4)
    assert got == pytest.approx(delta, abs=6e-7)
    assert got == pytest.approx(brute_force_delta(epsilon, 2, 0.7, 4), rel=1e-6)


@pytest.mark.parametrize(("k", "p", "z"), [(2, 0.75, 1), (3, 0.5, 0.6), (8, 0.3, 3)])
@pytest.mark.parametrize("epsilon", [-1, 0, 0.7, 2])
def test_folding_is_the_integral(k, p, z, epsilon):
    got = profiles.kary_gaussian_delta(epsilon, z, keep_probability=p, num_clusters=k)
    assert got == pytest.approx(brute_force_delta(epsilon, z, p, k), rel=1e-6)


def test_a_uniform_response_costs_nothing():
    grid = np.linspace(-3, 3, 13)
    folded = profiles.kary_gaussian_delta(grid, 1.5, keep_probability=0.25, num_clusters=4)
    assert folded == pytest.approx(profiles.gaussian_delta(grid, 1.5), rel=1e-12)


@given(losses, multipliers, st.floats(0.01, 1), st.floats(0.3, 0.95))
def test_every_profile_is_symmetric(epsilon, z, q, p):
    def kary(e):
        return profiles.kary_gaussian_delta(e, z, keep_probability=p, num_clusters=4)

    for profile in (kary, lambda e: profiles.fixed_size_delta(e, kary, q)):
        mirrored = 1 - math.exp(epsilon) + math.exp(epsilon) * profile(np.array(-epsilon))
        assert profile(np.array(epsilon)) == pytest.approx(mirrored, abs=1e-12 * math.exp(abs(epsilon)))


@given(multipliers, st.floats(0.01, 1))
def test_the_sampled_profile_is_falling_and_convex_in_exp_epsilon(z, q):
    x = np.linspace(0.05, 6, 400)
    delta = profiles.fixed_size_delta(np.log(x), lambda e: profiles.gaussian_delta(e, z), q)
    assert np.all(np.diff(delta) <= 1e-15)
    assert np.all(np.diff(delta, 2) >= -1e-13)


def test_without_sampling_the_profile_is_unchanged():
    grid = np.linspace(-3, 3, 13)

    def base(e):
        return profiles.gaussian_delta(e, 0.8)

    assert profiles.fixed_size_delta(grid, base, 1.0) == pytest.approx(base(grid), rel=1e-12)


def test_sampling_by_hand():
    # q = 0.5, exp(epsilon') = 2: exp(epsilon) = 1 + (2 - 1) / 0.5 = 3, and delta' = delta(ln 3) / 2
    got = profiles.fixed_size_delta(math.log(2), lambda e: profiles.gaussian_delta(e, 1), 0.5)
    assert got == pytest.approx(profiles.gaussian_delta(math.log(3), 1) / 2, rel=1e-13)


@given(st.floats(0, 600), st.floats(1e-4, 1))
def test_before_and_after_sampling_are_inverse(epsilon, q):
    assert profiles.before_sampling(profiles.after_sampling(epsilon, q), q) == pytest.approx(
        epsilon, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(("k", "s", "p"), [(4, 1.1951, 0.5), (4, 0.6697, 0.7), (4, 0.4079, 0.9)])
def test_keep_probability_thresholds(k, s, p):
    assert profiles.keep_probability(s, k) == pytest.approx(p, abs=3e-5)


# At equal zCDP rho under replace-one: P(correct) of the noisy argmax (mpmath) and of the best k-ary response.
EQUAL_COST = {
    0.05: ((0.56282, 0.31079, 0.16921), (0.579, 0.338, 0.202)),
    0.125: ((0.59871, 0.34874, 0.19896), (0.624, 0.392, 0.252)),
    0.25: ((0.63816, 0.39332, 0.23595), (0.673, 0.455, 0.313)),
    0.5: ((0.69146, 0.45855, 0.29403), (0.740, 0.544, 0.405)),
    1: ((0.76025, 0.55203, 0.38548), (0.824, 0.668, 0.540)),
    2: ((0.84134, 0.67778, 0.52450), (0.917, 0.822, 0.725)),
    4: ((0.92135, 0.82279, 0.71100), (0.984, 0.958, 0.921)),
}


@pytest.mark.parametrize("rho", EQUAL_COST)
def test_keep_probability_table(rho):
    argmax, response = EQUAL_COST[rho]
    orders = np.concatenate([1 + np.geomspace(1e-4, 1, 200), np.geomspace(2, 500, 200)])
    for k, kept, best in zip((2, 4, 8), argmax, response, strict=True):
        assert profiles.keep_probability(rho**-0.5, k) == pytest.approx(kept, abs=6e-6)
        under, over = (max(profiles.kary_rdp(orders, best + off, k) / orders) for off in (-6e-4, 6e-4))
        assert under < rho < over


@given(st.floats(0.12, 50), st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_keep_probability_is_the_integral(s, k):
    direct, _ = integrate.quad(
        lambda x: stats.norm.pdf(x) * stats.norm.cdf(x + 1 / s) ** (k - 1), -12, 12, epsabs=1e-12, limit=200
    )
    assert profiles.keep_probability(s, k) == pytest.approx(direct, abs=1e-10)


def test_keep_probability_for_two_clusters_has_a_closed_form():
    # The winner is the sign of 1 + sqrt(2) s N(0, 1).
    assert profiles.keep_probability(0.8, 2) == pytest.approx(stats.norm.cdf(1 / 0.8 / math.sqrt(2)), rel=1e-14)


def test_keep_probability_edges():
    assert 1 / 3 <= profiles.keep_probability(1e6, 3) < 1 / 3 + 1e-6
    assert profiles.keep_probability(0.01, 3) == 1.0
    with pytest.raises(ConfigError, match=r"identifier_multiplier = 0 must be greater than 0"):
        profiles.keep_probability(0, 3)
    with pytest.raises(ConfigError, match=r"num_clusters = 1 .*at least 2"):
        profiles.keep_probability(1.0, 1)


@pytest.mark.parametrize(
    ("k", "p", "order", "rdp"),
    [
        (2, 0.75, 2, 0.847298),
        (4, 0.7, 2, 1.632038),
        (4, 0.7, 8, 1.894957),
        (4, 0.7, 32, 1.934405),
        (8, 0.5, 8, 1.846889),
    ],
)
def test_kary_rdp_vectors(k, p, order, rdp):
    assert profiles.kary_rdp(order, p, k) == pytest.approx(rdp, abs=6e-7)


def test_kary_rdp_edges():
    assert profiles.kary_rdp([2, 64], 0.25, 4) == pytest.approx([0, 0], abs=1e-12)
    assert profiles.kary_rdp(1e6, 0.7, 4) == pytest.approx(profiles.kary_loss(0.7, 4), rel=1e-5)


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("s", [0.5, 1.0, 3.0])
def test_the_argmax_costs_less_than_the_noisy_vector(k, s):
    orders = np.array([1.5, 2, 8, 64])
    assert np.all(profiles.kary_rdp(orders, profiles.keep_probability(s, k), k) < orders / s**2)


@pytest.mark.parametrize(
    ("q", "z", "order", "rdp"),
    [
        (0.1, 1, 2, 0.05293929),
        (0.1, 1, 8, 1.47855478),
        (0.1, 1, 32, 13.64549755),
        (0.1, 2, 2, 0.01129696),
        (0.1, 2, 8, 0.07017426),
        (0.1, 2, 32, 1.65002151),
        (0.01, 1, 16, 3.13406092),
        (0.1, 0.7, 5, 2.40082958),
    ],
)
def test_theorem_9_vectors(q, z, order, rdp):
    got = profiles.fixed_size_rdp([order], lambda a: profiles.gaussian_rdp(a, z), q)
    assert got == pytest.approx([rdp], abs=6e-9)


def test_theorem_9_by_hand():
    # order 2, q = 0.1, z = 1: ln(1 + 0.01 min(4 (e - 1), 2 e)) = ln(1 + 0.02 e)
    got = profiles.fixed_size_rdp([2], lambda a: profiles.gaussian_rdp(a, 1), 0.1)
    assert got == pytest.approx([math.log1p(0.02 * math.e)], rel=1e-14)
    whole = profiles.fixed_size_rdp([2, 3], lambda a: profiles.gaussian_rdp(a, 1), 1)
    assert whole.tolist() == [1.0, 1.5]


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("epsilon", [-0.2, 0.0, 0.05, 0.3, 1.0])
def test_the_loss_distribution_is_pessimistic_and_tight(epsilon, coarse):
    event = FixedSize(1.2, 100, 1000, KaryChoice(0.6, 4))
    pld = loss.fixed_size_pld(event, coarse=coarse)

    def base(e):
        return profiles.kary_gaussian_delta(e, 1.2, keep_probability=0.6, num_clusters=4)

    true = float(profiles.fixed_size_delta(epsilon, base, 0.1))
    off_grid = float(profiles.fixed_size_delta(epsilon + 3.3e-5, base, 0.1))
    assert true * (1 - 1e-9) <= pld.get_delta_for_epsilon(epsilon) <= true * (1 + 1e-3)
    assert off_grid * (1 - 1e-9) <= pld.get_delta_for_epsilon(epsilon + 3.3e-5) <= off_grid * (1 + 1e-3)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize(("z", "rounds"), [(10.0, 100), (1.5, 3)])
def test_composition_against_the_closed_form(z, rounds, delta, coarse):
    """Without sampling, profile -> distribution -> composition must give the Gaussian's closed form."""
    from dp_accounting import get_epsilon_gaussian

    composed = loss.fixed_size_pld(FixedSize(z, 10, 10), coarse=coarse).self_compose(rounds)
    exact = get_epsilon_gaussian(z / math.sqrt(rounds), delta)
    assert exact * (1 - 1e-7) <= composed.get_epsilon_for_delta(delta) <= exact * (1 + 1e-3)


@pytest.mark.parametrize("coarse", [False, True])
def test_total_probability_is_one(coarse):
    pmf = loss.fixed_size_pld(FixedSize(2, 100, 1000), coarse=coarse)._pmf_remove.to_dense_pmf()
    assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1, abs=1e-14)
    assert pmf._infinity_mass < 1e-20


def test_a_client_that_joins_is_accounted_at_tiny_noise_without_overflow():
    """At losses beyond exp's range nothing is left, and no warning is raised."""
    from rrcluster.privacy.profiles import poisson_added_delta

    deltas = poisson_added_delta(np.array([0.0, 2.0, 800.0, 1e6]), 0.02, 0.9)
    assert deltas[0] == pytest.approx(0.9, abs=1e-3)
    assert (deltas[2:] == 0).all()
