"""The discrete Gaussian against its exact law, and what Proposition 4 of docs/privacy.md claims of it."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from mechanism_cases import CLIP, K, identifier, joint
from scipy import stats

from rrcluster.entropy import secure_rng
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy import discrete
from rrcluster.privacy.clip import grid_step
from rrcluster.privacy.discrete import _accept, discrete_gaussian, grid_sigma
from rrcluster.privacy.reports import Reports

DRAWS = 60_000
pytestmark = pytest.mark.usefixtures("fixed_entropy")  # draws from the system would fail one run in 10^5


def pmf(sigma, values):
    weights = np.exp(-(np.arange(-60 * sigma, 60 * sigma + 1) ** 2) / (2 * sigma**2))
    return np.exp(-(values**2) / (2 * sigma**2)) / weights.sum()


def goodness(drawn, sigma):
    """p-value of a chi-square test against the law with this sigma; values beyond 3 sigma in two cells."""
    values = np.arange(-3 * math.ceil(sigma), 3 * math.ceil(sigma) + 1)
    expected = pmf(sigma, values)
    tail = (1 - expected.sum()) / 2
    observed = [(drawn < values[0]).sum(), *((drawn == value).sum() for value in values), (drawn > values[-1]).sum()]
    return stats.chisquare(observed, len(drawn) * np.array([tail, *expected, tail])).pvalue


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_small_sigma_matches_the_exact_law(sigma):
    assert goodness(discrete_gaussian(sigma, DRAWS), sigma) > 1e-6


def test_the_same_test_tells_a_wrong_sigma():
    drawn = discrete_gaussian(20, DRAWS)
    assert goodness(drawn, 20) > 1e-6
    assert goodness(drawn, 18) < 1e-12
    assert goodness(drawn, 22) < 1e-12


@pytest.mark.parametrize("sigma", [2**20 + 1, 2**40 + 12345, 2**56])
def test_large_sigma_has_the_moments_and_the_shape_of_a_gaussian(sigma):
    drawn = discrete_gaussian(sigma, DRAWS) / sigma
    error = 1 / math.sqrt(DRAWS)
    assert abs(drawn.mean()) < 5 * error
    assert abs((drawn**2).mean() - 1) < 5 * math.sqrt(2) * error
    assert abs((drawn**3).mean()) < 5 * math.sqrt(15) * error
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96) * error
    assert stats.kstest(drawn, "norm").pvalue > 1e-6


def test_comparisons_in_floating_point_and_in_full_precision_agree():
    """With a margin of one half nearly every comparison is made by `decimal`: the same bits, the same answers."""
    rng = np.random.default_rng(0)
    for sigma in (1, 7, 2**20 + 1, 2**56):
        k, j = rng.integers(0, 6, size=150), rng.integers(0, sigma, size=150)
        bits = rng.integers(0, 2**53, size=150)
        close = (np.exp(-(j / sigma) * (k + j / sigma / 2)) * 2**53).astype(np.int64)
        bits[:75] = close[:75] + rng.integers(-3000, 3000, size=75)  # where floating point just about decides
        bits = np.clip(bits, 0, 2**53 - 1)
        np.testing.assert_array_equal(_accept(k, j, sigma, bits), _accept(k, j, sigma, bits, margin=0.5))


def test_a_comparison_that_53_bits_leave_open_is_decided_by_the_next_ones():
    """exp(-1/2) lies a share of 0.66 into its interval of width 2^-53: so many fresh bits fall below it."""
    first = math.floor(Fraction(Decimal("0.6065306597126334236037995349911804534419181354871869556829")) * 2**53)
    below_it = sum(_accept(np.array([0]), np.array([1]), 1, np.array([first]))[0] for _ in range(400))
    rest = Fraction(Decimal("0.6065306597126334236037995349911804534419181354871869556829")) * 2**53 - first
    assert abs(below_it / 400 - float(rest)) < 6 * 0.5 / math.sqrt(400)


def test_a_word_that_ties_with_the_table_is_decided_by_the_digits_after_it(monkeypatch):
    table = discrete._cumulative_words()
    weights = np.exp(-(np.arange(40) ** 2) / 2)
    np.testing.assert_allclose(table / 2**64, (np.cumsum(weights) / weights.sum())[: len(table)], rtol=1e-14)
    for place, word in enumerate(table[:8]):
        monkeypatch.setattr(discrete, "os_words", lambda count, word=word: np.full(count, word))
        drawn = set(discrete._whole_sigmas(60).tolist())
        assert drawn <= {place, place + 1}
        monkeypatch.setattr(discrete, "os_words", lambda count, word=word: np.full(count, word - np.uint64(1)))
        assert set(discrete._whole_sigmas(3).tolist()) == {place}
    monkeypatch.setattr(discrete, "os_words", lambda count: np.full(count, np.uint64(2**64 - 1)))
    assert min(discrete._whole_sigmas(20)) >= 9  # the far tail, which no table cuts off


def test_every_low_digit_is_used():
    """The grid is not coarser than it says: the last bits of large draws are uniform."""
    digits = np.bincount(discrete_gaussian(2**40, DRAWS) & 15, minlength=16)
    assert stats.chisquare(digits).pvalue > 1e-6


def test_a_release_of_four_linear_models_takes_well_under_a_second():
    import time

    began = time.process_time()
    assert discrete_gaussian(2**41, 4 * 7851).shape == (4 * 7851,)
    assert time.process_time() - began < 5


def test_no_draws_and_none_asked_for():
    assert discrete_gaussian(5, 0).shape == (0,)


def test_the_grid_sigma_never_undercuts_the_noise_std():
    for noise_std in (1e-3, 0.21, 1.7, 300.0):
        step = grid_step(0.2)
        sigma = grid_sigma(noise_std, step)
        assert sigma**2 - 64 >= (noise_std * (1 + 2**-50) / step) ** 2  # Proposition 4: r = 8, and the rounding of std
        assert 0 <= sigma * step - noise_std <= 2 * step + noise_std * 2.0**-39  # and hardly exceeds it
    with pytest.raises(ConfigError, match="64 to 2"):
        grid_sigma(0.0, 2.0**-40)
    with pytest.raises(ConfigError, match="noise_multiplier closer to 1"):
        grid_sigma(1.0, 2.0**-70)


@pytest.mark.parametrize("r", [0.5, 0.7, 1.0])
def test_proposition_4_rounding_a_gaussian_gives_the_discrete_one(r):
    """At small r, where the error shows: y ~ N(f, s^2) rounded by a discrete Gaussian of parameter r around y."""
    s, shift = 2.0, 3
    sigma = math.hypot(s, r)
    error = 2 * sum(math.exp(-2 * math.pi**2 * r**2 * n**2) for n in range(1, 9))
    y, near = np.linspace(-27, 33, 60_001), np.arange(-60, 70)
    total = np.exp(-((near[:, None] - y) ** 2) / (2 * r**2)).sum(axis=0)
    assert (abs(total / (r * math.sqrt(2 * math.pi)) - 1) <= error + 1e-13).all()  # Poisson summation
    values = np.arange(-6, 13)
    rounded = np.exp(-((values[:, None] - y) ** 2) / (2 * r**2)) / total
    made = (stats.norm.pdf(y, shift, s) * rounded).sum(axis=1) * (y[1] - y[0])
    law = np.exp(-((values - shift) ** 2) / (2 * sigma**2))
    law /= np.exp(-((near - shift) ** 2) / (2 * sigma**2)).sum()
    assert abs(np.log(made / law)).max() <= 3 * error + 1e-11


def hockey_stick(sigma, shift, epsilon, q):
    """delta(epsilon) of the subsampled pair on the whole numbers, both directions."""
    x = np.arange(-80 * sigma, 80 * sigma + 1)
    base, moved = pmf(sigma, x), pmf(sigma, x - shift)
    mixed = (1 - q) * base + q * moved
    return max(
        np.maximum(mixed - math.exp(epsilon) * base, 0).sum(), np.maximum(base - math.exp(epsilon) * mixed, 0).sum()
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
def test_the_subsampled_profile_is_the_continuous_ones(epsilon):
    """In one dimension the two profiles can be computed: discrete at sigma is no worse than continuous at less."""
    sigma, shift, q = 200, 150, 0.1
    x = np.linspace(-20, 21, 4_000_001)
    z = math.sqrt(sigma**2 - 64) / shift
    base, moved = stats.norm.pdf(x, 0, z), stats.norm.pdf(x, 1, z)
    mixed, width = (1 - q) * base + q * moved, x[1] - x[0]
    above, below = mixed - math.exp(epsilon) * base, base - math.exp(epsilon) * mixed
    continuous = max(np.maximum(above, 0).sum(), np.maximum(below, 0).sum()) * width
    assert hockey_stick(sigma, shift, epsilon, q) <= continuous * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("make", [joint, lambda **kw: identifier(cohort=12, **kw)], ids=["joint", "identifier"])
def test_secure_releases_lie_on_the_grid_with_the_right_noise(make):
    from dataclasses import replace

    mechanism = replace(make(shared=5, clustered=4000, noise_multiplier=1.7), exact_noise=True)
    first, second = (
        mechanism.release(Reports(np.zeros((0, 4005)), [], unique=True), rng=secure_rng()) for _ in range(2)
    )
    for release in (first, second):
        units = release.cluster_sums / grid_step(CLIP)
        assert (units == np.round(units)).all()
        assert release.cluster_sums.std() == pytest.approx(mechanism.noise_std, rel=0.05)
    correlation = np.corrcoef(first.cluster_sums.ravel(), second.cluster_sums.ravel())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(K * 4000)
    assert stats.kstest(first.cluster_sums.ravel() / mechanism.noise_std, "norm").pvalue > 1e-6


def test_the_count_row_is_on_the_grid_too():
    mechanism = joint(count_weight=0.1)
    assert mechanism.count_units * grid_step(CLIP) <= 0.1
    assert mechanism.count_units * grid_step(CLIP) == pytest.approx(0.1, rel=1e-8)
    with pytest.raises(ConfigError, match="below the grid of the messages"):
        joint(count_weight=1e-14)
    with pytest.raises(ConfigError, match="far above them"):
        joint(count_weight=17 * CLIP)


def test_a_secure_mechanism_refuses_a_seeded_generator(rng):
    from dataclasses import replace

    mechanism = replace(joint(noise_multiplier=1.0), exact_noise=True)
    with pytest.raises(PrivacyError, match="this generator is seeded"):
        mechanism.release(Reports(np.zeros((0, 2)), [], client_ids=[]), rng=rng)
