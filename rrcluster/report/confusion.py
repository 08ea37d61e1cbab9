"""True groups against learnt clusters."""

from collections.abc import Sequence
from typing import Any

from rrcluster.report.drawing import INK, PALETTE, Drawing, draw, plain
from rrcluster.report.folders import DIAGNOSTIC, Confusion, RunGroup
from rrcluster.report.series import one_each
from rrcluster.report.tables import group_labels

PANELS = 4  # of one figure; more methods get more figures
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
    pages = [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]
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
    axes.set_title(plain(label), loc="left", fontsize=7)
