"""The look of a method, the same in every figure of every report: colour, dashes and marker, from the registry.

Rebalanced methods share a colour of their own. Methods of one look in one report, such as IFCA at two numbers of
clusters, are told apart: the first keeps the look, the others take colours that no method of the report has.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rrcluster.registry import METHODS
from rrcluster.report.drawing import COLOURS, DASHES, MARKERS, PALETTE
from rrcluster.report.folders import RunGroup
from rrcluster.report.labels import least_size
from rrcluster.report.series import arenas, epsilon_series

_REBALANCED = 1


@dataclass(frozen=True)
class Look:
    """Places in the tables of colours, dashes and markers of `drawing`."""

    colour: int
    dash: int
    marker: int

    def style(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {
            "color": COLOURS[self.colour],
            "linestyle": DASHES[self.dash],
            "marker": MARKERS[self.marker],
        }


def nth_look(place: int) -> Look:
    """For series that are no methods: the look at a place, all parts different from that of its neighbours."""
    return Look(place % len(PALETTE), place % len(DASHES), place % len(MARKERS))


def base_look(config: Mapping[str, Any]) -> Look:
    """The look of a run's method by its settings alone; one that the registry does not know has a look by its name."""
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
    """The same looks, for lines of one panel: those that occur again get other dashes or markers."""
    different: list[Look] = []
    for look in looks:
        different.append(_unlike(look, different))
    return different


def _unlike(look: Look, others: Iterable[Look]) -> Look:
    """The look, or one of its colour that is not among the others yet; with 28 lines of one colour some are alike."""
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
