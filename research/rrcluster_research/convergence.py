"""The convergence bounds: the one-round theorem, term by term, and the corollary over T rounds.

After a round the error is at most contraction * error + floor; over many rounds floor
(1 - contraction) remains. `*_printed` is the paper's formula as it stands; the plain name is the one proved in
docs/theory.md. tau is `misassignment`, delta_c `failure_probability`.

`compare` has every term in both forms over a range of B, and the assumptions that a setting breaks: a bound whose
assumption fails says nothing. Assumptions that a setting cannot show (fresh data for choice and gradient, no clipping,
variances that hold near the models) are stated in docs/theory.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rrcluster_research.lemma import Setting, misassignment, misassignment_printed


@dataclass(frozen=True)
class RoundBound:
    """With probability at least 1 - delta_c, a cluster's next error is at most contraction * error + floor."""

    misassignment: float  # tau, used in the terms below
    contraction: float
    own_noise: float  # gradients of the cluster's own clients around their mean
    bias: float  # mean gradients of clients that belong elsewhere
    wrong_noise: float  # gradients of clients that belong elsewhere, around their means
    privacy_noise: float

    @property
    def floor(self) -> float:
        """epsilon of the theorem: the part that does not shrink with the error."""
        return self.own_noise + self.bias + self.wrong_noise + self.privacy_noise

    def error_after(self, error: float) -> float:
        """The bound on the next distance from the optimum."""
        return self.contraction * error + self.floor


def one_round_printed(setting: Setting) -> RoundBound:
    """Theorem as printed, with tau as printed. Infinite where it divides by zero or takes the root of a negative."""
    s, tau = setting, misassignment_printed(setting).total
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
    s, tau = setting, misassignment(setting).total
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
    """total / B, where 0 / 0 is 0 and a positive total over 0 is infinite."""
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


@dataclass(frozen=True)
class Failure:
    """One assumption that does not hold, and why."""

    assumption: str
    reason: str


def failed_round(setting: Setting) -> tuple[Failure, ...]:
    """The assumptions of the one-round theorem, as corrected, that this setting breaks."""
    return failed_constants(setting) or _failed_misassignment(setting)


def failed_run(setting: Setting) -> tuple[Failure, ...]:
    """The assumptions of the corollary over T rounds, as corrected, that this setting breaks."""
    return failed_round(setting) or _failed_stability(setting)


def failed_constants(setting: Setting) -> tuple[Failure, ...]:
    """The assumptions that the constants alone show to be broken."""
    s = setting
    longest = 2 / (s.strong_convexity + s.smoothness) if s.strong_convexity + s.smoothness > 0 else 0.0
    spreads = (s.loss_std, s.gradient_std, s.cluster_size_std, s.identifier_noise_multiplier, s.noise_std)
    checks = (
        ("strong convexity", s.strong_convexity > 0, f"strong_convexity = {s.strong_convexity:g} must be positive"),
        (
            "smoothness",
            s.smoothness >= s.strong_convexity,
            f"smoothness = {s.smoothness:g} must be at least strong_convexity = {s.strong_convexity:g}",
        ),
        (
            "step size",
            0 < s.server_lr <= longest,
            f"server_lr = {s.server_lr:g} must be in (0, 2 / (strong_convexity + smoothness)] = (0, {longest:g}]",
        ),
        (
            "separation",
            0 < s.separation <= s.largest_separation,
            f"separation = {s.separation:g} must be positive and at most largest_separation = {s.largest_separation:g}",
        ),
        ("margin", 0 < s.margin < 0.5, f"margin = {s.margin:g} must be in (0, 1/2)"),
        (
            "cluster size",
            1 <= s.min_cluster_size < s.average_size,
            f"min_cluster_size (B) = {s.min_cluster_size} must be in [1, {s.average_size:g}), M / k",
        ),
        ("variances", all(0 <= spread < float("inf") for spread in spreads), "every std must be finite, at least 0"),
        (
            "failure probability",
            0 < s.failure_probability < 1,
            f"failure_probability = {s.failure_probability:g} must be in (0, 1)",
        ),
    )
    return tuple(Failure(name, reason) for name, holds, reason in checks if not holds)


def _failed_misassignment(setting: Setting) -> tuple[Failure, ...]:
    tau = one_round(setting).misassignment
    most = setting.failure_probability * setting.min_cluster_size / (4 * setting.num_clients)
    if tau < most:
        return ()
    reason = (
        f"misassignment = {tau:.3g} must be below delta_c B / (4 M) = {most:.3g}: otherwise clients that belong "
        "elsewhere may fill a whole cluster"
    )
    return (Failure("misassignment", reason),)


def _failed_stability(setting: Setting) -> tuple[Failure, ...]:
    run = many_rounds(setting)
    failures = []
    if run.floor > run.rate * setting.radius:
        reason = (
            f"floor = {run.floor:.3g} must be at most rate * radius = {run.rate * setting.radius:.3g}: otherwise a "
            "round may carry a model out of the region where choices are reliable"
        )
        failures.append(Failure("stability", reason))
    if not run.failure_probability < 1:
        reason = f"k T delta_c = {run.failure_probability:.3g} must be below 1; lower failure_probability"
        failures.append(Failure("failure probability", reason))
    return tuple(failures)


ROUND_TERMS = ("contraction", "own_noise", "bias", "wrong_noise", "privacy_noise", "floor")


@dataclass(frozen=True)
class Term:
    """One term in both forms; infinite or NaN where a form has no value."""

    part: str  # lemma, round or run
    name: str
    printed: float
    corrected: float


@dataclass(frozen=True)
class Comparison:
    """All terms at one B, and the assumptions of the corrected forms that fail there."""

    min_cluster_size: int
    terms: tuple[Term, ...]
    failed: tuple[Failure, ...]


def compare(setting: Setting, min_cluster_sizes: Iterable[int]) -> tuple[Comparison, ...]:
    """One comparison per B; the rest of the setting stays."""
    return tuple(_at(replace(setting, min_cluster_size=size)) for size in min_cluster_sizes)


def _at(setting: Setting) -> Comparison:
    pairs = (
        ("lemma", ("choice", "identifier", "rebalance", "total"), misassignment_printed, misassignment),
        ("round", ROUND_TERMS, one_round_printed, one_round),
        ("run", ("rate", "num_rounds", "final_error", "failure_probability"), many_rounds_printed, many_rounds),
    )
    terms = []
    for part, names, as_printed, as_corrected in pairs:
        printed, corrected = as_printed(setting), as_corrected(setting)
        terms += [Term(part, name, getattr(printed, name), getattr(corrected, name)) for name in names]
    return Comparison(setting.min_cluster_size, tuple(terms), failed_run(setting))
