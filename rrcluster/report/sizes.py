"""Released cluster sizes over rounds, before and after rebalancing."""

import math
from collections.abc import Sequence
from typing import Any

from rrcluster.report.drawing import GRID, PALETTE, Drawing, draw, legend, level, plain, whole_numbers
from rrcluster.report.folders import Run, RunGroup
from rrcluster.report.labels import least_size
from rrcluster.report.run_files import number
from rrcluster.report.series import one_each
from rrcluster.report.tables import group_labels

PANELS = 4  # of one figure; more methods get more figures
_NAMED_CLUSTERS = 8  # more clusters than these are drawn but not named

Named = Sequence[tuple[str, Run]]


def draw_sizes(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Natural sizes as released, one panel per method."""
    shown, note = one_each(groups)
    panels = [(label, run) for label, run in _first_runs(shown) if any(entry.sizes for entry in run.rounds)]
    which = _which(shown) + note
    return [draw_natural(page, _numbered("sizes", at), which) for at, page in enumerate(_pages(panels), 1)]


def draw_rebalanced(groups: Sequence[RunGroup]) -> list[Drawing]:
    """For methods that rebalance: released sizes before it, and the denominators of the clusters after it."""
    shown, note = one_each(groups)
    panels = [
        (label, run)
        for label, run in _first_runs(shown)
        if least_size(run.config) and any(entry.denominators for entry in run.rounds)
    ]
    which = _which(shown) + note
    return [_rebalanced(page, _numbered("rebalanced", at), which) for at, page in enumerate(_pages(panels), 1)]


def _first_runs(groups: Sequence[RunGroup]) -> Named:
    return [(label, group.first) for label, group in zip(group_labels(groups), groups, strict=True)]


def _pages(panels: Named) -> list[Named]:
    return [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]


def _numbered(name: str, at: int) -> str:
    return f"{name}-{at}" if at > 1 else name


def _which(groups: Sequence[RunGroup]) -> str:
    return " The first seed of each method." if any(len(group.runs) > 1 for group in groups) else ""


def draw_natural(panels: Named, name: str, which: str) -> Drawing:
    """Released sizes over rounds, one panel per named run; `which` ends the caption."""
    what = "Released cluster sizes over rounds: clients by their own choice, before any rebalancing."
    private = any(run.private for _, run in panels)
    noise = " Noise can make a size negative; it is shown as released." if private else ""
    methods = "; ".join(f"{label}: {run.num_clusters} clusters" for label, run in panels)
    return draw(
        name,
        lambda figure: _paint_natural(figure, panels),
        height=0.75 + 1.25 * len(panels),
        caption=f"{what}{noise}{which}",
        alt=f"Line charts of released cluster sizes over rounds. {methods}.",
    )


def _paint_natural(figure: Any, panels: Named) -> None:
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, run) in zip(column, panels, strict=True):
        _paint_lines(axes, run, "sizes")
        axes.set_title(plain(label), loc="left")
        if not run.private:
            axes.set_title("exact, not private", loc="right", fontstyle="italic")
        axes.set_ylabel("clients")
    column[-1].set_xlabel("round")
    whole_numbers(column[-1])
    legend(figure, *column, columns=3)


def _rebalanced(panels: Named, name: str, which: str) -> Drawing:
    ends = "; ".join(f"{label}: {_ends(run)}" for label, run in panels)
    return draw(
        name,
        lambda figure: _paint_rebalanced(figure, panels),
        height=0.85 + 1.35 * len(panels),
        caption=(
            "Cluster sizes without and with rebalancing. Left: released sizes by the clients' own choice. Right: the "
            f"size by which each cluster's sum is divided after it, never less than B or the floor.{which}"
        ),
        alt=f"Line charts of cluster sizes before and after rebalancing. Last round, smallest cluster: {ends}.",
    )


def _ends(run: Run) -> str:
    last = next(entry for entry in reversed(run.rounds) if entry.denominators)
    before, after = (
        min((x for x in values if not math.isnan(x)), default=math.nan) for values in (last.sizes, last.denominators)
    )
    return f"{before:.0f} before, {after:.0f} after"


def _paint_rebalanced(figure: Any, panels: Named) -> None:
    rows = figure.subplots(len(panels), 2, sharex=True, sharey="row", squeeze=False)
    for (left, right), (label, run) in zip(rows, panels, strict=True):
        _paint_lines(left, run, "sizes")
        _paint_lines(right, run, "denominators")
        left.set_title(plain(label), loc="left")
        left.set_ylabel("clients")
    rows[0, 1].set_title("after rebalancing", loc="right", fontstyle="italic")
    for axes in rows[-1]:
        axes.set_xlabel("round")
        whole_numbers(axes)
    legend(figure, *rows.flat, columns=3)


def _paint_lines(axes: Any, run: Run, name: str) -> None:
    entries = [(entry.round_index + 1, getattr(entry, name)) for entry in run.rounds if getattr(entry, name)]
    for cluster in range(run.num_clusters):
        values = [sizes[cluster] if cluster < len(sizes) else math.nan for _, sizes in entries]
        label = f"cluster {cluster}" if run.num_clusters <= _NAMED_CLUSTERS else "_"
        colour = PALETTE[cluster % len(PALETTE)]
        axes.plot([at for at, _ in entries], values, label=label, color=colour, linewidth=0.9)
    axes.axhline(0, color=GRID, linewidth=0.8, zorder=1)
    rate, clients = number(run.config.get("sample_rate")), number(run.config.get("num_clients"))
    if rate is not None and clients is not None:
        level(axes, rate * clients / run.num_clusters, "expected if equal", "dashed")
    least = number(run.config.get("min_cluster_size"))
    if least:
        level(axes, least, "B", "dotted")
