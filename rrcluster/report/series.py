"""Runs as series: the same method at several epsilons, or at several least cluster sizes B."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rrcluster.report.estimate import Estimate
from rrcluster.report.folders import RunGroup
from rrcluster.report.labels import differing, distinct_labels, least_size, method_label, settings_key
from rrcluster.report.notation import value_text, words
from rrcluster.report.run_files import number
from rrcluster.report.tables import metric

CONTEXT = ("data", "partition", "concentration", "model")  # runs that differ in these share no axes
TUNED = frozenset(  # settings that are chosen anew for each epsilon, and do not make another method of it
    {"update_clip", "local_lr", "local_epochs", "batch_size", "server_lr", "server_momentum", "size_floor", "memory"}
    | {"count_weight", "identifier_share", "average_last", "num_rounds"}
)
_BUDGET = frozenset({"epsilon", "noise_multiplier"})
_LEAST = frozenset({"min_cluster_size", "rebalance"})
_NEAR = 0.97  # a run that spent this share of the epsilon it was calibrated to is shown there


@dataclass(frozen=True)
class Series:
    """One method at several places: groups in the order of x; x is infinite where there is no privacy."""

    label: str
    places: tuple[float, ...]
    groups: tuple[RunGroup, ...]

    def points(self, name: str) -> tuple[list[float], list[Estimate]]:
        """Places and values of a diagnostic, where it was measured."""
        found = [(at, metric(group, name)) for at, group in zip(self.places, self.groups, strict=True)]
        kept = [(at, value) for at, value in found if value is not None]
        return [at for at, _ in kept], [value for _, value in kept]


def arenas(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Groups by data, partition and model, under titles that say only where these differ."""
    configs = [group.first.config for group in groups]
    names = [name for name in CONTEXT if name in differing(configs)]
    found: dict[str, list[RunGroup]] = {}
    for group in groups:
        title = ", ".join(_context_text(name, group.first.config) for name in names)
        found.setdefault(title, []).append(group)
    return found


def shown_epsilon(group: RunGroup) -> float:
    """Where a group stands on an axis of epsilon: what it was calibrated to if it costs that, else what it costs.

    Infinite without privacy, or without a finite bound.
    """
    spent = [run.epsilon for run in group.runs]
    if not group.first.private or any(value is None for value in spent):
        return math.inf
    most, asked = max(value for value in spent if value is not None), number(group.first.config.get("epsilon"))
    return asked if asked is not None and _NEAR * asked <= most <= asked else most


def epsilon_series(groups: Sequence[RunGroup]) -> list[Series]:
    """One series per private method, over epsilon; where the same method ran without privacy, that is its last point.

    Settings in `TUNED` may change along a series; `changing` says which do.
    """
    private = [group for group in groups if math.isfinite(shown_epsilon(group))]
    open_ones = [group for group in groups if not group.first.private]
    series = _series(private, shown_epsilon, _BUDGET)
    bases = [_base(entry.groups[0]) for entry in series]
    joined = []
    for entry, base in zip(series, bases, strict=True):
        more = [group for group in open_ones if _base(group) == base][:1]
        joined.append(
            Series(entry.label, (*entry.places, *(math.inf for _ in more)), (*entry.groups, *more)) if more else entry
        )
    alone = [group for group in open_ones if _base(group) not in bases]
    return joined + [Series(_labels([group])[0], (math.inf,), (group,)) for group in alone]


def size_series(groups: Sequence[RunGroup]) -> list[Series]:
    """One series per method and epsilon, over B; the method without rebalancing is its point at B = 0."""
    by_epsilon: dict[float, list[RunGroup]] = {}
    for group in groups:
        by_epsilon.setdefault(shown_epsilon(group), []).append(group)
    found = []
    for epsilon in sorted(by_epsilon):
        suffix = ", no privacy" if math.isinf(epsilon) else f", epsilon {epsilon:g}"
        lines = _series(by_epsilon[epsilon], _least_size, _LEAST)
        bases = [_base(entry.groups[0], min_cluster_size=0) for entry in lines]
        for entry, base in zip(lines, bases, strict=True):
            name = base if bases.count(base) == 1 else entry.label
            found.append(Series(f"{name}{suffix}", entry.places, entry.groups))
    return found


def style_places(groups: Sequence[RunGroup]) -> dict[str, int]:
    """The place of every method in the palette, the same in all figures of a report."""
    labels = dict.fromkeys(entry.label for part in arenas(groups).values() for entry in epsilon_series(part))
    return {label: place for place, label in enumerate(labels)}


def one_each(groups: Sequence[RunGroup]) -> tuple[list[RunGroup], str]:
    """For figures with a panel per method: methods that ran at several epsilons at their largest, and a note on it."""
    kept: list[RunGroup] = []
    for part in arenas(groups).values():
        for entry in epsilon_series(part):
            private = [group for group, at in zip(entry.groups, entry.places, strict=True) if math.isfinite(at)]
            kept.append((private or entry.groups)[-1])
    if len(kept) == len(groups):
        return list(groups), ""
    return [group for group in groups if group in kept], " Each method at its largest epsilon."


def changing(series: Sequence[Series]) -> str:
    """The settings other than the one on the axis that differ along a series, as words; nothing if none do."""
    names = dict.fromkeys(
        name
        for entry in series
        for name in differing([group.first.config for group in entry.groups])
        if name not in _BUDGET | _LEAST | {"mechanism", "delta", "accountant"}
    )
    return ", ".join(words(name) for name in names)


def _series(groups: Sequence[RunGroup], place: Callable[[RunGroup], float], free: frozenset[str]) -> list[Series]:
    """Groups that differ in `free` (and in tuned settings, unless that puts two at one place) as series."""
    loose: dict[object, list[RunGroup]] = {}
    for group in groups:
        loose.setdefault(_key(group.first.config, free | TUNED), []).append(group)
    lines: list[list[RunGroup]] = []
    for members in loose.values():
        if len({place(group) for group in members}) == len(members):
            lines.append(members)
            continue
        strict: dict[object, list[RunGroup]] = {}
        for group in members:
            strict.setdefault(_key(group.first.config, free), []).append(group)
        lines += strict.values()
    first = list(dict.fromkeys(_base(members[0], min_cluster_size=0) for members in lines))
    lines.sort(key=lambda members: (first.index(_base(members[0], min_cluster_size=0)), _least_size(members[0])))
    ordered = [sorted(members, key=place) for members in lines]
    labels = _labels([members[0] for members in ordered], free)
    return [
        Series(label, tuple(place(group) for group in members), tuple(members))
        for label, members in zip(labels, ordered, strict=True)
    ]


def _key(config: Mapping[str, Any], free: frozenset[str]) -> object:
    return settings_key({name: value for name, value in config.items() if name not in free})


def _labels(groups: Sequence[RunGroup], free: frozenset[str] = _BUDGET) -> tuple[str, ...]:
    hidden = free - _LEAST
    configs = [
        {name: value for name, value in group.first.config.items() if name not in hidden.union(CONTEXT)}
        for group in groups
    ]
    return distinct_labels(configs, [group.first.path.name for group in groups])


def _base(group: RunGroup, **settings: int) -> str:
    return method_label({**group.first.config, "mechanism": "none", **settings})


def _least_size(group: RunGroup) -> float:
    return least_size(group.first.config)


def _context_text(name: str, config: Mapping[str, Any]) -> str:
    value = value_text(config.get(name))
    return f"{name} {value}" if name == "concentration" else value
