"""The figures of a reproduction. Bands are 95% t-intervals of the mean over seeds; published points are hollow."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rrcluster.paper.panels import band, level, shared_legend, slug, spell
from rrcluster.paper.paper_curves import draw_convergence
from rrcluster.paper.read_reproduction import MEASURES, Column, Reproduced, Row
from rrcluster.report.drawing import INK, PALETTE, Drawing, draw, line_style, plain
from rrcluster.report.estimate import Estimate
from rrcluster.report.folders import DIAGNOSTIC
from rrcluster.report.sizes import draw_natural

BANDS = "Bands: 95% t-interval of the mean over seeds."
_NEAR = 15.0  # points
_SIZE = re.compile(r"b(\d+)")  # key of a row of the sweep over B


def draw_reproduction(it: Reproduced) -> tuple[Drawing, ...]:
    """Every figure that the study asks for and has values for."""
    return tuple(drawing for kind in it.about["figures"] for drawing in KINDS[kind](it))


def _over_epsilon(it: Reproduced) -> list[Drawing]:
    """One figure per panel: published, identifier and joint, one below the other."""
    drawings = []
    for place, panel in enumerate(it.panels):
        columns = [column for column in it.columns if column.panel == panel and column.epsilon is not None]
        kinds = [kind for kind in ("published", "identifier", "joint") if _has(it, columns, kind)]
        if len(columns) < 2 or not set(kinds) - {"published"}:
            continue
        drawings.append(
            draw(
                f"epsilon-{place + 1}-{slug(panel)}",
                lambda figure, columns=columns, kinds=kinds: _paint_epsilon(figure, it, columns, kinds),  # type: ignore[misc]
                height=1.0 + 1.5 * len(kinds) + 0.12 * len(it.rows),
                caption=f"{panel}: {MEASURES[it.measure]} over epsilon ({DIAGNOSTIC}). {BANDS}",
                alt=f"Line charts over epsilon, {panel}. {_ends(it, columns, kinds)}",
            )
        )
    return drawings


def _paint_epsilon(figure: Any, it: Reproduced, columns: Sequence[Column], kinds: Sequence[str]) -> None:
    stack = figure.subplots(len(kinds), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, kind in zip(stack, kinds, strict=True):
        for place, row in enumerate(it.rows):
            points = {c.epsilon: p for c in columns if (p := _point(it, row, c, kind)) is not None and c.epsilon}
            style = (
                {"color": INK, "linestyle": "dashed", "marker": None}
                if row.reference
                else line_style(place, marked=True)
            )
            style |= {"markerfacecolor": "none"} if kind == "published" else {}
            band(axes, points, label=plain(row.name), **style)
        constant = _constant_level(it, columns, kinds)
        if constant is not None:
            level(axes, constant, "constant predictor")
        axes.set_title(spell(kind), loc="left")
        axes.set_ylabel("%")
        axes.set_xscale("log", base=2)
        budgets = [column.epsilon for column in columns]
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    stack[-1].set_xlabel("epsilon")
    shared_legend(figure, stack)


def _point(it: Reproduced, row: Row, column: Column, kind: str) -> Estimate | None:
    if kind != "published":
        return it.estimate(row, column, kind)
    told = row.published.get(column.key)
    return None if told is None else Estimate(told / 100, None, 1)


def _constant_level(it: Reproduced, columns: Sequence[Column], kinds: Sequence[str]) -> float | None:
    """The constant predictor in percent, where it is near enough to tell something and not squeeze the lines."""
    constants = [100 * found.mean for column in columns if (found := it.constant(column))]
    points = [_point(it, row, column, kind) for row in it.rows for column in columns for kind in kinds]
    least = min(100 * point.mean for point in points if point is not None)
    if it.measure != "accuracy" or not constants or min(constants) < least - _NEAR:
        return None
    return sum(constants) / len(constants)


def _has(it: Reproduced, columns: Sequence[Column], kind: str) -> bool:
    return any(_point(it, row, column, kind) is not None for row in it.rows for column in columns)


def _ends(it: Reproduced, columns: Sequence[Column], kinds: Sequence[str]) -> str:
    last, kind = columns[-1], kinds[-1]
    found = [(row.name, _point(it, row, last, kind)) for row in it.rows]
    told = [f"{name} {100 * point.mean:.1f}%" for name, point in found if point is not None]
    return f"At {last.budget}, {spell(kind)}: {'; '.join(told)}."


def _worst_decile(it: Reproduced) -> list[Drawing]:
    """Per panel, at its largest epsilon: mean accuracy and that of the worst tenth of clients."""
    drawings = []
    for place, panel in enumerate(it.panels):
        columns = [column for column in it.columns if column.panel == panel and column.epsilon is not None]
        kinds = [kind for kind in ("identifier", "joint") if columns and _has(it, columns[-1:], kind)]
        if not kinds:
            continue
        column = columns[-1]
        rows = [row for row in it.rows if any(it.estimate(row, column, kind) for kind in kinds)]
        drawings.append(
            draw(
                f"worst-decile-{place + 1}-{slug(panel)}",
                lambda figure, c=column, k=kinds, r=rows: _paint_deciles(figure, it, c, k, r),  # type: ignore[misc]
                height=0.8 + len(kinds) * (0.4 + 0.16 * len(rows)),
                caption=f"{panel}, {column.budget}: mean accuracy, and that of the tenth of clients that fare worst "
                f"({DIAGNOSTIC}).",
                alt=f"Dot chart of mean and worst-decile accuracy, {panel}, {column.budget}.",
            )
        )
    return drawings


def _paint_deciles(figure: Any, it: Reproduced, column: Column, kinds: Sequence[str], rows: Sequence[Row]) -> None:
    stack = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    measures = {"accuracy": ("mean of all clients", PALETTE[0], "o"), "worst_decile": ("worst tenth", PALETTE[1], "s")}
    for axes, kind in zip(stack, kinds, strict=True):
        shown = [row for row in rows if it.estimate(row, column, kind)]
        for measure, (label, colour, marker) in measures.items():
            found = [it.estimate(row, column, kind, measure) for row in shown]
            places = [place for place, point in enumerate(found) if point is not None]
            points = [point for point in found if point is not None]
            means = [100 * point.mean for point in points]
            down = [100 * min(point.mean, point.mean - point.low) for point in points]  # as far as it is a percentage
            up = [100 * min(1 - point.mean, point.high - point.mean) for point in points]
            axes.errorbar(means, places, xerr=[down, up], fmt=marker, color=colour, label=label, elinewidth=0.8)
        axes.set_yticks(range(len(shown)), [plain(row.name) for row in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_title(kind, loc="left")  # the names of the rows leave no room for more
    stack[-1].set_xlabel("accuracy (%)")
    shared_legend(figure, stack)


def _sizes(it: Reproduced) -> list[Drawing]:
    drawings = []
    for place, (panels, column) in enumerate(_spotlights(it), start=1):
        named = [(f"{label}, {column.budget}", run) for label, run in panels]
        drawings.append(draw_natural(named, f"sizes-{place}", " The first seed of each method."))
    return drawings


def _confusion(it: Reproduced) -> list[Drawing]:
    drawings = []
    for place, (panels, column) in enumerate(_spotlights(it), start=1):
        found = [(label, run.final.confusion) for label, run in panels if run.final and run.final.confusion]
        tables = [(label, tuple(zip(*table, strict=True))) for label, table in found]  # by group, then by cluster
        if not tables:
            continue
        drawings.append(
            draw(
                f"confusion-{place}",
                lambda figure, tables=tables: _paint_confusion(figure, tables),  # type: ignore[misc]
                height=0.4 + 1.35 * len(tables),
                caption=f"Clients by true group and learnt cluster, {column.panel}, {column.budget}, first seed "
                f"({DIAGNOSTIC}).",
                alt="Tables of clients by true group and learnt cluster: "
                + "; ".join(f"{label}: {[[int(n) for n in row] for row in table]}" for label, table in tables),
            )
        )
    return drawings


def _paint_confusion(figure: Any, tables: Sequence[tuple[str, Sequence[Sequence[float]]]]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("shades", ["#ffffff", PALETTE[0]])
    stack = figure.subplots(len(tables), 1, squeeze=False)[:, 0]
    for axes, (label, table) in zip(stack, tables, strict=True):
        most = max(max(row) for row in table)
        axes.pcolormesh(table, cmap=shades, vmin=0, vmax=1.4 * most)  # not an image: pages load none
        for group, row in enumerate(table):
            for cluster, clients in enumerate(row):
                axes.text(cluster + 0.5, group + 0.5, f"{clients:.0f}", ha="center", va="center", color="#22262c")
        axes.set_title(plain(label), loc="left")
        axes.set_xticks([place + 0.5 for place in range(len(table[0]))], [str(place) for place in range(len(table[0]))])
        axes.set_yticks([place + 0.5 for place in range(len(table))], [str(place) for place in range(len(table))])
        axes.grid(visible=False)
        axes.invert_yaxis()
        axes.set_ylabel("true group")
    stack[-1].set_xlabel("learnt cluster")


def _spotlights(it: Reproduced) -> list[tuple[list[tuple[str, Any]], Column]]:
    """The first seed of every cell in the light, by name."""
    found = []
    for light in it.about["spotlights"]:
        column = it.column(light["column"])
        if column is None:
            continue
        panels = []
        for key, mechanism in light["cells"]:
            row = it.row(key)
            runs: Mapping[int, Any] = {} if row is None else it.runs(row, column, mechanism)
            if row is not None and runs:
                panels.append((f"{row.name}, {spell(mechanism)}", runs[min(runs)]))
        if panels:
            found.append((panels, column))
    return found


def _sweep(it: Reproduced) -> list[Drawing]:
    """The measure over B, a figure per column."""
    drawings = []
    for place, column in enumerate(it.columns, start=1):
        curves: dict[str, dict[float, Estimate]] = {}
        for row in it.rows:
            if not (size := _SIZE.fullmatch(row.key)):
                continue
            for kind in column.mechanisms:
                if (point := it.estimate(row, column, kind)) is not None:
                    curves.setdefault(kind, {})[float(size.group(1))] = point
        told = next((row.published.get(column.key) for row in it.rows if row.key == "b0"), None)
        if curves:
            drawings.append(_draw_sweep(it, column, curves, told, place))
    return drawings


def _draw_sweep(
    it: Reproduced, column: Column, curves: Mapping[str, Mapping[float, Estimate]], told: float | None, place: int
) -> Drawing:
    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for at, (kind, points) in enumerate(curves.items()):
            band(axes, points, label=spell(kind), **line_style(at, marked=True))
        if told is not None:
            level(axes, told, f"published, B = 0 ({told:g}%)")
        axes.set(xlabel="B", ylabel=MEASURES[it.measure])
        shared_legend(figure, [axes])

    ends = "; ".join(
        f"{spell(kind)}: " + ", ".join(f"B = {size:g} {100 * point.mean:.1f}%" for size, point in points.items())
        for kind, points in curves.items()
    )
    return draw(
        f"sweep-{place}",
        paint,
        height=2.5,
        caption=f"{column.panel}, {column.budget}: {MEASURES[it.measure]} over B ({DIAGNOSTIC}). {BANDS}",
        alt=f"Line chart over B. {ends}.",
    )


KINDS: dict[str, Callable[[Reproduced], list[Drawing]]] = {
    "epsilon": _over_epsilon,
    "convergence": draw_convergence,
    "sizes": _sizes,
    "confusion": _confusion,
    "worst-decile": _worst_decile,
    "sweep": _sweep,
}
