"""Columns of a table as numbers, by declared rules alone: nothing is fitted to the clients' values.

Errors name the column, and the row and client at fault, never the value of a cell.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.table_files import arrow
from rrcluster.data_settings import ColumnSettings
from rrcluster.errors import DataError

Numbers = NDArray[Any]
Row = Callable[[int], str]  # how errors name a row
_LARGEST = float(np.finfo(np.float32).max)


def encode_features(table: Any, names: list[str], columns: ColumnSettings, *, row: Row) -> NDArray[np.float32]:
    """(rows, width) the features side by side: a number, a list of numbers, or one-hot values of a vocabulary."""
    parts: list[Numbers] = []
    _check_missing(table, names, columns, row=row)
    for name in names:
        if name in columns.vocabulary:
            parts.append(_one_hot(table.column(name), name, columns, row=row))
        else:
            parts.append(_scaled(_numbers(table.column(name), name, columns.fills, row=row), name, columns))
    return np.concatenate(parts, axis=1).astype(np.float32)


def _check_missing(table: Any, names: list[str], columns: ColumnSettings, *, row: Row) -> None:
    """Refuse missing values without a rule, of all columns at once: a table often has them in many."""
    empty = {name: _empty_cells(table.column(name)) for name in names if name not in columns.fills}
    incomplete = [name for name, cells in empty.items() if cells.any()]
    if incomplete:
        first, *others = incomplete
        raise _missing(first, row(int(empty[first].argmax())), others=others)


def _empty_cells(column: Any) -> NDArray[np.bool_]:
    """(rows,) whether a cell is null, NaN or an empty text."""
    cells = column.is_null(nan_is_null=True).to_numpy()
    if not _is_text(column.type):
        return np.asarray(cells, dtype=bool)
    compute = arrow("pyarrow.compute")
    return np.asarray(cells | compute.fill_null(compute.equal(column.cast("string"), ""), True).to_numpy(), dtype=bool)


def encode_target(table: Any, columns: ColumnSettings, *, row: Row) -> tuple[Numbers, tuple[str, ...]]:
    """(rows,) class numbers and the classes; for regression (rows,) numbers, or (rows, m) of lists, and no classes."""
    name = str(columns.target)
    column = table.column(name)
    types = arrow().types
    if columns.regression:
        if not _is_number(column.type) and not _is_list(column.type):
            raise DataError(f"target = {name!r} holds {_kind(column.type)}; regression predicts numbers.")
        values = _scaled(_numbers(column, name, {}, row=row), name, columns).astype(np.float32)
        return values if _is_list(column.type) else values[:, 0], ()
    if types.is_floating(column.type) and not columns.classes:
        raise DataError(
            f"target = {name!r} holds floats, so that it may be a number or a class; give --regression to predict a "
            "number (regression=True in Python), or declare --classes (or make it whole numbers)."
        )
    if not (_is_text(column.type) or _is_number(column.type)):
        raise DataError(f"target = {name!r} holds {_kind(column.type)}; give whole numbers or text as classes.")
    labels = _texts(column, name, None, row=row)
    return _numbered(labels, name, columns, whole=types.is_integer(column.type), row=row)


def _numbered(
    labels: Any, name: str, columns: ColumnSettings, *, whole: bool, row: Row
) -> tuple[Numbers, tuple[str, ...]]:
    """Labels by their place among the classes, declared or counted."""
    codes, present = coded(labels)
    declared = columns.class_names
    if not declared:
        if len(present) < 2:
            raise DataError(
                f"target = {name!r} holds one class only, which leaves nothing to learn; declare all classes if there "
                "are others elsewhere, or choose another target."
            )
        declared = tuple(sorted(present, key=int) if whole else sorted(present))
    place = {value: number for number, value in enumerate(declared)}
    numbers = np.array([place.get(value, -1) for value in present], dtype=np.int64)[codes]
    if (numbers < 0).any():
        raise DataError(
            f"target = {name!r}: {row(int((numbers < 0).argmax()))} has a label that is none of the {len(declared)} "
            "declared classes; add it to classes, or remove the row."
        )
    return numbers, declared


def encode_test_rows(table: Any, columns: ColumnSettings, *, row: Row) -> NDArray[np.bool_]:
    """(rows,) whether a row is for testing."""
    name = str(columns.test_column)
    column = table.column(name)
    types = arrow().types
    numbers = np.array([np.nan])
    if types.is_boolean(column.type) or types.is_integer(column.type):
        numbers = _numbers(column, name, columns.fills, row=row)[:, 0]
    if not np.isin(numbers, (0, 1)).all():
        raise DataError(f"test_column = {name!r} holds {_kind(column.type)}; it must be true or false (or 1 or 0).")
    return np.asarray(numbers == 1)


def coded(texts: Any) -> tuple[NDArray[np.int64], list[str]]:
    """(rows,) the place of every text among the distinct ones, and these in order of appearance."""
    encoded = texts.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def text_column(table: Any, name: str, *, row: Row) -> Any:
    """A column of ids or names as text; an empty cell is an error."""
    return _texts(table.column(name), name, None, row=row)


def _one_hot(column: Any, name: str, columns: ColumnSettings, *, row: Row) -> NDArray[np.float32]:
    """(rows, values + 1) one column per value of the vocabulary, the last for every other value."""
    if not (_is_text(column.type) or _is_number(column.type)):
        raise DataError(f"column {name!r} holds {_kind(column.type)}; only text and numbers can have categories.")
    codes, present = coded(_texts(column, name, columns.fills.get(name), row=row, declarable=True))
    vocabulary = columns.vocabulary[name]
    place = {value: number for number, value in enumerate(vocabulary)}
    numbers = np.array([place.get(value, len(vocabulary)) for value in present], dtype=np.int64)[codes]
    return np.eye(len(vocabulary) + 1, dtype=np.float32)[numbers]


def _texts(column: Any, name: str, fill: str | None, *, row: Row, declarable: bool = False) -> Any:
    """The cells as text; empty ones are `fill`, or an error, where a rule may be `declarable`."""
    pa, compute = arrow(), arrow("pyarrow.compute")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = compute.if_else(compute.is_nan(column), pa.scalar(None, column.type), column)
    texts = column.cast(pa.string())
    empty = compute.fill_null(compute.equal(texts, ""), True).to_numpy(zero_copy_only=False)
    if not empty.any():
        return texts
    if fill is None:
        raise _missing(name, row(int(empty.argmax())), declarable=declarable)
    return compute.if_else(pa.array(~empty), texts, fill)


def _numbers(column: Any, name: str, fills: Mapping[str, str], *, row: Row) -> NDArray[np.float64]:
    """(rows, width) the cells as finite numbers, missing ones by their rule."""
    pa = arrow()
    if not _is_number(column.type) and not _is_list(column.type) and not pa.types.is_null(column.type):
        raise _no_number(name, column.type)
    values = _rows_of_lists(column, name) if _is_list(column.type) else _cast(column)[:, None]
    absent = np.isnan(values).any(axis=1)
    if absent.any():
        if name not in fills:
            raise _missing(name, row(int(absent.argmax())))
        values = np.where(np.isnan(values), _fill(name, fills[name]), values)
    wild = (np.abs(values) > _LARGEST).any(axis=1)
    if wild.any():
        raise DataError(
            f"column {name!r}: {row(int(wild.argmax()))} has a number that is infinite or beyond float32; correct it."
        )
    return values


def _cast(column: Any) -> NDArray[np.float64]:
    values = column.cast(arrow().float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def _rows_of_lists(column: Any, name: str) -> NDArray[np.float64]:
    """Lists of equal length side by side."""
    compute = arrow("pyarrow.compute")
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    flat = column.combine_chunks().flatten()
    if not _is_number(flat.type):
        raise DataError(f"column {name!r} holds lists of {_kind(flat.type)}; give lists of numbers, all of one length.")
    if len(set(lengths.tolist())) != 1:
        raise DataError(f"column {name!r} holds lists of different lengths; give lists of one length.")
    return _cast(flat).reshape(len(column), int(lengths[0]))


def _scaled(values: NDArray[np.float64], name: str, columns: ColumnSettings) -> NDArray[np.float64]:
    if name not in columns.ranges:
        return values
    low, high = columns.ranges[name]
    return (values - low) / (high - low)


def _fill(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not abs(number) <= _LARGEST:
        raise DataError(f"missing = {name}={text[:80]} must be a number, as the column is; write {name}=0.")
    return number


def _missing(name: str, where: str, *, declarable: bool = True, others: Sequence[str] = ()) -> DataError:
    if not declarable:
        return DataError(f"column {name!r}: {where} has no value; correct or remove the row.")
    flags = "".join(f" {other}=VALUE" for other in others)  # of the other columns that have such rows
    return DataError(
        f"column {name!r}: {where} has no value; remove the row, or say what a missing value stands for "
        f"(--missing {name}=VALUE{flags}, missing={{{name!r}: value}} in Python)."
    )


def _no_number(name: str, kind: Any) -> DataError:
    if _is_text(kind):
        return DataError(
            f"column {name!r} holds text; declare its public vocabulary (--categories {name}=VALUE,VALUE, "
            f"categories={{{name!r}: [...]}} in Python), name other --feature-columns, or correct what is no number."
        )
    return DataError(
        f"column {name!r} holds {_kind(kind)}; make it a number, or name the columns to predict from without it "
        "(--feature-columns, features=[...] in Python)."
    )


def _is_text(kind: Any) -> bool:
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    views = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or views(kind))


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kind(kind: Any) -> str:
    return "text" if _is_text(kind) else str(kind)
