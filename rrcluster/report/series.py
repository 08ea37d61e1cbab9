"""Runs as series: the same method at several epsilons, or at several minimum cluster sizes B.

The look of a method, from the registry, is the same in every figure of every report: colour, dashes and marker.

Rebalanced methods share a colour of their own. Methods with the same look in one report, such as IFCA at two numbers of
clusters, are made distinct: the first keeps the look, the others take colours that no method of the report has.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rrcluster.registry import METHODS
from rrcluster.report.drawing import COLOURS, DASHES, MARKERS, PALETTE
from rrcluster.report.folders import RunGroup
from rrcluster.report.tables import metric
from rrcluster.report.values import (
    Estimate,
    differing,
    distinct_labels,
    epsilon_name,
    least_size,
    method_label,
    number,
    settings_key,
    value_text,
    words,
)

_REBALANCED = 1


@dataclass(frozen=True)
class Look:
    """Indices into `drawing`'s colours, dashes and markers."""

    colour: int
    dash: int
    marker: int

    def style(self) -> dict[str, Any]:
        """The style arguments for matplotlib."""
        return {"color": COLOURS[self.colour], "linestyle": DASHES[self.dash], "marker": MARKERS[self.marker]}


def nth_look(place: int) -> Look:
    """A look for series that are not methods: all parts differ from those of its neighbours."""
    return Look(place % len(PALETTE), place % len(DASHES), place % len(MARKERS))


def base_look(config: Mapping[str, Any]) -> Look:
    """The look of a run's method by its settings alone; an unregistered method has a look by its name."""
    name = str(config.get("algorithm"))
    look = METHODS.fact(name, "look") or _by_name(name)
    plain = None if config.get("exploration") else METHODS.fact(name, "plain_look")
    colour, dash, marker = plain or look
    return Look(_REBALANCED if least_size(config) else colour, dash, marker)


def method_looks(groups: Sequence[RunGroup]) -> dict[str, Look]:
    """The look of every method of a report, by its label in `epsilon_series`."""
    configs: dict[str, Mapping[str, Any]] = {}
    for part in arenas(groups).values():
        for entry in epsilon_series(part):
            configs.setdefault(entry.label, entry.groups[0].first.config)
    bases = {label: base_look(config) for label, config in configs.items()}
    free = [colour for colour in range(len(PALETTE)) if colour not in {look.colour for look in bases.values()}]
    looks: dict[str, Look] = {}
    for label, base in bases.items():
        look = base
        if look in looks.values() and free:
            look = replace(base, colour=free.pop(0))
        looks[label] = _unlike(look, looks.values())
    return looks


def group_looks(groups: Sequence[RunGroup]) -> list[Look]:
    """The look of the method of each group."""
    looks = method_looks(groups)
    series = [entry for part in arenas(groups).values() for entry in epsilon_series(part)]
    by_folder = {group.first.path: looks[entry.label] for entry in series for group in entry.groups}
    return [by_folder.get(group.first.path) or base_look(group.first.config) for group in groups]


def distinct_looks(looks: Sequence[Look]) -> list[Look]:
    """The same looks, for lines of one panel: repeated ones get other dashes or markers."""
    different: list[Look] = []
    for look in looks:
        different.append(_unlike(look, different))
    return different


def _unlike(look: Look, others: Iterable[Look]) -> Look:
    """The look, or one of its colour that is not yet used; with 28 lines of one colour some are alike."""
    taken = set(others)
    options = (
        Look(look.colour, (look.dash + at) % len(DASHES), (look.marker + step) % len(MARKERS))
        for step in range(len(MARKERS))
        for at in range(len(DASHES))
    )
    return next((option for option in options if option not in taken), look)


def _by_name(name: str) -> tuple[int, int, int]:
    code = zlib.crc32(name.encode())
    return code % len(PALETTE), code // 7 % len(DASHES), code // 31 % len(MARKERS)


CONTEXT = ("data", "partition", "concentration")  # runs that differ in these have separate axes
TUNED = frozenset(  # settings that may be tuned for each epsilon: runs that differ only in them are one method
    {"update_clip", "local_lr", "local_epochs", "batch_size", "server_lr", "server_momentum", "size_floor", "memory"}
    | {"count_weight", "identifier_share", "average_last", "num_rounds"}
)
_BUDGET = frozenset({"epsilon", "noise_multiplier"})
_LEAST = frozenset({"min_cluster_size", "rebalance"})
_NEAR = 0.97  # a run that cost at least this share of its target epsilon is shown at the target


@dataclass(frozen=True)
class Series:
    """One method at several x, in increasing order; an infinite epsilon is a run without privacy."""

    label: str
    places: tuple[float, ...]
    groups: tuple[RunGroup, ...]

    def points(self, name: str) -> tuple[list[float], list[Estimate]]:
        """Places and values of a diagnostic, where it was measured."""
        values = [(at, metric(group, name)) for at, group in zip(self.places, self.groups, strict=True)]
        measured = [(at, value) for at, value in values if value is not None]
        return [at for at, _ in measured], [value for _, value in measured]


def arenas(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Groups by data and partition; the titles name only those that differ."""
    configs = [group.first.config for group in groups]
    names = [name for name in CONTEXT if name in differing(configs)]
    by_title: dict[str, list[RunGroup]] = {}
    for group in groups:
        config = group.first.config
        title = ", ".join(_context_text(name, config) for name in names if config.get(name) is not None)
        by_title.setdefault(title, []).append(group)
    return by_title


def shown_epsilon(group: RunGroup) -> float:
    """The position of a group on an axis of epsilon: its target if the cost is close to it, else the cost.

    Infinite without privacy, or without a finite bound.
    """
    spent = [run.epsilon for run in group.runs]
    if not group.first.private or any(value is None for value in spent):
        return math.inf
    cost, target = max(value for value in spent if value is not None), number(group.first.config.get("epsilon"))
    return target if target is not None and _NEAR * target <= cost <= target else cost


def epsilon_series(groups: Sequence[RunGroup]) -> list[Series]:
    """One series per private method, over epsilon; a run of the same method without privacy is its last point.

    Settings in `TUNED` may change along a series; `changing` says which do.
    """
    private = [group for group in groups if math.isfinite(shown_epsilon(group))]
    open_ones = [group for group in groups if group not in private]
    series = _series(private, shown_epsilon, _BUDGET)
    bases = [_base(entry.groups[0]) for entry in series]
    joined = []
    for entry, base in zip(series, bases, strict=True):
        more = [group for group in open_ones if _base(group) == base and not group.first.private][:1]
        joined.append(
            Series(entry.label, (*entry.places, *(math.inf for _ in more)), (*entry.groups, *more)) if more else entry
        )
    alone = [group for group in open_ones if group.first.private or _base(group) not in bases]
    return joined + [Series(_labels([group])[0], (math.inf,), (group,)) for group in alone]


def size_series(groups: Sequence[RunGroup]) -> list[Series]:
    """One series per method and epsilon, over B; the method without rebalancing is its point at B = 0."""
    by_epsilon: dict[float, list[RunGroup]] = {}
    for group in groups:
        by_epsilon.setdefault(shown_epsilon(group), []).append(group)
    all_series = []
    for epsilon in sorted(by_epsilon):
        suffix = ", no privacy" if math.isinf(epsilon) else f", epsilon {epsilon_name(epsilon)}"
        lines = _series(by_epsilon[epsilon], _least_size, _LEAST)
        bases = [_base(entry.groups[0], min_cluster_size=0) for entry in lines]
        for entry, base in zip(lines, bases, strict=True):
            name = base if bases.count(base) == 1 else entry.label
            all_series.append(Series(f"{name}{suffix}", entry.places, entry.groups))
    return all_series


def one_each(groups: Sequence[RunGroup]) -> tuple[list[RunGroup], str]:
    """For figures with a panel per method: every method at its largest epsilon, and a note on omitted ones."""
    largest: list[RunGroup] = []
    for part in arenas(groups).values():
        for entry in epsilon_series(part):
            private = [group for group, at in zip(entry.groups, entry.places, strict=True) if math.isfinite(at)]
            largest.append((private or entry.groups)[-1])
    seeds = " The first seed of each method." if any(len(group.runs) > 1 for group in largest) else ""
    if len(largest) == len(groups):
        return list(groups), seeds
    return [group for group in groups if group in largest], f"{seeds} Each method at its largest epsilon."


def changing(series: Sequence[Series]) -> str:
    """The settings, other than those of the axis, that differ along a series, as words."""
    names = dict.fromkeys(
        name
        for entry in series
        for name in differing([group.first.config for group in entry.groups])
        if name not in _BUDGET | _LEAST | {"mechanism", "delta", "accountant"}
    )
    return ", ".join(words(name) for name in names)


def _series(groups: Sequence[RunGroup], place: Callable[[RunGroup], float], free: frozenset[str]) -> list[Series]:
    """Series of groups that differ in `free`, and in tuned settings unless two groups would share a position."""
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
