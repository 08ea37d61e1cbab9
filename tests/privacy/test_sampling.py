import numpy as np
import pytest
from scipy import stats

from rrcluster.errors import PrivacyError
from rrcluster.privacy.sampling import FixedSizeSampler, PoissonSampler

M, Q, T = 60, 0.2, 3000


def memberships(sampler, rng):
    table = np.zeros((T, M), dtype=int)
    for t in range(T):
        table[t, sampler.draw(M, rng=rng)] = 1
    return table


def size_variance_p(table):
    """p-value of the batch-size variance M q (1 - q) that independent coins have."""
    statistic = T * table.sum(axis=1).var() / (M * Q * (1 - Q))
    return 2 * min(stats.chi2.sf(statistic, T - 1), stats.chi2.cdf(statistic, T - 1))


def test_poisson_is_independent_coins(rng):
    table = memberships(PoissonSampler(Q, M), rng)
    assert stats.binomtest(int(table.sum()), T * M, Q).pvalue > 1e-4
    assert min(stats.binomtest(int(c), T, Q).pvalue for c in table.sum(axis=0)) > 1e-6
    assert size_variance_p(table) > 1e-4
    together = table[:, 0] @ table[:, 1]
    assert stats.binomtest(int(together), T, Q * Q).pvalue > 1e-4


def test_a_fixed_size_sampler_fails_the_poisson_test(rng):
    assert size_variance_p(memberships(FixedSizeSampler(12, M), rng)) < 1e-12


def test_fixed_size_is_uniform_and_of_fixed_size(rng):
    table = memberships(FixedSizeSampler(12, M), rng)
    assert (table.sum(axis=1) == 12).all()
    assert min(stats.binomtest(int(c), T, 12 / M).pvalue for c in table.sum(axis=0)) > 1e-6


def test_poisson_needs_no_more_than_the_cohort(rng):
    clients = PoissonSampler(1e-7, 10**9).draw(10**9, rng=rng)
    assert 50 < len(clients) < 160
    assert (np.diff(clients) > 0).all()


def test_poisson_at_rate_one_takes_everybody(rng):
    assert PoissonSampler(1.0, 5).draw(5, rng=rng).tolist() == [0, 1, 2, 3, 4]


def test_a_fixed_size_cohort_of_another_population_is_refused(rng):
    with pytest.raises(PrivacyError, match="num_clients = 60 was declared but the population has 61"):
        FixedSizeSampler(12, M).draw(61, rng=rng)
