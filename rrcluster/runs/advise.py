"""Advice before any data is touched: signal to noise per cluster, initialisation, and B (docs/choosing.md).

Noise, floor and cohort are those of the `PrivacyPlan` of a run with the same settings. Sizes are expectations. Signal
to noise follows from a privacy plan alone: it bounds what a run can learn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError
from rrcluster.mixed.facts import ROWS_CLIP
from rrcluster.mixed.questionnaire import PartSums
from rrcluster.mixed.questions import STAGES, Form
from rrcluster.mixed.raw_columns import MOST_FULL
from rrcluster.privacy.mechanism import SIZE_NOISE
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server.survey import AUTO_GROUP_SHARE, AUTO_LEAST_SIGNAL, CLEAR_SIGNAL, usual_signal
from rrcluster.settings import PrivacySettings, changed
from rrcluster.types import Array, Coordinates

if TYPE_CHECKING:
    from rrcluster.runs.experiment import Experiment

HOPELESS, WEAK = 0.2, 0.6  # signal to noise over the run; what runs below them reached: docs/choosing.md


@dataclass(frozen=True)
class Outlook:
    """The signal left under the noise if every client's update is as long as the clip and all of them agree.

    Both make it an upper bound: real updates point in different directions, and some are shorter. The clip itself
    cancels, because the noise is in units of it.
    """

    sizes: tuple[float, ...]  # (k,) expected clients of a cohort
    per_round: tuple[float, ...]  # (k,) norm of a cluster's sum over the norm of the noise on it, in one round
    over_run: tuple[float, ...]  # (k,) the same for the mean over the rounds that released models average
    size_floor: float  # lower bound on denominators

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user before the run starts; none where every cluster has enough signal."""
        lines = []
        small = [size for size in self.sizes if size < self.size_floor]
        if small:
            lines.append(
                f"{len(small)} of {len(self.sizes)} clusters are expected to have fewer clients than the floor of "
                f"{self.size_floor:.3g} that sums are divided by: they learn more slowly, by up to a factor of "
                f"{self.size_floor / max(min(small), 1e-9):.2g}."
            )
        least = min(self.over_run)
        if least >= WEAK:
            return tuple(lines)
        what = "hopeless" if least < HOPELESS else "weak"
        lines.append(
            f"Warning: {what}. The smallest cluster has a signal-to-noise ratio of {least:.2g} over the whole run; "
            f"below {WEAK:g} groups are hardly told apart, below {HOPELESS:g} a cluster learns next to nothing. Use "
            "fewer clusters, a larger cohort (more clients or sample_rate), a smaller network, or a larger epsilon."
        )
        return tuple(lines)


def noise_warnings(experiment: "Experiment") -> tuple[str, ...]:
    """Sentences for the user where noise leaves a run little to learn."""
    plan, config, form = experiment.plan, experiment.config, experiment.method.form(experiment.model)
    if not plan.private:
        return ()
    if form is not None:
        return tuple(filter(None, [questions_outlook(form, plan)]))
    return outlook(plan, update_clip=config.privacy.update_clip, average_last=config.server.average_last).warnings


TOO_NOISY, CLEAR = 0.5, 0.1  # noise of a column's mean, relative to half its range


def questions_outlook(form: Form, plan: PrivacyPlan) -> str:
    """A sentence where noise leaves a questionnaire almost nothing of what clients share; else an empty text.

    Judged by the noise of a column's mean, which follows from the plan alone.
    """
    mechanism, clients = plan.mechanism, plan.sampler.expected_size
    moments = next(stage for stage, (name, _) in enumerate(STAGES) if name == "moments")
    a = form.num_columns
    parts = form.parts(moments, a)
    sums = PartSums(parts, np.zeros(form.width), mechanism.noise_std, form.rounds(moments), clients)
    noise = sums.means("rows", ROWS_CLIP * (a + 1) if a <= MOST_FULL else 1.5 * math.sqrt(a))[1]
    if noise <= TOO_NOISY:
        return ""
    enough = math.ceil(clients * noise / CLEAR)
    return (
        f"Noise on the mean of a column is {noise:.1f} times half its range: with {clients:.0f} clients in a round "
        f"next to nothing that they share can be learnt, and each is left to its own rows. About {enough} clients, or "
        f"{noise / CLEAR:.0f} times the epsilon, would do; fewer columns help too."
    )


# rows of a client, and the measured gain of its own effect: research/benchmarks/when_pays.py
_ROWS = (4, 8, 16, 32, 64)
_GAINED = {0.5: (0.2, 0.1, 0.3, 0.7, 1.4), 1.0: (0.1, 1.9, 3.2, 4.9, 6.0), 2.0: (3.4, 9.0, 11.9, 14.8, 17.6)}
_GROUPS_PAY, _GROUPS_LOST = 0.066, 0.16  # noise on clients' means times the root of the columns: 8 points, none


def what_pays(plan: PrivacyPlan, *, rows: int, columns: int) -> tuple[str, ...]:
    """Possible gains for a table's clients, by rows per client, spread and noise, as measured on made tables."""
    gains = [f"{np.interp(math.log2(rows), np.log2(_ROWS), gained):.1f}" for gained in _GAINED.values()]
    noise = (plan.noise_multiplier or 0.0) * math.sqrt(columns + 1) / plan.sampler.expected_size
    judged = "should show" if noise <= _GROUPS_PAY else "may be missed" if noise < _GROUPS_LOST else "stay hidden"
    needed = math.ceil(plan.sampler.expected_size * noise / _GROUPS_PAY)
    return (
        f"With {rows} rows a client's own part gained {gains[0]}, {gains[1]} and {gains[2]} points on made tables "
        f"where clients' logits have standard deviations of {', '.join(f'{spread:g}' for spread in _GAINED)}, and "
        "nothing where clients are alike. Noise hardly matters to it, and its size is learnt: leave it on.",
        f"Groups that differ in their columns {judged}: noise on what three of them share is {noise:.2g} "
        f"({_GROUPS_PAY:g} is little, {_GROUPS_LOST:g} too much)"
        + ("." if noise <= _GROUPS_PAY else f"; {needed} clients would do, or fewer columns."),
    )


def outlook(
    plan: PrivacyPlan, *, update_clip: float, shares: Array | None = None, average_last: float = 0.5
) -> Outlook:
    """The outlook of a plan; `shares` (k,) of the clients in each cluster are expectations (default: equal).

    Clustered coordinates count, or the shared ones where a method has no others. Correlated noise cancels in released
    models: `over_run` includes that for steady sizes.
    """
    mechanism = plan.mechanism
    k, d = mechanism.num_clusters, mechanism.coordinates
    parts = np.full(k, 1.0 / k) if shares is None or not d.clustered else shares
    sizes = plan.sampler.expected_size * (parts if d.clustered else np.ones(k))
    noise = mechanism.noise_std * math.sqrt(d.clustered or d.shared)
    per_round = sizes * update_clip / noise if noise else np.full(k, np.inf)
    rounds = max(1.0, average_last * plan.num_rounds)
    return Outlook(
        sizes=tuple(sizes.tolist()),
        per_round=tuple(per_round.tolist()),
        over_run=tuple((per_round * math.sqrt(rounds) * _cancelling(plan)).tolist()),
        size_floor=mechanism.size_floor,
    )


def _cancelling(plan: PrivacyPlan) -> float:
    """The factor by which correlation reduces the noise of released models; 1 for independent noise."""
    described = plan.mechanism.describe().correlation
    noise = described.get("noise_of_models_handed_out")
    return float(described["noise_of_a_round"] * noise["independent"] / noise["chosen"]) if noise else 1.0


def expected_shares(expected_ratio: Sequence[float] | None, num_clusters: int) -> Array:
    """(k,) shares of the clients, from the expected sizes of the groups relative to each other; equal by default."""
    ratio = np.ones(num_clusters) if expected_ratio is None else np.asarray(expected_ratio, dtype=np.float64)
    if ratio.shape != (num_clusters,) or not np.isfinite(ratio).all() or (ratio < 0).any() or ratio.sum() <= 0:
        raise ConfigError(
            f"expected_ratio = {expected_ratio} must hold {num_clusters} numbers of at least 0, one for each cluster "
            "and not all 0."
        )
    return np.asarray(ratio / ratio.sum())


_ENOUGH_SIGNAL = 1.3  # over the run: coins have cost points at 1.1, and none from 1.5 on
# B in public slots, relative to the smallest expected size, chosen on EMNIST (docs/threat-model.md)
_SLOTS_SHARE = 0.96
_SIZE_MEMORY = 0.9  # decay of the running average of released sizes
_SIZE_DEVIATIONS = 2.5  # standard deviations of that average between B and the smallest expected size
_PUBLIC = "Only public quantities were read. Trying several B on clients' data would cost privacy; this does not."


@dataclass(frozen=True)
class Advice:
    """An initialisation, a recommended B, and the signal of each cluster."""

    init: str  # as `init = auto` decides: survey, or independent (with exploration)
    min_cluster_size: int
    outlook: Outlook  # without rebalancing
    reasons: tuple[str, ...]


def advise(
    settings: PrivacySettings | None = None,
    *,
    num_clients: int,
    num_clusters: int,
    num_coordinates: int,
    expected_ratio: Sequence[float] | None = None,
    size_floor: float | None = None,
    exploration: float = 1.0,
    average_last: float = 0.5,
    **changes: Any,
) -> Advice:
    """Signal to noise per cluster, whether to begin with a survey, and a recommended `min_cluster_size` (B) or none.

    `changes` are privacy settings by name (`epsilon=2, num_rounds=100`), as for `PrivacyPlan.build`; cohort, noise and
    floor are those of that plan. Reads public quantities only: it sees no client, so following it costs no privacy.
    `expected_ratio` are the sizes of the groups relative to each other (default: equal), an expectation and not a
    count. Released models average the last `average_last` of the rounds.

    The initialisation is that of `init = auto`: a survey where noise leaves enough signal to find a group of a quarter
    of the clients, else exploration. With a survey there is no B. With exploration B is an insurance: as large as
    possible while coins keep still if every group has its expected size; none where the signal is weak or released
    sizes too noisy. In public slots, whose rounds are noisier, it is nearly the size of the smallest group.
    docs/choosing.md has the measured effect of this advice.
    """
    settings = changed(settings or PrivacySettings(), changes)
    checks.non_negative(exploration=exploration)
    shares = expected_shares(expected_ratio, num_clusters)
    plan = PrivacyPlan.build(
        replace(settings, epsilon=settings.target_epsilon),
        coordinates=Coordinates(0, checks.count(num_coordinates=num_coordinates)),
        num_clients=num_clients,
        num_clusters=num_clusters,
        size_floor=size_floor,
    )
    seen = outlook(plan, update_clip=settings.update_clip, shares=shares, average_last=average_last)
    smallest = plan.sampler.expected_size * float(shares.min())
    ratio_known, explores = expected_ratio is not None, exploration > 0
    signal = usual_signal(plan, AUTO_GROUP_SHARE) if explores and plan.mechanism.name == "joint" else 0.0
    if signal >= AUTO_LEAST_SIGNAL:
        reason = (
            f"init = survey (the default): a group of a quarter of the clients has {signal:.2g} times the noise of its "
            f"questions ({AUTO_LEAST_SIGNAL:g} is enough); clusters beyond the groups that it finds stay closed, and B "
            "is 0."
        )
        return Advice(
            "survey", 0, seen, (reason, *_small(plan, shares if ratio_known else None), *seen.warnings, _PUBLIC)
        )
    least, reason = _insurance(plan, seen, smallest, known=ratio_known, explores=explores)
    expected = f"The smallest cluster is expected to have {smallest:.4g} of {plan.sampler.expected_size:.4g} clients."
    return Advice("independent", least, seen, (expected, reason, *seen.warnings, _PUBLIC))


def _small(plan: PrivacyPlan, shares: Array | None) -> tuple[str, ...]:
    """A warning if the smallest group may be missed."""
    signal = math.inf if shares is None else usual_signal(plan, float(shares.min()))
    if signal >= CLEAR_SIGNAL:
        return ()
    return (
        f"The smallest group has {signal:.2g} times the noise of the survey; below {CLEAR_SIGNAL:g} it may be missed, "
        "and share a model with another.",
    )


def _insurance(plan: PrivacyPlan, seen: Outlook, smallest: float, *, known: bool, explores: bool) -> tuple[int, str]:
    """B with exploration, and why: below the smallest expected size by a multiple of the released sizes' deviation."""
    per_size = plan.mechanism.describe().noise_per_part.get(SIZE_NOISE, math.inf)
    smoothing = math.sqrt((1 - _SIZE_MEMORY) / (1 + _SIZE_MEMORY))
    deviation = smoothing * math.hypot(per_size, math.sqrt(smallest))
    room = smallest - _SIZE_DEVIATIONS * deviation
    if not explores:
        return 0, (
            "B = 0: without exploration coins have gained 8 points and cost 12, and public quantities do not tell "
            "which; use exploration."
        )
    if not known:
        return 0, "B = 0: the ratio of the groups is not given; with more clusters than groups coins cost points."
    if plan.mechanism.num_clusters == 1:
        return 0, "With one cluster there is nobody to rebalance."
    if plan.mechanism.slots.count > 1:
        return int(_SLOTS_SHARE * smallest), (
            f"B = {int(_SLOTS_SHARE * smallest)}, {_SLOTS_SHARE:g} of the smallest expected cluster: single rounds of "
            "slots are noisy, and without coins clusters starve before their groups find them."
        )
    if min(seen.over_run) < _ENOUGH_SIGNAL:
        return 0, f"B = 0: below a signal-to-noise ratio of {_ENOUGH_SIGNAL:g} over the run coins cost points."
    if room < smallest / 2:
        return 0, (
            f"B = 0: with {smallest:.3g} clients expected and a deviation of {deviation:.2g}, released sizes cannot "
            "tell a starving cluster."
        )
    return int(room), (
        f"B = {int(room)}: released sizes of a cluster of {smallest:.3g} clients vary by {deviation:.2g}, so coins "
        "stay still unless a cluster starves. It is an insurance, for as many groups as clusters."
    )
