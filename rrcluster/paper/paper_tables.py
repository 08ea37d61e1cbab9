"""The paper's tables with ours beside: published, identifier, joint. No times: the same runs give the same bytes."""

from collections.abc import Sequence

from rrcluster.paper.comparison import cell as compare_cell
from rrcluster.paper.read_reproduction import MEASURES, Column, Reproduced, Row
from rrcluster.report.estimate import Estimate, clear_best
from rrcluster.report.folders import DIAGNOSTIC
from rrcluster.report.notation import NOTHING, percent
from rrcluster.report.tables import UNCOVERED_TUNING, Table

PUBLISHED = "published"
_AT_ONCE = 3  # budgets side by side; more get a table of their own
_SPELLED = {"identifier": "identifier", "joint": "joint (ours)", "none": "here"}

Head = tuple[Column, str]  # a column of the paper, and what is shown of it: published, or a mechanism


def main_tables(it: Reproduced) -> tuple[Table, ...]:
    """The paper's table with ours beside, and what is better than what."""
    return (*_of(it, it.measure), *significance_table(it))


def more_tables(it: Reproduced) -> tuple[Table, ...]:
    """What else was measured, and at last the settings."""
    more = [name for name in ("clustering_accuracy", "worst_decile") if name != it.measure and _measured(it, name)]
    return (*(table for name in more for table in _of(it, name)), settings_table(it))


def _of(it: Reproduced, measure: str) -> list[Table]:
    return [table for panel in it.panels for table in panel_tables(it, panel, measure)]


def panel_tables(it: Reproduced, panel: str, measure: str) -> list[Table]:
    """The table of a panel, in pieces of a few budgets."""
    columns = [column for column in it.columns if column.panel == panel]
    pieces = [columns[first : first + _AT_ONCE] for first in range(0, len(columns), _AT_ONCE)]
    if len(pieces) > 1 and len(pieces[-1]) == 1:
        pieces[-2:] = [[*pieces[-2], *pieces[-1]]]
    return [_panel_table(it, panel, measure, piece) for piece in pieces]


def _panel_table(it: Reproduced, panel: str, measure: str, columns: Sequence[Column]) -> Table:
    heads = [head for column in columns for head in _heads(it, column, measure)]
    reasons: dict[str, int] = {}
    rows = [
        (row.name, *(_cell(it, row, head, measure, reasons) for head in heads))
        for row in it.rows
        if any(_asked(row, head) for head in heads)
    ]
    if measure in ("accuracy", "mean_accuracy") and any(it.constant(column) for column in columns):
        rows.append(("Constant predictor", *(_constant(it, heads, place) for place in range(len(heads)))))
    note = [_note(it, measure), *(f"({place}) {reason.rstrip('.')}." for reason, place in reasons.items())]
    shown = [row for row in it.rows if any(_asked(row, head) for head in heads)]
    return Table(
        title=f"{panel}: {MEASURES[measure]}",
        columns=("Method", *(_head(head) for head in heads)),
        rows=tuple(rows),
        note=" ".join(note),
        bold=frozenset(
            (best, place + 1)
            for place, head in enumerate(heads)
            if (best := _best(it, shown, head, measure)) is not None
        ),
        diagnostic=frozenset(place + 1 for place, (_, kind) in enumerate(heads) if kind != PUBLISHED),
    )


def significance_table(it: Reproduced) -> tuple[Table, ...]:
    """One line per cell and pair of methods: the paired difference and its p-value."""
    rows = []
    for first, second, mechanism in it.about["pairs"]:
        one, two = it.row(first), it.row(second)
        for column in it.columns:
            found = compare_cell(it, (first, second), column, mechanism) if mechanism in column.mechanisms else None
            if one is None or two is None or found is None:
                continue
            told = None if mechanism == "joint" else it.published_gap(one, two, column)
            published = NOTHING if told is None else f"{told:+.2f}"
            show = f"{found.difference.mean:+.4g}" if it.measure == "loss" else f"{100 * found.difference.mean:+.1f}"
            width = (found.difference.half_width or 0.0) * (1 if it.measure == "loss" else 100)
            spread = f"{width:.4g}" if it.measure == "loss" else f"{width:.1f}"
            names = f"{one.name} against {two.name}"
            place = (names, mechanism, f"{column.panel}, {column.budget}")
            rows.append((*place, published, f"{show} ± {spread}", f"{found.p_higher:.3f}"))
    if not rows:
        return ()
    points = "loss" if it.measure == "loss" else "points"
    lower = " (positive: lower loss)" if it.measure == "loss" else ""
    return (
        Table(
            title="Is it better? Paired over seeds",
            columns=("Comparison", "Mechanism", "Cell", f"Published ({points})", f"Here ({points})", "p"),
            rows=tuple(rows),
            note=f"Difference with its 95% t-interval{lower}; p: one-sided paired t-test that the first is better, not "
            "corrected for the number of cells (the verdicts are, by Holm's method).",
            diagnostic=frozenset({4, 5}),
            text_columns=frozenset({0, 1, 2}),
        ),
    )


def settings_table(it: Reproduced) -> Table:
    """What each row is, under each mechanism."""
    asked = {kind for row in it.rows for _, kind in row.cells}
    kinds = [kind for kind in _SPELLED if kind in asked]
    return Table(
        title="Settings of the rows",
        columns=("Method", *("no noise" if kind == "none" else kind for kind in kinds)),
        rows=tuple((row.name, *(row.settings.get(kind, NOTHING) for kind in kinds)) for row in it.rows),
        note=f"All rows: {it.about['shared']}.",
        text_columns=frozenset(range(len(kinds) + 1)),
    )


def _measured(it: Reproduced, measure: str) -> bool:
    return any(
        it.values(row, column, kind, measure) for row in it.rows for column in it.columns for kind in column.mechanisms
    )


def _heads(it: Reproduced, column: Column, measure: str) -> list[Head]:
    published = measure == it.measure and any(row.published.get(column.key) is not None for row in it.rows)
    asked = [kind for kind in column.mechanisms if any((column.key, kind) in row.cells for row in it.rows)]
    return [(column, kind) for kind in ([PUBLISHED] if published else []) + asked]


def _head(head: Head) -> str:
    column, kind = head
    return f"{column.budget}, {_SPELLED.get(kind, kind)}"


def _asked(row: Row, head: Head) -> bool:
    column, kind = head
    return row.published.get(column.key) is not None if kind == PUBLISHED else (column.key, kind) in row.cells


def _cell(it: Reproduced, row: Row, head: Head, measure: str, reasons: dict[str, int]) -> str:
    column, kind = head
    if kind == PUBLISHED:
        told = row.published.get(column.key)
        return NOTHING if told is None else f"{told:.2f}"
    cell = row.cells.get((column.key, kind))
    if cell is None:
        return NOTHING
    found = it.estimate(row, column, kind, measure)
    mark = "" if cell.reason is None else f"({reasons.setdefault(cell.reason, len(reasons) + 1)})"
    if found is None:
        return mark or ("not run yet" if not cell.runs else NOTHING)
    short = f" [{found.count} of {it.num_seeds} seeds]" if found.count < it.num_seeds else ""
    return f"{_number(found, measure)}{short}{' ' + mark if mark else ''}"


def _constant(it: Reproduced, heads: Sequence[Head], place: int) -> str:
    """Under the last head of every budget."""
    column, kind = heads[place]
    last = place + 1 == len(heads) or heads[place + 1][0] != column
    found = it.constant(column) if last and kind != PUBLISHED else None
    return NOTHING if found is None else percent(found.mean)


def _number(found: Estimate, measure: str) -> str:
    if measure == "loss":
        return f"{found.mean:.4g}" + ("" if found.half_width is None else f" ± {found.half_width:.2g}")
    return percent(found.mean) + ("" if found.half_width is None else f" ± {percent(found.half_width)}")


def _best(it: Reproduced, rows: Sequence[Row], head: Head, measure: str) -> int | None:
    """The row whose interval lies above all others under the same mechanism and budget; bounds do not count."""
    column, kind = head
    if kind == PUBLISHED or measure == "loss":
        return None
    found = [
        (place, value)
        for place, row in enumerate(rows)
        if not row.reference and (value := it.estimate(row, column, kind, measure)) is not None
    ]
    best = clear_best([value for _, value in found])
    return None if best is None else found[best][0]


def _note(it: Reproduced, measure: str) -> str:
    seeds = f"Mean ± 95% t-interval over {it.num_seeds} seeds" if it.num_seeds > 1 else "One seed, no intervals"
    worst = " Worst decile: mean accuracy of the tenth of clients that fare worst." if measure == "worst_decile" else ""
    return f"{seeds}; measured on raw client data: {DIAGNOSTIC}.{worst}"


def how_to_read(it: Reproduced) -> tuple[str, ...]:
    """What holds for all tables."""
    said = [
        "published: the paper's number; identifier: the paper's mechanism, soundly accounted; joint: ours.",
        "What a row runs differs by mechanism: the settings of the rows are below.",
        "Bold: best of its column, with an interval above all others; bounds (the oracle) are left out.",
    ]
    if any(it.constant(column) for column in it.columns):
        said.append("Constant predictor: always the most frequent training target, computed from the data.")
    if any(column.epsilon is not None for column in it.columns):
        said.append(UNCOVERED_TUNING)
    return tuple(said)
