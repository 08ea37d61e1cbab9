import math

import numpy as np
import pytest

from rrcluster.audit import statistics as st
from rrcluster.audit.accountants import gaussian_epsilon, sampled_epsilon
from rrcluster.audit.canaries import best_bound, one_run_epsilon, one_run_p_value
from rrcluster.audit.distinguish import error_bounds, least_false_negatives, separation
from rrcluster.audit.identifier_claims import gaussian_keep_probability
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


def test_one_run_bound_by_hand():
    # delta = 0, all r right: (1 / (1 + exp(-eps)))^r = f.
    found = one_run_epsilon(1000, 100, 100, delta=0.0, failure_probability=0.05)
    assert found == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), abs=1e-6)
    assert one_run_epsilon(1000, 100, 50, delta=0.0, failure_probability=0.05) == 0.0
    assert one_run_epsilon(1000, 100, 100, delta=1e-3, failure_probability=0.05) < found
    assert one_run_p_value(10, 0, 0, epsilon=1.0, delta=0.1) == 1.0


def test_one_run_bound_is_below_the_truth_for_randomised_response(rng):
    """Every canary's bit is shown rightly with probability e / (1 + e): epsilon is 1, exactly."""
    bits = rng.random(5000) < 0.5
    shown = np.where(rng.random(5000) < math.e / (1 + math.e), bits, ~bits)
    found, _, _ = best_bound(np.where(shown, 1.0, -1.0), bits, delta=0.0)
    assert 0.8 < found < 1.0
