"""The map: points behind the oracle as a heat map, a panel per epsilon, a line per method, a square per population."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.report.drawing import INK, Drawing, draw
from rrcluster.report.folders import DIAGNOSTIC
from rrcluster.types import Array
from rrcluster_research.read_reproduction import MeasuredColumn, MeasuredRow, Reproduced

_FULL = 15.0  # points behind at which the colour scale ends
_WIDTH, _LINE, _MARGIN = 7.0, 0.26, 1.35  # inches
_DARK = 8.0  # points behind above which numbers are white
_WORDS = {"accuracy": "mean accuracy", "worst_decile": "accuracy of the worst decile"}


@dataclass(frozen=True)
class MapPanel:
    """Points behind the oracle of methods (lines) on populations (squares); NaN where nothing was measured."""

    title: str
    methods: tuple[str, ...]
    places: tuple[str, ...]
    behind: Array  # (methods, places)


def draw_map(reproduced: Reproduced) -> list[Drawing]:
    """Two figures: the mean accuracy, and that of the worst decile."""
    drawings = []
    for measure in _WORDS:
        panels = [_panel(reproduced, panel, measure) for panel in reproduced.panels]
        shown = [panel for panel in panels if np.isfinite(panel.behind).any()]
        if shown:
            drawings.append(draw_panels(f"map-{measure.replace('_', '-')}", shown, _WORDS[measure]))
    return drawings


def draw_panels(name: str, panels: Sequence[MapPanel], words: str) -> Drawing:
    """The heat maps of a few panels below each other."""

    def paint(figure: Any) -> None:
        every = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, panel in zip(every, panels, strict=True):
            _paint(axes, panel)
        every[-1].set_xticks(range(len(panels[-1].places)), panels[-1].places, rotation=40, ha="right")

    return draw(
        name,
        paint,
        height=_MARGIN + sum(0.35 + _LINE * len(panel.methods) for panel in panels),
        width=_WIDTH,
        caption=f"Points of {words} behind the oracle, which knows the groups: white is as good, dark is {_FULL:g} or "
        f"more behind, a dot was not measured ({DIAGNOSTIC}).",
        alt=f"Heat maps of points of {words} behind the oracle. " + " ".join(map(_spoken, panels)),
    )


def _panel(reproduced: Reproduced, title: str, measure: str) -> MapPanel:
    columns = [column for column in reproduced.columns if column.panel == title]
    oracle = next((row for row in reproduced.rows if row.reference), None)
    lines = [
        (f"{row.name}{', identifier' if mechanism == 'identifier' else ''}", row, mechanism)
        for mechanism in ("identifier", "joint")
        for row in reproduced.rows
        if not row.reference and mechanism in row.settings
    ]
    behind = [
        [_behind(reproduced, oracle, row, column, mechanism, measure) for column in columns]
        for _, row, mechanism in lines
    ]
    names = tuple(name for name, *_ in lines)
    return MapPanel(title, names, tuple(column.budget for column in columns), np.array(behind, dtype=float))


def _behind(
    reproduced: Reproduced,
    oracle: MeasuredRow | None,
    row: MeasuredRow,
    column: MeasuredColumn,
    mechanism: str,
    measure: str,
) -> float:
    """Mean over the seeds that both have, in points; NaN without any."""
    best = {} if oracle is None else reproduced.values(oracle, column, "joint", measure)
    own = reproduced.values(row, column, mechanism, measure)
    gaps = [best[seed] - value for seed, value in own.items() if seed in best]
    return 100 * sum(gaps) / len(gaps) if gaps else float("nan")


def _paint(axes: Any, panel: MapPanel) -> None:
    axes.imshow(np.clip(panel.behind, 0.0, _FULL), cmap="YlOrRd", vmin=0.0, vmax=1.3 * _FULL, aspect="auto")
    axes.set_title(panel.title, loc="left")
    axes.set_yticks(range(len(panel.methods)), panel.methods)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for line, place in np.ndindex(panel.behind.shape):
        points = panel.behind[line, place]
        text = f"{np.round(points, 1) + 0.0:.1f}" if np.isfinite(points) else "·"  # no minus before 0.0
        axes.text(
            place, line, text.replace("-", "−"), ha="center", va="center", color="white" if points > _DARK else INK
        )


def _spoken(panel: MapPanel) -> str:
    """The panel as a sentence: the mean over measured cells, for each method."""
    means = [
        f"{name} {row[np.isfinite(row)].mean():.1f}"
        for name, row in zip(panel.methods, panel.behind, strict=True)
        if np.isfinite(row).any()
    ]
    return f"{panel.title}, mean over the populations measured: {'; '.join(means)}."
