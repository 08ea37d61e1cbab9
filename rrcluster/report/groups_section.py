"""The page's section on groups: sizes, predictions and differences of their models, from the released summary.json.

How the clients of each group fare is included if a rehearsal measured it: a diagnostic.
"""

from collections.abc import Sequence
from typing import Any

from rrcluster.report.folders import Run, RunGroup
from rrcluster.report.tables import TextTable, to_html
from rrcluster.report.values import NOTHING, numbers, percent

_MOST_CLASSES = 6  # classes of a typical row with their probabilities
_MOST_GROUPS = 12  # groups in separate columns
_MEASURED = {"clients": "Clients", "this run": "Fare", "one model for all": "With one model"}


def groups_section(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """HTML of the groups of every method on named columns; empty without groups."""
    parts = []
    for group, label in zip(groups, labels, strict=True):
        described = group.first.summary.get("groups")
        if isinstance(described, dict):
            of = f" of {label}" if len(groups) > 1 else ""
            parts += [to_html(table) for table in _tables(group.first, described, of) if table.rows]
    heading = '<section aria-labelledby="groups">\n<h2 id="groups">Your groups</h2>\n'
    return f"{heading}{chr(10).join(parts)}\n</section>" if parts else ""


def _tables(run: Run, described: dict[str, Any], of: str) -> list[TextTable]:
    """Sizes and typical rows, effects of columns, and agreement; values of files are only shown if they are numbers."""
    classes = described.get("classes") is True
    k = len(_listed(described.get("typical")))
    names = [f"Group {place}" for place in range(k)] if k > 1 else ["One model"]
    tables = [_sizes(run, described, names, of, classes=classes)]
    if k > _MOST_GROUPS:
        return tables
    tables.append(_effects(described, names, of, classes=classes))
    if k > 1:
        what = "Share of made-up rows of which two models say the same class" if classes else "Correlation of models"
        agreement = [numbers(row) for row in _listed(described.get("agreement"))]
        note = (
            f"{what}, drawn evenly from declared ranges and categories, or normally where ranges are learnt: 100 "
            "between two groups means that one model would do for both."
        )
        cells = tuple(
            (name, *(f"{100 * value:.0f}" for value in row)) for name, row in zip(names, agreement, strict=False)
        )
        tables.append(TextTable(f"How far the groups agree{of}", ("Group", *names), cells, note))
    return tables


def _sizes(run: Run, described: dict[str, Any], names: Sequence[str], of: str, *, classes: bool) -> TextTable:
    """A row for each group: its share of clients, what its model says of a typical row, and how its clients fare."""

    def shown(value: float) -> str:
        return percent(value) if classes else f"{value:.4g}"

    k, unit = len(names), " (%)" if classes else ""
    measured = run.final.by_group if run.final and len(run.final.by_group) == k else ()
    extra = [name for name in _MEASURED if any(name in accuracies for accuracies in measured)]
    heads = [f"Says {name}{unit}" for name in _listed(described.get("outputs"))[:_MOST_CLASSES]]
    shares, errors, rows = numbers(described.get("shares")), numbers(described.get("share_errors")), []
    for place, (name, says) in enumerate(zip(names, _listed(described.get("typical")), strict=True)):
        share = f"{percent(shares[place])} ± {percent(errors[place])}" if len(shares) == len(errors) == k else NOTHING
        accuracies = measured[place] if measured else {}
        cells = [
            f"{accuracies[key]:g}" if key == "clients" else shown(accuracies[key]) if key in accuracies else NOTHING
            for key in extra
        ]
        rows.append((name, share, *(shown(value) for value in numbers(says)[: len(heads)]), *cells))
    head = ("Group", "Share of clients (%)", *heads, *(_MEASURED[key] + unit * (key != "clients") for key in extra))
    fares = f" Fare: {'accuracy' if classes else 'RMSE'} on held-out rows, mean over clients." if extra else ""
    return TextTable(
        title=f"Groups{of}" if k > 1 else f"The model{of}",
        columns=head,
        rows=tuple(rows),
        note="Shares are released sizes with the standard deviation of their noise. What each model says of a typical "
        f"row: numbers in the middle of their declared or learnt range, categories evenly.{fares}",
        diagnostic=frozenset(range(2 + len(heads), len(head))),
    )


def _effects(described: dict[str, Any], names: Sequence[str], of: str, *, classes: bool) -> TextTable:
    """Columns and classes whose effects differ most, one column per group."""
    rows = []
    for entry in _listed(described.get("effects")):
        effects = numbers(entry.get("by_group")) if isinstance(entry, dict) else ()
        if len(effects) == len(names):
            output = [str(entry.get("output"))] if classes else []
            texts = (f"{100 * value:+.1f}" if classes else f"{value:+.4g}" for value in effects)
            rows.append((str(entry.get("column")), *output, *texts))
    return TextTable(
        title=(f"Where the groups differ most{of}" if len(names) > 1 else f"What moves the model most{of}"),
        columns=("Column", *(["Class"] if classes else []), *names),
        rows=tuple(rows),
        note=f"Change of what a model says{' of the class, in points,' if classes else ''} as one column goes from low "
        "to high and the others stay typical: the ends of its declared range, all rows against rows of the category, "
        "or one standard deviation to either side. Made of released models and declared columns alone.",
        text_columns=frozenset({0, 1} if classes else {0}),
    )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
