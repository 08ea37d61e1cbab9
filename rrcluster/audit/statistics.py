"""The statistical tests that the checks use.

Every random test raises a false alarm with probability at most `SIGNIFICANCE`, so that a whole audit, of some 650 of
them, does so with probability below 1e-6. The effects of interest are large; a strict level costs little.

Check 3: can an attacker tell two neighbouring rounds apart better than the event allows? Sampling is off: the worst
case given participation; the accountants are checked separately. The noise multiplier is small (0.5), where a wrong
sensitivity is easiest to detect.
"""

import math
from dataclasses import replace

import numpy as np

from rrcluster.audit.targets import CLIP, DELTA, AuditSetting, Finding, Mechanism, Target
from rrcluster.privacy.events import FOLDED, Choice, RoundEvent
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng
from rrcluster.types import Array, Release

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
    """Whether no value occurs twice: true of 53-bit noise, false of noise with fewer bits."""
    return bool(np.unique(samples).size == samples.size)


def repeats_p_value(whole: Array, sigma: float) -> float:
    """Test that integers of this std repeat no more often than by chance: the number of equal pairs is Poisson.

    Two of them agree with probability 1
    (2 sqrt(pi) sigma).
    """
    from scipy.stats import poisson

    repeated = whole.size - np.unique(whole).size
    expected = whole.size * (whole.size - 1) / 2 / (2 * math.sqrt(math.pi) * sigma)
    return float(poisson.sf(repeated - 1, expected)) if repeated else 1.0


RUNS = 1500  # per round of the two; half choose the statistic and the threshold, half test
FAILURE_PROBABILITY = 1e-9  # of each Clopper-Pearson bound
NOISE_MULTIPLIER = 0.5
_EPSILONS = np.linspace(-15, 15, 601)


def check_distinguishing(target: Target, *, rng: Rng, runs: int = RUNS) -> list[Finding]:
    """Lower bounds on what two statistics reveal, against the event: valid for any statistic, at 1 - 1e-9 each.

    `projection`: the best linear statistic of sums and sizes. `scale`: of log ||mean||^2 per block, sensitive to a
    denominator or a noise scale that depends on raw counts. A factor 2 in the noise is found with certainty, 12% is
    not: the test of the noise scale covers that.
    """
    mechanism, here, there = _scene(target)
    one, two = (_attributes(mechanism, side, runs, rng) for side in (here, there))
    return [
        _finding(target, mechanism.event, name, one[name], two[name]) for name in ("projection", "scale") if name in one
    ]


def error_bounds(one: Array, two: Array) -> tuple[float, float]:
    """Upper bounds on (false positive, false negative) rate of the best threshold on a linear statistic.

    `one` and `two` are (runs, features). Direction and threshold are chosen on the first halves, the rates bounded on
    the second halves, so the bounds hold for any choice.
    """
    half = len(one) // 2
    weights = _discriminant(one[:half], two[:half])
    low, high = one @ weights, two @ weights
    threshold = _threshold(low[:half], high[:half])
    positives, negatives = low[half:] > threshold, high[half:] <= threshold
    bound = [
        rate_upper_bound(int(wrong.sum()), len(wrong), failure_probability=FAILURE_PROBABILITY)
        for wrong in (positives, negatives)
    ]
    return bound[0], bound[1]


def least_false_negatives(event: RoundEvent, false_positives: float) -> float:
    """The claimed trade-off for one round without sampling: no test at this level has fewer false negatives."""
    delta = _profile(event)
    one_way = 1 - delta - np.exp(_EPSILONS) * false_positives
    other_way = np.exp(-_EPSILONS) * (1 - delta - false_positives)
    return float(max(0.0, one_way.max(), other_way.max()))


def separation(false_positives: float, false_negatives: float) -> float:
    """The mu of Gaussian DP at which two Gaussians can be told apart this well, at least 0."""
    if min(false_positives, false_negatives) <= 0:
        return math.inf
    return max(0.0, -normal_quantile(false_positives) - normal_quantile(false_negatives))


def _finding(target: Target, event: RoundEvent, name: str, one: Array, two: Array) -> Finding:
    positives, negatives = error_bounds(one, two)
    allowed = least_false_negatives(event, positives)
    claimed, measured = separation(positives, allowed), separation(positives, negatives)
    return Finding(
        target.name,
        f"distinguishing, {name}",
        f"epsilon <= {_epsilon(claimed):.3g} (mu {claimed:.3g}) per round",
        f"epsilon >= {_epsilon(measured):.3g} (mu {measured:.3g})",
        negatives >= allowed - 1e-9,
    )


def _scene(target: Target) -> tuple[Mechanism, tuple[Array, Array], tuple[Array, Array]]:
    """Two neighbouring rounds that are as far apart as the claim allows."""
    axis = np.eye(64)[0]
    if target.adjacency == "add-remove":
        setting = AuditSetting(noise_multiplier=NOISE_MULTIPLIER, clustered=64, num_clusters=2)
        others, more = -CLIP * axis[None], np.vstack([-CLIP * axis, CLIP * axis])
        return target.make(setting), (others, np.array([0])), (more, np.array([0, 0]))
    setting = AuditSetting(noise_multiplier=NOISE_MULTIPLIER, clustered=64, num_clusters=2)
    mechanism = replace(target.make(setting), cohort_size=1)
    return mechanism, (-CLIP * axis[None], np.array([0])), (CLIP * axis[None], np.array([1]))


def _attributes(mechanism: Mechanism, side: tuple[Array, Array], runs: int, rng: Rng) -> dict[str, Array]:
    releases = [mechanism.release(Reports(*side), rng=rng) for _ in range(runs)]
    return {
        "projection": np.stack([_linear(one) for one in releases]),
        "scale": np.stack([np.log((one.cluster_means**2).sum(axis=1) + 1e-300) for one in releases]),
    }


def _linear(release: Release) -> Array:
    shift = release.cluster_sums[:, 0]
    return np.concatenate([shift, release.sizes, [shift[release.sizes.argmax()]]])


def _discriminant(one: Array, two: Array) -> Array:
    """Fisher's discriminant: the best direction for Gaussians of equal covariance."""
    spread = np.cov(one.T) + np.cov(two.T)
    spread = np.atleast_2d(spread) + 1e-9 * np.trace(np.atleast_2d(spread)) * np.eye(one.shape[1])
    return np.asarray(np.linalg.solve(spread, two.mean(axis=0) - one.mean(axis=0)))


def _threshold(low: Array, high: Array) -> float:
    """The quantile of both samples with the best bound on the separation."""
    candidates = np.quantile(np.concatenate([low, high]), np.linspace(0.02, 0.98, 49))

    def score(threshold: float) -> float:
        wrong = int((low > threshold).sum()), int((high <= threshold).sum())
        bounds = [rate_upper_bound(n, len(low), failure_probability=FAILURE_PROBABILITY) for n in wrong]
        return -normal_quantile(bounds[0]) - normal_quantile(bounds[1])

    return float(max(candidates, key=score))


def _profile(event: RoundEvent) -> Array:
    """Privacy profile of one round on the whole cohort, without sampling."""
    choice: Choice = getattr(event, "choice", FOLDED)
    return choice.gaussian_delta(_EPSILONS, event.noise_multiplier)


def _epsilon(mu: float) -> float:
    """Epsilon at DELTA of two Gaussians at distance mu."""
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1 / mu, DELTA)) if mu > 1e-6 else 0.0
