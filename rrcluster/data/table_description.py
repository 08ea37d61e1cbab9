"""A table's content and all obstacles to training on it, in one report, with settings to edit.

It reads all rows, for people who may see them: no guarantee covers it, and its findings become settings only when
somebody declares them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.data.cells import looks_numeric, parsed_cells
from rrcluster.data.encoding import date_part, family, in_order, is_list, read_names
from rrcluster.data.table_files import is_row_number, is_typed, read_table, table_names
from rrcluster.settings import DATE_PARTS, ColumnSettings
from rrcluster.spelling import instant

_FEW_CLIENTS, _FEW_VALUES = 200, 20


@dataclass(frozen=True)
class ColumnFacts:
    """A column by its cells."""

    column: str
    numbers: int
    text: int
    missing: int
    distinct: int  # texts and numbers
    dates: int  # of the text
    parts: tuple[str, ...]  # parts of its dates that vary, if most cells are dates


@dataclass(frozen=True)
class TableDescription:
    """The facts of a table, its problems, and a YAML file of settings for `rrcluster run`."""

    facts: dict[str, Any]
    columns: tuple[ColumnFacts, ...]
    problems: tuple[str, ...]
    settings: str


def describe_table(
    path: Path, client: str | None, target: str | None, *, fill_from_data: bool = False
) -> TableDescription:
    """Describe a file, or a folder of files; a `DataError` only where nothing can be read at all.

    `fill_from_data`: settings with ranges, vocabularies and classes as they occur, for rehearsals.
    """
    names = table_names(path)
    per_file = path.is_dir() and client is None
    owner_column = client if client in names else None
    table, owner = read_table(path, ColumnSettings(client=None if per_file else owner_column or names[0]))
    columns = tuple(_facts(table.column(name), name) for name in names if not is_list(table.column(name).type))
    facts: dict[str, Any] = {"rows": len(table), "columns": len(names)}
    problems = list(_roles(names, client, target, per_file=per_file))
    if per_file or owner_column:
        problems += _clients(table.column(owner), owner, facts)
    if target in names:
        problems += _target(table.column(target), str(target), facts)
    roles = {client, target}
    problems += [text for column in columns if column.column not in roles for text in _column(column, len(table))]
    features = [column for column in columns if column.column not in roles]
    settings = _settings(path, client, target, table, features, facts, fill=fill_from_data)
    return TableDescription(facts, columns, tuple(problems), settings)


def _facts(column: Any, name: str) -> ColumnFacts:
    values, texts = parsed_cells(column, name)
    numbers, others = int(np.isfinite(values).sum()), sum(map(len, texts.values()))
    distinct = len(np.unique(values[np.isfinite(values)])) + len(texts)
    moments = {text: moment for text in texts if (moment := instant(text)) is not None}
    dates = sum(len(texts[text]) for text in moments)
    parts = [part for part in DATE_PARTS if len({date_part(moment, part) for moment in moments.values()}) > 1]
    mostly = tuple(parts) if 2 * dates > numbers + others else ()
    return ColumnFacts(name, numbers, others, len(values) - numbers - others, distinct, dates, mostly)


def _roles(names: list[str], client: str | None, target: str | None, *, per_file: bool) -> Iterator[str]:
    for flag, name in (("client", client), ("target", target)):
        if name is None and not (per_file and flag == "client"):
            yield f"no {flag} column is named; give --{flag}-column."
        elif name is not None and name not in names:
            near = get_close_matches(name, names, n=1)
            yield f"{flag} column {name!r} is not there; " + (f"did you mean {near[0]!r}?" if near else "name another.")


def _clients(column: Any, name: str, facts: dict[str, Any]) -> Iterator[str]:
    cells = read_names(column, name, ColumnSettings(client=name), row=str)
    if cells.missing.any():
        yield f"rows without a client in {name!r}: {int(cells.missing.sum())}; complete or remove them."
    sizes = np.bincount(cells.codes[~cells.missing])
    sizes = sizes[sizes > 0]
    facts["clients"] = len(sizes)
    if len(sizes):
        least, median, most = sizes.min(), int(np.median(sizes)), sizes.max()
        facts["rows_of_a_client"] = f"{least} to {most}, median {median}"
    if len(sizes) < _FEW_CLIENTS:
        yield f"clients: {len(sizes)}, which is few: noise that hides one of them hides much (`rrcluster advise`)."
    if single := int((sizes == 1).sum()):
        yield f"clients of one row: {single}; they are trained on and not tested."


def _target(column: Any, name: str, facts: dict[str, Any]) -> Iterator[str]:
    cells = read_names(column, name, ColumnSettings(target=name), row=str)
    if cells.missing.any():
        yield f"rows without a {name!r}: {int(cells.missing.sum())}; complete or remove them."
    if looks_numeric(column, name):
        facts["target"] = "a number (--regression)"
        return
    counts = np.bincount(cells.codes[~cells.missing])
    facts["target"] = f"{int((counts > 0).sum())} classes, the most common in {counts.max() / counts.sum():.0%} of rows"
    if (counts > 0).sum() < 2:
        yield f"{name!r} holds one class only, which leaves nothing to learn; name another target."


def _column(column: ColumnFacts, rows: int) -> Iterator[str]:
    name = repr(column.column)
    if column.distinct <= 1:
        yield f"{name} has one value at most; leave it out of features."
    if column.parts and column.dates < column.text:
        yield f"{name} has ISO dates (2024-01-31), and other text in {column.text - column.dates} cells; correct these."
    if _is_id(column, rows):
        yield f"{name} differs in every row, like an id or a row number; leave it out of features."
    if column.text and column.numbers > column.text and not column.parts:
        yield f"{name} has text in {column.text} of its cells beside numbers; look at them."


def _is_id(column: ColumnFacts, rows: int) -> bool:
    unnamed = is_row_number(column.column)
    return (
        column.distinct == rows > 1
        and not column.parts
        and (unnamed or column.text == rows or column.column.lower().endswith("id"))
    )


def _settings(
    path: Path,
    client: str | None,
    target: str | None,
    table: Any,
    columns: list[ColumnFacts],
    facts: dict[str, Any],
    *,
    fill: bool,
) -> str:
    """YAML with settings to declare as comments; with `fill` from clients' values, marked as such."""
    used = [column for column in columns if column.distinct > 1 and not _is_id(column, len(table))]
    numbers = [column.column for column in used if column.numbers > column.text]
    few = [column for column in used if column.distinct <= _FEW_VALUES and not column.parts]
    texts = [column.column for column in few if column.numbers <= column.text]
    left_out = {client, target, *(column.column for column in columns if column not in used)}
    settings: dict[str, Any] = {
        "data": str(path),
        "client": client,
        "target": target,
        "features": [name for name in table.column_names if name not in left_out],
    }
    if "number" in str(facts.get("target")):
        settings["regression"] = True
    kinds = {name: family(table.column(name).type, name) for name in table.column_names if is_typed(path)}
    types: dict[str, Any] = {name: kind for name, kind in kinds.items() if kind not in (None, "text")}
    types |= {column.column: list(column.parts) for column in used if column.parts}
    settings |= {"types": types} if types else {}
    if fill:
        settings |= _filled(table, target if "regression" not in settings else None, numbers, texts)
    lines = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items() if value is not None
    ]
    if fill:
        return "\n".join(["# From clients' values: for rehearsals, no epsilon covers it.", *lines]) + "\n"
    blanks = {
        "classes": "[VALUE, VALUE]" if "regression" not in settings else "",
        "num_clients": "BOUND",
        "scale": ", ".join(f"{json.dumps(name)}: [LOW, HIGH]" for name in numbers),
        "categories": ", ".join(f"{json.dumps(name)}: [VALUE, VALUE]" for name in texts),
    }
    lines.append("# Public constants, from what everybody knows and not from this table:")
    for name, blank in blanks.items():
        if blank:
            lines.append(f"# {name}: " + (f"{{{blank}}}" if name in ("scale", "categories") else blank))
    return "\n".join(lines) + "\n"


def _filled(table: Any, target: str | None, numbers: list[str], texts: list[str]) -> dict[str, Any]:
    """The ranges, vocabularies and classes that occur."""
    ranges = {}
    for name in numbers:
        values = parsed_cells(table.column(name), name)[0]
        ranges[name] = [float(values[np.isfinite(values)].min()), float(values[np.isfinite(values)].max())]
    classes = _present(table, target) if target in table.column_names else None
    columns = [*numbers, *texts, *([target] if classes else [])]
    categories = {name: _present(table, name) for name in texts}
    return {"classes": classes, "scale": ranges, "categories": categories, "filled_from_data": columns}


def _present(table: Any, name: str | None) -> list[str]:
    cells = read_names(table.column(name), str(name), ColumnSettings(), row=str)
    return list(in_order(cells.spellings[code] for code in np.unique(cells.codes[~cells.missing])))
