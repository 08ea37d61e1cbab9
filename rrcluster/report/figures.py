"""The figures of a report, in order, how they are saved, and those that compare methods by their final values.

These are over epsilon, over the least size B, and for the worst-off clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rrcluster.report.cluster_figures import draw_confusion, draw_sizes
from rrcluster.report.curves import (
    Curve,
    CurvePanel,
    bands_note,
    draw_accuracy,
    epsilon_axis,
    paint_panels,
    panels_height,
)
from rrcluster.report.drawing import (
    COLOURS,
    INK,
    Drawing,
    broken,
    draw,
    legend,
    near_level,
    note_diagnostic,
    plain,
    set_title,
)
from rrcluster.report.folders import DIAGNOSTIC, RunGroup
from rrcluster.report.series import (
    Look,
    Series,
    arenas,
    base_look,
    changing,
    distinct_looks,
    epsilon_series,
    group_looks,
    method_looks,
    size_series,
)
from rrcluster.report.tables import constant_level, group_labels, metric
from rrcluster.report.values import Estimate, epsilon_name, percent
from rrcluster.storage import write_file

WHAT = {"accuracy": "accuracy", "worst_decile": "worst-decile accuracy", "clustering_accuracy": "clustering accuracy"}
_FEWEST_SIZES = 3  # fewest values of B for a sweep
SeriesPanels = dict[str, list[Series]]
DecileRow = tuple[str, Look, Estimate | None, Estimate | None]  # method, accuracy of all clients, of the worst decile
_TICK_WIDTH = 26  # characters of a method's name beside an axis


def draw_over_epsilon(groups: Sequence[RunGroup], name: str, *, called: str) -> list[Drawing]:
    """A diagnostic over epsilon, one series per method with bands over seeds; no figure for a single epsilon."""
    panels = {title: _measured(epsilon_series(part), name) for title, part in arenas(groups).items()}
    panels = {
        title: series
        for title, series in panels.items()
        if any(sum(map(math.isfinite, entry.places)) > 1 for entry in series)
    }
    if not panels:
        return []
    looks, every = method_looks(groups), [entry for series in panels.values() for entry in series]
    curves = _curve_panels(panels, name, {entry.label: looks[entry.label] for entry in every})
    level = constant_level(groups) if name == "accuracy" else None
    if not near_level(level, (value for entry in every for value in entry.points(name)[1])):
        level = None
    paint = partial(_paint_over_epsilon, panels=panels, curves=curves, name=name, level=level)
    return [_drawn_over(called, f"{WHAT[name].capitalize()} over epsilon", curves, every, name, "epsilon", paint)]


def draw_over_size(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Accuracy over B, where a method was run with at least three values of it."""
    panels = {title: _measured(size_series(part), "accuracy") for title, part in arenas(groups).items()}
    panels = {title: [entry for entry in part if len(entry.places) >= _FEWEST_SIZES] for title, part in panels.items()}
    panels = {title: series for title, series in panels.items() if series}
    if not panels:
        return []
    every = [entry for series in panels.values() for entry in series]
    configs = [{**entry.groups[0].first.config, "min_cluster_size": 0} for entry in every]
    looks = distinct_looks([base_look(config) for config in configs])
    curves = _curve_panels(panels, "accuracy", dict(zip((entry.label for entry in every), looks, strict=True)))

    def paint(figure: Any) -> None:
        column = paint_panels(figure, curves, xlabel="least cluster size B", ylabel="accuracy (%)", sharey=False)
        column[-1].set_xticks(sorted({at for entry in every for at in entry.places}))

    title = "Accuracy over the least cluster size B, where B = 0 moves no clients"
    return [_drawn_over("min-cluster-size", title, curves, every, "accuracy", "B", paint)]


def _drawn_over(
    called: str,
    title: str,
    curves: Sequence[CurvePanel],
    series: Sequence[Series],
    name: str,
    axis: str,
    paint: Callable[[Any], None],
) -> Drawing:
    """A diagnostic over epsilon or B, as `paint` fills the figure."""
    return draw(
        called,
        paint,
        height=panels_height(curves),
        caption=f"{title} ({DIAGNOSTIC}).{bands_note(curves)}{_also(series)}",
        alt=f"Line chart of {WHAT[name]} over {axis}, {DIAGNOSTIC}: {_ends(series, name, axis)}.",
    )


def draw_worst_decile(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Worst-decile accuracy: over epsilon where there are several, else beside the mean, one row per method."""
    over = draw_over_epsilon(groups, "worst_decile", called="worst-decile")
    if over:
        return over
    rows: list[DecileRow] = [
        (label, look, metric(group, "accuracy"), metric(group, "worst_decile"))
        for label, look, group in zip(group_labels(groups), group_looks(groups), groups, strict=True)
    ]
    rows = [row for row in rows if row[2] and row[3]]
    return [draw_deciles({"": rows}, "worst-decile")] if rows else []


def draw_deciles(panels: Mapping[str, Sequence[DecileRow]], name: str, *, title: str = "") -> Drawing:
    """Accuracy of all clients and of the worst decile: one row per method, one panel per title."""
    rows = [row for part in panels.values() for row in part]
    values = "; ".join(f"{label}: {_percent(worst)} of {_percent(mean)}" for label, _, mean, worst in rows)
    bars = " Bars: 95% t-intervals over seeds." if any(row[2] and row[2].half_width for row in rows) else ""
    prefix = f"{title}: accuracy" if title else "Accuracy"
    return draw(
        name,
        lambda figure: _paint_deciles(figure, panels),
        height=0.7 + sum(0.3 + 0.28 * len(part) for part in panels.values()),
        caption=f"{prefix} of all clients, and of the tenth of them with the lowest accuracy ({DIAGNOSTIC}).{bars}",
        alt=f"Dot chart of worst-decile beside mean accuracy, {DIAGNOSTIC}. {values}.",
    )


def _percent(value: Estimate | None) -> str:
    return "unknown" if value is None else f"{percent(value.mean)}%"


def _measured(series: Sequence[Series], name: str) -> list[Series]:
    return [entry for entry in series if entry.points(name)[0]]


def _curve_panels(panels: SeriesPanels, name: str, looks: Mapping[str, Look]) -> list[CurvePanel]:
    return [
        CurvePanel(title, tuple(_curve(entry, name, looks[entry.label]) for entry in series))
        for title, series in panels.items()
    ]


def _curve(entry: Series, name: str, look: Look) -> Curve:
    """The private points of a series; the one without privacy is drawn apart from the line."""
    points = [(at, value) for at, value in zip(*entry.points(name), strict=True) if math.isfinite(at)]
    return Curve.through(points, label=entry.label, look=look)


def _also(series: Sequence[Series]) -> str:
    names = changing(series)
    return f" Along a line these settings differ too: {names}." if names else ""


def _ends(series: Sequence[Series], name: str, axis: str) -> str:
    texts = []
    for entry in series:
        places, values = entry.points(name)
        at = ", ".join(f"{percent(v.mean)}% at {axis} {_tick(x)}" for x, v in zip(places, values, strict=True))
        texts.append(f"{entry.label} {at}")
    return "; ".join(texts)


def _paint_over_epsilon(
    figure: Any, *, panels: SeriesPanels, curves: Sequence[CurvePanel], name: str, level: float | None
) -> None:
    epsilons = sorted({at for series in panels.values() for entry in series for at in entry.places})
    private = [at for at in epsilons if math.isfinite(at)]
    beyond = private[-1] * 2  # x of "no privacy": one doubling further
    reference = None if level is None else (f"constant ({100 * level:.1f}%)", 100 * level)
    column = paint_panels(
        figure,
        curves,
        xlabel="epsilon" + (" (∞: no privacy)" if len(private) < len(epsilons) else ""),
        ylabel=f"{WHAT[name]} (%)",
        reference=reference,
        sharey=False,
    )
    epsilon_axis(column, [min(at, beyond) for at in epsilons], [_tick(at) for at in epsilons])
    for axes, series, panel in zip(column, panels.values(), curves, strict=True):
        for entry, curve in zip(series, panel.curves, strict=True):
            style = curve.look.style()
            for at, value in zip(*entry.points(name), strict=True):
                if math.isinf(at) and curve in panel.named:
                    _dot(axes, beyond, value, style["color"], style["marker"], upright=True)


def _paint_deciles(figure: Any, panels: Mapping[str, Sequence[DecileRow]]) -> None:
    ratios = [len(rows) for rows in panels.values()]
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    for axes, (title, rows) in zip(column, panels.items(), strict=True):
        for at, (_, look, mean, worst) in enumerate(rows):
            colour = COLOURS[look.colour]
            if mean is not None and worst is not None:
                axes.plot([100 * worst.mean, 100 * mean.mean], [at, at], color=colour, linewidth=0.7, zorder=1)
            for value, marker in ((mean, "o"), (worst, "v")):
                if value is not None:
                    _dot(axes, at, value, colour, marker)
        axes.set_yticks(range(len(rows)), [plain(broken(row[0], _TICK_WIDTH)) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        set_title(axes, title)
        axes.grid(False, axis="y")
    for marker, label in (("o", "all clients"), ("v", "worst decile")):
        column[0].plot([], [], marker, color=INK, markersize=4.5, label=label)
    note_diagnostic(figure, DIAGNOSTIC)
    column[-1].set_xlabel("accuracy (%)")
    legend(figure, *column)


def _dot(axes: Any, at: float, value: Estimate, colour: str, marker: str, *, upright: bool = False) -> None:
    """A mean with its interval, cut off at 0 and 100 percent."""
    x, y = (at, 100 * value.mean) if upright else (100 * value.mean, at)
    ends = [[100 * (value.mean - max(value.low, 0.0))], [100 * (min(value.high, 1.0) - value.mean)]]
    bar = {("yerr" if upright else "xerr"): ends} if value.half_width else {}
    axes.errorbar(x, y, fmt=marker, color=colour, markersize=4.5, elinewidth=1, capsize=2, **bar)


def _tick(at: float) -> str:
    return "∞" if math.isinf(at) else f"{at:g}" if at <= 0 else epsilon_name(at)


FIGURES: dict[str, Callable[[Sequence[RunGroup]], list[Drawing]]] = {
    "accuracy": draw_accuracy,
    "privacy-utility": partial(draw_over_epsilon, name="accuracy", called="privacy-utility"),
    "worst-decile": draw_worst_decile,
    "clustering": partial(draw_over_epsilon, name="clustering_accuracy", called="clustering"),
    "min-cluster-size": draw_over_size,
    "confusion": draw_confusion,
    "sizes": draw_sizes,
}


def draw_figures(groups: Sequence[RunGroup]) -> tuple[Drawing, ...]:
    """Every figure that the runs have values for. Needs matplotlib (`ConfigError` without it)."""
    return tuple(drawing for make in FIGURES.values() for drawing in make(groups))


def save_figures(drawings: Sequence[Drawing], folder: Path) -> tuple[Path, ...]:
    """Write each figure as PNG and PDF."""
    return tuple(
        write_file(folder / f"{drawing.name}.{kind}", content)
        for drawing in drawings
        for kind, content in (("png", drawing.png), ("pdf", drawing.pdf))
    )
