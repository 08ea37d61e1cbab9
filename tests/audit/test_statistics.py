import numpy as np
import pytest

from rrcluster.audit import statistics as st
from rrcluster.audit.accountants import gaussian_epsilon, sampled_epsilon
from rrcluster.audit.canaries import is_possible, mu_of, one_run_mu
from rrcluster.audit.noise import gaussian_keep_probability
from rrcluster.audit.statistics import error_bounds, least_false_negatives, separation
from rrcluster.privacy.events import FixedSize, KaryChoice


@pytest.mark.parametrize(("ratio", "passes"), [(1.0, True), (0.96, False), (1.04, False)])
def test_the_scale_test_resolves_four_percent_of_a_block(ratio, passes, rng):
    samples = ratio * 3.0 * rng.standard_normal((400, 64))
    assert (st.scale_p_value(samples, 3.0) >= st.SIGNIFICANCE) is passes


def test_scale_test_at_the_edges():
    assert st.scale_p_value(np.zeros((400, 0)), 1.0) == 1.0
    assert st.scale_p_value(np.zeros(10), 1.0) == 0.0
    assert st.scale_p_value(np.array([np.nan]), 1.0) == 0.0
    assert st.scale_p_value(np.ones(10), 0.0) == 0.0


def test_p_values_are_uniform_under_the_null(rng):
    pairs = [rng.standard_normal((2, 12)) for _ in range(2000)]
    values = np.array([st.correlation_p_value(one, two) for one, two in pairs])
    assert np.mean(values < 0.1) == pytest.approx(0.1, abs=0.025)
    assert st.correlation_p_value(pairs[0][0], -2 * pairs[0][0]) < 1e-100
    assert st.correlation_p_value(np.zeros(5), np.ones(5)) == 0.0


def test_clopper_pearson_by_hand():
    # No success in n: 1 - f^(1/n). All successes: 1.
    assert st.rate_upper_bound(0, 750, failure_probability=1e-3) == pytest.approx(1 - 1e-3 ** (1 / 750))
    assert st.rate_upper_bound(750, 750, failure_probability=1e-3) == 1.0


def test_noise_of_few_bits_repeats_itself(rng):
    samples = rng.standard_normal(25_600)
    assert st.all_distinct(samples)
    assert not st.all_distinct(samples.astype(np.float16))


def test_closed_forms_equal_published_values():
    assert gaussian_epsilon(4.0, 1e-5) == pytest.approx(0.9263, abs=1e-4)  # Balle, Wang 2018
    assert sampled_epsilon(1.0, 0.1, 1e-3) == pytest.approx(0.6499, abs=5e-4)
    assert sampled_epsilon(2.0, 1.0, 1e-5) == pytest.approx(gaussian_epsilon(2.0, 1e-5))


def test_thresholds_of_the_identifier():
    # k = 4: kept with probability .5, .7, .9 at these stds.
    for keep, std in ((0.5, 1.1951), (0.7, 0.6697), (0.9, 0.4079)):
        assert gaussian_keep_probability(std, 4) == pytest.approx(keep, abs=1e-4)


def test_the_claimed_trade_off_is_that_of_two_gaussians():
    event = FixedSize(0.5, 10, 10)
    for level in (0.01, 0.1, 0.5):
        assert separation(level, least_false_negatives(event, level)) == pytest.approx(2.0, abs=0.01)


def test_the_claimed_trade_off_of_randomised_response():
    """Hardly any information in the update: the best test looks at the response, power p at level r."""
    event = FixedSize(1e3, 10, 10, KaryChoice(0.7, 2))
    assert least_false_negatives(event, 0.3) == pytest.approx(0.3, abs=0.01)


def test_error_bounds_are_valid_and_not_loose(rng):
    one, two = rng.standard_normal((2, 4000, 1))
    positives, negatives = error_bounds(one, two + 3.0)
    assert 2.0 < separation(positives, negatives) < 3.0
    assert separation(*error_bounds(one, two)) < 0.1


def test_one_run_bound_at_the_edges():
    assert one_run_mu(100, 10, 5, failure_probability=0.05) == 0.0
    assert is_possible(100, 10, 10, mu=8.0, probability=0.5)
    assert not is_possible(1, 1, 1, mu=1e-9, probability=0.6)  # one fair bit is guessed with probability 1/2


def test_one_guess_of_one_canary_by_hand():
    """P(right) is at most the largest p with p <= Phi(Phi^-1(1 - p) + mu), that is Phi(mu / 2): 0.6915 for mu = 1."""
    assert is_possible(1, 1, 1, mu=1.0, probability=0.6914)
    assert not is_possible(1, 1, 1, mu=1.0, probability=0.6916)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_one_run_bound_is_below_the_truth_and_informative(mu, rng):
    """Independent Gaussians, mu apart: the bound may pass the truth in one run of twenty."""
    shown = []
    for _ in range(20):
        bits = rng.random(4000) < 0.5
        scores = np.where(bits, mu / 2, -mu / 2) + rng.standard_normal(4000)
        clearest = np.argsort(-np.abs(scores))[:400]
        right = int(((scores > 0) == bits)[clearest].sum())
        shown.append(one_run_mu(4000, 400, right, failure_probability=0.05))
    assert sum(bound > mu for bound in shown) <= 3
    assert np.median(shown) > 0.5 * mu


def test_a_claim_is_turned_into_a_gaussian():
    assert mu_of(gaussian_epsilon(1 / 1.3, 1e-5), 1e-5) == pytest.approx(1.3, abs=1e-6)


def test_shared_columns_are_found(rng):
    samples = rng.standard_normal((50, 300))
    assert st.columns_p_value(samples) > st.SIGNIFICANCE
    samples[:, 7] = -2 * samples[:, 250]
    assert st.columns_p_value(samples) < 1e-100
    assert st.columns_p_value(samples[:, :1]) == 1.0
