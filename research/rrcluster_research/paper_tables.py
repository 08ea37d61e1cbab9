"""Tables with the paper's numbers beside ours. They hold no times: the same runs give the same bytes."""

from collections.abc import Sequence

from rrcluster.report.folders import DIAGNOSTIC
from rrcluster.report.tables import UNCOVERED_TUNING, TextTable
from rrcluster.report.values import NOTHING, Estimate, clear_best, percent
from rrcluster_research.read_reproduction import MEASURES, MeasuredColumn, MeasuredRow, Reproduced
from rrcluster_research.verdicts import compare_rows

PUBLISHED = "published"
_AT_ONCE = 3  # most budgets in one table
_HEADS = {"identifier": "identifier", "joint": "joint (ours)", "none": "here"}

Head = tuple[MeasuredColumn, str]  # a column of the paper, and its kind: published, or a mechanism


def main_tables(reproduced: Reproduced) -> tuple[TextTable, ...]:
    """The paper's table with our columns, and the paired comparisons."""
    return (*_of(reproduced, reproduced.measure), *significance_table(reproduced))


def more_tables(reproduced: Reproduced) -> tuple[TextTable, ...]:
    """Tables of the other diagnostics, and last the settings."""
    more = [
        name
        for name in ("clustering_accuracy", "worst_decile")
        if name != reproduced.measure and _measured(reproduced, name)
    ]
    return (*(table for name in more for table in _of(reproduced, name)), settings_table(reproduced))


def _of(reproduced: Reproduced, measure: str) -> list[TextTable]:
    return [table for panel in reproduced.panels for table in panel_tables(reproduced, panel, measure)]


def panel_tables(reproduced: Reproduced, panel: str, measure: str) -> list[TextTable]:
    """The table of a panel, in pieces of a few budgets."""
    columns = [column for column in reproduced.columns if column.panel == panel]
    pieces = [columns[first : first + _AT_ONCE] for first in range(0, len(columns), _AT_ONCE)]
    if len(pieces) > 1 and len(pieces[-1]) == 1:
        pieces[-2:] = [[*pieces[-2], *pieces[-1]]]
    return [_panel_table(reproduced, panel, measure, piece) for piece in pieces]


def _panel_table(reproduced: Reproduced, panel: str, measure: str, columns: Sequence[MeasuredColumn]) -> TextTable:
    heads = [head for column in columns for head in _heads(reproduced, column, measure)]
    reasons: dict[str, int] = {}
    rows = [
        (row.name, *(_cell(reproduced, row, head, measure, reasons) for head in heads))
        for row in reproduced.rows
        if any(_asked(row, head) for head in heads)
    ]
    if measure in ("accuracy", "mean_accuracy") and any(reproduced.constant(column) for column in columns):
        rows.append(("Constant predictor", *(_constant(reproduced, heads, place) for place in range(len(heads)))))
    note = [_note(reproduced, measure), *(f"({place}) {reason.rstrip('.')}." for reason, place in reasons.items())]
    shown = [row for row in reproduced.rows if any(_asked(row, head) for head in heads)]
    return TextTable(
        title=f"{panel}: {MEASURES[measure]}",
        columns=("Method", *(_head(head) for head in heads)),
        rows=tuple(rows),
        note=" ".join(note),
        bold=frozenset(
            (best, place + 1)
            for place, head in enumerate(heads)
            if (best := _best(reproduced, shown, head, measure)) is not None
        ),
        diagnostic=frozenset(place + 1 for place, (_, kind) in enumerate(heads) if kind != PUBLISHED),
    )


def significance_table(reproduced: Reproduced) -> tuple[TextTable, ...]:
    """One line per cell and pair of methods: the paired difference and its p-value."""
    rows = []
    for first, second, mechanism in reproduced.about["pairs"]:
        one, two = reproduced.row(first), reproduced.row(second)
        for column in reproduced.columns:
            paired = compare_rows(reproduced, (first, second), column, mechanism)
            if one is None or two is None or paired is None or mechanism not in column.mechanisms:
                continue
            gap = None if mechanism == "joint" else reproduced.published_gap(one, two, column)
            place = (f"{one.name} against {two.name}", mechanism, f"{column.panel}, {column.budget}")
            published = NOTHING if gap is None else f"{gap:+.2f}"
            rows.append(
                (*place, published, _difference(paired.difference, reproduced.measure), f"{paired.p_higher:.3f}")
            )
    if not rows:
        return ()
    points = "loss" if reproduced.measure == "loss" else "points"
    lower = " (positive: lower loss)" if reproduced.measure == "loss" else ""
    return (
        TextTable(
            title="Is it better? Paired over seeds",
            columns=("Comparison", "Mechanism", "Cell", f"Published ({points})", f"Here ({points})", "p"),
            rows=tuple(rows),
            note=f"Difference with its 95% t-interval{lower}; p: one-sided paired t-test that the first is better, not "
            "corrected for the number of cells (the verdicts are, by Holm's method).",
            diagnostic=frozenset({4, 5}),
            text_columns=frozenset({0, 1, 2}),
        ),
    )


def _difference(difference: Estimate, measure: str) -> str:
    mean, width = difference.mean, difference.half_width or 0.0
    return f"{mean:+.4g} ± {width:.4g}" if measure == "loss" else f"{100 * mean:+.1f} ± {100 * width:.1f}"


def settings_table(reproduced: Reproduced) -> TextTable:
    """The settings of each row under each mechanism."""
    present = {kind for row in reproduced.rows for _, kind in row.cells}
    kinds = [kind for kind in _HEADS if kind in present]
    return TextTable(
        title="Settings of the rows",
        columns=("Method", *("no noise" if kind == "none" else kind for kind in kinds)),
        rows=tuple((row.name, *(row.settings.get(kind, NOTHING) for kind in kinds)) for row in reproduced.rows),
        note=f"All rows: {reproduced.about['shared']}.",
        text_columns=frozenset(range(len(kinds) + 1)),
    )


def _measured(reproduced: Reproduced, measure: str) -> bool:
    return any(
        reproduced.values(row, column, kind, measure)
        for row in reproduced.rows
        for column in reproduced.columns
        for kind in column.mechanisms
    )


def _heads(reproduced: Reproduced, column: MeasuredColumn, measure: str) -> list[Head]:
    published = measure == reproduced.measure and any(
        row.published.get(column.key) is not None for row in reproduced.rows
    )
    measured = [kind for kind in column.mechanisms if any((column.key, kind) in row.cells for row in reproduced.rows)]
    return [(column, kind) for kind in ([PUBLISHED] if published else []) + measured]


def _head(head: Head) -> str:
    column, kind = head
    return f"{column.budget}, {_HEADS.get(kind, kind)}"


def _asked(row: MeasuredRow, head: Head) -> bool:
    column, kind = head
    return row.published.get(column.key) is not None if kind == PUBLISHED else (column.key, kind) in row.cells


def _cell(reproduced: Reproduced, row: MeasuredRow, head: Head, measure: str, reasons: dict[str, int]) -> str:
    column, kind = head
    if kind == PUBLISHED:
        published = row.published.get(column.key)
        return NOTHING if published is None else f"{published:.2f}"
    cell = row.cells.get((column.key, kind))
    if cell is None:
        return NOTHING
    value = reproduced.estimate(row, column, kind, measure)
    mark = "" if cell.reason is None else f"({reasons.setdefault(cell.reason, len(reasons) + 1)})"
    if value is None:
        return mark or ("not run yet" if not cell.runs else NOTHING)
    short = f" [{value.count} of {reproduced.num_seeds} seeds]" if value.count < reproduced.num_seeds else ""
    return f"{_number(value, measure)}{short}{' ' + mark if mark else ''}"


def _constant(reproduced: Reproduced, heads: Sequence[Head], place: int) -> str:
    """Under the last head of every budget."""
    column, kind = heads[place]
    last = place + 1 == len(heads) or heads[place + 1][0] != column
    value = reproduced.constant(column) if last and kind != PUBLISHED else None
    return NOTHING if value is None else percent(value.mean)


def _number(value: Estimate, measure: str) -> str:
    if measure == "loss":
        return f"{value.mean:.4g}" + ("" if value.half_width is None else f" ± {value.half_width:.2g}")
    return percent(value.mean) + ("" if value.half_width is None else f" ± {percent(value.half_width)}")


def _best(reproduced: Reproduced, rows: Sequence[MeasuredRow], head: Head, measure: str) -> int | None:
    """The row whose interval lies above all others under the same mechanism and budget; bounds do not count."""
    column, kind = head
    if kind == PUBLISHED or measure == "loss":
        return None
    candidates = [
        (place, value)
        for place, row in enumerate(rows)
        if not row.reference and (value := reproduced.estimate(row, column, kind, measure)) is not None
    ]
    best = clear_best([value for _, value in candidates])
    return None if best is None else candidates[best][0]


def _note(reproduced: Reproduced, measure: str) -> str:
    seeds = (
        f"Mean ± 95% t-interval over {reproduced.num_seeds} seeds"
        if reproduced.num_seeds > 1
        else "One seed, no intervals"
    )
    worst = " Worst decile: mean accuracy of the tenth of clients that fare worst." if measure == "worst_decile" else ""
    return f"{seeds}; measured on raw client data: {DIAGNOSTIC}.{worst}"


def how_to_read(reproduced: Reproduced) -> tuple[str, ...]:
    """Sentences that hold for all tables."""
    sentences = [
        "published: the paper's number; identifier: the paper's mechanism, soundly accounted; joint: ours.",
        "What a row runs differs by mechanism: the settings of the rows are below.",
        "Bold: best of its column, with an interval above all others; bounds (the oracle) are left out.",
    ]
    if any(reproduced.constant(column) for column in reproduced.columns):
        sentences.append("Constant predictor: always the most frequent training target, computed from the data.")
    if any(column.epsilon is not None for column in reproduced.columns):
        sentences.append(UNCOVERED_TUNING)
    return tuple(sentences)
