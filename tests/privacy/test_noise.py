"""Noise passes a distribution test at its scale and fails it at 0.9 and 1.1 of that scale, block by block."""

import numpy as np
import pytest
from mechanism_cases import CLIP, WEIGHT, K, identifier, joint, update
from scipy import stats

from rrcluster.privacy.reports import Reports

RELEASES = 400


def p_value(samples, std):
    """Two-sided chi-square test that `samples` have mean zero and this std."""
    statistic = (samples**2).sum() / std**2
    upper = stats.chi2.sf(statistic, samples.size)
    return 2 * min(upper, 1 - upper)


def blocks(mechanism, choices, rng):
    """Noise of each released block over many releases on zero updates."""
    updates = np.zeros((len(choices), mechanism.coordinates.width))
    drawn = [mechanism.release(Reports(updates, choices), rng=rng) for _ in range(RELEASES)]
    found = {f"cluster {j}": np.array([one.cluster_sums[j] for one in drawn]) for j in range(K)}
    found["shared"] = np.array([one.shared_sum for one in drawn])
    return found


@pytest.mark.parametrize("choices", [[], [0, 0, 1]], ids=["empty cohort", "one empty cluster"])
def test_joint(choices, rng):
    mechanism = joint(shared=40, clustered=64, noise_multiplier=1.7)
    found = blocks(mechanism, np.array(choices, dtype=np.int64), rng)
    for samples in found.values():
        assert p_value(samples, mechanism.noise_std) > 1e-4
        assert p_value(samples, 0.9 * mechanism.noise_std) < 1e-4
        assert p_value(samples, 1.1 * mechanism.noise_std) < 1e-4


@pytest.mark.parametrize("choices", [[], [0, 0, 1]], ids=["empty cohort", "one empty cluster"])
def test_joint_sizes(choices, rng):
    mechanism = joint(clustered=1, noise_multiplier=1.7)
    choices = np.array(choices, dtype=np.int64)
    drawn = [
        mechanism.release(Reports(np.zeros((len(choices), 1)), choices), rng=rng).sizes for _ in range(6 * RELEASES)
    ]
    errors = np.array(drawn) - np.bincount(choices, minlength=K)
    claimed = mechanism.release(Reports(np.zeros((len(choices), 1)), choices), rng=rng).size_noise_std
    assert claimed == pytest.approx(1.7 * np.hypot(CLIP, WEIGHT) / WEIGHT)
    assert p_value(errors, claimed) > 1e-4
    assert p_value(errors, 0.9 * claimed) < 1e-4
    assert p_value(errors, 1.1 * claimed) < 1e-4


@pytest.mark.parametrize("kind", ["gaussian", "kary"])
def test_identifier(kind, rng):
    mechanism = identifier(cohort=12, shared=40, clustered=64, noise_multiplier=1.7, kind=kind)
    found = blocks(mechanism, np.zeros(12, dtype=np.int64), rng)
    for samples in found.values():
        assert p_value(samples, 2 * CLIP * 1.7) > 1e-4
        assert p_value(samples, 0.9 * 2 * CLIP * 1.7) < 1e-4
        assert p_value(samples, 1.1 * 2 * CLIP * 1.7) < 1e-4


def test_the_noise_is_gaussian_and_uncorrelated_across_rounds(rng):
    mechanism = joint(clustered=2000, noise_multiplier=1.0)
    first, second = (
        mechanism.release(Reports(np.zeros((0, 2000)), []), rng=rng).cluster_sums.ravel() for _ in range(2)
    )
    assert stats.kstest(first / mechanism.noise_std, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))


@pytest.mark.parametrize(("kind", "keep"), [("kary", 0.7), ("gaussian", None)])
def test_identifiers_keep_a_choice_as_often_as_they_say(kind, keep, rng):
    from rrcluster.privacy.profiles import keep_probability

    mechanism = identifier(cohort=20_000, kind=kind)
    choices, valid = rng.integers(K, size=20_000), np.ones(20_000, dtype=bool)
    assigned = mechanism.identifier.assign(choices, valid, num_clusters=K, rng=rng)
    kept = keep or keep_probability(0.8, K)
    assert (assigned == choices).mean() == pytest.approx(kept, abs=0.015)
    shift = (assigned - choices) % K
    assert (shift == 1).mean() == pytest.approx((1 - kept) / 2, abs=0.015)


@pytest.mark.parametrize("kind", ["gaussian", "kary"])
def test_an_invalid_report_gets_a_uniform_identifier(kind, rng):
    mechanism = identifier(cohort=30_000, kind=kind)
    assigned = mechanism.identifier.assign(
        np.zeros(30_000, dtype=np.int64), np.zeros(30_000, dtype=bool), num_clusters=K, rng=rng
    )
    assert np.allclose(np.bincount(assigned) / 30_000, 1 / K, atol=0.015)


def test_a_dropped_client_is_absent_under_joint_and_counted_under_identifier(rng):
    missing = joint().release(Reports(np.array([update(np.nan, 2), update(CLIP, 2)]), [0, 1]), rng=rng)
    assert np.allclose(missing.sizes, [0, 1, 0])
    counted = identifier(cohort=12).release(Reports(np.zeros((5, 2)), [0] * 5), rng=rng)
    assert counted.sizes.sum() == 12
