"""What happens over the rounds: accuracy, with one panel per epsilon where there are several, and epsilon spent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rrcluster.report.drawing import (
    Drawing,
    band,
    draw,
    legend,
    legend_height,
    level,
    line_style,
    near_chance,
    plain,
    whole_numbers,
)
from rrcluster.report.estimate import Estimate, estimate
from rrcluster.report.folders import DIAGNOSTIC, RunGroup
from rrcluster.report.notation import percent
from rrcluster.report.series import arenas, epsilon_series, style_places
from rrcluster.report.tables import chance_level, group_labels

PANELS = 4  # of one figure; more panels make more figures
_MARKED = 25  # curves of at most so many points show them


@dataclass(frozen=True)
class Curve:
    """Accuracy of one method over rounds; `place` is its style."""

    label: str
    place: int
    rounds: tuple[int, ...]
    points: tuple[Estimate, ...]


@dataclass(frozen=True)
class Panel:
    """Curves that share axes."""

    title: str
    curves: tuple[Curve, ...]


def draw_accuracy(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Convergence: mean accuracy over rounds, with bands over seeds."""
    panels = [panel for panel in _panels(groups) if panel.curves]
    pages = [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]
    chance = chance_level(groups)
    return [_accuracy(page, f"accuracy-{at}" if at > 1 else "accuracy", chance) for at, page in enumerate(pages, 1)]


def _panels(groups: Sequence[RunGroup]) -> list[Panel]:
    """All methods in one panel; one panel per context and epsilon where a method was run at several epsilons."""
    several = any(len(entry.groups) > 1 for part in arenas(groups).values() for entry in epsilon_series(part))
    if not several and len(arenas(groups)) == 1:
        labels = group_labels(groups)
        return [
            _panel("", [(label, place, group) for place, (label, group) in enumerate(zip(labels, groups, strict=True))])
        ]
    found: list[Panel] = []
    styles = style_places(groups)
    for title, part in arenas(groups).items():
        at: dict[float, list[tuple[str, int, RunGroup]]] = {}
        for entry in epsilon_series(part):
            for epsilon, group in zip(entry.places, entry.groups, strict=True):
                label = entry.label if math.isfinite(epsilon) else group.label
                at.setdefault(epsilon, []).append((label, styles[entry.label], group))
        for epsilon in sorted(at):
            named = "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
            found.append(_panel(f"{title}, {named}" if title else named, at[epsilon]))
    return found


def _panel(title: str, entries: Sequence[tuple[str, int, RunGroup]]) -> Panel:
    curves = [Curve(label, place, *_accuracy_curve(group)) for label, place, group in entries]
    return Panel(title, tuple(curve for curve in curves if curve.rounds))


def _accuracy_curve(group: RunGroup) -> tuple[tuple[int, ...], tuple[Estimate, ...]]:
    """Mean accuracy at the rounds that every seed evaluated."""
    seeds = [{entry.round_index: entry.accuracy for entry in run.diagnostics} for run in group.runs]
    shared = [at for at in seeds[0] if all(seed.get(at) is not None for seed in seeds)]
    points = [(at + 1, estimate(seed[at] for seed in seeds)) for at in sorted(shared)]
    kept = [(at, point) for at, point in points if point is not None]
    return tuple(at for at, _ in kept), tuple(point for _, point in kept)


def _accuracy(panels: Sequence[Panel], name: str, chance: float | None) -> Drawing:
    curves = [(panel, curve) for panel in panels for curve in panel.curves]
    several = any(point.half_width is not None for _, curve in curves for point in curve.points)
    ends = "; ".join(
        f"{curve.label}{f' ({panel.title})' if panel.title else ''} ends at {percent(curve.points[-1].mean)}%"
        for panel, curve in curves
    )
    shown = " Bands: 95% t-interval of the mean over seeds." if several else ""
    near = chance if near_chance(chance, (point for _, curve in curves for point in curve.points)) else None
    shown += f" Chance level: {100 * chance:g}%." if chance is not None and near is None else ""
    labels = list(dict.fromkeys(curve.label for _, curve in curves))
    return draw(
        name,
        lambda figure: _paint_accuracy(figure, panels, near),
        height=(1.9 if len(panels) == 1 else 0.3 + 1.35 * len(panels)) + legend_height([*labels, "chance (10%)"]),
        caption=f"Accuracy over rounds ({DIAGNOSTIC}).{shown}",
        alt=f"Line chart of accuracy over rounds, {DIAGNOSTIC}: {ends}.",
    )


def _paint_accuracy(figure: Any, panels: Sequence[Panel], chance: float | None) -> None:
    column = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(column, panels, strict=True):
        for curve in panel.curves:
            style = line_style(curve.place, marked=len(curve.rounds) <= _MARKED)
            axes.plot(curve.rounds, [100 * point.mean for point in curve.points], label=plain(curve.label), **style)
            band(axes, curve.rounds, curve.points, colour=style["color"])
        if chance is not None:
            level(axes, 100 * chance, f"chance ({100 * chance:g}%)", "dotted")
        axes.set_ylabel("accuracy (%)")
        axes.set_title(plain(panel.title), loc="left")
    column[0].set_title(DIAGNOSTIC, loc="right", fontstyle="italic")
    column[-1].set_xlabel("round")
    whole_numbers(column[-1])
    legend(figure, *column)
