"""Figures of clusters: true groups against learnt clusters, and released sizes before and after rebalancing."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rrcluster.report.drawing import (
    FAINT,
    GRID,
    INK,
    PALETTE,
    TONES,
    Drawing,
    draw,
    draw_pages,
    legend,
    level,
    set_title,
    whole_numbers,
)
from rrcluster.report.folders import DIAGNOSTIC, Confusion, Run, RunGroup
from rrcluster.report.series import one_each
from rrcluster.report.tables import group_labels
from rrcluster.report.values import expected_cohort, least_size, number

_ACROSS = 2
_MOST = 12  # clusters or groups; larger tables are not legible in a column
_DARKEST = 0.6  # so that text stays legible on it, in light and dark mode


def draw_confusion(groups: Sequence[RunGroup]) -> list[Drawing]:
    """One table per method with several clusters and known groups: shares of each group by final choice."""
    selected, note = one_each(groups)
    panels = [
        (label, table)
        for label, group in zip(group_labels(selected), selected, strict=True)
        if (table := _last(group)) and 1 < len(table) <= _MOST and len(table[0]) <= _MOST
    ]
    return draw_pages("confusion", panels, partial(draw_tables, which=note))


def matched(table: Confusion) -> dict[int, int]:
    """Group -> its cluster, one to one, with the most clients in their group's cluster."""
    from scipy.optimize import linear_sum_assignment

    clusters, groups = linear_sum_assignment(table, maximize=True)
    return dict(sorted(zip(groups.tolist(), clusters.tolist(), strict=True)))


def _last(group: RunGroup) -> Confusion:
    final = group.first.final
    return final.confusion if final and final.confusion and final.confusion[0] else ()


def draw_tables(panels: Sequence[tuple[str, Confusion]], name: str, which: str) -> Drawing:
    """The tables of named methods as one figure; `which` ends the caption with the runs they are from."""
    shares = "; ".join(f"{label}: {_share_matched(table)}" for label, table in panels)
    return draw(
        name,
        lambda figure: _paint(figure, panels),
        height=0.45 + 1.6 * -(-len(panels) // _ACROSS),
        caption=(
            f"Clusters that the clients of each true group choose (columns, in % of the group; {DIAGNOSTIC}). Clusters "
            f"are ordered so that the best match is on the diagonal.{which}"
        ),
        alt=f"Tables of true groups against learnt clusters, {DIAGNOSTIC}. On the diagonal: {shares}.",
    )


def _share_matched(table: Confusion) -> str:
    right = sum(table[cluster][group] for group, cluster in matched(table).items())
    return f"{100 * right / max(1, sum(map(sum, table))):.0f}% of clients"


def _paint(figure: Any, panels: Sequence[tuple[str, Confusion]]) -> None:
    across = min(_ACROSS, len(panels))
    grid = figure.subplots(-(-len(panels) // across), across, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            _paint_table(axes, *panels[place])
        else:
            axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("learnt cluster")
    for axes in grid.flat[max(0, len(panels) - across) : len(panels)]:
        axes.set_xlabel("true group")


def _paint_table(axes: Any, label: str, table: Confusion) -> None:
    from matplotlib.patches import Rectangle

    totals = [sum(column) for column in zip(*table, strict=True)]
    small = max(len(table), len(totals)) > 6
    best = matched(table).values()
    order = [*best, *(cluster for cluster in range(len(table)) if cluster not in best)]
    for row, cluster in enumerate(order):
        for group, count in enumerate(table[cluster]):
            share = count / totals[group] if totals[group] else 0.0
            axes.add_patch(
                Rectangle((group - 0.5, row - 0.5), 1, 1, facecolor=PALETTE[0], alpha=_DARKEST * share, linewidth=0)
            )
            if share:
                text = f"{100 * share:.0f}" if share >= 0.005 else "<1"
                axes.text(group, row, text, ha="center", va="center", color=INK, fontsize=5 if small else 7)
    axes.set(xlim=(-0.5, len(totals) - 0.5), ylim=(len(table) - 0.5, -0.5))
    axes.set_xticks(range(len(totals)))
    axes.set_yticks(range(len(order)), [str(cluster) for cluster in order])
    axes.grid(False)
    axes.set_aspect("equal")
    set_title(axes, label, fontsize=7)


Named = Sequence[tuple[str, Run]]


def draw_sizes(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Sizes as released, one panel per method; beside them what sums are divided by, where a method rebalances."""
    selected, note = one_each(groups)
    labelled = zip(group_labels(selected), selected, strict=True)
    panels = [(label, group.first) for label, group in labelled if any(entry.sizes for entry in group.first.rounds)]
    return draw_pages("sizes", panels, partial(draw_natural, which=note))


def draw_natural(panels: Named, name: str, which: str) -> Drawing:
    """Released sizes over rounds, one panel per named run, those that rebalance last; `which` ends the caption."""
    panels = sorted(panels, key=lambda panel: _rebalances(panel[1]))
    what = "Released cluster sizes over rounds: clients by their own choice, before any rebalancing."
    noise = " Noise can make a size negative; it is shown as released." if any(run.private for _, run in panels) else ""
    beside = any(_rebalances(run) for _, run in panels)
    after = " Right: the size by which a cluster's sum is divided after it, at least B or the floor." if beside else ""
    methods = "; ".join(f"{label}: {run.num_clusters} clusters{_ends(run)}" for label, run in panels)
    return draw(
        name,
        lambda figure: _paint_sizes(figure, panels, beside=beside),
        height=0.95 + 1.3 * len(panels),
        caption=f"{what}{noise}{after}{which}",
        alt=f"Line charts of released cluster sizes over rounds. {methods}.",
    )


def _rebalances(run: Run) -> bool:
    return least_size(run.config) > 0 and any(entry.denominators for entry in run.rounds)


def _ends(run: Run) -> str:
    """The smallest cluster of the last round, before and after rebalancing."""
    if not _rebalances(run):
        return ""
    last = next(entry for entry in reversed(run.rounds) if entry.denominators)
    before, after = (
        min((x for x in values if not math.isnan(x)), default=math.nan) for values in (last.sizes, last.denominators)
    )
    return f", the smallest {before:.0f} before, {after:.0f} after rebalancing"


def _paint_sizes(figure: Any, panels: Named, *, beside: bool) -> None:
    rows = figure.subplots(len(panels), 2 if beside else 1, sharex=True, sharey="row", squeeze=False)
    for (left, *right), (label, run) in zip(rows, panels, strict=True):
        _paint_lines(left, run, "sizes")
        set_title(left, label if run.private else f"{label} (exact, not private)")
        left.set_ylabel("clients")
        for axes in right:
            if _rebalances(run):
                _paint_lines(axes, run, "denominators")
                set_title(axes, "after rebalancing", fontstyle="italic")
            else:
                axes.set_axis_off()
    for axes in rows[-1]:
        axes.set_xlabel("round")
        whole_numbers(axes)
    legend(figure, *rows.flat, columns=3)


def _paint_lines(axes: Any, run: Run, name: str) -> None:
    entries = [(entry.round_index + 1, getattr(entry, name)) for entry in run.rounds if getattr(entry, name)]
    many = run.num_clusters > len(TONES)
    for cluster in range(run.num_clusters):
        values = [sizes[cluster] if cluster < len(sizes) else math.nan for _, sizes in entries]
        label = f"cluster {cluster}" if not many else "_" if cluster else f"{run.num_clusters} clusters"
        colour, width = (FAINT, 0.7) if many else (TONES[_tone(cluster, run.num_clusters)], 0.9)
        axes.plot([at for at, _ in entries], values, label=label, color=colour, linewidth=width)
    axes.axhline(0, color=GRID, linewidth=0.8, zorder=1)
    if (cohort := expected_cohort(run.config)) is not None:
        level(axes, cohort / run.num_clusters, "expected if equal", "dashed")
    least = number(run.config.get("min_cluster_size"))
    if least:
        level(axes, least, "B", "dotted")


def _tone(cluster: int, num_clusters: int) -> int:
    """Tones of the scale, spaced by the number of clusters."""
    return round(cluster * (len(TONES) - 1) / max(1, num_clusters - 1))
