"""Every term of every bound, as printed beside as corrected, over a range of B; and which assumption a setting breaks.

A bound whose assumption fails says nothing. What a setting cannot show (fresh data for choice and gradient, no
clipping, variances that hold near the models) is stated in docs/theory.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rrcluster.theory.convergence import many_rounds, many_rounds_printed, one_round, one_round_printed
from rrcluster.theory.lemma import Setting, misassignment, misassignment_printed


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
