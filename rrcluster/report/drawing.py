"""Style and rendering of figures: one palette, one size, the same bytes for the same runs.

Only the object API of matplotlib is used: no pyplot, no global figure, no display.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.report.values import Estimate

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")  # Okabe and Ito, less yellow and black
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))  # a second cue beside colour
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # not as many as colours: 42 series before two are alike
INK, GRID = "#22262b", "#c9ced6"
COLUMN_WIDTH = 3.4  # inches: one column of a two-column page
_NEAR_CHANCE = 0.2  # the chance level is drawn if some accuracy is less than this above it
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
    """A finished figure in three formats, with its alternative text."""

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
    """Render the figure that `paint` fills; `width` and `height` are inches."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"rrcluster-{name}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        png = _render(figure, "png", {"Software": None}, dpi=300)
        figure.set_layout_engine("none")  # keep the layout of the first rendering
        pdf = _render(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})
        svg = _render(figure, "svg", {"Date": None}, transparent=True).decode("utf-8")
    return Drawing(name, caption, alt, _inline(svg, name), png, pdf)


def standalone_svg(drawing: Drawing) -> str:
    """The SVG of a drawing as a file of its own."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return drawing.svg.replace("<svg", f"<svg {names}", 1)


def plain(label: str) -> str:
    """A label that matplotlib does not parse as mathematics."""
    return label.replace("$", r"\$")


def legend(figure: Any, *every: Any, columns: int | None = None) -> None:
    """One legend below all axes, each label once, in as many columns as fit."""
    pairs = [pair for axes in every for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(pairs)}
    labels = list(dict.fromkeys(label for _, label in pairs))
    if not labels:
        return
    longest = max(len(line) for label in labels for line in label.splitlines())
    fitting = max(1, min(len(labels), _TEXT_WIDTH // (longest + 7)))
    handles = [unique[label] for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or fitting, columnspacing=1.2)


def legend_height(labels: Sequence[str]) -> float:
    """Inches that `legend` needs below the axes."""
    longest = max((len(label) for label in labels), default=0)
    columns = max(1, min(len(labels), _TEXT_WIDTH // (longest + 7)))
    return 0.08 + 0.15 * -(-len(labels) // columns)


def line_style(place: int, *, marked: bool) -> dict[str, Any]:
    """Colour, dashes and marker of the series at `place`; series differ without colour too."""
    return {
        "color": PALETTE[place % len(PALETTE)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)] if marked else None,
    }


def level(axes: Any, height: float, label: str, style: str) -> None:
    """A horizontal reference line."""
    axes.axhline(height, color=INK, linestyle=style, linewidth=0.8, label=label)


def whole_numbers(axes: Any) -> None:
    """Only whole numbers as ticks of the x-axis."""
    axes.xaxis.get_major_locator().set_params(integer=True)


def band(axes: Any, at: Sequence[float], points: Sequence[Estimate], *, colour: str) -> None:
    """The intervals of shares as a band in percent, cut off at 0 and 100; none without intervals."""
    if any(point.half_width for point in points):
        low, high = [100 * max(point.low, 0) for point in points], [100 * min(point.high, 1) for point in points]
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)


def near_chance(chance: float | None, points: Iterable[Estimate]) -> bool:
    """Whether the chance level is near enough to the points to be drawn with them."""
    return chance is not None and min((point.low for point in points), default=1.0) < chance + _NEAR_CHANCE


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
