"""The figures of a reproduction, by the charts of report/, and the paper's figure of noisy lines.

Points that the paper prints are hollow. The lines have one row per scenario and one column per method: learnt models
over the true lines.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import yaml

from rrcluster.data.synthetic import INTERCEPTS, SCENARIOS, SLOPES
from rrcluster.report.cluster_figures import draw_natural, draw_tables
from rrcluster.report.curves import (
    SERIES,
    Curve,
    CurvePanel,
    accuracy_curve,
    bands_note,
    draw_rounds,
    epsilon_axis,
    paint_panels,
    panels_height,
)
from rrcluster.report.drawing import INK, PALETTE, Drawing, draw, near_level
from rrcluster.report.figures import DecileRow, draw_deciles
from rrcluster.report.folders import DIAGNOSTIC, Run
from rrcluster.report.series import Look, base_look, distinct_looks, nth_look
from rrcluster.report.values import Estimate
from rrcluster.storage import read_tensors
from rrcluster_research.map_figure import draw_map
from rrcluster_research.read_reproduction import MEASURES, MeasuredColumn, MeasuredRow, Reproduced

PUBLISHED = "published"
_TITLES = {"identifier": "identifier (the paper's)", "joint": "joint (ours)", "none": "no noise"}
_SWEEP_ROW = re.compile(r"b(\d+)")  # key of a row of the sweep over B


def draw_reproduction(reproduced: Reproduced) -> tuple[Drawing, ...]:
    """Every figure that the study lists and has values for."""
    return tuple(drawing for kind in reproduced.about["figures"] for drawing in FIGURE_KINDS[kind](reproduced))


def _over_epsilon(reproduced: Reproduced) -> list[Drawing]:
    """One figure per population; one panel each for the published points, identifier and joint."""
    drawings = []
    for place, population in enumerate(reproduced.panels, start=1):
        columns = _private_columns(reproduced, population)
        panels = {kind: _epsilon_panel(reproduced, columns, kind) for kind in (PUBLISHED, "identifier", "joint")}
        shown = [panel for panel in panels.values() if panel.curves]
        if len(columns) >= 2 and (panels["identifier"].curves or panels["joint"].curves):
            name = f"epsilon-{place}-{_slug(population)}"
            drawings.append(_draw_over_epsilon(reproduced, name, population, columns, shown))
    return drawings


def _private_columns(reproduced: Reproduced, population: str) -> list[MeasuredColumn]:
    return [column for column in reproduced.columns if column.panel == population and column.epsilon is not None]


def _epsilon_panel(reproduced: Reproduced, columns: Sequence[MeasuredColumn], kind: str) -> CurvePanel:
    curves, looks = [], _looks(reproduced)
    for row in reproduced.rows:
        points = [(column.epsilon or 0.0, _point(reproduced, row, column, kind)) for column in columns]
        style = {"markerfacecolor": "none"} if kind == PUBLISHED else {}
        curves.append(Curve.through(points, label=row.name, look=looks[row.key], **style))
    return replace(_panel(kind, curves), featured=_featured(reproduced))


def _featured(reproduced: Reproduced) -> tuple[str, ...]:
    """The rows to name where there are too many: baseline, default, those in a spotlight, bounds, then in order."""
    lit = {"default", *(key for light in reproduced.about["spotlights"] for key, _ in light["cells"])}
    rank = [not (row.key in lit or row.reference or row is reproduced.rows[0]) for row in reproduced.rows]
    order = sorted(zip(rank, reproduced.rows, strict=True), key=lambda pair: pair[0])
    return tuple(row.name for _, row in order[:SERIES]) if len(order) > SERIES else ()


def _looks(reproduced: Reproduced) -> dict[str, Look]:
    """Line style per row, from its method and mechanism; duplicates get distinct markers."""
    looks = [base_look(_settings(row)) for row in reproduced.rows]
    return dict(zip((row.key for row in reproduced.rows), distinct_looks(looks), strict=True))


def _settings(row: MeasuredRow) -> Mapping[str, Any]:
    texts = [row.settings[kind] for kind in ("joint", "identifier", "none") if kind in row.settings]
    pairs = [pair.split(" = ", 1) for pair in (texts[0].split(", ") if texts else ()) if " = " in pair]
    return {name: yaml.safe_load(value) for name, value in pairs}


def _panel(kind: str, curves: Sequence[Curve]) -> CurvePanel:
    return CurvePanel(_TITLES.get(kind, kind), tuple(curve for curve in curves if curve.at))


def _point(reproduced: Reproduced, row: MeasuredRow, column: MeasuredColumn, kind: str) -> Estimate | None:
    if kind != PUBLISHED:
        return reproduced.estimate(row, column, kind)
    published = row.published.get(column.key)
    return None if published is None else Estimate(published / 100, None, 1)


def _draw_over_epsilon(
    reproduced: Reproduced,
    name: str,
    population: str,
    columns: Sequence[MeasuredColumn],
    panels: Sequence[CurvePanel],
) -> Drawing:
    budgets = [column.epsilon or 0.0 for column in columns]
    ends = [f"{curve.label} {100 * curve.points[-1].mean:.1f}%" for curve in panels[-1].curves]

    def paint(figure: Any) -> None:
        reference = _constant_level(reproduced, columns, panels)
        ylabel = MEASURES[reproduced.measure]
        column = paint_panels(figure, panels, xlabel="epsilon", ylabel=ylabel, reference=reference, sharey=False)
        epsilon_axis(column, budgets, [f"{budget:g}" for budget in budgets])

    return draw(
        name,
        paint,
        height=panels_height(panels),
        caption=f"{population}: {MEASURES[reproduced.measure]} over epsilon ({DIAGNOSTIC}). Each panel has a scale of "
        f"its own.{bands_note(panels)}",
        alt=f"Line charts over epsilon, {population}. At {columns[-1].budget}, {panels[-1].title}: {'; '.join(ends)}.",
    )


def _constant_level(
    reproduced: Reproduced, columns: Sequence[MeasuredColumn], panels: Sequence[CurvePanel]
) -> tuple[str, float] | None:
    """The accuracy of the constant predictor, if it is close enough to the curves to be drawn."""
    constants = [value.mean for column in columns if (value := reproduced.constant(column))]
    if reproduced.measure != "accuracy" or not constants:
        return None
    mean = sum(constants) / len(constants)
    near = near_level(mean, (point for panel in panels for curve in panel.curves for point in curve.points))
    return ("constant predictor", 100 * mean) if near else None


def _convergence(reproduced: Reproduced) -> list[Drawing]:
    """Mean accuracy after each evaluated round: a figure per column, a panel per mechanism."""
    drawings, looks = [], _looks(reproduced)
    for place, column in enumerate(reproduced.columns, start=1):
        panels = []
        for kind in column.mechanisms:
            curves = [
                accuracy_curve(reproduced.runs(row, column, kind).values(), label=row.name, look=looks[row.key])
                for row in reproduced.rows
            ]
            panels.append(_panel(kind, curves))
        shown = [panel for panel in panels if panel.curves]
        if shown:
            title = f"{column.panel}, {column.budget}: accuracy over rounds"
            drawings.append(draw_rounds(shown, f"convergence-{place}-{column.key}", title=title))
    return drawings


def _worst_decile(reproduced: Reproduced) -> list[Drawing]:
    """Per population, at its largest epsilon: mean accuracy and that of the worst tenth of clients."""
    drawings, looks = [], _looks(reproduced)
    for place, population in enumerate(reproduced.panels, start=1):
        columns = _private_columns(reproduced, population)
        if not columns:
            continue
        column = columns[-1]
        panels: dict[str, list[DecileRow]] = {}
        for kind in ("identifier", "joint"):
            for row in reproduced.rows:
                if mean := reproduced.estimate(row, column, kind, "accuracy"):
                    worst = reproduced.estimate(row, column, kind, "worst_decile")
                    panels.setdefault(_TITLES[kind], []).append((row.name, looks[row.key], mean, worst))
        if panels:
            name = f"worst-decile-{place}-{_slug(population)}"
            drawings.append(draw_deciles(panels, name, title=f"{population}, {column.budget}"))
    return drawings


def _sizes(reproduced: Reproduced) -> list[Drawing]:
    drawings = []
    for place, (panels, column) in enumerate(_spotlights(reproduced), start=1):
        named = [(f"{label}, {column.budget}", run) for label, run in panels]
        drawings.append(draw_natural(named, f"sizes-{place}", " The first seed of each method."))
    return drawings


def _confusion(reproduced: Reproduced) -> list[Drawing]:
    drawings = []
    for place, (panels, column) in enumerate(_spotlights(reproduced), start=1):
        tables = [(label, run.final.confusion) for label, run in panels if run.final and run.final.confusion]
        which = f" {column.panel}, {column.budget}; the first seed of each method."
        drawings += [draw_tables(tables, f"confusion-{place}", which)] if tables else []
    return drawings


def _spotlights(reproduced: Reproduced) -> list[tuple[list[tuple[str, Run]], MeasuredColumn]]:
    """The first seed of every cell that the study puts into a spotlight, by name."""
    lights = []
    for light in reproduced.about["spotlights"]:
        column, panels = reproduced.column(light["column"]), []
        for key, mechanism in light["cells"]:
            row = reproduced.row(key)
            runs = {} if row is None or column is None else reproduced.runs(row, column, mechanism)
            if row is not None and runs:
                panels.append((f"{row.name}, {_TITLES.get(mechanism, mechanism)}", runs[min(runs)]))
        if column is not None and panels:
            lights.append((panels, column))
    return lights


def _sweep(reproduced: Reproduced) -> list[Drawing]:
    """The measure over B: a figure per column, a curve per mechanism."""
    drawings = []
    for place, column in enumerate(reproduced.columns, start=1):
        curves: list[Curve] = []
        for kind in column.mechanisms:
            points = [
                (float(size.group(1)), reproduced.estimate(row, column, kind))
                for row in reproduced.rows
                if (size := _SWEEP_ROW.fullmatch(row.key))
            ]
            curve = Curve.through(points, label=_TITLES.get(kind, kind), look=nth_look(len(curves)))
            curves += [curve] if curve.at else []
        published = next((row.published.get(column.key) for row in reproduced.rows if row.key == "b0"), None)
        if curves:
            drawings.append(_draw_sweep(reproduced, column, [CurvePanel("", tuple(curves))], published, place))
    return drawings


def _draw_sweep(
    reproduced: Reproduced,
    column: MeasuredColumn,
    panels: Sequence[CurvePanel],
    published: float | None,
    place: int,
) -> Drawing:
    measure = MEASURES[reproduced.measure]
    reference = None if published is None else (f"published, B = 0 ({published:g}%)", published)
    ends = "; ".join(
        f"{curve.label}: "
        + ", ".join(f"B = {at:g} {100 * point.mean:.1f}%" for at, point in zip(curve.at, curve.points, strict=True))
        for curve in panels[0].curves
    )

    def paint(figure: Any) -> None:
        paint_panels(figure, panels, xlabel="B", ylabel=measure, reference=reference)

    return draw(
        f"sweep-{place}",
        paint,
        height=2.5,
        caption=f"{column.panel}, {column.budget}: {measure} over B ({DIAGNOSTIC}).{bands_note(panels)}",
        alt=f"Line chart over B. {ends}.",
    )


def _slug(text: str) -> str:
    """The first word of a title, fit for a file name."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return words[0] if words else "panel"


_WIDTH, _ROW_HEIGHT = 6.8, 1.75  # inches: two columns of a page
_SPAN = np.array([-1.05, 1.05])

Lines = Sequence[tuple[float, float]]  # slope and intercept of every model


def draw_lines_of(reproduced: Reproduced) -> list[Drawing]:
    """The figure from the models of the first seed; no figure before every run of that seed has finished."""
    scenarios: dict[str, dict[str, Lines]] = {}
    for column in reproduced.columns:
        for row in reproduced.rows:
            runs = reproduced.runs(row, column, "none")
            if not runs:
                return []
            run = runs[min(runs)]
            arrays, _ = read_tensors(run.path / "models.safetensors")
            clustered = arrays["clustered"]
            shared = np.broadcast_to(arrays["shared"], (len(clustered), len(arrays["shared"])))
            lines = [(float(slope), float(intercept)) for slope, intercept in np.hstack([shared, clustered])]
            scenarios.setdefault(str(run.config["data"]), {})[row.name] = lines
    return [draw_learnt_lines(scenarios, which="Models of the first seed.")] if scenarios else []


def draw_learnt_lines(scenarios: Mapping[str, Mapping[str, Lines]], *, which: str) -> Drawing:
    """Learnt lines by dataset and method; every dataset has the same methods. `which` ends the caption."""
    methods = list(next(iter(scenarios.values())))
    names = [name.removeprefix("synthetic-").replace("-", ", ") for name in scenarios]

    def paint(figure: Any) -> None:
        grid = figure.subplots(len(scenarios), len(methods), sharex=True, sharey=True, squeeze=False)
        for panels, name, (data, by_method) in zip(grid, names, scenarios.items(), strict=True):
            for axes, method in zip(panels, methods, strict=True):
                _paint_panel(axes, SCENARIOS[data].noise_std, by_method[method])
            panels[0].set_ylabel(name)
        for axes, method in zip(grid[0], methods, strict=True):
            axes.set_title(method)
        for axes in grid[-1]:
            axes.set_xlabel("x")

    return draw(
        "scenarios",
        paint,
        height=_ROW_HEIGHT * len(scenarios) + 0.3,
        width=_WIDTH,
        caption=f"Learnt models (dashed) over the true lines of the four groups, each with two noise std. {which}",
        alt=f"Charts of true lines with the models of {', '.join(methods)} drawn over them, one row each for "
        f"{'; '.join(names)}.",
    )


def _paint_panel(axes: Any, noise_std: float, lines: Lines) -> None:
    for group, (slope, intercept) in enumerate(zip(SLOPES, INTERCEPTS, strict=True)):
        y, colour = slope * _SPAN + intercept, PALETTE[group]
        axes.fill_between(_SPAN, y - 2 * noise_std, y + 2 * noise_std, color=colour, alpha=0.2, linewidth=0)
        axes.plot(_SPAN, y, color=colour, linewidth=0.8)
    for slope, intercept in lines:
        axes.plot(_SPAN, slope * _SPAN + intercept, color=INK, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.set(xlim=tuple(_SPAN), ylim=(-7, 7))


FIGURE_KINDS: dict[str, Callable[[Reproduced], list[Drawing]]] = {
    "epsilon": _over_epsilon,
    "convergence": _convergence,
    "sizes": _sizes,
    "confusion": _confusion,
    "worst-decile": _worst_decile,
    "sweep": _sweep,
    "lines": draw_lines_of,
    "map": draw_map,
}
