"""Distance of two neighbouring releases: profiles (delta as a function of epsilon) and RDP.

A *profile* is the hockey-stick divergence delta(epsilon) of the worst pair of neighbouring inputs, for every real
epsilon. Every profile here is symmetric: exchanging the two neighbours changes nothing. `pld.py` turns profiles into
privacy loss distributions; `accounting.py` composes them over rounds.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rrcluster import checks

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]
Rdp = Callable[[ArrayLike], Array]  # order -> Renyi divergence

_HALF_WIDTH = 13.0  # the Gaussian tail beyond it is below 1e-37
_NODES_PER_UNIT = 32


def gaussian_delta(epsilon: ArrayLike, noise_multiplier: float) -> Array:
    """Profile of one Gaussian release with noise std = `noise_multiplier` times the sensitivity.

    Exact, for add-remove and replace-one alike, as long as the multiplier is relative to the sensitivity
    under that relation (Balle, Wang 2018, arXiv 1805.06530, Theorem 8). Takes any finite epsilon, negative
    ones included; works in logarithms, so tails keep their relative precision until they underflow to 0.
    """
    from scipy.special import log_ndtr

    eps, z = np.asarray(epsilon, dtype=np.float64), checks.positive(noise_multiplier=noise_multiplier)
    upper = log_ndtr(1 / (2 * z) - eps * z)
    lower = eps + log_ndtr(-1 / (2 * z) - eps * z)
    return np.asarray(np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0)))


def other_probability(keep_probability: float, num_clusters: int) -> float:
    """Probability with which k-ary randomised response answers one given cluster other than the true one."""
    return (1 - keep_probability) / (num_clusters - 1)


def kary_loss(keep_probability: float, num_clusters: int) -> float:
    """Largest privacy loss of k-ary randomised response under replace-one: ln(p / r)."""
    return math.log(keep_probability / other_probability(keep_probability, num_clusters))


def kary_gaussian_delta(
    epsilon: ArrayLike, noise_multiplier: float, *, keep_probability: float, num_clusters: int
) -> Array:
    """Profile of k-ary randomised response on the choice followed by a Gaussian release, under replace-one.

    The response shows the old choice (probability p, loss l), the new one (r, -l) or another (k - 2 of
    them, each r, loss 0), and the Gaussian adds its own loss: delta(e) = p G(e - l) + (k - 2) r G(e) + r
    G(e + l), where G is the Gaussian profile. Exact for a client that changes both choice and update; an
    upper bound for any other change.
    """
    eps, k, p = np.asarray(epsilon, dtype=np.float64), num_clusters, keep_probability
    r, loss = other_probability(p, k), kary_loss(p, k)
    old, new = gaussian_delta(eps - loss, noise_multiplier), gaussian_delta(eps + loss, noise_multiplier)
    return np.asarray(p * old + (k - 2) * r * gaussian_delta(eps, noise_multiplier) + r * new)


def fixed_size_delta(epsilon: ArrayLike, base: Profile, sample_rate: float) -> Array:
    """Profile of a round on a cohort of fixed size, `sample_rate` of all clients, under replace-one.

    For epsilon >= 0: delta'(e') = q delta(e) with e' = ln(1 + q (exp(e) - 1)), where `base` is the
    replace-one profile of the round on the whole cohort (Balle, Barthe, Gaboardi 2018, arXiv 1807.01647,
    Theorem 9: sampling without replacement). For epsilon < 0 by exchanging the neighbours: delta'(-e) = 1 -
    exp(-e) + exp(-e) delta'(e). The result is convex in exp(epsilon), hence itself the profile of a pair,
    and that pair dominates the round and may be composed adaptively (Zhu, Dong, Wang 2022, arXiv
    2106.08567: dominating pairs).
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    size = np.abs(eps)
    amplified = sample_rate * base(before_sampling(size, sample_rate))
    return np.asarray(np.where(eps >= 0, amplified, -np.expm1(-size) + np.exp(-size) * amplified))


def poisson_added_delta(epsilon: ArrayLike, noise_multiplier: float, sample_rate: float) -> Array:
    """Profile of N(0, z^2) against (1 - q) N(0, z^2) + q N(1, z^2), for epsilon >= 0: a client joins.

    With c = 1 - (1 - q) exp(e) the difference is c N(0) - q exp(e) N(1): delta(e) = c G(e + ln(q / c)), where G is the
    Gaussian profile; 0 where c <= 0, which no loss reaches.
    """
    eps, q = np.asarray(epsilon, dtype=np.float64), sample_rate
    left = -np.expm1(np.minimum(eps + math.log1p(-q), 1.0)) if q < 1 else np.ones_like(eps)  # negative from 0 on
    reached = left > 0
    inside = np.where(reached, left, 1.0)
    return np.asarray(np.where(reached, inside * gaussian_delta(eps + np.log(q / inside), noise_multiplier), 0.0))


def before_sampling(epsilon: ArrayLike, sample_rate: float) -> Array:
    """The epsilon >= 0 before sampling that becomes `epsilon` after it: ln(1 + (exp(epsilon) - 1) / q)."""
    eps, q = np.asarray(epsilon, dtype=np.float64), sample_rate
    small = np.log1p(np.expm1(np.minimum(eps, 1.0)) / q)
    large = eps - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(eps, 1.0)))
    return np.asarray(np.where(eps < 1, small, large))


def after_sampling(epsilon: float, sample_rate: float) -> float:
    """The epsilon >= 0 after sampling: ln(1 + q (exp(epsilon) - 1)); safe against overflow."""
    q = sample_rate
    if epsilon < 30:
        return math.log1p(q * math.expm1(epsilon))
    return epsilon + math.log(q) + math.log1p((1 - q) / q * math.exp(-epsilon))


def keep_probability(identifier_multiplier: float, num_clusters: int) -> float:
    """Probability that the argmax of a one-hot choice plus Gaussian noise is still the choice.

    `identifier_multiplier` is noise std / length of the one-hot vector. The other clusters share the rest
    equally, so the argmax *is* k-ary randomised response with p = integral of phi(x) Phi(x + 1/s)^(k-1). At
    least 1/k; rounds to 1 once the multiplier is below about 0.08, which the event then refuses. Needs no
    scipy: the trapezoid rule on a Gaussian integrand is exact to rounding.
    """
    shift = 1 / checks.positive(identifier_multiplier=identifier_multiplier)
    k = checks.count(num_clusters=num_clusters, at_least=2)
    step = 1 / _NODES_PER_UNIT
    nodes = [i * step for i in range(round(-_HALF_WIDTH / step), round(_HALF_WIDTH / step) + 1)]
    beaten = (math.exp(-x * x / 2) * -math.expm1((k - 1) * _log_normal_cdf(x + shift)) for x in nodes)
    lost = math.fsum(beaten) * step / math.sqrt(2 * math.pi)
    return max(1 / k, 1 - lost)


def _log_normal_cdf(x: float) -> float:
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    return math.log(math.erfc(-x / math.sqrt(2)) / 2)


def gaussian_rdp(orders: ArrayLike, noise_multiplier: float) -> Array:
    """RDP of one Gaussian release: order / (2 z^2) (Mironov 2017, arXiv 1702.07476v3, Proposition 7)."""
    return np.asarray(np.asarray(orders, dtype=np.float64) / (2 * noise_multiplier**2))


def kary_rdp(orders: ArrayLike, keep_probability: float, num_clusters: int) -> Array:
    """RDP of k-ary randomised response under replace-one, exact, for finite orders greater than 1.

    log(p^a r^(1-a) + r^a p^(1-a) + (k-2) r) / (a - 1) with r = (1 - p) / (k - 1); 0 at p = 1/k.
    """
    a, p, k = np.asarray(orders, dtype=np.float64), keep_probability, num_clusters
    r = other_probability(p, k)
    rest = math.log((k - 2) * r) if k > 2 else -math.inf
    ends = np.logaddexp(a * math.log(p) + (1 - a) * math.log(r), a * math.log(r) + (1 - a) * math.log(p))
    return np.asarray(np.maximum(np.logaddexp(ends, rest), 0.0) / (a - 1))


def fixed_size_rdp(orders: ArrayLike, base: Rdp, sample_rate: float) -> Array:
    """RDP of a round on a fixed-size cohort under replace-one, for any base round with RDP `base(order)`.

    Wang, Balle, Kasiviswanathan 2019 (AISTATS; arXiv 1808.00087), Theorem 9 with epsilon(infinity) =
    infinity, which is what any Gaussian release has. Valid but loose: the terms of power 3 and above keep a
    factor 2 however much noise there is, so the bound has a floor. Whole orders of at least 2 only. At
    sample_rate = 1 there is no sampling, and the base RDP is returned as it is.
    """
    whole = np.asarray(orders, dtype=np.int64)
    if sample_rate == 1:
        return base(whole)
    return np.array([_theorem_9(int(order), base, sample_rate) for order in whole])


def _theorem_9(order: int, base: Rdp, sample_rate: float) -> float:
    from scipy.special import gammaln

    j = np.arange(2, order + 1)
    weight = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1) + j * math.log(sample_rate)
    cost = math.log(2) + (j - 1) * base(j)
    second = float(base(2))
    cost[0] = min(math.log(4) + second + math.log(-math.expm1(-second)), cost[0])
    return float(np.logaddexp(0.0, np.logaddexp.reduce(weight + cost)) / (order - 1))
