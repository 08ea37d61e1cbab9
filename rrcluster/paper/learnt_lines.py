"""The paper's figure of noisy lines: one row per scenario, one column per method, learnt models over the true lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rrcluster.data.synthetic import INTERCEPTS, SCENARIOS, SLOPES
from rrcluster.paper.read_reproduction import Reproduced
from rrcluster.report.drawing import INK, PALETTE, Drawing, draw

_WIDTH, _ROW_HEIGHT = 6.8, 1.75  # inches: two columns of a page
_SPAN = np.array([-1.05, 1.05])

Lines = Sequence[tuple[float, float]]  # slope and intercept of every model


def draw_lines_of(reproduced: Reproduced) -> list[Drawing]:
    """The figure from the models of the first seed; no figure before every run of that seed has finished."""
    from safetensors.numpy import load_file

    scenarios: dict[str, dict[str, Lines]] = {}
    for column in reproduced.columns:
        for row in reproduced.rows:
            runs = reproduced.runs(row, column, "none")
            if not runs:
                return []
            run = runs[min(runs)]
            arrays = load_file(run.path / "models.safetensors")
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
