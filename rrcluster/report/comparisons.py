"""Methods compared by where they end: over epsilon, over the least size B, and for the clients that fare worst."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rrcluster.report.drawing import (
    INK,
    PALETTE,
    Drawing,
    band,
    draw,
    legend,
    legend_height,
    level,
    line_style,
    near_chance,
    plain,
)
from rrcluster.report.estimate import Estimate
from rrcluster.report.folders import DIAGNOSTIC, RunGroup
from rrcluster.report.notation import percent
from rrcluster.report.series import Series, arenas, changing, epsilon_series, size_series, style_places
from rrcluster.report.tables import chance_level, group_labels, metric

WHAT = {"accuracy": "accuracy", "worst_decile": "worst-decile accuracy", "clustering_accuracy": "clustering accuracy"}
_FEWEST_SIZES = 3  # values of B that make a sweep
Panels = dict[str, list[Series]]


def draw_over_epsilon(groups: Sequence[RunGroup], name: str, *, called: str) -> list[Drawing]:
    """A diagnostic over epsilon, one series per method with bands over seeds; nothing without several epsilons."""
    panels = {title: _measured(epsilon_series(part), name) for title, part in arenas(groups).items()}
    panels = {title: series for title, series in panels.items() if any(_finite(entry) > 1 for entry in series)}
    if not panels:
        return []
    every = [entry for series in panels.values() for entry in series]
    chance = chance_level(groups) if name == "accuracy" else None
    if not near_chance(chance, (value for entry in every for value in entry.points(name)[1])):
        chance = None
    return [
        draw(
            called,
            lambda figure: _paint_over_epsilon(figure, panels, name, chance, style_places(groups)),
            height=_height(panels),
            caption=f"{WHAT[name].capitalize()} over epsilon ({DIAGNOSTIC}).{_bands(every, name)}{_also(every)}",
            alt=f"Line chart of {WHAT[name]} over epsilon, {DIAGNOSTIC}: {_ends(every, name, 'epsilon')}.",
        )
    ]


def draw_over_size(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Accuracy over B, where a method was run with at least three values of it."""
    panels = {title: _measured(size_series(part), "accuracy") for title, part in arenas(groups).items()}
    panels = {title: [entry for entry in part if len(entry.places) >= _FEWEST_SIZES] for title, part in panels.items()}
    panels = {title: series for title, series in panels.items() if series}
    if not panels:
        return []
    every = [entry for series in panels.values() for entry in series]
    return [
        draw(
            "min-cluster-size",
            lambda figure: _paint_over_size(figure, panels),
            height=_height(panels),
            caption=(
                f"Accuracy over the least cluster size B ({DIAGNOSTIC}); B = 0 moves nobody."
                f"{_bands(every, 'accuracy')}{_also(every)}"
            ),
            alt=f"Line chart of accuracy over B, {DIAGNOSTIC}: {_ends(every, 'accuracy', 'B')}.",
        )
    ]


def draw_worst_decile(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Worst-decile accuracy: over epsilon where there are several, else beside the mean, one row per method."""
    over = draw_over_epsilon(groups, "worst_decile", called="worst-decile")
    if over:
        return over
    rows = [
        (label, mean, worst)
        for label, group in zip(group_labels(groups), groups, strict=True)
        if (mean := metric(group, "accuracy")) and (worst := metric(group, "worst_decile"))
    ]
    if not rows:
        return []
    told = "; ".join(f"{label}: {percent(worst.mean)}% of {percent(mean.mean)}%" for label, mean, worst in rows)
    bars = " Bars: 95% t-intervals over seeds." if any(mean.half_width for _, mean, _ in rows) else ""
    return [
        draw(
            "worst-decile",
            lambda figure: _paint_rows(figure, rows),
            height=0.85 + 0.36 * len(rows),
            caption=f"Accuracy of all clients and of the tenth of them that fare worst ({DIAGNOSTIC}).{bars}",
            alt=f"Dot chart of worst-decile beside mean accuracy, {DIAGNOSTIC}. {told}.",
        )
    ]


def _measured(series: Sequence[Series], name: str) -> list[Series]:
    return [entry for entry in series if entry.points(name)[0]]


def _finite(entry: Series) -> int:
    return sum(math.isfinite(at) for at in entry.places)


def _height(panels: Panels) -> float:
    labels = dict.fromkeys(entry.label for series in panels.values() for entry in series)
    return (1.9 if len(panels) == 1 else 0.3 + 1.45 * len(panels)) + legend_height([*labels, "chance (10%)"])


def _bands(series: Sequence[Series], name: str) -> str:
    intervals = any(value.half_width is not None for entry in series for value in entry.points(name)[1])
    return " Bands: 95% t-interval of the mean over seeds." if intervals else ""


def _also(series: Sequence[Series]) -> str:
    names = changing(series)
    return f" Along a line these settings differ too: {names}." if names else ""


def _ends(series: Sequence[Series], name: str, axis: str) -> str:
    told = []
    for entry in series:
        places, values = entry.points(name)
        at = ", ".join(f"{percent(v.mean)}% at {axis} {_tick(x)}" for x, v in zip(places, values, strict=True))
        told.append(f"{entry.label} {at}")
    return "; ".join(told)


def _paint_over_epsilon(
    figure: Any, panels: Panels, name: str, chance: float | None, styles: Mapping[str, int]
) -> None:
    every = sorted({at for series in panels.values() for entry in series for at in entry.places})
    finite = [at for at in every if math.isfinite(at)]
    beyond = finite[-1] * 2  # where "no privacy" is drawn: one doubling further
    column = _column(figure, panels)
    for axes, series in zip(column, panels.values(), strict=True):
        axes.set_xscale("log", base=2)
        for entry in series:
            _paint_series(axes, entry, name, styles[entry.label], beyond)
        if chance is not None:
            level(axes, 100 * chance, f"chance ({100 * chance:g}%)", "dotted")
        axes.set_ylabel(f"{WHAT[name]} (%)")
        axes.set_xticks([min(at, beyond) for at in every], [_tick(at) for at in every])
        axes.minorticks_off()
    column[-1].set_xlabel("epsilon" + (" (∞: no privacy)" if len(finite) < len(every) else ""))
    legend(figure, *column)


def _paint_over_size(figure: Any, panels: Panels) -> None:
    column = _column(figure, panels)
    labels = list(dict.fromkeys(entry.label for series in panels.values() for entry in series))
    for axes, series in zip(column, panels.values(), strict=True):
        for entry in series:
            _paint_series(axes, entry, "accuracy", labels.index(entry.label), math.inf)
        axes.set_ylabel("accuracy (%)")
        axes.set_xticks(sorted({at for entry in series for at in entry.places}))
    column[-1].set_xlabel("least cluster size B")
    legend(figure, *column)


def _column(figure: Any, panels: Panels) -> Any:
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, title in zip(column, panels, strict=True):
        axes.set_title(plain(title), loc="left")
    column[0].set_title(DIAGNOSTIC, loc="right", fontstyle="italic")
    return column


def _paint_series(axes: Any, entry: Series, name: str, place: int, beyond: float) -> None:
    """The line joins private points; the one without privacy stands apart."""
    places, values = entry.points(name)
    style = line_style(place, marked=True)
    private = [(at, value) for at, value in zip(places, values, strict=True) if math.isfinite(at)]
    open_ones = [value for at, value in zip(places, values, strict=True) if math.isinf(at)]
    x, points = [at for at, _ in private], [value for _, value in private]
    axes.plot(x, [100 * value.mean for value in points], label=plain(entry.label), **style)
    band(axes, x, points, colour=style["color"])
    for value in open_ones:
        _dot(axes, beyond, value, style["color"], style["marker"], upright=True)


def _paint_rows(figure: Any, rows: Sequence[tuple[str, Estimate, Estimate]]) -> None:
    axes = figure.subplots()
    for at, (_, mean, worst) in enumerate(rows):
        axes.plot([100 * worst.mean, 100 * mean.mean], [at, at], color=INK, linewidth=0.7, zorder=1)
        _dot(axes, at, mean, PALETTE[0], "o", label=None if at else "all clients")
        _dot(axes, at, worst, PALETTE[1], "v", label=None if at else "worst decile")
    axes.set_yticks(range(len(rows)), [plain(label) for label, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("accuracy (%)")
    axes.set_title(DIAGNOSTIC, loc="right", fontstyle="italic")
    axes.grid(False, axis="y")
    legend(figure, axes)


def _dot(
    axes: Any, at: float, value: Estimate, colour: str, marker: str, *, upright: bool = False, label: str | None = None
) -> None:
    x, y = (at, 100 * value.mean) if upright else (100 * value.mean, at)
    ends = [
        [100 * (value.mean - max(value.low, 0.0))],
        [100 * (min(value.high, 1.0) - value.mean)],
    ]  # a share stays one
    bar = {("yerr" if upright else "xerr"): ends} if value.half_width else {}
    axes.errorbar(x, y, fmt=marker, color=colour, markersize=4.5, elinewidth=1, capsize=2, label=label, **bar)


def _tick(at: float) -> str:
    return "∞" if math.isinf(at) else f"{at:.3g}"
