"""Accuracy over rounds, a figure per column, one chart per mechanism."""

from collections.abc import Mapping, Sequence
from typing import Any

from rrcluster.paper.panels import band, shared_legend, spell
from rrcluster.paper.read_reproduction import Column, Reproduced
from rrcluster.report.drawing import Drawing, draw, line_style, plain
from rrcluster.report.estimate import Estimate, estimate
from rrcluster.report.folders import DIAGNOSTIC, Run


def draw_convergence(it: Reproduced) -> list[Drawing]:
    """Mean accuracy after each evaluated round."""
    drawings = []
    for place, column in enumerate(it.columns, start=1):
        kinds = [kind for kind in column.mechanisms if any(it.runs(row, column, kind) for row in it.rows)]
        if not kinds:
            continue
        drawings.append(
            draw(
                f"convergence-{place}-{column.key}",
                lambda figure, column=column, kinds=kinds: _paint(figure, it, column, kinds),  # type: ignore[misc]
                height=0.9 + 1.6 * len(kinds) + 0.1 * len(it.rows),
                caption=f"{column.panel}, {column.budget}: accuracy over rounds ({DIAGNOSTIC}). Bands: 95% "
                "t-interval of the mean over seeds.",
                alt=f"Line charts of accuracy over rounds, {column.panel}, {column.budget}.",
            )
        )
    return drawings


def curve(runs: Mapping[int, Run]) -> dict[float, Estimate]:
    """Mean accuracy at the rounds that every seed evaluated."""
    seeds = [{entry.round_index + 1: entry.accuracy for entry in run.diagnostics} for run in runs.values()]
    shared = [at for at in (seeds[0] if seeds else ()) if all(seed.get(at) is not None for seed in seeds)]
    points = {float(at): estimate(seed[at] for seed in seeds) for at in shared}
    return {at: point for at, point in points.items() if point is not None}


def _paint(figure: Any, it: Reproduced, column: Column, kinds: Sequence[str]) -> None:
    stack = figure.subplots(len(kinds), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, kind in zip(stack, kinds, strict=True):
        for place, row in enumerate(it.rows):
            points = curve(it.runs(row, column, kind))
            band(axes, points, label=plain(row.name), **line_style(place, marked=len(points) < 25))
        axes.set_title(spell(kind), loc="left")
        axes.set_ylabel("accuracy (%)")
    stack[-1].set_xlabel("round")
    shared_legend(figure, stack)
