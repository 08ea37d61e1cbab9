"""Line charts: means of shares in percent with bands over seeds, and accuracy over rounds.

Panels are stacked in one column, above one legend. A panel names at most seven lines; the others are drawn faintly, as
a bundle.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rrcluster.report.drawing import (
    BUNDLE,
    FAINT,
    Drawing,
    band,
    draw,
    draw_pages,
    legend,
    legend_height,
    level,
    near_level,
    note_diagnostic,
    plain,
    set_title,
    whole_numbers,
)
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.series import Look, arenas, distinct_looks, epsilon_series, method_looks
from rrcluster.report.tables import constant_level
from rrcluster.report.values import Estimate, epsilon_name, estimate, percent

SERIES = 7  # named lines of a panel
_MARKERS = 8  # approximate number on a line


@dataclass(frozen=True)
class Curve:
    """One line: estimates at increasing `at`."""

    label: str
    look: Look
    at: tuple[float, ...]
    points: tuple[Estimate, ...]
    style: Mapping[str, Any] = field(default_factory=dict)  # overrides of its style

    @classmethod
    def through(
        cls, points: Iterable[tuple[float, Estimate | None]], *, label: str, look: Look, **style: Any
    ) -> "Curve":
        """The curve through the points that have a value, in order of x."""
        measured = sorted(((at, point) for at, point in points if point is not None), key=lambda pair: pair[0])
        return cls(label, look, tuple(at for at, _ in measured), tuple(point for _, point in measured), style)


@dataclass(frozen=True)
class CurvePanel:
    """Curves that share axes."""

    title: str
    curves: tuple[Curve, ...]
    featured: tuple[str, ...] = ()  # labels to name; empty: the curves that end highest

    @property
    def named(self) -> tuple[Curve, ...]:
        """The named curves: all, or the most important ones."""
        if self.featured:
            return tuple(curve for curve in self.curves if curve.label in self.featured)
        highest = sorted(self.curves, key=lambda curve: -curve.points[-1].mean if curve.at else 0.0)[:SERIES]
        return tuple(curve for curve in self.curves if curve in highest)


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
        for curve, look in zip(panel.named, distinct_looks([curve.look for curve in panel.named]), strict=True):
            style = look.style() | {"markevery": max(1, len(curve.at) // _MARKERS)} | dict(curve.style)
            axes.plot(curve.at, [100 * point.mean for point in curve.points], label=plain(curve.label), **style)
            band(axes, curve.at, curve.points, colour=style["color"])
        _paint_bundle(axes, [curve for curve in panel.curves if curve not in panel.named])
        if reference is not None and (sharey or _near(reference, panel)):
            level(axes, reference[1], reference[0], "dotted")
        axes.set_ylabel(ylabel)
        set_title(axes, panel.title)
    note_diagnostic(figure, DIAGNOSTIC)
    column[-1].set_xlabel(xlabel)
    legend(figure, *column)
    return column


def _near(reference: tuple[str, float], panel: CurvePanel) -> bool:
    return near_level(reference[1] / 100, (point for curve in panel.curves for point in curve.points))


def _paint_bundle(axes: Any, curves: Sequence[Curve]) -> None:
    for place, curve in enumerate(curves):
        label = "_" if place else BUNDLE
        heights = [100 * point.mean for point in curve.points]
        axes.plot(curve.at, heights, color=FAINT, linewidth=0.7, zorder=1, label=label)


def panels_height(panels: Sequence[CurvePanel]) -> float:
    """Height in inches for `paint_panels`, including the legend and one reference level."""
    height = 2.0 if len(panels) == 1 else 0.4 + 1.45 * len(panels)
    labels = dict.fromkeys(curve.label for panel in panels for curve in panel.named)
    return height + legend_height([*labels, BUNDLE, "constant (10.0%)"])


def bundle_note(panels: Sequence[CurvePanel]) -> str:
    """A sentence on the unnamed lines, if any."""
    more = max(len(panel.curves) - len(panel.named) for panel in panels)
    which = "" if any(panel.featured for panel in panels) else f" Named are the {SERIES} lines that end highest."
    return f"{which} Up to {more} more lines of a panel are faint, without a name." if more else ""


def bands_note(panels: Sequence[CurvePanel]) -> str:
    """A sentence on the bands, if there are any."""
    points = [point for panel in panels for curve in panel.curves for point in curve.points]
    intervals = any(point.half_width is not None for point in points)
    return (" Bands: 95% t-interval of the mean over seeds." if intervals else "") + bundle_note(panels)


def epsilon_axis(column: Any, places: Sequence[float], labels: Sequence[str]) -> None:
    """A logarithmic x-axis with ticks at these budgets only."""
    for axes in column:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, labels)
        axes.minorticks_off()


def draw_accuracy(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Convergence: mean accuracy over rounds, with bands over seeds."""
    panels = [panel for panel in accuracy_panels(groups) if panel.curves]
    return draw_pages("accuracy", panels, partial(draw_rounds, level=constant_level(groups)))


def draw_rounds(
    panels: Sequence[CurvePanel], name: str, *, title: str = "Accuracy over rounds", level: float | None = None
) -> Drawing:
    """Panels of accuracy over rounds as one figure."""
    curves = [(panel, curve) for panel in panels for curve in panel.curves]
    ends = "; ".join(
        f"{curve.label}{f' ({panel.title})' if panel.title else ''} ends at {percent(curve.points[-1].mean)}%"
        for panel, curve in curves
    )
    near = near_level(level, (point for _, curve in curves for point in curve.points))
    reference = (f"constant ({100 * level:.1f}%)", 100 * level) if level is not None and near else None
    note = f" Always the most common class: {100 * level:.1f}%." if level is not None and not near else ""

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


def accuracy_curve(runs: Iterable[Run], *, label: str, look: Look) -> Curve:
    """Mean accuracy of runs that differ in the seed, at the rounds that every one of them evaluated."""
    return Curve.through(((at + 1, value) for at, value in over_rounds(runs, "accuracy")), label=label, look=look)


def over_rounds(runs: Iterable[Run], name: str) -> list[tuple[int, Estimate]]:
    """Means over seeds of a diagnostic, by index of the rounds in which every run measured it."""
    seeds = [{entry.round_index: getattr(entry, name) for entry in run.diagnostics} for run in runs]
    shared = [at for at in (seeds[0] if seeds else ()) if all(seed.get(at) is not None for seed in seeds)]
    means = [(at, estimate(seed[at] for seed in seeds)) for at in shared]
    return [(at, mean) for at, mean in means if mean is not None]


def accuracy_panels(groups: Sequence[RunGroup]) -> list[CurvePanel]:
    """Panels of measurements on the same data; one panel per epsilon if there are too many lines."""
    looks = method_looks(groups)
    panels: list[CurvePanel] = []
    for title, part in arenas(groups).items():
        at: dict[float, list[Curve]] = {}
        for entry in epsilon_series(part):
            for epsilon, group in zip(entry.places, entry.groups, strict=True):
                label = entry.label if math.isfinite(epsilon) else group.label
                curve = accuracy_curve(group.runs, label=label, look=looks[entry.label])
                at.setdefault(epsilon, []).extend([curve] if curve.at else [])
        if len(at) == 1 or sum(map(len, at.values())) <= SERIES:
            panels.append(CurvePanel(title, tuple(_with_epsilon(at))))
            continue
        for epsilon in sorted(at):
            budget = "no finite epsilon" if math.isinf(epsilon) else f"epsilon {epsilon_name(epsilon)}"
            panels.append(CurvePanel(f"{title}, {budget}" if title else budget, tuple(at[epsilon])))
    return panels


def _with_epsilon(at: Mapping[float, Sequence[Curve]]) -> list[Curve]:
    """The curves of several epsilons in one order, grouped by method, with epsilons in their labels."""
    private = [epsilon for epsilon in at if math.isfinite(epsilon)]
    curves = [
        replace(curve, label=f"{curve.label}, epsilon {epsilon_name(epsilon)}")
        if len(private) > 1 and math.isfinite(epsilon)
        else curve
        for epsilon in sorted(at)
        for curve in at[epsilon]
    ]
    order = list(dict.fromkeys(curve.look for curve in curves))
    return sorted(curves, key=lambda curve: order.index(curve.look))
