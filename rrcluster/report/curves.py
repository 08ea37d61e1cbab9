"""Line charts: means of shares in percent with bands over seeds, and accuracy over rounds.

Panels stand in one column and share a legend; accuracy has one panel per epsilon where there are several.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.series import arenas, epsilon_series, style_places
from rrcluster.report.tables import chance_level, group_labels
from rrcluster.report.values import Estimate, estimate, percent

_MARKED = 25  # curves of at most so many points have markers


@dataclass(frozen=True)
class Curve:
    """One line: estimates at increasing `at`, in the style of its `place` in the palette."""

    label: str
    place: int
    at: tuple[float, ...]
    points: tuple[Estimate, ...]
    style: Mapping[str, Any] = field(default_factory=dict)  # changes to the style of its place

    @classmethod
    def through(
        cls, points: Iterable[tuple[float, Estimate | None]], *, label: str, place: int, **style: Any
    ) -> "Curve":
        """The curve through the points that have a value, in order of x."""
        known = sorted(((at, point) for at, point in points if point is not None), key=lambda pair: pair[0])
        return cls(label, place, tuple(at for at, _ in known), tuple(point for _, point in known), style)


@dataclass(frozen=True)
class CurvePanel:
    """Curves that share axes."""

    title: str
    curves: tuple[Curve, ...]


def paint_panels(
    figure: Any,
    panels: Sequence[CurvePanel],
    *,
    xlabel: str,
    ylabel: str,
    reference: tuple[str, float] | None = None,
    sharey: bool = True,
) -> Any:
    """Fill the figure and return its axes, top to bottom; `reference` is a level by name, in percent."""
    column = figure.subplots(len(panels), 1, sharex=True, sharey=sharey, squeeze=False)[:, 0]
    for axes, panel in zip(column, panels, strict=True):
        for curve in panel.curves:
            style = line_style(curve.place, marked=len(curve.at) <= _MARKED) | dict(curve.style)
            axes.plot(curve.at, [100 * point.mean for point in curve.points], label=plain(curve.label), **style)
            band(axes, curve.at, curve.points, colour=style["color"])
        if reference is not None:
            level(axes, reference[1], reference[0], "dotted")
        axes.set_ylabel(ylabel)
        axes.set_title(plain(panel.title), loc="left")
    column[0].set_title(DIAGNOSTIC, loc="right", fontstyle="italic")
    column[-1].set_xlabel(xlabel)
    legend(figure, *column)
    return column


def panels_height(panels: Sequence[CurvePanel]) -> float:
    """Inches that `paint_panels` needs, the legend and one reference level included."""
    labels = dict.fromkeys(curve.label for panel in panels for curve in panel.curves)
    return (1.9 if len(panels) == 1 else 0.3 + 1.45 * len(panels)) + legend_height([*labels, "chance (10%)"])


def bands_note(panels: Sequence[CurvePanel]) -> str:
    """A sentence on the bands, if there are any."""
    points = [point for panel in panels for curve in panel.curves for point in curve.points]
    intervals = any(point.half_width is not None for point in points)
    return " Bands: 95% t-interval of the mean over seeds." if intervals else ""


def epsilon_axis(column: Any, places: Sequence[float], labels: Sequence[str]) -> None:
    """A logarithmic x-axis with ticks at these budgets alone."""
    for axes in column:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, labels)
        axes.minorticks_off()


PANELS = 4  # of one figure; more panels make more figures


def draw_accuracy(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Convergence: mean accuracy over rounds, with bands over seeds."""
    panels = [panel for panel in _panels(groups) if panel.curves]
    pages = [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]
    chance = chance_level(groups)
    return [
        draw_rounds(page, f"accuracy-{number}" if number > 1 else "accuracy", chance=chance)
        for number, page in enumerate(pages, 1)
    ]


def draw_rounds(
    panels: Sequence[CurvePanel], name: str, *, title: str = "Accuracy over rounds", chance: float | None = None
) -> Drawing:
    """Panels of accuracy over rounds as one figure."""
    curves = [(panel, curve) for panel in panels for curve in panel.curves]
    ends = "; ".join(
        f"{curve.label}{f' ({panel.title})' if panel.title else ''} ends at {percent(curve.points[-1].mean)}%"
        for panel, curve in curves
    )
    near = near_chance(chance, (point for _, curve in curves for point in curve.points))
    reference = (f"chance ({100 * chance:g}%)", 100 * chance) if chance is not None and near else None
    note = f" Chance level: {100 * chance:g}%." if chance is not None and not near else ""

    def paint(figure: Any) -> None:
        column = paint_panels(figure, panels, xlabel="round", ylabel="accuracy (%)", reference=reference)
        whole_numbers(column[-1])

    return draw(
        name,
        paint,
        height=panels_height(panels),
        caption=f"{title} ({DIAGNOSTIC}).{bands_note(panels)}{note}",
        alt=f"Line chart: {title[0].lower()}{title[1:]}, {DIAGNOSTIC}: {ends}.",
    )


def accuracy_curve(runs: Iterable[Run], *, label: str, place: int) -> Curve:
    """Mean accuracy of runs that differ in the seed, at the rounds that every one of them evaluated."""
    seeds = [{entry.round_index: entry.accuracy for entry in run.diagnostics} for run in runs]
    shared = [at for at in (seeds[0] if seeds else ()) if all(seed.get(at) is not None for seed in seeds)]
    return Curve.through(((at + 1, estimate(seed[at] for seed in seeds)) for at in shared), label=label, place=place)


def _panels(groups: Sequence[RunGroup]) -> list[CurvePanel]:
    """All methods in one panel; one panel per context and epsilon where a method was run at several epsilons."""
    several = any(len(entry.groups) > 1 for part in arenas(groups).values() for entry in epsilon_series(part))
    if not several and len(arenas(groups)) == 1:
        labels = group_labels(groups)
        return [_panel("", [(label, place, groups[place]) for place, label in enumerate(labels)])]
    panels: list[CurvePanel] = []
    styles = style_places(groups)
    for title, part in arenas(groups).items():
        at: dict[float, list[tuple[str, int, RunGroup]]] = {}
        for entry in epsilon_series(part):
            for epsilon, group in zip(entry.places, entry.groups, strict=True):
                label = entry.label if math.isfinite(epsilon) else group.label
                at.setdefault(epsilon, []).append((label, styles[entry.label], group))
        for epsilon in sorted(at):
            named = "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
            panels.append(_panel(f"{title}, {named}" if title else named, at[epsilon]))
    return panels


def _panel(title: str, entries: Sequence[tuple[str, int, RunGroup]]) -> CurvePanel:
    curves = [accuracy_curve(group.runs, label=label, place=place) for label, place, group in entries]
    return CurvePanel(title, tuple(curve for curve in curves if curve.at))
