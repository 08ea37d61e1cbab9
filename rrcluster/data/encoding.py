"""Columns of a table as numbers, by declared rules alone: nothing is fitted to the clients' values.

Errors name the column, and the row and client at fault, never the value of a cell.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.table_files import FILE_NAME, arrow
from rrcluster.errors import DataError, UnfitRows
from rrcluster.settings import DATE_PARTS, ColumnSettings
from rrcluster.spelling import MISSING, instant, spelling

Numbers = NDArray[Any]
Row = Callable[[int], str]  # the row's name in errors
_LARGEST = float(np.finfo(np.float32).max)
_EXACT = {"halffloat": 2**11, "float": 2**24}  # up to here floats represent all integers; double: 2^53
NUMBER = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|inf|Inf|infinity|Infinity)$"
_WHOLE, _FRACTION = re.compile(r"-?[0-9]+"), re.compile(r"[+-]?[0-9]*\.[0-9]*([eE][+-]?[0-9]+)?")
_READ_AS_TEXT = r"^\s*([+-]?[0-9.]*[0-9],[0-9]+|[0-9]{1,2}([./-])[0-9]{1,2}[./-][0-9]{2,4}|[0-9]{4}/[0-9]+/[0-9]+)\b"
_MARKS = {"true": 1, "1": 1, "false": 0, "0": 0}


def encode_features(table: Any, names: list[str], columns: ColumnSettings, *, row: Row) -> NDArray[np.float32]:
    """(rows, width) the features side by side: numbers, lists of numbers, or one-hot values of a vocabulary."""
    table, names, columns = without_dates(table, names, columns, row=row)
    cells: dict[str, Names | NDArray[np.float64]] = {
        name: (read_names if name in columns.vocabulary else read_numbers)(table.column(name), name, columns, row=row)
        for name in names
    }
    missing: dict[str, NDArray[np.bool_]] = {
        name: encoded.missing if isinstance(encoded, Names) else np.asarray(np.isnan(encoded).any(axis=1))
        for name, encoded in cells.items()
    }
    incomplete = [name for name in names if name not in columns.fills and missing[name].any()]
    if incomplete:  # all columns at once: a table often has missing values in many
        raise _missing(incomplete[0], missing[incomplete[0]], row=row, others=incomplete[1:])
    parts = [
        one_hot(encoded, name, columns) if isinstance(encoded, Names) else _finite(encoded, name, columns, row=row)
        for name, encoded in cells.items()
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def without_dates(
    table: Any, names: list[str], columns: ColumnSettings, *, row: Row
) -> tuple[Any, list[str], ColumnSettings]:
    """The features and their rules with a column for each declared part of a date (`ColumnSettings.without_dates`).

    Cells that are not dates have no parts, unless `missing` gives a date.
    """
    pa = arrow()
    parts = {name: columns.date_parts[name] for name in names if name in columns.date_parts}
    if not parts:
        return table, names, columns
    plain = replace(columns, features=tuple(names)).without_dates()
    made = {name: table.column(name) for name in names if name not in parts}
    for name in parts:
        cells, fill = read_names(table.column(name), name, columns, row=row), instant(columns.fills.get(name, ""))
        moments = [instant(text) or fill for text in cells.spellings]
        if columns.encoding != "cells" and None in moments:
            raise _missing(name, np.array([moment is None for moment in moments])[cells.codes], row=row, what="date")
        for part in parts[name]:
            values = pa.array([None if moment is None else date_part(moment, part) for moment in moments], pa.string())
            made[f"{name} {part}"] = pa.chunked_array([values.take(pa.array(cells.codes))])
    return pa.table(made), list(plain.features), plain


def date_part(moment: datetime, part: str) -> str:
    """The year, month, weekday or hour of an instant."""
    return DATE_PARTS[part][moment.weekday()] if part == "weekday" else str(getattr(moment, part))


def outside_rules(table: Any, names: list[str], columns: ColumnSettings, *, row: Row) -> dict[str, float]:
    """For each column the share of rows outside its vocabulary, without a date whose parts are read, or (where no rule
    is declared) with a number or date in a form that is read as text.


    From raw rows: only for rehearsals.
    """
    shares, compute = {}, arrow("pyarrow.compute")
    for name in names:
        undeclared = name not in columns.vocabulary and name not in columns.kinds and columns.encoding == "cells"
        if undeclared and is_text(table.column(name).type):
            odd = compute.match_substring_regex(decoded(table.column(name)), _READ_AS_TEXT)
            shares[name] = compute.mean(odd.fill_null(False)).as_py()
        if name in columns.vocabulary or name in columns.date_parts:
            cells = read_names(table.column(name), name, columns, row=row)
            values = columns.vocabulary.get(name) or [text for text in cells.spellings if instant(text)]
            shares[name] = float((~cells.missing & (cells.places(dict.fromkeys(values, 0)) < 0)).mean())
    return shares


def undeclared_kinds(table: Any, names: Iterable[str], columns: ColumnSettings) -> list[str]:
    """`column=kind` for the columns of a typed table that are not text and have another or no declared kind.

    A `DataError` if one has another declared kind. A column without values is of every kind.
    """
    found = {name: family(table.column(name).type, name) for name in names}
    found = {name: kind for name, kind in found.items() if kind is not None}
    for name, kind in found.items():
        declared = columns.kinds.get(name, kind)
        if kind != declared and (kind, declared) != ("text", "date"):  # dates in text are read cell by cell
            raise DataError(
                f"types = {name}={declared} was declared, but the column has {kind}: the program that wrote "
                f"the table may have inferred that from all rows. Write it as {declared}, or declare another "
                "type for a new run."
            )
    return [f"{name}={kind}" for name, kind in found.items() if kind != "text" and name not in columns.kinds]


def family(kind: Any, name: str) -> str | None:
    """The kind of a column as in `types`, by the values of a dictionary; None without values."""
    types = arrow().types
    if types.is_dictionary(kind):
        return family(kind.value_type, name)
    families = {
        "text": is_text(kind),
        "boolean": types.is_boolean(kind),
        "number": is_number(kind),
        "list": is_list(kind),
        "date": types.is_temporal(kind) and not types.is_duration(kind),
    }
    found = next((kind_name for kind_name, fits in families.items() if fits), None)
    if found is None and not types.is_null(kind):
        raise DataError(
            f"column {name!r} holds {kind}; make it text, numbers, dates, lists of numbers, or true and false, or "
            "leave it out (--feature-columns, features=[...] in Python)."
        )
    return found


@dataclass(frozen=True)
class Names:
    """A column whose cells are names, each spelled by its own value."""

    missing: NDArray[np.bool_]  # (rows,) null, NaN or a spelling of `MISSING` that no rule declares
    codes: NDArray[np.int64]  # (rows,) place of the cell's spelling in `spellings`
    spellings: tuple[str, ...]

    def places(self, place: Mapping[str, int], default: int = -1) -> NDArray[np.int64]:
        """(rows,) the number for every cell's spelling."""
        return np.array([place.get(text, default) for text in self.spellings], dtype=np.int64)[self.codes]


def read_names(column: Any, name: str, columns: ColumnSettings, *, row: Row) -> Names:
    """A column's cells by their spelling; text of clients and groups stays as written, so that 007 is not 7."""
    if is_list(column.type):
        raise DataError(f"column {name!r} holds {kind_of(column.type)}; give text, numbers, or true and false.")
    verbatim = name in (columns.client, columns.group, FILE_NAME) and is_text(column.type)
    codes, values = _distinct(column)
    if arrow().types.is_floating(column.type):
        _check_exact(values, codes, name, _EXACT.get(str(column.type), 2**53), row=row)
    spellings = tuple("" if value is None else value for value in (values if verbatim else map(spelling, values)))
    declared = {*columns.vocabulary.get(name, ()), *(columns.class_names if name == columns.target else ())}
    marks = {""} if verbatim else MISSING - declared
    return Names(np.array([text in marks for text in spellings], dtype=bool)[codes], codes, spellings)


def _distinct(column: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """(rows,) the index of every cell's value among the distinct values, and these; nulls are None."""
    pa = arrow()
    column = decoded(column)
    if pa.types.is_temporal(column.type):
        column = instants(column)
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def decoded(column: Any) -> Any:
    """The values of a dictionary; other columns unchanged."""
    pa = arrow()
    if not pa.types.is_dictionary(column.type):
        return column
    kind = pa.string() if is_text(column.type) else column.type.value_type  # views of text do not support take
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def instants(column: Any) -> Any:
    """Dates and times as text, by value alone: independent of their unit, in universal time without a zone's name.

    A program that infers types takes the unit, and the zone, from all cells.
    """
    pa, compute = arrow(), arrow("pyarrow.compute")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))
    return compute.replace_substring_regex(column.cast(pa.string()), r"(\.[0-9]*[1-9])0+$|\.0+$", r"\1")


def _check_exact(values: list[Any], codes: NDArray[np.int64], name: str, exact: int, *, row: Row) -> None:
    """Refuse names that floats may have rounded: a missing value elsewhere turns integers into floats."""
    rounded = np.array([value is not None and abs(value) >= exact for value in values], dtype=bool)[codes]
    if rounded.any():
        rule = f"a number of 2^{exact.bit_length() - 1} or more in a column of floats, which round whole numbers there"
        text = f"column {name!r}: {row(int(rounded.argmax()))} has {rule}; give the column as text."
        raise UnfitRows(text, column=name, rule=rule, rows=rounded)


def encode_target(table: Any, columns: ColumnSettings, *, row: Row) -> tuple[Numbers, tuple[str, ...]]:
    """(rows,) class numbers and the classes; for regression (rows,) numbers, or (rows, m) of lists, and no classes."""
    name = str(columns.target)
    column = table.column(name)
    if columns.regression:
        values = read_numbers(column, name, columns, row=row)
        _refuse_missing(np.asarray(np.isnan(values).any(axis=1)), name, row=row)
        outputs = _finite(values, name, columns, row=row).astype(np.float32)
        return outputs if is_list(column.type) else outputs[:, 0], ()
    labels = read_names(column, name, columns, row=row)
    _refuse_missing(labels.missing, name, row=row)
    declared = columns.class_names or _counted_classes(labels, column, name)
    numbers = labels.places({value: number for number, value in enumerate(declared)})
    if (numbers < 0).any():
        raise DataError(
            f"target = {name!r}: {row(int((numbers < 0).argmax()))} has a label outside the {len(declared)} "
            "declared classes; add it to classes, or remove the row."
        )
    return numbers, declared


def _counted_classes(labels: Names, column: Any, name: str) -> tuple[str, ...]:
    """The classes that occur, in order: only for rehearsals, since no guarantee covers them."""
    written = _distinct(column)[1] if is_text(column.type) else ()
    if arrow().types.is_floating(column.type) or any(_FRACTION.fullmatch(text.strip()) for text in written):
        raise DataError(
            f"target = {name!r} has floats, which may be numbers or classes; give --regression to predict a "
            "number (regression=True in Python), or declare --classes (or make it whole numbers)."
        )
    present = in_order(labels.spellings)
    if len(present) < 2:
        raise DataError(
            f"target = {name!r} holds one class only, which leaves nothing to learn; declare all classes if "
            "other rows have more, or choose another target."
        )
    return present


def in_order(classes: Iterable[str]) -> tuple[str, ...]:
    """The distinct classes: integers by size, others alphabetically."""
    once = set(classes)
    return tuple(sorted(once, key=int) if all(map(_WHOLE.fullmatch, once)) else sorted(once))


def encode_test_rows(table: Any, columns: ColumnSettings, *, row: Row) -> NDArray[np.bool_]:
    """(rows,) whether a row is for testing."""
    name = str(columns.test_column)
    cells = read_names(table.column(name), name, columns, row=row)
    marks = cells.places(_MARKS)
    if name in columns.fills:
        marks = np.where(cells.missing, _MARKS.get(spelling(columns.fills[name]) or "", -1), marks)
    elif cells.missing.any():
        raise _missing(name, cells.missing, row=row)
    if (marks < 0).any():
        raise DataError(
            f"test_column = {name!r}: {row(int((marks < 0).argmax()))} is neither true nor false (1 or 0); correct it."
        )
    return np.asarray(marks == 1)


def encode_owners(table: Any, name: str, columns: ColumnSettings, *, row: Row) -> tuple[NDArray[np.int64], list[str]]:
    """(rows,) the number of the client or group of every row, and their names, shorter ones first."""
    cells = read_names(table.column(name), name, columns, row=row)
    _refuse_missing(cells.missing, name, row=row)
    names = sorted(set(cells.spellings), key=lambda text: (len(text), text))
    return cells.places({text: number for number, text in enumerate(names)}), names


def one_hot(cells: Names, name: str, columns: ColumnSettings) -> NDArray[np.float32]:
    """(rows, values + 1) one column per value of the vocabulary, the last for every other value."""
    vocabulary = columns.vocabulary[name]
    place, other = {value: number for number, value in enumerate(vocabulary)}, len(vocabulary)
    numbers = cells.places(place, other)
    if name in columns.fills:
        numbers = np.where(cells.missing, place.get(spelling(columns.fills[name]) or "", other), numbers)
    return np.eye(other + 1, dtype=np.float32)[numbers]


def read_numbers(column: Any, name: str, columns: ColumnSettings, *, row: Row) -> NDArray[np.float64]:
    """(rows, width) the cells as numbers, missing ones as NaN; text cell by cell: 5, +5.0, 5e-1, and true as 1."""
    if is_list(column.type):
        return rows_of_lists(column, name)
    if is_text(column.type):
        return _parsed(column, name, columns, row=row)[:, None]
    if is_number(column.type) or arrow().types.is_null(column.type):
        return _cast(column)[:, None]
    raise _no_number(name, column.type, columns)


def _parsed(column: Any, name: str, columns: ColumnSettings, *, row: Row) -> NDArray[np.float64]:
    pa, compute = arrow(), arrow("pyarrow.compute")
    texts = trimmed_texts(column)
    missing = compute.or_(texts.is_null(), compute.fill_null(compute.is_in(texts, pa.array(sorted(MISSING))), True))
    odd = compute.and_not(compute.invert(missing), compute.match_substring_regex(texts, NUMBER)).to_numpy()
    if (odd == 1).any():
        error = _no_number(name, column.type, columns, where=row(int((odd == 1).argmax())))
        raise UnfitRows(str(error), column=name, rule="text, where a number is expected", rows=odd == 1)
    return _cast(compute.replace_substring_regex(compute.if_else(missing, None, texts), r"^\+", ""))


def trimmed_texts(column: Any) -> Any:
    """The cells as text without the space around it, true as 1 and false as 0."""
    compute = arrow("pyarrow.compute")
    texts = compute.utf8_trim_whitespace(column.cast(arrow().string()))
    booleans = compute.utf8_lower(texts)
    for text in ("true", "false"):
        texts = compute.if_else(compute.equal(booleans, text), str(_MARKS[text]), texts)
    return texts


def _finite(values: NDArray[np.float64], name: str, columns: ColumnSettings, *, row: Row) -> NDArray[np.float64]:
    """(rows, width) the cells as finite numbers in their declared range, missing ones by their rule."""
    if name in columns.fills:
        values = np.where(np.isnan(values), fill_value(name, columns.fills[name]), values)
    wild = (np.abs(values) > _LARGEST).any(axis=1)
    if wild.any():
        rule = "a number that is infinite or beyond float32"
        text = f"column {name!r}: {row(int(wild.argmax()))} has {rule}; correct it."
        raise UnfitRows(text, column=name, rule=rule, rows=wild)
    return scaled(values, name, columns)


def _cast(column: Any) -> NDArray[np.float64]:
    values = column.cast(arrow().float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def rows_of_lists(column: Any, name: str) -> NDArray[np.float64]:
    """Lists of equal length side by side."""
    compute = arrow("pyarrow.compute")
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    flat = column.combine_chunks().flatten()
    if not is_number(flat.type):
        raise DataError(
            f"column {name!r} holds lists of {kind_of(flat.type)}; give lists of numbers, all of one length."
        )
    if len(set(lengths.tolist())) != 1:
        raise DataError(f"column {name!r} holds lists of different lengths; give lists of one length.")
    return _cast(flat).reshape(len(column), int(lengths[0]))


def scaled(values: NDArray[np.float64], name: str, columns: ColumnSettings) -> NDArray[np.float64]:
    """A column's numbers with its declared range mapped to 0..1; unchanged without one."""
    if name not in columns.ranges:
        return values
    low, high = columns.ranges[name]
    return (values - low) / (high - low)


def fill_value(name: str, text: str) -> float:
    """The replacement of a column's missing values, as a number."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not abs(number) <= _LARGEST:
        raise DataError(f"missing = {name}={text[:80]} must be a number, as the column is; write {name}=0.")
    return number


def _refuse_missing(missing: NDArray[np.bool_], name: str, *, row: Row) -> None:
    """Raise the error for a missing value that no rule may replace."""
    if missing.any():
        raise DataError(f"column {name!r}: {row(int(missing.argmax()))} has no value; correct or remove the row.")


def _missing(
    name: str, rows: NDArray[np.bool_], *, row: Row, others: Sequence[str] = (), what: str = "value"
) -> UnfitRows:
    flags = "".join(f" {other}=VALUE" for other in others)  # options for the other columns with such rows
    text = (
        f"column {name!r}: {row(int(rows.argmax()))} has no {what}; remove the row, or say what a missing {what} "
        f"stands for (--missing {name}=VALUE{flags}, missing={{{name!r}: value}} in Python)."
    )
    return UnfitRows(text, column=name, rule=f"no {what}, and no rule replaces it", rows=rows)


def _no_number(name: str, kind: Any, columns: ColumnSettings, *, where: str = "") -> DataError:
    if name == columns.target:
        return DataError(f"target = {name!r} holds {kind_of(kind)}; regression predicts numbers.")
    if is_text(kind):
        return DataError(
            f"column {name!r} holds text; declare its public vocabulary (--categories {name}=VALUE,VALUE, "
            f"categories={{{name!r}: [...]}} in Python), name other --feature-columns, or correct what is no number "
            f"({where} is the first)."
        )
    return DataError(
        f"column {name!r} holds {kind_of(kind)}; make it a number, or leave it out by listing the columns to "
        "predict from (--feature-columns, features=[...] in Python)."
    )


def is_text(kind: Any) -> bool:
    """Whether cells of an Arrow type are text."""
    types = arrow().types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    views = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or views(kind))


def is_number(kind: Any) -> bool:
    """Whether cells of an Arrow type are numbers, or true and false."""
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def is_list(kind: Any) -> bool:
    """Whether cells of an Arrow type are lists."""
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def kind_of(kind: Any) -> str:
    """The name of an Arrow type in errors."""
    return "text" if is_text(kind) else str(kind)
