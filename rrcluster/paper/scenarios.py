"""The paper's figure of noisy lines: one row per scenario, one column per method, the final models in black dashes.

It takes points and lines as plain numbers, wherever they come from, and computes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rrcluster.report.drawing import INK, MARKERS, PALETTE, Drawing, draw

_WIDTH, _ROW_HEIGHT = 6.8, 1.75  # inches: two columns of a page
_SPAN = (-1.05, 1.05)


@dataclass(frozen=True)
class Panel:
    """One picture: samples of every group, and the slope and intercept of every model."""

    points: Sequence[tuple[Sequence[float], Sequence[float]]]  # per group: x, y
    lines: Sequence[tuple[float, float]]


def scenario_figure(panels: Mapping[str, Mapping[str, Panel]], *, caption: str) -> Drawing:
    """Rows are scenarios and columns methods, both in the order given; every row has the same methods."""
    rows, columns = list(panels), list(next(iter(panels.values())))
    return draw(
        "scenarios",
        lambda figure: _paint(figure, panels, rows, columns),
        height=_ROW_HEIGHT * len(rows) + 0.3,
        width=_WIDTH,
        caption=caption,
        alt=f"Scatter plots of noisy lines with the models of {', '.join(columns)} drawn over them, one row each for "
        f"{', '.join(rows)}.",
    )


def _paint(figure: Any, panels: Mapping[str, Mapping[str, Panel]], rows: list[str], columns: list[str]) -> None:
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    for place, row in enumerate(rows):
        for column, axes in zip(columns, grid[place], strict=True):
            _paint_panel(axes, panels[row][column])
            if place == 0:
                axes.set_title(column)
        grid[place][0].set_ylabel(row)
    for axes in grid[-1]:
        axes.set_xlabel("x")


def _paint_panel(axes: Any, panel: Panel) -> None:
    for group, (x, y) in enumerate(panel.points):
        style = {"color": PALETTE[group % len(PALETTE)], "marker": MARKERS[group % len(MARKERS)]}
        axes.scatter(x, y, s=3, linewidths=0, alpha=0.55, **style)
    for slope, intercept in panel.lines:
        ends = [slope * x + intercept for x in _SPAN]
        axes.plot(_SPAN, ends, color=INK, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.set(xlim=_SPAN, ylim=(-7, 7))
