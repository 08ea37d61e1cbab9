"""Style and rendering of figures: one palette, one size, the same bytes for the same runs.

Only the object API of matplotlib is used: no pyplot, no global figure, no display.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rrcluster.errors import ConfigError, install_extra
from rrcluster.report.values import Estimate

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")  # Okabe and Ito, less yellow and black
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))  # a second cue beside colour
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GRID, FAINT = "#22262b", "#c9ced6", "#9aa3ad"
COLOURS = (*PALETTE, INK)  # of methods
# of clusters: a scale, distinct from methods
TONES = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#8fce3f", "#c9b90f")
COLUMN_WIDTH = 3.4  # inches: one column of a two-column page
_NEAR_LEVEL = 0.2  # the level of a constant is drawn if some accuracy is less than this above it
_TEXT_WIDTH = 62  # characters of legend that fit into it
_LINE = 0.125  # inches of a line of text
_FONT = "DejaVuSans"  # how ids of letters begin: the font of figures.mplstyle
_HIGHEST = 30.0  # inches of a figure
BUNDLE = "other methods"  # lines of a panel that are drawn faint
PANELS = 4  # of one figure; more panels make more figures
TITLE = "title"  # marks the texts that `draw` breaks into lines where there is no room for one

Panel = TypeVar("Panel")


@dataclass(frozen=True)
class Drawing:
    """A finished figure in three formats, with its alternative text."""

    name: str
    caption: str
    alt: str
    svg: str  # an <svg> element for a page; uses the page's colours where it sets them
    png: bytes
    pdf: bytes


def draw(
    name: str, paint: Callable[[Any], None], *, height: float, caption: str, alt: str, width: float = COLUMN_WIDTH
) -> Drawing:
    """Render the figure painted by `paint`; `width` and `height` are inches."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    style = matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
    with matplotlib.rc_context({**style, "svg.hashsalt": f"rrcluster-{name}"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph missing from the font
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        _break_titles(figure)
        png = _render(figure, "png", {"Software": None}, dpi=300)
        figure.set_layout_engine("none")  # keep the layout of the first rendering
        pdf = _render(figure, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})
        svg = _render(figure, "svg", {"Date": None}, transparent=True).decode("utf-8")
    return Drawing(name, caption, alt, _inline(svg, name), png, pdf)


def draw_pages(
    name: str, panels: Sequence[Panel], draw_page: Callable[[Sequence[Panel], str], Drawing]
) -> list[Drawing]:
    """As many figures as panels need, under the names `name`, `name`-2, ..."""
    pages = [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]
    return [draw_page(page, name if at == 1 else f"{name}-{at}") for at, page in enumerate(pages, 1)]


def share_glyphs(drawings: Iterable[Drawing]) -> tuple[str, list[str]]:
    """All glyphs once, as a hidden <svg>, and each drawing's <svg> with references to them."""
    glyphs: dict[str, str] = {}
    shared = []
    for drawing in drawings:
        glyph_of_drawing = re.compile(rf'<path id="{re.escape(drawing.name)}-({_FONT}[\w-]*)"([^>]*)/>')
        glyphs.update({name: path for name, path in glyph_of_drawing.findall(drawing.svg) if name not in glyphs})
        svg = re.sub(r"<defs>\s*</defs>", "", glyph_of_drawing.sub("", drawing.svg))
        shared.append(svg.replace(f'href="#{drawing.name}-{_FONT}', f'href="#{_FONT}'))
    paths = "\n".join(f'<path id="{name}"{path}/>' for name, path in glyphs.items())
    sheet = f'<svg class="letters" width="0" height="0" aria-hidden="true" focusable="false"><defs>{paths}</defs></svg>'
    return (sheet if glyphs else ""), shared


def plain(label: str) -> str:
    """A label that matplotlib does not parse as mathematics."""
    return label.replace("$", r"\$")


def legend(figure: Any, *every: Any, columns: int | None = None) -> None:
    """One legend below all axes, each label once, in as many columns as fit."""
    pairs = [pair for axes in every for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(pairs)}
    names = sorted(dict.fromkeys(label for _, label in pairs), key=lambda label: label == BUNDLE)  # the bundle last
    if names:
        labels = [broken(name, _TEXT_WIDTH - 9) for name in names]
        handles = [unique[name] for name in names]
        figure.legend(handles, labels, loc="outside lower center", ncols=columns or _columns(labels), columnspacing=1.2)


def legend_height(names: Sequence[str]) -> float:
    """Height in inches of `legend` below the axes."""
    labels = [broken(name, _TEXT_WIDTH - 9) for name in names]
    rows = -(-len(labels) // _columns(labels))
    return 0.08 + 0.15 * rows + _LINE * sum(label.count("\n") for label in labels)


def _columns(labels: Sequence[str]) -> int:
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    return max(1, min(len(labels), _TEXT_WIDTH // (longest + 9)))


def broken(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, broken between words if possible."""
    return "\n".join(textwrap.wrap(text, max(1, width), break_on_hyphens=True)) or text


def set_title(axes: Any, text: str, **style: Any) -> None:
    """A title at the left, in as many lines as it needs."""
    axes.set_title(plain(text), loc="left", **style).set_label(TITLE)


def note_diagnostic(figure: Any, text: str) -> None:
    """A note for all panels, above them at the right."""
    figure.suptitle(text, x=0.995, ha="right", fontsize=7, fontstyle="italic")


def level(axes: Any, height: float, label: str, style: str) -> None:
    """A horizontal reference line."""
    axes.axhline(height, color=INK, linestyle=style, linewidth=0.8, label=label)


def whole_numbers(axes: Any) -> None:
    """Use only integers as ticks of the x-axis."""
    axes.xaxis.get_major_locator().set_params(integer=True)


def band(axes: Any, at: Sequence[float], points: Sequence[Estimate], *, colour: str) -> None:
    """The intervals of shares as a band in percent, cut off at 0 and 100; none without intervals."""
    if any(point.half_width for point in points):
        low, high = [100 * max(point.low, 0) for point in points], [100 * min(point.high, 1) for point in points]
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)


def near_level(level: float | None, points: Iterable[Estimate]) -> bool:
    """Whether the level of a constant is close enough to the points to be drawn with them."""
    return level is not None and min((point.low for point in points), default=1.0) < level + _NEAR_LEVEL


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(f"figures need matplotlib; {install_extra('plot')}.") from error
    return matplotlib


def _break_titles(figure: Any) -> None:
    """Break titles wider than their axes into lines, and make room for them."""
    figure.draw_without_rendering()
    titles = [title for axes in figure.axes for title in axes.findobj(lambda artist: artist.get_label() == TITLE)]
    lines = 0
    for title in titles:
        grid, box = title.axes.get_subplotspec().get_gridspec(), title.get_window_extent()
        room = (title.axes.get_window_extent().x1 if grid.ncols > 1 else figure.bbox.x1) - box.x0
        if box.width > room:
            text = title.get_text()
            title.set_text(broken(text, int(len(text) * 0.92 * room / box.width)))
            lines = max(lines, title.get_text().count("\n"))
    width, height = figure.get_size_inches()
    more = _LINE * lines * max(axes.get_subplotspec().get_gridspec().nrows for axes in figure.axes)
    while more > 0 and height < _HIGHEST:
        height += more
        figure.set_size_inches(width, height)
        figure.draw_without_rendering()
        more = max(title.get_window_extent().y1 - figure.bbox.y1 for title in titles) / figure.dpi


def _render(figure: Any, kind: str, metadata: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def _inline(svg: str, name: str) -> str:
    """Only the <svg> element: no namespaces, no metadata, unique ids, colours that a page can override."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", re.sub(r"\n\s*", "\n", svg))
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\sid="([^"]*)"', rf' id="{name}-\1"', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\.(\d\d)\d+", r".\1", path.group()), svg)
    svg = (
        svg.replace(INK, "currentColor").replace(GRID, f"var(--grid, {GRID})").replace(FAINT, f"var(--faint, {FAINT})")
    )
    for kind, colours in (("series", PALETTE), ("cluster", TONES)):
        for place, colour in enumerate(colours):
            svg = svg.replace(colour, f"var(--{kind}-{place}, {colour})")
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1).strip()
