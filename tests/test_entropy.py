import os
import pickle

import numpy as np
import pytest
from scipy import stats

from rrcluster import entropy
from rrcluster.entropy import SecureStreams, below, secure_rng
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.sampling import FixedSizeSampler, PoissonSampler

pytestmark = pytest.mark.usefixtures("fixed_entropy")  # draws from the system would fail one run in 10^5


def test_streams_of_the_same_name_share_nothing():
    streams = SecureStreams()
    first, second = (streams("cohort", 3).random(1000) for _ in range(2))
    assert not (first == second).any()
    assert streams.client_key("coin", 3) != streams.client_key("coin", 3)
    low, high = streams.client_key("coin", 0)
    assert 0 <= low < 2**32
    assert 0 <= high < 2**32


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100, 2**40 + 1, 2**62])
def test_below_is_uniform(bound):
    drawn = below(bound, 20_000)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < bound
    cells = np.bincount((drawn.astype(float) * min(bound, 7) / bound).astype(int), minlength=min(bound, 7))
    if bound in (2, 3, 7, 2**40 + 1, 2**62):
        assert stats.chisquare(cells).pvalue > 1e-6


def test_the_draws_have_their_laws():
    rng = secure_rng()
    assert stats.kstest(rng.random(20_000), "uniform").pvalue > 1e-6
    assert stats.kstest(rng.standard_normal((100, 200)).ravel(), "norm").pvalue > 1e-6
    assert stats.kstest(rng.uniform(-2, 3, size=20_000), "uniform", args=(-2, 5)).pvalue > 1e-6
    assert set(rng.integers(1, 4, size=200)) == {1, 2, 3}
    assert set(rng.integers(3, size=200)) == {0, 1, 2}
    orders = [tuple(rng.permutation(3)) for _ in range(6000)]
    assert stats.chisquare(np.unique(orders, axis=0, return_counts=True)[1]).pvalue > 1e-6


def test_cohorts_and_rebalancing_work_on_it():
    rng = secure_rng()
    sizes = [len(PoissonSampler(0.1, 1000).draw(1000, rng=rng)) for _ in range(2000)]
    assert np.mean(sizes) == pytest.approx(100, abs=5 * np.sqrt(90 / 2000))
    assert np.var(sizes) == pytest.approx(90, rel=0.2)
    cohort = FixedSizeSampler(10, 50).draw(50, rng=rng)
    assert len(set(cohort)) == 10
    moved = rebalance(np.array([0] * 9 + [1]), num_clusters=2, min_cluster_size=4, rng=rng)
    assert np.bincount(moved).tolist() == [6, 4]


def test_every_client_is_as_likely_and_pairs_are_independent():
    rng, joined = secure_rng(), np.zeros((4000, 20))
    for row in joined:
        row[PoissonSampler(0.3, 20).draw(20, rng=rng)] = 1
    assert np.allclose(joined.mean(axis=0), 0.3, atol=5 * np.sqrt(0.21 / 4000))
    correlations = np.corrcoef(joined.T)[np.triu_indices(20, 1)]
    assert abs(correlations).max() < 6 / np.sqrt(4000)


def test_what_is_not_offered_raises_and_nothing_can_be_stored():
    rng = secure_rng()
    with pytest.raises(AttributeError, match="secure randomness has no 'dirichlet'"):
        rng.dirichlet([1, 1])
    with pytest.raises(NotImplementedError, match="with replacement"):
        rng.choice(5, size=2, replace=True)
    with pytest.raises(TypeError, match="cannot be stored"):
        pickle.dumps(rng)


def test_the_operating_system_is_asked_for_every_draw(monkeypatch):
    asked = []
    monkeypatch.setattr(entropy.os, "urandom", lambda count: asked.append(count) or bytes(count))
    assert secure_rng().random(3).tolist() == [2.0**-53] * 3
    assert asked == [24]
    assert os.urandom is entropy.os.urandom


def test_secure_uniforms_are_never_0_or_1(monkeypatch):
    for word in (0, 2**64 - 1):
        monkeypatch.setattr(entropy, "os_words", lambda count, word=word: np.full(count, word, dtype=np.uint64))
        drawn = entropy.SecureRng().random(3)
        assert ((drawn > 0) & (drawn < 1)).all()
        assert np.isfinite(entropy.SecureRng().standard_normal(3)).all()


@pytest.mark.parametrize("probability", [0.5, 0.1, 0.9])
def test_the_number_of_coins_is_geometric(probability):
    rng = secure_rng()
    drawn = np.array([rng.geometric(probability) for _ in range(8000)])
    compare_laws(drawn, stats.geom(probability))


@pytest.mark.parametrize("ratio", [0.3, 0.9, 0.99])
def test_the_logarithmic_law(ratio):
    rng = secure_rng()
    compare_laws(np.array([rng.logseries(ratio) for _ in range(8000)]), stats.logser(ratio))


def compare_laws(drawn, law):
    values = np.arange(1, 12)
    expected = np.append(law.pmf(values), law.sf(11)) * len(drawn)
    found = np.append([(drawn == value).sum() for value in values], (drawn > 11).sum())
    kept = expected > 5
    expected, found = np.append(expected[kept], expected[~kept].sum()), np.append(found[kept], found[~kept].sum())
    if expected[-1] == 0:
        assert found[-1] == 0
        expected, found = expected[:-1], found[:-1]
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-6


def test_a_coin_counts_every_digit_of_its_probability(monkeypatch):
    tiny = 2.0**-80 + 2.0**-100
    faces = iter([2**20 + 1, 2**20])  # of 2^100: the first is just too many
    monkeypatch.setattr(entropy, "fresh_bits", lambda count: next(faces) if count == 100 else pytest.fail(str(count)))
    assert secure_rng().geometric(tiny) == 2
    for wrong in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="must lie in"):
            secure_rng().geometric(wrong)
