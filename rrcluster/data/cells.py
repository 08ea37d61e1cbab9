"""Cells of a table as numbers and hashed text: each cell is read by its own value, and no column has a kind.

A table thus needs no rules, and one client's cells cannot change the meaning of another's. Declarations (ranges,
categories, dates) work better and cost nothing.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.encoding import (
    NUMBER,
    Row,
    decoded,
    fill_value,
    instants,
    is_list,
    is_number,
    kind_of,
    one_hot,
    read_names,
    rows_of_lists,
    scaled,
    trimmed_texts,
    without_dates,
)
from rrcluster.data.federated import TableColumns
from rrcluster.data.table_files import arrow
from rrcluster.errors import DataError
from rrcluster.settings import ColumnSettings
from rrcluster.spelling import MISSING, instant, spelling

_LARGEST = float(np.finfo(np.float32).max)
_MOST_BUCKETS, _INDICATORS = 16, 1024
_MOST_CLASSES = 20  # in rehearsals a target with more distinct numbers is regression
_INSTANT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(.*)")
_DAY = 86_400.0  # seconds


def buckets_for(num_columns: int) -> int:
    """H, the number of values that hashed text of a column can have: 16, fewer above 64 columns, at least 1.

    Public: of the number of columns that are not declared. There are never more than about a thousand in all, or one
    for each column.
    """
    return max(1, min(_MOST_BUCKETS, _INDICATORS // max(num_columns, 1)))


def encode_cells(
    table: Any, names: list[str], columns: ColumnSettings, *, row: Row
) -> tuple[NDArray[np.float32], TableColumns]:
    """(rows, 2 d) values and codes of the cells in these columns, and the public facts about them.

    Guarantees: a row's values and codes are a function of the row's own cells, the columns' names and the declared
    rules; every number is finite in float32, NaN where a cell is none (larger ones, and infinite ones, become the
    largest); one value is encoded alike whether a table holds it as text or in a type of its own.
    """
    table, names, columns = without_dates(table, names, columns, row=row)
    labels = {name: _labels(table.column(name), name, columns) for name in names}
    facts = _facts(labels, columns)
    inputs = np.zeros((len(table), 2, facts.width), dtype=np.float32)
    start = 0
    for name in names:
        place = slice(start, start + len(labels[name]))
        if name in columns.vocabulary or name in columns.ranges:
            values = _declared(table.column(name), name, columns, row=row)
        else:
            values, inputs[:, 1, place] = _undeclared(table.column(name), name, columns, facts.buckets)
        inputs[:, 0, place] = np.clip(values, -_LARGEST, _LARGEST)
        start = place.stop
    return inputs.reshape(len(table), -1), facts


def cell_columns(columns: ColumnSettings) -> TableColumns:
    """Public description of cells of declared features (none of them lists), before any table is read."""
    columns = columns.without_dates()
    return _facts({name: _labels(None, name, columns) for name in columns.features}, columns)


def _facts(labels: Mapping[str, Sequence[str]], columns: ColumnSettings) -> TableColumns:
    """Public facts about the cells of columns, from the names of each column's values."""
    declared = columns.vocabulary.keys() | columns.ranges.keys()
    return TableColumns(
        names=tuple(label for texts in labels.values() for label in texts),
        buckets=buckets_for(sum(len(texts) for name, texts in labels.items() if name not in declared)),
        ranges=tuple((0.0, 1.0) if name in declared else None for name, texts in labels.items() for _ in texts),
        target_range=(0.0, 1.0) if columns.regression and columns.target in columns.ranges else None,
    )


def bucket(column: str, text: str, buckets: int) -> int:
    """The code of a text, 1 to `buckets`: a public function of it and of the column's name.

    >>> bucket("colour", "red", 16), bucket("colour", "red", 1)
    (12, 1)
    """
    digest = blake2b(text.encode(), key=text_key(column), digest_size=8, person=b"rrcluster cell").digest()
    return 1 + int.from_bytes(digest, "big") % buckets


def text_key(column: str) -> bytes:
    """The public key of a column's hashed text."""
    return blake2b(column.encode(), digest_size=32).digest()


def read_times(column: Any, name: str, *, row: Row) -> NDArray[np.float64]:
    """(rows,) the time of each row: a number, or the days since 1970 of an ISO date."""
    times = parsed_cells(column, name, dates=True)[0]
    if np.isnan(times).any():
        raise DataError(
            f"time = {name!r}: {row(int(np.isnan(times).argmax()))} has no number and no date (2024-01-31); correct it."
        )
    return times


def looks_numeric(column: Any, name: str) -> bool:
    """Whether a target looks like a number to predict: only for rehearsals, since it reads all rows."""
    if is_list(column.type):
        return True
    values, texts = parsed_cells(column, name)
    present = values[~np.isnan(values)]
    if len(texts) or not len(present):
        return False
    return bool((present != np.round(present)).any() or len(np.unique(present)) > _MOST_CLASSES)


def _labels(column: Any | None, name: str, columns: ColumnSettings) -> list[str]:
    """The names of the values that a column gives: one, one for each place of its lists, or one for each category.

    Without the column, those of one that holds no lists.
    """
    if name in columns.vocabulary:
        return [*(f"{name}={value}" for value in columns.vocabulary[name]), f"{name}=(other)"]
    if column is not None and is_list(column.type):
        return [f"{name}[{place}]" for place in range(rows_of_lists(column, name).shape[1])]
    return [name]


def _declared(column: Any, name: str, columns: ColumnSettings, *, row: Row) -> NDArray[np.floating[Any]]:
    """(rows, width) a column's values by its range or categories; NaN where a cell is missing or not a number."""
    if name in columns.vocabulary:
        cells = read_names(column, name, columns, row=row)
        absent = cells.missing & (name not in columns.fills)
        return np.where(absent[:, None], np.nan, one_hot(cells, name, columns))
    values = rows_of_lists(column, name) if is_list(column.type) else parsed_cells(column, name)[0][:, None]
    if name in columns.fills:
        values = np.where(np.isnan(values), fill_value(name, columns.fills[name]), values)
    return scaled(values, name, columns)


def _undeclared(
    column: Any, name: str, columns: ColumnSettings, buckets: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(rows, width) the values and codes of a column without range and categories."""
    if is_list(column.type):
        values = rows_of_lists(column, name)
        return values, np.zeros_like(values)
    dates = columns.kinds.get(name) == "date"
    values, texts = parsed_cells(column, name, dates=dates)
    codes = np.zeros(len(values))
    for text, rows in texts.items():
        codes[rows] = bucket(name, text, buckets)
    if name in columns.fills:
        missing = np.isnan(values) & (codes == 0)
        fill, other = parsed_cells(arrow().chunked_array([[columns.fills[name]]]), name, dates=dates)
        values[missing], codes[missing] = fill[0], bucket(name, next(iter(other)), buckets) if other else 0
    return values[:, None], codes[:, None]


def parsed_cells(
    column: Any, name: str, *, dates: bool = False
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.int64]]]:
    """(rows,) the numeric cells, NaN for others; and the rows of every other text, by its spelling."""
    pa, compute = arrow(), arrow("pyarrow.compute")
    column = decoded(column)
    if (is_number(column.type) and not pa.types.is_decimal(column.type)) or pa.types.is_null(column.type):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64), {}
    try:
        column = instants(column) if pa.types.is_temporal(column.type) else column.cast(pa.string())
    except pa.ArrowException:
        raise DataError(f"column {name!r} holds {kind_of(column.type)}; make it text or numbers.") from None
    if (plain := _plain_numbers(column)) is not None:
        return plain, {}
    texts = trimmed_texts(column)
    present = compute.and_not(texts.is_valid(), compute.is_in(texts, pa.array(sorted(MISSING))))
    numeric = compute.and_(present, compute.fill_null(compute.match_substring_regex(texts, NUMBER), False))
    plain = compute.replace_substring_regex(compute.if_else(numeric, texts, None), r"^\+", "")
    values = np.array(plain.cast(pa.float64()).to_numpy(), dtype=np.float64)
    odd = np.flatnonzero(compute.and_not(present, numeric).to_numpy())
    encoded = texts.take(pa.array(odd)).combine_chunks().dictionary_encode()
    spellings = encoded.dictionary.to_pylist()
    places = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(places, kind="stable")
    groups = np.split(odd[order], np.cumsum(np.bincount(places, minlength=len(spellings)))[:-1])
    others: dict[str, NDArray[np.int64]] = {}
    for text, rows in zip(spellings, groups, strict=False):
        moment = instant(text) if dates else None
        if moment is not None:
            values[rows] = moment.timestamp() / _DAY
        else:
            spelled = _spelled(text)
            others[spelled] = np.concatenate([others[spelled], rows]) if spelled in others else rows
    return values, others


def _plain_numbers(texts: Any) -> NDArray[np.float64] | None:
    """(rows,) the cells' numbers, if all are plain finite ones: a faster way to the same values."""
    pa, compute = arrow(), arrow("pyarrow.compute")
    present = compute.if_else(compute.is_in(texts, pa.array(sorted(MISSING))), None, texts)
    try:
        values = np.array(present.cast(pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowException:
        return None
    return values if np.isfinite(values).sum() == len(texts) - present.null_count else None


def _spelled(text: str) -> str:
    """A text by its value: a date equals its midnight, and 10:00:00 equals 10:00:00.000."""
    plain = spelling(text) or ""
    instant = _INSTANT.fullmatch(plain)
    return plain if instant is None else f"{instant[1]} {instant[2]}{(instant[3] or '').rstrip('.0')}{instant[4]}"
