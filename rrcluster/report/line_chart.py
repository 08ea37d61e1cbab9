"""Line charts in one column of panels: means of shares in percent, with bands over seeds and one legend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rrcluster.report.drawing import band, legend, legend_height, level, line_style, plain
from rrcluster.report.estimate import Estimate
from rrcluster.report.folders import DIAGNOSTIC

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
