"""The results table: one row per method; and tables as console output, CSV, LaTeX, Markdown, HTML and JSON.

All text is escaped for the format.
"""

import csv
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rrcluster.privacy.cost import epsilon_text
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.values import (
    NOTHING,
    Estimate,
    clear_best,
    delta_text,
    distinct_labels,
    estimate,
    percent,
    seconds_text,
)
from rrcluster.settings import data_label
from rrcluster.storage import printable, write_file

if TYPE_CHECKING:
    from rich.table import Table as RichTable


_CONTEXT = {"data": "Data", "partition": "Partition", "model": "Model"}  # columns for settings that differ
_LABELS = {
    "accuracy": "Accuracy (%)",
    "clustering_accuracy": "Clustering accuracy (%)",
    "worst_decile": "Worst decile (%)",
    "loss": "Loss",
    "personalised_accuracy": "Personalised accuracy (%)",
    "adjusted_rand": "ARI",
    "clusters_alive": "Clusters alive",
}
_COMPARED = {  # of users' data: the run beside its references
    "accuracy_rows": "Of rows (%)",
    "balanced_accuracy": "Balanced (%)",
    "auc": "AUC",
    "log_loss": "Log loss",
    "rmse": "RMSE",
    "r2": "R2",
    "rmse_clients": "RMSE of clients",
    "worst_rmse": "Worst decile",
}
_LABELS |= _COMPARED
_RUN = "this run"
_OF_CLUSTERS = ("clustering_accuracy", "adjusted_rand", "clusters_alive")  # undefined for one cluster
_UNSEEN = ", of rows that nobody trained on; a client without any counts as one half"
_RELEASED = {  # by the rows that a private evaluation is about: its column, and what the note says of them
    "test": ("Private accuracy (%)", _UNSEEN),
    "training": (
        "Private accuracy on training rows (%)",
        ", of rows that the models were trained on, which flatters them; hold rows out (--test-share 0.3)",
    ),
    "validation": ("Private accuracy on the rows that chose it (%)", _UNSEEN),
}
_EXPLAINED = {
    "worst_decile": "Worst decile: mean accuracy of the tenth of clients that fare worst.",
    "personalised_accuracy": "Personalised: after each client fitted the released model to its own training rows.",
    "adjusted_rand": "ARI: adjusted Rand index of clusters and true groups.",
    "clusters_alive": "Clusters alive: those that some client chooses.",
}
_NO_WINNER = ("loss", "clusters_alive", *_COMPARED)


UNCOVERED_TUNING = (
    "Choosing a row by looking at this table is tuning on private data, which no epsilon here covers; "
    "`rrcluster sweep --private-select` chooses and pays for it."
)


@dataclass(frozen=True)
class TextTable:
    """A table of strings. Places are (row, column); `diagnostic` holds columns computed from raw client data."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    bold: frozenset[tuple[int, int]] = frozenset()
    diagnostic: frozenset[int] = frozenset()
    text_columns: frozenset[int] = frozenset({0})  # the others have numbers, aligned right

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", printable(self.title))  # what run folders hold may come from anyone
        object.__setattr__(self, "columns", tuple(map(printable, self.columns)))
        object.__setattr__(self, "rows", tuple(tuple(map(printable, row)) for row in self.rows))
        object.__setattr__(self, "note", printable(self.note))


def results_table(groups: Sequence[RunGroup]) -> TextTable:
    """Method, epsilon, and the diagnostics and seconds that some run has, with 95% intervals over seeds."""
    metrics = _metrics(groups)
    context = [name for name in _CONTEXT if len({str(group.first.config.get(name)) for group in groups}) > 1]
    mixed_delta, mixed_seeds = len(_deltas(groups)) > 1, len({_seeds(group) for group in groups}) > 1
    head = ["Method", *(_CONTEXT[name] for name in context)]
    columns = [*head, "epsilon", *(["delta"] if mixed_delta else []), *(["Seeds"] if mixed_seeds else [])]
    released = [_released(group) for group in groups]
    columns += [_released_column(groups)[0]] if any(released) else []
    first_metric = len(columns)
    timed = any(run.seconds is not None for group in groups for run in group.runs)  # secure runs record no times
    columns += [*(_LABELS[name] for name in metrics), *(["Seconds"] if timed else [])]
    rows = []
    for group, label, judged in zip(groups, group_labels(groups), released, strict=True):
        row = [label, *(str(group.first.config.get(name, NOTHING)) for name in context), group_epsilon(group)]
        row += [delta_text(group.first.delta)] if mixed_delta else []
        row += [_seeds(group)] if mixed_seeds else []
        row += [_cell("accuracy", judged)] if any(released) else []
        row += [_cell(name, metric(group, name)) for name in metrics]
        rows.append((*row, _seconds(group)) if timed else tuple(row))
    rows += _reference_rows(groups, metrics, before=first_metric, after=int(timed))
    bold = _bold(groups, metrics, first_metric)
    return TextTable(
        title=shared_settings(groups),
        columns=tuple(columns),
        rows=tuple(rows),
        note=_note(groups, metrics, bold=bool(bold), mixed_seeds=mixed_seeds),
        bold=bold,
        diagnostic=frozenset(range(first_metric, first_metric + len(metrics))),
        text_columns=frozenset(range(len(head))),
    )


def _reference_rows(
    groups: Sequence[RunGroup], metrics: Sequence[str], *, before: int, after: int
) -> list[tuple[str, ...]]:
    """A constant, one model for all, and the run itself for new clients: rows of diagnostics alone, below the runs.

    A row that several runs have alike, such as the constant of one table, is there once.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for group, label in zip(groups, group_labels(groups), strict=True):
        for name in (name for name in _figures(group) if name != _RUN):
            cells = [_cell(key, estimate(_compared(run, name, key) for run in group.runs)) for key in metrics]
            alike.setdefault((name, *cells), []).append(label)
    rows = []
    for (name, *cells), labels in alike.items():
        of = "" if len(labels) == len(groups) else f"{', '.join(labels)}: "
        rows.append((of + name, *[NOTHING] * (before - 1), *cells, *[NOTHING] * after))
    return rows


def _figures(group: RunGroup) -> Mapping[str, Mapping[str, float]]:
    return group.first.final.figures if group.first.final else {}


def _compared(run: Run, name: str, key: str) -> float | None:
    """A figure of the run or of one of its references."""
    return run.final.figures.get(name, {}).get(key) if run.final else None


def _released_column(groups: Sequence[RunGroup]) -> tuple[str, str]:
    """The column's name, and the note's sentence on the rows of private evaluations."""
    rows = {group.first.judged_rows for group in groups if _released(group)}
    return _RELEASED.get(rows.pop(), (_RELEASED["test"][0], "")) if len(rows) == 1 else (_RELEASED["test"][0], "")


def group_labels(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """One unique label per group."""
    return distinct_labels([group.first.config for group in groups], [group.first.path.name for group in groups])


def group_epsilon(group: RunGroup) -> str:
    """The largest epsilon among the group's seeds."""
    if not group.first.private:
        return epsilon_text(None, private=False)
    spent = [run.epsilon for run in group.runs]
    return epsilon_text(None if None in spent else max(value for value in spent if value is not None))


def metric(group: RunGroup, name: str) -> Estimate | None:
    """The final value of a diagnostic over the group's seeds; None for those of clusters if there is one cluster."""
    if name in _OF_CLUSTERS and group.first.num_clusters == 1:
        return None
    return estimate(_final(run, name) for run in group.runs)


def constant_level(groups: Sequence[RunGroup]) -> float | None:
    """Accuracy of always predicting the most common class, if all runs have the same one."""
    levels = {_compared(group.first, "constant", "accuracy") for group in groups}
    return levels.pop() if len(levels) == 1 else None


def shared_settings(groups: Sequence[RunGroup]) -> str:
    """Settings that all runs share, such as "fashion-mini, rotation, 1000 clients, 100 rounds"."""
    words = {"data": "{}", "partition": "{}", "num_clients": "{} clients", "num_rounds": "{} rounds"}
    parts = []
    for name, form in words.items():
        values = {str(group.first.config.get(name)) for group in groups}
        if len(values) == 1 and values != {"None"}:
            value = values.pop()
            parts.append(form.format(data_label(value) if name == "data" else value))
    return ", ".join(parts) or "Results"


def _metrics(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Accuracies, or the loss for regression, and further diagnostics that some run has."""
    has = {name: any(metric(group, name) is not None for group in groups) for name in _LABELS}
    if has["rmse"]:
        usual: tuple[str, ...] = ("clustering_accuracy",)
    elif has["loss"] and not has["accuracy"]:
        usual = ("loss", "clustering_accuracy")
    else:
        usual = ("accuracy", "clustering_accuracy", "worst_decile")
    usual += (*_COMPARED, "personalised_accuracy", "adjusted_rand", "clusters_alive")
    return tuple(name for name in usual if has[name])


def _final(run: Run, name: str) -> float | None:
    value = getattr(run.final, name, None) if run.final else None
    return _compared(run, _RUN, name) if value is None else float(value)


def _cell(name: str, value: Estimate | None) -> str:
    if value is None:
        return NOTHING
    forms = {
        "loss": ".4g",
        "adjusted_rand": ".2f",
        "clusters_alive": ".2g",
        "auc": ".3f",
        "log_loss": ".3f",
        "r2": ".3f",
    }
    forms |= dict.fromkeys(("rmse", "rmse_clients", "worst_rmse"), ".4g")
    show = (lambda number: format(number, forms[name])) if name in forms else percent
    return show(value.mean) if value.half_width is None else f"{show(value.mean)} ± {show(value.half_width)}"


def _released(group: RunGroup) -> Estimate | None:
    """The accuracy released by a single run; a mean over several would cost more than the epsilon beside it."""
    return estimate([group.first.private_accuracy]) if len(group.runs) == 1 else None


def _seconds(group: RunGroup) -> str:
    mean = estimate(run.seconds for run in group.runs)
    return seconds_text(mean.mean if mean else None)


def _seeds(group: RunGroup) -> str:
    total = len(group.runs)
    measured = sum(run.final is not None for run in group.runs)
    return str(total) if measured in (0, total) else f"{measured} of {total}"


def _deltas(groups: Sequence[RunGroup]) -> set[float | None]:
    return {group.first.delta for group in groups if group.first.private}


def _bold(groups: Sequence[RunGroup], metrics: Sequence[str], first: int) -> frozenset[tuple[int, int]]:
    """Places of clear winners among methods with the same guarantee on the same data."""
    arenas: dict[tuple[object, ...], list[int]] = {}
    for row, group in enumerate(groups):
        config = group.first.config
        arena = (group_epsilon(group), group.first.delta, str(config.get("data")), str(config.get("partition")))
        arenas.setdefault(arena, []).append(row)
    places = set()
    for rows in arenas.values():
        for column, name in enumerate(metrics):
            estimates = [(row, value) for row in rows if (value := metric(groups[row], name)) is not None]
            best = None if name in _NO_WINNER else clear_best([value for _, value in estimates])
            if best is not None:
                places.add((estimates[best][0], first + column))
    return frozenset(places)


def _note(groups: Sequence[RunGroup], metrics: Sequence[str], *, bold: bool, mixed_seeds: bool) -> str:
    sentences = [_privacy_sentence(groups), *_metric_sentences(groups, metrics)]
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        what = "run" if all(group.first.seed is None for group in groups) else "seed"  # a secure run has none
        each = " each" if len(groups) > 1 else ""
        sentences += [f"One {what}{each}, so no intervals."] if metrics else []
    else:
        over = "each method's seeds" if mixed_seeds else f"{counts.pop()} seeds"
        sentences.append(f"Mean ± 95% t-interval over {over}.")
    sentences.append(_tuning_sentence(groups))
    if bold:
        sentences.append("Bold: best at its epsilon, with an interval above all others.")
    unfinished = sum(run.status != "finished" for group in groups for run in group.runs)
    if unfinished:
        sentences.append(f"Not finished: {unfinished} of {sum(len(group.runs) for group in groups)} runs.")
    return " ".join(sentence for sentence in sentences if sentence)


def _privacy_sentence(groups: Sequence[RunGroup]) -> str:
    deltas = _deltas(groups)
    if not deltas:
        return "No privacy: nothing here has a guarantee."
    at = f" at delta = {delta_text(next(iter(deltas)))}" if len(deltas) == 1 else ""
    return f"epsilon: client-level{at}, rounded up."


def _tuning_sentence(groups: Sequence[RunGroup]) -> str:
    """Whether epsilon covers the choice of settings: only if they were selected privately."""
    private = [group for group in groups if group.first.private]
    selected = [group for group in private if group.first.privacy.get("selection")]
    covered = "The epsilon of a privately selected run includes the selection of its settings." if selected else ""
    if len(private) < 2:
        return covered
    return f"{covered} {UNCOVERED_TUNING}".strip()


def _metric_sentences(groups: Sequence[RunGroup], metrics: Sequence[str]) -> list[str]:
    released = ""
    if any(map(_released, groups)):
        column, about_rows = _released_column(groups)
        released = (
            f"{column.removesuffix(' (%)')}: noisy (cut to 0 and 100), released within the epsilon of its run "
            f"(docs/choosing.md){about_rows}; none for a row of several runs, whose costs add up."
        )
    if all(run.final is None for group in groups for run in group.runs):
        return [released or "No diagnostics were written, so there is no accuracy to show."]
    if not metrics:
        return [released or "No rows were held out to test on (--test-share 0.2), so there is no accuracy to show."]
    spelled = [_LABELS[key].removesuffix(" (%)") for key in metrics]
    names = [name if name[1:2].isupper() or name == "R2" else name[0].lower() + name[1:] for name in spelled]
    listed = _listed(names)
    sentences = [released, f"{listed[0].upper()}{listed[1:]}: {DIAGNOSTIC} (measured on raw client data)."]
    if any(map(_figures, groups)):
        once = "accuracy and worst decile" if "accuracy" in metrics else "RMSE of clients and worst decile"
        sentences.append(f"Every client counts once in {once}, every row in the other columns.")
        sentences.append("The constant is of training rows; one model for all, where shown, has the same budget.")
    explained = [text for name, text in _EXPLAINED.items() if name in metrics]
    return [*sentences, *explained, *_sample_sentence(groups)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _sample_sentence(groups: Sequence[RunGroup]) -> list[str]:
    """The number of evaluated clients, if they are not the whole population."""
    finals = [(run.final, run.config.get("num_clients")) for group in groups for run in group.runs]
    parts = sorted(
        {(int(final.evaluated_clients), clients) for final, clients in finals if final and final.evaluated_clients}
    )
    counts = [f"{judged:,} of {clients:,} clients" for judged, clients in parts if isinstance(clients, int)]
    return [f"Diagnostics are over {' or '.join(counts)}, the same in every run."] if counts else []


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

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of spreadsheets; none of our numbers starts with them


def _longest_words(table: TextTable) -> list[int]:
    """The width at which no word of a column is cut."""
    from rich.cells import cell_len

    columns = zip(table.columns, *table.rows, strict=True)
    return [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]


def column_parts(table: TextTable, *, width: int) -> list[TextTable]:
    """The table, or several side by side if its words need more than `width`, each with the first column."""
    least = [2 + longest for longest in _longest_words(table)]
    parts: list[list[int]] = [[0]]
    for place in range(1, len(least)):
        if len(parts[-1]) > 1 and 1 + sum(least[at] for at in parts[-1]) + least[place] > width:
            parts.append([0])
        parts[-1].append(place)
    return [_only_columns(table, places) for places in parts]


def _only_columns(table: TextTable, places: list[int]) -> TextTable:
    new = {old: at for at, old in enumerate(places)}
    return replace(
        table,
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(tuple(row[place] for place in places) for row in table.rows),
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

    cells, least = list(zip(table.columns, *table.rows, strict=True)), _longest_words(table)
    widths = [max(one, min(width, max(map(cell_len, column)))) for one, column in zip(least, cells, strict=True)]
    room = width - 2 * len(cells) - 1  # a space on either side of each
    while sum(widths) > room and widths != least:
        _, widest = max((wide, place) for place, wide in enumerate(widths) if wide > least[place])
        widths[widest] -= 1
    return widths


def write_table(table: TextTable, folder: Path) -> tuple[Path, ...]:
    """Write table.csv, table.tex and table.md."""
    forms = {"csv": to_csv, "tex": to_latex, "md": to_markdown}
    return tuple(write_file(folder / f"table.{kind}", form(table)) for kind, form in forms.items())


def to_csv(table: TextTable) -> str:
    """Comma-separated with one header line; intervals have their own columns, headers mark diagnostics."""
    columns = []
    for place, name in enumerate(table.columns):
        header = f"{name} [{DIAGNOSTIC}]" if place in table.diagnostic else name
        cells = [row[place].partition(" ± ") for row in table.rows]
        columns.append([header, *(mean for mean, _, _ in cells)])
        if any(width for _, _, width in cells):
            columns.append([f"{header} 95% half width", *(width for _, _, width in cells)])
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(map(_csv_cell, row) for row in zip(*columns, strict=True))
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
    empty = " nothing" if tag == "td" and text == NOTHING else ""
    classes = "" if place in table.text_columns else f' class="number{empty}"'
    scoped = f' scope="{scope}"' if tag == "th" else ""
    kind = ", diagnostic" if place in table.diagnostic else ""
    data_name = f' data-name="{html.escape(table.columns[place])}{kind}"' if tag == "td" else ""
    content = html.escape(text)
    if scope == "col" and place in table.diagnostic:
        content += f" <small>{DIAGNOSTIC}</small>"
    if (row, place) in table.bold:
        content = f"<strong>{content}</strong>"
    return f"<{tag}{scoped}{classes}{data_name}>{content}</{tag}>"
