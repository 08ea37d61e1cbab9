"""The statistical tests that the checks use.

Every random test raises a false alarm with probability at most `SIGNIFICANCE`, so that a whole audit, of some 650
of them, does so with probability below 1e-6. The effects looked for are large; a strict level costs little.
"""

import math

import numpy as np

from rrcluster.types import Array

SIGNIFICANCE = 1e-9


def scale_p_value(samples: Array, std: float) -> float:
    """Two-sided chi-square test that independent Gaussian `samples` have mean 0 and this std. No samples: 1.

    A sum of squares that is not finite, or a std that is not positive, gives 0.
    """
    from scipy.stats import chi2

    if samples.size == 0:
        return 1.0
    statistic = float((samples**2).sum()) / std**2 if std > 0 else math.inf
    if not math.isfinite(statistic):
        return 0.0
    return float(min(1.0, 2 * min(chi2.sf(statistic, samples.size), chi2.cdf(statistic, samples.size))))


def gaussian_law_p_value(samples: Array, std: float) -> float:
    """Kolmogorov-Smirnov test that `samples` are N(0, std^2): catches noise of the right scale and another law."""
    from scipy.stats import kstest

    return float(kstest(samples.ravel() / std, "norm").pvalue) if samples.size else 1.0


def correlation_p_value(one: Array, two: Array) -> float:
    """Exact test that two independent zero-mean Gaussian samples are uncorrelated. No samples: 1; a zero sample: 0."""
    from scipy.stats import t

    if one.size < 2:
        return 1.0
    scale = math.sqrt(float((one**2).sum()) * float((two**2).sum()))
    cosine = float((one * two).sum()) / scale if scale > 0 else 1.0
    spread = max(0.0, 1.0 - cosine**2)
    return float(2 * t.sf(abs(cosine) * math.sqrt((one.size - 1) / spread), one.size - 1)) if spread > 0 else 0.0


def columns_p_value(samples: Array) -> float:
    """Of all pairs of columns of (n, d) independent zero-mean Gaussian samples, the most correlated; corrected."""
    from scipy.stats import t

    n, d = samples.shape
    if n < 2 or d < 2:
        return 1.0
    scaled = samples / np.maximum(np.sqrt((samples**2).sum(axis=0)), 1e-300)
    cosines = np.abs(scaled.T @ scaled)
    np.fill_diagonal(cosines, 0.0)
    largest = min(float(cosines.max()), 1 - 1e-15)
    pairs = d * (d - 1) / 2
    return float(min(1.0, pairs * 2 * t.sf(largest * math.sqrt((n - 1) / (1 - largest**2)), n - 1)))


def normal_p_value(score: float) -> float:
    """Two-sided p-value of a standard score."""
    return math.erfc(abs(score) / math.sqrt(2)) if math.isfinite(score) else 0.0


def binomial_p_value(successes: int, trials: int, probability: float) -> float:
    """Two-sided exact binomial test (twice the smaller tail)."""
    from scipy.stats import binom

    lower, upper = binom.cdf(successes, trials, probability), binom.sf(successes - 1, trials, probability)
    return float(min(1.0, 2 * min(lower, upper)))


def rate_upper_bound(successes: int, trials: int, *, failure_probability: float) -> float:
    """Clopper-Pearson: the true rate exceeds this with probability at most `failure_probability`."""
    from scipy.stats import beta

    return 1.0 if successes >= trials else float(beta.isf(failure_probability, successes + 1, trials - successes))


def normal_quantile(probability: float) -> float:
    """The inverse of the standard normal distribution function."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def smallest(p_values: dict[str, float]) -> tuple[str, float]:
    """The name and the value of the smallest p-value."""
    return min(p_values.items(), key=lambda item: item[1])


def all_distinct(samples: Array) -> bool:
    """No value occurs twice: what 53-bit noise gives, and noise of fewer bits does not."""
    return bool(np.unique(samples).size == samples.size)


def repeats_p_value(whole: Array, sigma: float) -> float:
    """Test that whole numbers of this std repeat no more often than by chance: the number of equal pairs is Poisson.

    Two of them agree with probability 1 / (2 sqrt(pi) sigma).
    """
    from scipy.stats import poisson

    repeated = whole.size - np.unique(whole).size
    expected = whole.size * (whole.size - 1) / 2 / (2 * math.sqrt(math.pi) * sigma)
    return float(poisson.sf(repeated - 1, expected)) if repeated else 1.0
