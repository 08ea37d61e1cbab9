"""Parts that the figures of a reproduction share: lines with bands, levels, one legend for a stack of axes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rrcluster.report.drawing import INK
from rrcluster.report.estimate import Estimate

_SPELLED = {
    "published": "published",
    "identifier": "identifier: the paper's mechanism",
    "joint": "joint: ours",
    "none": "no noise",
}
_TEXT_WIDTH = 62  # characters of legend that fit into one line


def spell(kind: str) -> str:
    """A mechanism as figures name it."""
    return _SPELLED.get(kind, kind)


def slug(text: str) -> str:
    """The first word of a title, fit for a file name."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return words[0] if words else "panel"


def band(axes: Any, points: Mapping[float, Estimate], *, label: str, **style: Any) -> None:
    """A line through the means, in percent, and the interval around it, as far as it is a percentage."""
    if not points:
        return
    at = sorted(points)
    axes.plot(at, [100 * points[x].mean for x in at], label=label, **style)
    low, high = [max(0.0, 100 * points[x].low) for x in at], [min(100.0, 100 * points[x].high) for x in at]
    if low != high:
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)


def level(axes: Any, height: float, label: str) -> None:
    """A horizontal line with a name."""
    axes.axhline(height, color=INK, linestyle="dotted", linewidth=0.8, label=label)


def shared_legend(figure: Any, stack: Sequence[Any]) -> None:
    """One legend for all axes: every name once, in the order met."""
    every = [pair for axes in stack for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(every)}
    labels = list(dict.fromkeys(label for _, label in every))
    if not labels:
        return
    columns = max(1, min(len(labels), _TEXT_WIDTH // (max(map(len, labels)) + 7)))
    handles = [unique[label] for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2)
