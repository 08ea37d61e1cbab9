"""Figures of clusters: true groups against learnt clusters, and released sizes before and after rebalancing."""

import math
from collections.abc import Sequence
from typing import Any

from rrcluster.report.drawing import (
    FAINT,
    GRID,
    INK,
    PALETTE,
    TONES,
    Drawing,
    draw,
    legend,
    level,
    set_title,
    whole_numbers,
)
from rrcluster.report.folders import DIAGNOSTIC, Confusion, Run, RunGroup
from rrcluster.report.series import one_each
from rrcluster.report.tables import group_labels
from rrcluster.report.values import expected_cohort, least_size, number

CONFUSION_PANELS = 4  # of one figure; more methods get more figures
_ACROSS = 2
_MOST = 12  # clusters or groups; larger tables are not legible in a column
_DARKEST = 0.6  # so that ink stays legible on it, in light and in dark


def draw_confusion(groups: Sequence[RunGroup]) -> list[Drawing]:
    """One table per method with several clusters and known groups: shares of each group by final choice."""
    shown, note = one_each(groups)
    panels = [
        (label, table)
        for label, group in zip(group_labels(shown), shown, strict=True)
        if (table := _last(group)) and 1 < len(table) <= _MOST and len(table[0]) <= _MOST
    ]
    which = (" The first seed of each method." if any(len(group.runs) > 1 for group in shown) else "") + note
    pages = [panels[first : first + CONFUSION_PANELS] for first in range(0, len(panels), CONFUSION_PANELS)]
    return [draw_tables(page, f"confusion-{at}" if at > 1 else "confusion", which) for at, page in enumerate(pages, 1)]


def matched(table: Confusion) -> dict[int, int]:
    """Group -> its cluster, one to one, with the most clients in their group's cluster."""
    from scipy.optimize import linear_sum_assignment

    clusters, groups = linear_sum_assignment(table, maximize=True)
    return dict(sorted(zip(groups.tolist(), clusters.tolist(), strict=True)))


def _last(group: RunGroup) -> Confusion:
    final = group.first.final
    return final.confusion if final and final.confusion and final.confusion[0] else ()


def draw_tables(panels: Sequence[tuple[str, Confusion]], name: str, which: str) -> Drawing:
    """The tables of named methods as one figure; `which` ends the caption: of which runs they are."""
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


PANELS = 4  # of one figure; more methods get more figures

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
        height=0.95 + 1.25 * len(panels),
        caption=f"{what}{noise}{which}",
        alt=f"Line charts of released cluster sizes over rounds. {methods}.",
    )


def _paint_natural(figure: Any, panels: Named) -> None:
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, run) in zip(column, panels, strict=True):
        _paint_lines(axes, run, "sizes")
        set_title(axes, label if run.private else f"{label} (exact, not private)")
        axes.set_ylabel("clients")
    column[-1].set_xlabel("round")
    whole_numbers(column[-1])
    legend(figure, *column, columns=3)


def _rebalanced(panels: Named, name: str, which: str) -> Drawing:
    ends = "; ".join(f"{label}: {_ends(run)}" for label, run in panels)
    return draw(
        name,
        lambda figure: _paint_rebalanced(figure, panels),
        height=1.05 + 1.35 * len(panels),
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
        set_title(left, label)
        set_title(right, "after rebalancing", fontstyle="italic")
        left.set_ylabel("clients")
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
    """Tones of the scale as far apart as the number of clusters allows."""
    return round(cluster * (len(TONES) - 1) / max(1, num_clusters - 1))
