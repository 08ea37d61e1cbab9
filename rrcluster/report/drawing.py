"""How figures look and how they are written: one palette, one size, the same bytes for the same runs.

Only the object API of matplotlib is used: no pyplot, no global figure, no display.
"""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rrcluster.errors import ConfigError

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")  # Okabe and Ito, less yellow and black
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))  # a second cue beside colour
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, GRID = "#22262b", "#c9ced6"
COLUMN_WIDTH = 3.4  # inches: one column of a two-column page
_TEXT_WIDTH = 62  # characters of legend that fit into it

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "text.usetex": False,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "savefig.bbox": "standard",
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure in three forms, with words for those who cannot see it."""

    name: str
    caption: str
    alt: str
    svg: str  # an <svg> element for a page; takes its colours from the page where that sets them
    png: bytes
    pdf: bytes


def draw(
    name: str,
    paint: Callable[[Any], None],
    *,
    height: float,
    caption: str,
    alt: str,
    width: float = COLUMN_WIDTH,
) -> Drawing:
    """Let `paint` fill an empty figure, of one column's width unless told, and render it."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"rrcluster-{name}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a label with letters that the font lacks
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        png = _render(figure, "png", {"Software": None}, dpi=300)
        pdf = _render(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})
        svg = _render(figure, "svg", {"Date": None}, transparent=True).decode("utf-8")
    return Drawing(name, caption, alt, _inline(svg, name), png, pdf)


def plain(label: str) -> str:
    """A label that matplotlib shows as it is, without reading mathematics into it."""
    return label.replace("$", r"\$")


def legend(figure: Any, axes: Any) -> None:
    """One legend under the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = max(1, min(len(labels), _TEXT_WIDTH // (max(len(label) for label in labels) + 7)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("figures need matplotlib; install rrcluster[plot]") from error
    return matplotlib


def _render(figure: Any, kind: str, metadata: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def _inline(svg: str, name: str) -> str:
    """Only the <svg> element: no namespaces, no metadata, ids of its own, colours that a page can override."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\sid="([^"]*)"', rf' id="{name}-\1"', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = svg.replace(INK, "currentColor").replace(GRID, f"var(--grid, {GRID})")
    for place, colour in enumerate(PALETTE):
        svg = svg.replace(colour, f"var(--series-{place}, {colour})")
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1).strip()
