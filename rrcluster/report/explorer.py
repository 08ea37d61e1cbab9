"""What the chart of a report's page is drawn from: the values of every method by round, as JSON inside the page."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rrcluster.report.curves import over_rounds
from rrcluster.report.folders import Run, RunGroup
from rrcluster.report.looks import distinct_looks, group_looks
from rrcluster.report.series import arenas, epsilon_series, shown_epsilon
from rrcluster.report.tables import group_epsilon, group_labels
from rrcluster.report.values import Estimate, delta_text, epsilon_name, estimate, thinned
from rrcluster.storage import printable

_SHARES = {
    "accuracy": "Accuracy (%)",
    "worst_decile": "Worst-decile accuracy (%)",
    "clustering_accuracy": "Clustering accuracy (%)",
    "personalised_accuracy": "Personalised accuracy (%)",
}
_RELEASED = {
    "released_accuracy": "Released accuracy, noisy (%)",
    "smallest": "Smallest released size (clients)",
    "largest": "Largest released size (clients)",
}
_DIGITS = 3  # decimals of a percentage
_POINTS = 400  # of a line: more do not fit a screen

Points = list[tuple[int, Estimate]]  # by index of the round


def explorer_data(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Every method with its look, its guarantee and its values; measures that no run has are left out."""
    names = {entry_group.first.path: entry.label for entry, entry_group in _members(groups)}
    looks = distinct_looks(group_looks(groups))
    lines: list[dict[str, Any]] = [
        {
            "label": printable(label),
            "method": printable(names.get(group.first.path, label)),
            "look": [look.colour, look.dash, look.marker],
            "epsilon": place if math.isfinite(place := shown_epsilon(group)) else None,
            "tick": epsilon_name(place) if math.isfinite(place) else "∞",
            "promise": _promise(group),
            "values": _values(group),
        }
        for label, look, group in zip(group_labels(groups), looks, groups, strict=True)
    ]
    titles = {**_SHARES, "loss": "Loss", **_RELEASED}
    measured = [name for name in titles if any(name in line["values"] for line in lines)]
    measures = [{"key": name, "title": titles[name], "released": name in _RELEASED} for name in measured]
    return {"measures": measures, "lines": lines}


def as_data_block(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def content_hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _members(groups: Sequence[RunGroup]) -> Iterable[tuple[Any, RunGroup]]:
    for part in arenas(groups).values():
        for entry in epsilon_series(part):
            for group in entry.groups:
                yield entry, group


def _promise(group: RunGroup) -> str:
    if not group.first.private:
        return "no privacy"
    return f"epsilon {group_epsilon(group)}, delta {delta_text(group.first.delta)}"


def _values(group: RunGroup) -> dict[str, list[list[float] | None]]:
    """By measure: rounds from 1 on, means over seeds, and half widths of their intervals where there are several."""
    points = {name: over_rounds(group.runs, name) for name in (*_SHARES, "loss")}
    if group.first.num_clusters == 1:
        points.pop("clustering_accuracy")
    else:
        points |= {"smallest": _sizes(group.runs, least=True), "largest": _sizes(group.runs, least=False)}
    if group.first.private and len(group.runs) == 1:  # the costs of several would add up
        released = [(entry.round_index, estimate([entry.accuracy])) for entry in group.first.rounds]
        points["released_accuracy"] = [(at, mean) for at, mean in released if mean is not None]
    shares = (*_SHARES, "released_accuracy")
    return {name: _columns(entries, scale=100 if name in shares else 1) for name, entries in points.items() if entries}


def _sizes(runs: Sequence[Run], *, least: bool) -> Points:
    seeds = [
        {entry.round_index: (min if least else max)(sizes) for entry in run.rounds if (sizes := _finite(entry.sizes))}
        for run in runs
    ]
    shared = [at for at in seeds[0] if all(at in seed for seed in seeds)]
    means = [(at, estimate(seed[at] for seed in seeds)) for at in shared]
    return [(at, mean) for at, mean in means if mean is not None]


def _finite(sizes: Sequence[float]) -> list[float]:
    return [size for size in sizes if math.isfinite(size)]


def _columns(points: Points, *, scale: float) -> list[list[float] | None]:
    shown = thinned(points, most=_POINTS)
    means = [round(scale * value.mean, _DIGITS) for _, value in shown]
    halves = [round(scale * (value.half_width or 0.0), _DIGITS) for _, value in shown]
    return [[at + 1 for at, _ in shown], means, halves if any(halves) else None]
