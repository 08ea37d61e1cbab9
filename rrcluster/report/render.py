"""Tables as console output, CSV, LaTeX, Markdown, HTML and JSON. All text is escaped for the format."""

import csv
import html
import io
import re
from typing import TYPE_CHECKING, Any, Literal

from rrcluster.report.folders import DIAGNOSTIC
from rrcluster.report.tables import TextTable
from rrcluster.report.values import NOTHING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # a bracket after \\ would be read as its optional argument
    "]": "{]}",
    "±": r"$\pm$",
    "–": "--",
    "∞": r"$\infty$",
    "\n": " ",
}
_MARKDOWN = {**{mark: f"\\{mark}" for mark in "\\`*_[]<>|#~"}, "&": "&amp;", "\n": " "}

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of spreadsheets; no number of ours starts with them


def to_console(table: TextTable, *, width: int = 80) -> "RenderableType":
    """A table and its note for `rich.print`."""
    from rich.console import Group
    from rich.text import Text

    return Group(console_table(table, width=width), Text(table.note, style="italic"))


def column_parts(table: TextTable, *, width: int) -> list[TextTable]:
    """The table, or where its words need more than `width`, several side by side, each with the first column."""
    from rich.cells import cell_len

    cells = [[name, *(row[place] for row in table.rows)] for place, name in enumerate(table.columns)]
    least = [2 + max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    parts: list[list[int]] = [[0]]
    for place in range(1, len(cells)):
        if len(parts[-1]) > 1 and 1 + sum(least[at] for at in parts[-1]) + least[place] > width:
            parts.append([0])
        parts[-1].append(place)
    return [_only_columns(table, places) for places in parts]


def _only_columns(table: TextTable, places: list[int]) -> TextTable:
    new = {old: at for at, old in enumerate(places)}
    return TextTable(
        title=table.title,
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
        note=table.note,
        bold=frozenset((row, new[place]) for row, place in table.bold if place in new),
        diagnostic=frozenset(new[place] for place in table.diagnostic if place in new),
        text_columns=frozenset(new[place] for place in table.text_columns if place in new),
    )


def console_table(table: TextTable, *, width: int) -> "RichTable":
    """A table without its note, `width` columns wide, or wider if its longest words need it."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(title=Text(table.title), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for place, (name, wide) in enumerate(zip(table.columns, _widths(table, width), strict=True)):
        side: Literal["left", "right"] = "left" if place in table.text_columns else "right"
        rich.add_column(Text(name), justify=side, overflow="fold", width=wide)
    for place, row in enumerate(table.rows):
        styles = ["bold" if (place, column) in table.bold else "" for column in range(len(row))]
        rich.add_row(*(Text(cell, style=style) for cell, style in zip(row, styles, strict=True)))
    return rich


def _widths(table: TextTable, width: int) -> list[int]:
    """Widths of the columns: that of the longest cell; if the table is too wide, the widest shrink, but cut no word."""
    from rich.cells import cell_len

    cells = [[name, *(row[place] for row in table.rows)] for place, name in enumerate(table.columns)]
    least = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    widths = [max(one, min(width, max(map(cell_len, column)))) for one, column in zip(least, cells, strict=True)]
    room = width - 2 * len(cells) - 1  # a space on either side of each
    while sum(widths) > room and widths != least:
        _, widest = max((wide, place) for place, wide in enumerate(widths) if wide > least[place])
        widths[widest] -= 1
    return widths


def to_csv(table: TextTable) -> str:
    """Comma-separated with one header line; intervals have their own columns, headers mark diagnostics."""
    split = [any(" ± " in row[place] for row in table.rows) for place in range(len(table.columns))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        _csv_row([_csv_header(table, place) for place in range(len(table.columns))], split, "95% half width")
    )
    for row in table.rows:
        cells = [cell.partition(" ± ")[0] for cell in row]
        writer.writerow(_csv_row(cells, split, [cell.partition(" ± ")[2] for cell in row]))
    return buffer.getvalue()


def to_latex(table: TextTable) -> str:
    """A `table` environment that needs the package booktabs."""
    alignment = "".join("l" if place in table.text_columns else "r" for place in range(len(table.columns)))
    lines = [" & ".join(_latex(name) for name in table.columns) + r" \\", r"\midrule"]
    for place, row in enumerate(table.rows):
        cells = [_latex(cell) for cell in row]
        bold = [rf"\textbf{{{cell}}}" if (place, at) in table.bold else cell for at, cell in enumerate(cells)]
        lines.append(" & ".join(bold) + r" \\")
    body = "\n".join(f"    {line}" for line in lines)
    return (
        "\\begin{table}[t]\n  \\centering\n"
        f"  \\caption{{{_latex(table.title)}. {_latex(table.note)}}}\n"
        f"  \\begin{{tabular}}{{{alignment}}}\n    \\toprule\n{body}\n    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )


def to_markdown(table: TextTable) -> str:
    """A pipe table under its title, the note below."""
    rule = ["---" if place in table.text_columns else "---:" for place in range(len(table.columns))]
    lines = [[_markdown(name) for name in table.columns], rule]
    for place, row in enumerate(table.rows):
        cells = [_markdown(cell) for cell in row]
        lines.append([f"**{cell}**" if (place, at) in table.bold else cell for at, cell in enumerate(cells)])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_markdown(table.title)}**\n\n{body}\n\n{_markdown(table.note)}\n"


def to_html(table: TextTable) -> str:
    """A table with its note below; cells carry their column's name, so that narrow pages can show rows as cards."""
    head = "".join(_html_cell("th", name, table, place, scope="col") for place, name in enumerate(table.columns))
    title, body = html.escape(table.title), []
    note = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(table.note))
    for at, row in enumerate(table.rows):
        cells = [_html_cell("td" if place else "th", cell, table, place, row=at) for place, cell in enumerate(row)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<h3>{title}</h3>\n<div class="scroll" role="region" tabindex="0" aria-label="{title}">\n'
        f'<table class="cards" aria-label="{title}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(body)}\n</tbody>\n</table>\n</div>\n"
        f'<p class="note">{note}</p>\n'
    )


def to_dict(table: TextTable) -> dict[str, Any]:
    """Plain data for `json.dumps`."""
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
        "note": table.note,
        "bold": sorted(list(place) for place in table.bold),
        "diagnostic": [table.columns[place] for place in sorted(table.diagnostic)],
    }


def _csv_header(table: TextTable, place: int) -> str:
    name = table.columns[place]
    return f"{name} [{DIAGNOSTIC}]" if place in table.diagnostic else name


def _csv_row(cells: list[str], split: list[bool], widths: list[str] | str) -> list[str]:
    row = []
    for place, cell in enumerate(cells):
        row.append(_csv_cell(cell))
        if split[place]:
            row.append(f"{cell} {widths}" if isinstance(widths, str) else widths[place])
    return row


def _csv_cell(cell: str) -> str:
    """An empty cell for a missing value; text that a spreadsheet would run as a formula is quoted."""
    if cell == NOTHING:
        return ""
    return f"'{cell}" if cell[:1] in _FORMULA_STARTS else cell


def _latex(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in text)


def _markdown(text: str) -> str:
    return "".join(_MARKDOWN.get(mark, mark) for mark in text)


def _html_cell(tag: str, text: str, table: TextTable, place: int, *, scope: str = "row", row: int = -1) -> str:
    classes = "" if place in table.text_columns else ' class="number"'
    scoped = f' scope="{scope}"' if tag == "th" else ""
    kind = ", diagnostic" if place in table.diagnostic else ""
    named = f' data-name="{html.escape(table.columns[place])}{kind}"' if tag == "td" else ""
    content = html.escape(text)
    if scope == "col" and place in table.diagnostic:
        content += f" <small>{DIAGNOSTIC}</small>"
    if (row, place) in table.bold:
        content = f"<strong>{content}</strong>"
    return f"<{tag}{scoped}{classes}{named}>{content}</{tag}>"
