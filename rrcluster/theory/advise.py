"""Advice before any data is touched: signal to noise per cluster, and B, from the plan of the run (docs/choosing.md).

Noise, floor and cohort are those of the `PrivacyPlan` that a run with the same settings has. The model of B
(docs/theory.md) is of one run, noise against bias. Sizes are expectations. A small cluster is filled up to B by
strangers; a donor gives in proportion to its surplus. A cluster whose noise hides the separation loses its own clients
too: choices by loss follow the least noisy model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.privacy.mechanism import SIZE_NOISE
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.settings import PrivacySettings, changed
from rrcluster.theory.outlook import Outlook, expected_shares, outlook, survey_signal
from rrcluster.types import Array, Coordinates

_DEVIATIONS = 4.0  # standard deviations between a choice and a draw for it to be reliable in every round


@dataclass(frozen=True)
class Case:
    """What the trade-off depends on, apart from B."""

    sizes: Array  # (k,) expected clients of each group
    noise: float  # expected squared norm of the noise on one sum: d noise_std^2
    num_coordinates: int
    horizon: float  # rounds that noise is averaged over
    size_floor: float  # no sum is divided by less
    separation: float  # between the mean updates of any two groups, in the unit of the noise


@dataclass(frozen=True)
class Tradeoff:
    """What becomes of each cluster at one B, (k,) each; errors are expected squared distances of the final models."""

    noise: Array
    bias: Array  # squared, at most
    strangers: Array  # share of members that belong elsewhere
    starved: Array  # bool: its own clients choose another cluster

    @property
    def error(self) -> float:
        """Expected squared error, averaged over clusters."""
        return float((self.noise + self.bias).mean())


def trade_off(case: Case, *, min_cluster_size: int) -> Tradeoff:
    """Noise and squared bias of each cluster's model at this B.

    Noise is `noise` / (horizon size^2), size after rebalancing and at least `size_floor`; over `horizon` rounds noise
    averages out and bias does not. An empty cluster (B = 0 only) has no data to correct it: its noise accumulates. A
    share s of strangers moves the mean by at most s times the separation.
    """
    chosen, wrong = _settled(case, min_cluster_size)
    after = filled(chosen, min_cluster_size=min_cluster_size)
    arrived = np.maximum(min_cluster_size - chosen, 0.0)
    share = np.divide(arrived, after, out=np.zeros_like(after), where=after > 0)
    share += np.divide(wrong, chosen, out=np.zeros_like(after), where=chosen > 0)
    share = np.where((chosen == 0) & (case.sizes > 0), 1.0, np.minimum(share, 1.0))
    per_round = _per_round(case, after)
    return Tradeoff(
        noise=np.where(after > 0, per_round / case.horizon, per_round * case.horizon),
        bias=(share * case.separation) ** 2,
        strangers=share,
        starved=(chosen == 0) & (case.sizes > 0),
    )


def filled(sizes: Array, *, min_cluster_size: int) -> Array:
    """(k,) sizes after rebalancing to B."""
    need = np.maximum(min_cluster_size - sizes, 0.0)
    surplus = np.maximum(sizes - min_cluster_size, 0.0)
    given = surplus * min(1.0, need.sum() / surplus.sum()) if surplus.sum() > 0 else surplus
    return np.asarray(sizes + need - given)


def _settled(case: Case, min_cluster_size: int) -> tuple[Array, Array]:
    """(k,) clients that choose each cluster and (k,) how many of them belong elsewhere, once unreliable ones left."""
    chosen, wrong = case.sizes.astype(np.float64), np.zeros(len(case.sizes))
    for _ in range(len(chosen) - 1):
        room = _room(case, filled(chosen, min_cluster_size=min_cluster_size))
        room[chosen == 0] = np.inf
        worst = int(room.argmin())
        if room[worst] >= 0:
            break
        quietest = int(np.where(np.arange(len(chosen)) == worst, -1.0, chosen).argmax())
        moving = np.zeros(len(chosen))
        moving[[worst, quietest]] = -chosen[worst], chosen[worst]
        chosen, wrong = chosen + moving, wrong + np.maximum(moving, 0.0)
        wrong[worst] = 0.0
    return chosen, wrong


def _room(case: Case, sizes: Array) -> Array:
    """(k,) how far, in squared length, choices of each group are from following the noise; negative: they do.

    A client compares |e_j|^2, the noise of its own cluster's model, with separation^2 + |e_l|^2 + a cross term, for the
    least noisy model l. The means differ by separation^2 - V_j + V_l; each |e|^2 has the variance 2 V^2 / d, the cross
    term 4 separation^2 V_l / d.
    """
    variance = _per_round(case, sizes)
    least, square = variance.min(), case.separation**2
    spread = np.sqrt((2 * variance**2 + 2 * least**2 + 4 * square * least) / case.num_coordinates)
    return np.asarray(square - (variance - least) - _DEVIATIONS * spread)


def _per_round(case: Case, sizes: Array) -> Array:
    return np.asarray(case.noise / np.maximum(sizes, case.size_floor) ** 2)


_LEAST_GAIN = 0.05  # a B that saves less of the expected squared error is not worth its moves


@dataclass(frozen=True)
class Advice:
    """A recommended beginning and B, and what noise leaves of each cluster.

    Errors are expected squared errors of a cluster's model, averaged over clusters, within the model of this module.
    """

    init: str  # how the models begin: independent (with exploration) or survey
    min_cluster_size: int
    rebalance: bool
    outlook: Outlook  # without rebalancing
    error_without: float
    error_with: float
    largest_separation: float  # in clips: groups further apart would be better off with B = 0; 0 if B = 0 is advised
    reasons: tuple[str, ...]


def advise(
    settings: PrivacySettings | None = None,
    *,
    num_clients: int,
    num_clusters: int,
    num_coordinates: int,
    expected_ratio: Sequence[float] | None = None,
    separation: float = 1.0,
    size_floor: float | None = None,
    exploration: float = 1.0,
    average_last: float = 0.5,
    by_model: bool = False,
    **changes: Any,
) -> Advice:
    """Signal to noise per cluster, whether to begin with a survey, and a recommended `min_cluster_size` (B) or none.

    `changes` are privacy settings by name (`epsilon=2, num_rounds=100`), as for `PrivacyPlan.build`; cohort, noise and
    floor are those of that plan. Reads public quantities only: it sees no client, so following it costs no privacy.
    `expected_ratio` are the sizes of the groups relative to each other (default: equal), an expectation and not a
    count. Assumed, not measured: the mean updates of two groups differ by `separation` clips, and the models handed out
    average the last `average_last` of the rounds, so noise shrinks with rounds and bias does not.

    A survey (`init = survey`) is advised where exploration does badly, that is where the number of groups is not known
    (`expected_ratio` is not given) or one is far larger than another, if it would find the smallest. With exploration B
    is an insurance: as large as coins stay still while every group has the size expected of it; none where the signal
    is weak or released sizes too noisy. docs/choosing.md has what following all of this gave.

    `by_model`: B by noise against bias instead (docs/theory.md), where B = 0 starves a cluster and this B does not, if
    it lowers the expected squared error, averaged over clusters, by at least 5%. That holds for the problem of the
    theory: random sizes, clipping and real networks are not in the model, and on images it has cost 12 points.
    """
    if "expected_cohort" in changes:
        raise ConfigError("expected_cohort is gone: the cohort follows from num_clients and sample_rate; give those.")
    settings = changed(settings or PrivacySettings(), changes)
    checks.non_negative(separation=separation)
    checks.non_negative(exploration=exploration)
    shares = expected_shares(expected_ratio, num_clusters)
    plan = PrivacyPlan.build(
        replace(settings, epsilon=settings.target_epsilon),
        coordinates=Coordinates(0, checks.count(num_coordinates=num_coordinates)),
        num_clients=num_clients,
        num_clusters=num_clusters,
        size_floor=size_floor,
    )
    clip = settings.update_clip
    case = Case(
        sizes=plan.sampler.expected_size * shares,
        noise=num_coordinates * plan.mechanism.noise_std**2,
        num_coordinates=num_coordinates,
        horizon=max(1.0, average_last * plan.num_rounds),
        size_floor=max(1.0, plan.mechanism.size_floor),
        separation=separation * clip,
    )
    seen = outlook(plan, update_clip=clip, shares=shares, average_last=average_last)
    if by_model:
        return _best(case, seen, clip)
    finds = survey_signal(plan, update_clip=clip, smallest=case.sizes.min()) if exploration > 0 else 0.0
    if finds >= _FINDS and (expected_ratio is None or shares.max() >= _UNLIKE * shares.min()):
        return _surveyed(case, seen, finds, known=expected_ratio is not None)
    return _insured(case, seen, plan, known=expected_ratio is not None, explores=exploration > 0)


_UNLIKE = 3.0  # largest over smallest group: exploration, which evens sizes out, then splits the large one
_FINDS = 1.1  # signal to noise of the smallest group in a survey: below it groups have been missed


def _surveyed(case: Case, seen: Outlook, found: float, *, known: bool) -> Advice:
    error = trade_off(case, min_cluster_size=0).error
    why = "one group is far larger than another" if known else "the number of groups is not given"
    reason = (
        f"init = survey: {why}, and exploration would even sizes out. The smallest group has {found:.2g} times the "
        f"noise of the survey ({_FINDS:g} is enough); clusters beyond the groups that it finds stay closed."
    )
    return Advice("survey", 0, False, seen, error, error, 0.0, (reason, *seen.warnings, _PUBLIC))


def _best(case: Case, seen: Outlook, clip: float) -> Advice:
    largest = int(case.sizes.sum() / len(case.sizes) + 1e-9)
    options = [trade_off(case, min_cluster_size=size) for size in range(largest + 1)]
    errors = [option.error for option in options]
    best = int(np.argmin(errors))
    rescued = options[best].starved.sum() < options[0].starved.sum()
    worth = bool(rescued) and errors[best] < (1 - _LEAST_GAIN) * errors[0]
    chosen = best if worth else 0
    limit = _break_even(case, chosen) / clip if worth else 0.0
    verdict = _for(case, chosen, options, limit) if worth else [_against(best, options)]
    return Advice(
        init="independent",
        min_cluster_size=chosen,
        rebalance=worth,
        outlook=seen,
        error_without=errors[0],
        error_with=errors[chosen],
        largest_separation=limit,
        reasons=(*_circumstances(case, options[0], clip), *verdict, *seen.warnings, _PUBLIC),
    )


_ENOUGH_SIGNAL = 1.3  # over the run: coins have cost points at 1.1, and none from 1.5 on
_SIZE_MEMORY = 0.9  # of the running average of released sizes
_SIZE_DEVIATIONS = 2.5  # standard deviations of that average between B and the smallest expected size


def _insured(case: Case, seen: Outlook, plan: PrivacyPlan, *, known: bool, explores: bool) -> Advice:
    """B with exploration: below the smallest expected size by what released sizes vary."""
    error, smallest = trade_off(case, min_cluster_size=0).error, float(case.sizes.min())
    per_size = plan.mechanism.describe().noise_per_part.get(SIZE_NOISE, math.inf)
    smoothing = math.sqrt((1 - _SIZE_MEMORY) / (1 + _SIZE_MEMORY))
    deviation = smoothing * math.hypot(per_size, math.sqrt(smallest))
    room = smallest - _SIZE_DEVIATIONS * deviation
    least, reason = (
        0,
        f"B = 0: with {smallest:.3g} clients expected and a deviation of {deviation:.2g}, released sizes ",
    )
    reason += "cannot tell a starving cluster."
    if not explores:
        reason = (
            "B = 0: without exploration coins have gained 8 points and cost 12, and public quantities do not tell "
            "which; use exploration."
        )
    elif not known:
        reason = "B = 0: the ratio of the groups is not given; with more clusters than groups coins cost points."
    elif len(case.sizes) == 1:
        reason = "With one cluster there is nobody to rebalance."
    elif min(seen.over_run) < _ENOUGH_SIGNAL:
        reason = f"B = 0: below a signal-to-noise ratio of {_ENOUGH_SIGNAL:g} over the run coins cost points."
    elif room >= smallest / 2:
        least = int(room)
        reason = (
            f"B = {least}: released sizes of a cluster of {smallest:.3g} clients vary by {deviation:.2g}, so coins "
            "stay still unless a cluster starves. It is an insurance, for as many groups as clusters."
        )
    expected = f"The smallest cluster is expected to have {smallest:.4g} of {case.sizes.sum():.4g} clients."
    reasons = (expected, reason, *seen.warnings, _PUBLIC)
    return Advice("independent", least, least > 0, seen, error, error, 0.0, reasons)


def _break_even(case: Case, min_cluster_size: int) -> float:
    """The least separation, beyond the given one, at which this B is no better than none; infinite if there is none."""

    def pays(separation: float) -> bool:
        apart = replace(case, separation=separation)
        return trade_off(apart, min_cluster_size=min_cluster_size).error < trade_off(apart, min_cluster_size=0).error

    low = max(case.separation, 1e-9 * math.sqrt(case.noise))
    high = low
    for _ in range(200):
        if not pays(high):
            break
        low, high = high, 1.1 * high
    else:
        return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


_PUBLIC = "Only public quantities were read. Trying several B on clients' data would cost privacy; this does not."


def _circumstances(case: Case, without: Tradeoff, clip: float) -> list[str]:
    smallest = int(case.sizes.argmin())
    lines = [
        f"The smallest cluster is expected to have {case.sizes[smallest]:.4g} of {case.sizes.sum():.4g} clients.",
        f"Assumed: the mean updates of two groups differ by {case.separation / clip:g} clips, and noise is averaged "
        f"over {case.horizon:g} rounds.",
    ]
    if without.starved.any():
        lines.append(
            f"Without rebalancing, noise hides that difference: {int(without.starved.sum())} of {len(case.sizes)} "
            "clusters would lose their own clients to a less noisy model, and their models would drift."
        )
    return lines


def _for(case: Case, chosen: int, options: list[Tradeoff], limit: float) -> list[str]:
    smallest = int(case.sizes.argmin())
    without, with_ = options[0], options[chosen]
    lines = [
        f"B = {chosen} lowers the squared noise of the smallest cluster's model from {without.noise[smallest]:.3g} to "
        f"{with_.noise[smallest]:.3g} and adds a squared bias of at most {with_.bias[smallest]:.3g}: up to "
        f"{with_.strangers[smallest]:.0%} of its members would belong elsewhere.",
        f"Averaged over clusters, the expected squared error falls from {without.error:.3g} to {with_.error:.3g}.",
    ]
    if limit < math.inf:
        lines.append(f"If the groups differed by more than {limit:.3g} clips, this B would no longer pay.")
    return lines


def _against(best: int, options: list[Tradeoff]) -> str:
    none, least = options[0].error, options[best].error
    if len(options[0].noise) == 1:
        return "With one cluster there is nobody to rebalance."
    if best == 0:
        return "No B lowers the expected squared error: moving clients adds more bias than it saves noise."
    if options[best].starved.sum() < options[0].starved.sum():
        return f"B = {best} would lower the expected squared error only from {none:.3g} to {least:.3g}: none is used."
    return f"B = 0: rebalancing pays where it keeps a cluster from starving, and B = {best} would not."
