"""The convergence bounds: the one-round theorem, term by term, and the corollary over T rounds.

After a round the error is at most contraction * error + floor; over many rounds floor / (1 - contraction) remains.
`*_printed` is the paper's formula as it stands; the plain name is what docs/theory.md proves. tau is `misassignment`,
delta_c `failure_probability`.
"""

import math
from dataclasses import dataclass

from rrcluster.theory import lemma
from rrcluster.theory.lemma import Setting


@dataclass(frozen=True)
class RoundBound:
    """With probability at least 1 - delta_c, a cluster's next error is at most contraction * error + floor."""

    misassignment: float  # tau, that the terms below were computed with
    contraction: float
    own_noise: float  # gradients of the cluster's own clients around their mean
    bias: float  # mean gradients of clients that belong elsewhere
    wrong_noise: float  # gradients of clients that belong elsewhere, around their means
    privacy_noise: float

    @property
    def floor(self) -> float:
        """epsilon of the theorem: what does not shrink with the error."""
        return self.own_noise + self.bias + self.wrong_noise + self.privacy_noise

    def error_after(self, error: float) -> float:
        """The bound on the next distance from the optimum."""
        return self.contraction * error + self.floor


def one_round_printed(setting: Setting) -> RoundBound:
    """Theorem as printed, with tau as printed. Infinite where it divides by zero or takes the root of less."""
    s, tau = setting, lemma.misassignment_printed(setting).total
    return RoundBound(
        misassignment=tau,
        contraction=contraction_printed(s, misassignment=tau),
        own_noise=own_noise_printed(s, misassignment=tau),
        bias=bias_printed(s, misassignment=tau),
        wrong_noise=wrong_noise_printed(s, misassignment=tau),
        privacy_noise=privacy_noise(s),
    )


def one_round(setting: Setting) -> RoundBound:
    """Theorem as corrected (Theorem 2 of docs/theory.md), with tau as corrected; infinite for B = 0."""
    s, tau = setting, lemma.misassignment(setting).total
    return RoundBound(
        misassignment=tau,
        contraction=contraction(s, misassignment=tau),
        own_noise=own_noise(s),
        bias=bias(s, misassignment=tau),
        wrong_noise=wrong_noise(s, misassignment=tau),
        privacy_noise=privacy_noise(s),
    )


def contraction_printed(setting: Setting, *, misassignment: float) -> float:
    """1 - gamma L (B - 2 tau M / delta_c) / (2 rho): L where it must be lambda, 2 where its own proof says 4."""
    M, k, B, tau = setting.num_clients, setting.num_clusters, setting.min_cluster_size, misassignment
    rho = M - (k - 1) * B
    right = B - 2 * tau * M / setting.failure_probability
    return 1 - setting.server_lr * setting.smoothness * right / (2 * rho)


def contraction(setting: Setting, *, misassignment: float) -> float:
    """1 - gamma lambda (1 - w), w the share of wrong clients: the weakest direction, slowed by them."""
    return 1 - setting.server_lr * setting.strong_convexity * (1 - wrong_share(setting, misassignment=misassignment))


def wrong_share(setting: Setting, *, misassignment: float) -> float:
    """w: the share of a cluster's clients that belong elsewhere, with probability 1 - delta_c / 4 (Markov); at most 1.

    At most tau M of them are expected and the cluster has at least B members: w = 4 tau M / (delta_c B).
    """
    B = setting.min_cluster_size
    if B == 0:
        return 1.0
    return min(1.0, 4 * misassignment * setting.num_clients / (setting.failure_probability * B))


def own_noise_printed(setting: Setting, *, misassignment: float) -> float:
    """4 v / sqrt(delta_c (B delta_c - 4 tau M)): without the step size, so false for gamma > 1."""
    delta = setting.failure_probability
    inside = delta * (setting.min_cluster_size * delta - 4 * misassignment * setting.num_clients)
    if setting.gradient_std == 0:
        return 0.0
    return 4 * setting.gradient_std / math.sqrt(inside) if inside > 0 else math.inf


def own_noise(setting: Setting) -> float:
    """2 gamma v / sqrt(delta_c B): Markov on the square, and n / |S|^2 <= 1 / |S| <= 1 / B."""
    return setting.server_lr * _spread(setting)


def bias_printed(setting: Setting, *, misassignment: float) -> float:
    """6 tau gamma L Delta M / (delta_c B): with the smallest separation where the largest is needed."""
    pull = 1.5 * setting.server_lr * setting.smoothness * setting.separation
    return pull * _per_member(setting, 4 * misassignment * setting.num_clients / setting.failure_probability)


def bias(setting: Setting, *, misassignment: float) -> float:
    """gamma L (largest separation + radius) w: how hard wrong clients pull towards their own optima."""
    reach = setting.largest_separation + setting.radius
    return setting.server_lr * setting.smoothness * reach * wrong_share(setting, misassignment=misassignment)


def wrong_noise_printed(setting: Setting, *, misassignment: float) -> float:
    """8 gamma v k sqrt(tau k M) / (B delta_c sqrt(delta_c)). It holds, 2 k^(3/2) / sqrt(delta_c) times too large."""
    k, delta = setting.num_clusters, setting.failure_probability
    root = math.sqrt(misassignment * k * setting.num_clients)
    spread = 8 * setting.server_lr * setting.gradient_std * k
    return 0.0 if spread == 0 else _per_member(setting, spread * root / delta**1.5)


def wrong_noise(setting: Setting, *, misassignment: float) -> float:
    """2 gamma v sqrt(w) / sqrt(delta_c B): all wrong clients at once, not cluster by cluster."""
    return setting.server_lr * _spread(setting) * math.sqrt(wrong_share(setting, misassignment=misassignment))


def privacy_noise(setting: Setting) -> float:
    """gamma noise_std / B sqrt(d + 2 sqrt(d ln(4/delta_c)) + 2 ln(4/delta_c)): right as printed (Laurent, Massart)."""
    d, log = setting.num_coordinates, math.log(4 / setting.failure_probability)
    length = math.sqrt(d + 2 * math.sqrt(d * log) + 2 * log)
    return _per_member(setting, setting.server_lr * setting.noise_std * length)


def _spread(setting: Setting) -> float:
    """v / sqrt(B delta_c / 4): the mean of B gradients, with probability 1 - delta_c / 4."""
    if setting.gradient_std == 0:
        return 0.0
    members = setting.min_cluster_size * setting.failure_probability / 4
    return setting.gradient_std / math.sqrt(members) if members > 0 else math.inf


def _per_member(setting: Setting, total: float) -> float:
    """total / B: nothing over nobody is nothing, something over nobody has no bound."""
    if setting.min_cluster_size > 0:
        return total / setting.min_cluster_size
    return 0.0 if total == 0 else math.inf


@dataclass(frozen=True)
class RunBound:
    """With probability at least 1 - failure_probability every model is within `final_error` after `num_rounds`."""

    rate: float  # K
    floor: float  # epsilon of one round
    num_rounds: float  # T; whole in the corrected form, and not even positive for certain in the printed one
    final_error: float  # epsilon_T = 2 epsilon / K
    failure_probability: float  # k T delta_c


def many_rounds_printed(setting: Setting) -> RunBound:
    """The corollary as printed: K and epsilon of the printed theorem, T with a stray Delta in its second part."""
    bound = one_round_printed(setting)
    return _run(setting, bound, rounds_printed(setting, rate=1 - bound.contraction, floor=bound.floor))


def many_rounds(setting: Setting) -> RunBound:
    """The corollary as corrected (Corollary 3 of docs/theory.md): K = gamma lambda (1 - w)."""
    bound = one_round(setting)
    return _run(setting, bound, rounds(setting, rate=1 - bound.contraction, floor=bound.floor))


def rounds_printed(setting: Setting, *, rate: float, floor: float) -> float:
    """log(Delta sqrt(lambda) / (2 eps_T sqrt(L))) / K + log(Delta sqrt(lambda) / (8 (1/2 - a) sqrt(L))) / log(1 - K).

    The second Delta does not cancel as it should: T depends on the unit of length, and is negative for a large Delta.
    NaN where K is outside (0, 1).
    """
    if not 0 < rate < 1 or floor == math.inf:
        return math.nan
    root = math.sqrt(setting.strong_convexity / setting.smoothness)
    final = 2 * floor / rate
    first = math.inf if final == 0 else math.log(setting.separation * root / (2 * final)) / rate
    second = math.log(setting.separation * root / (8 * (0.5 - setting.margin))) / math.log1p(-rate)
    return first + second


def rounds(setting: Setting, *, rate: float, floor: float) -> float:
    """The least whole T with (1 - K)^T radius <= epsilon / K; NaN if K is outside (0, 1], infinite without a floor."""
    if not 0 < rate <= 1 or floor == math.inf:
        return math.nan
    if rate == 1:
        return 1.0
    if floor == 0:
        return math.inf
    return float(max(0, math.ceil(math.log(floor / (rate * setting.radius)) / math.log1p(-rate))))


def _run(setting: Setting, bound: RoundBound, num_rounds: float) -> RunBound:
    rate = 1 - bound.contraction
    return RunBound(
        rate=rate,
        floor=bound.floor,
        num_rounds=num_rounds,
        final_error=2 * bound.floor / rate if rate > 0 else math.inf,
        failure_probability=setting.num_clusters * num_rounds * setting.failure_probability,
    )
