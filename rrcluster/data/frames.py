"""Populations from tables: data frames in memory, and CSV and Parquet files. One row is one sample of one client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.arrays import from_arrays
from rrcluster.data.cells import encode_cells, looks_numeric, read_times
from rrcluster.data.encoding import (
    Row,
    encode_features,
    encode_owners,
    encode_target,
    encode_test_rows,
    in_order,
    outside_rules,
    read_names,
    undeclared_kinds,
)
from rrcluster.data.federated import FederatedData
from rrcluster.data.table_files import arrow, check_columns, is_row_number, is_typed, read_table
from rrcluster.errors import ConfigError, DataError
from rrcluster.rng import stream
from rrcluster.settings import ColumnSettings, data_label, declared_columns

OWN_DATA = "your-data"  # default name of a population from a frame
_SPLIT_SEED = 0  # public: decides which of a client's rows are held out


class ColumnRules(TypedDict, total=False):
    """Arguments of `from_frame` besides client, target, features and classes; `ColumnSettings` explains each."""

    regression: bool
    categories: Mapping[str, Sequence[Any]]
    scale: Mapping[str, tuple[float, float]]
    missing: Mapping[str, Any]
    test_column: str
    test_share: float
    time: str
    group: str
    types: Mapping[str, str | Sequence[str]]
    encoding: str


def from_frame(
    frame: Any,
    client: str | None,
    target: str,
    features: Sequence[str] | None = None,
    classes: Sequence[int | str] | None = None,
    *,
    name: str | None = None,
    **rules: Unpack[ColumnRules],
) -> FederatedData:
    """A population from a pandas, polars or pyarrow table, a `datasets` split, a mapping of columns, or a file's path.

    `client` names the column with the client of each row (None for the path of a folder with one file per client),
    `target` the one to predict. `features` are the columns to predict from, by default every column that has no other
    role and does not look like row numbers: numbers as they are or mapped to 0..1 by `scale` (`{"age": (0, 100)}`),
    text by the vocabulary in `categories` (`{"colour": ["red", "blue"]}`: one input per value and one for all others),
    lists of numbers of one length. `missing` says what a missing value stands for. `classes` lists all classes; left
    out, they are read from the data, which `FederatedData.counted` says and a secure run refuses. `regression=True`
    predicts numbers. `test_share` or `test_column` hold out rows of every client, the newest where `time` names a
    column with the times of rows; `group` names a column with true groups, for diagnostics.

    `encoding="cells"` needs no rules: each cell is taken for a number, hashed text or missing from its own value
    alone. Inputs are then values and codes (`TableColumns`), which only some methods can read.

    `types` declares the kind of every column that is not text (`{"age": "number"}`), which a secure run needs: programs
    infer types from all rows. `{"flown": "date"}` reads dates as days, `{"flown": ["month", "weekday"]}` these parts.

    Guarantees: every cell is read by its own value (`rrcluster.spelling`), so once types and classes are declared, one
    client's rows cannot change how another's are read; nothing else is computed from clients' values; a client's
    held-out rows depend on its name, its number of rows and their times alone; clients are numbered in order of their
    names (shorter ones first). Anything that does not fit is a `DataError` that names column, row and client, never the
    value of a cell.
    """
    columns = declared_columns(client=client, target=target, features=features, classes=classes, **rules)
    return frame_population(frame, columns, name=name)


def frame_population(
    frame: Any, columns: ColumnSettings, *, name: str | None = None, typed: bool = True
) -> FederatedData:
    """As `from_frame`, from column settings; kinds of columns matter only if `typed`."""
    if isinstance(frame, (str, Path)):
        return load_table(str(frame), columns, name=name, typed=typed)
    if columns.client is None:
        raise ConfigError("a table needs the column that names the client of each row; give client=.")
    table = to_table(frame)
    check_columns(table.column_names, columns, source="the table")
    return _population(table, columns.client, columns, name=name or OWN_DATA, typed=typed)


def load_table(path: str, columns: ColumnSettings, *, name: str | None = None, typed: bool = True) -> FederatedData:
    """The population of a file, or of a folder of files."""
    table, client = read_table(Path(path), columns)
    return _population(table, client, columns, name=name or data_label(path), typed=typed and is_typed(Path(path)))


def is_frame(value: Any) -> bool:
    """Whether a value is a table for `from_frame`, rather than a name or a population."""
    return not isinstance(value, (str, FederatedData)) and (
        isinstance(value, Mapping) or hasattr(value, "__arrow_c_stream__") or hasattr(value, "with_format")
    )


def to_table(frame: Any) -> Any:
    """The frame as an Arrow table."""
    pa = arrow()
    if isinstance(frame, Mapping) and hasattr(frame, "with_format"):
        raise DataError(f"the data has the splits {', '.join(map(str, frame))}; give one of them, data[...].")
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif hasattr(frame, "with_format") and hasattr(frame, "column_names") and hasattr(frame, "features"):
            table = frame.with_format("arrow")[:]  # a split of Hugging Face datasets
        elif hasattr(frame, "iloc"):
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            table = pa.table(dict(frame) if isinstance(frame, Mapping) else frame)
    except (pa.ArrowException, TypeError, ValueError, AttributeError):
        raise _no_table(frame) from None
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise DataError(f"the table has two columns {twice[0]!r}; rename one.")
    return table


def _no_table(frame: Any) -> DataError:
    """Why a frame is not a table: named by column if it has columns of mixed types."""
    pa = arrow()
    for name in getattr(frame, "columns", frame if isinstance(frame, Mapping) else ()):
        try:
            pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError):
            return DataError(f"column {str(name)!r} mixes values of different types; give it one type.")
        except Exception:  # not a column after all
            break
    if isinstance(frame, Mapping) and not hasattr(frame, "columns"):
        return DataError("the columns differ in length, or are splits: give columns of one length, or one split.")
    return DataError(
        f"{type(frame).__name__} cannot be read as a table; give a pandas, polars (collected) or pyarrow table, a "
        "split of datasets, a mapping from names to columns, or the path of a file."
    )


def _population(table: Any, client: str, columns: ColumnSettings, *, name: str, typed: bool) -> FederatedData:
    if not len(table):
        raise DataError(f"{name}: the table has no rows; every client needs at least one.")
    if columns.target is None:
        raise ConfigError(f"{name} needs the column to predict; give --target-column (target= in Python).")
    owners, names = encode_owners(table, client, columns, row=lambda place: f"row {place + 1}")

    def row(place: int) -> str:
        return f"row {place + 1} (client {names[owners[place]]!r})"

    features, counted = _feature_names(table, client, columns)
    if typed:
        used = [client, str(columns.target), columns.test_column, columns.time, columns.group, *features]
        counted |= _inferred(undeclared_kinds(table, [column for column in used if column is not None], columns))
    if not columns.classes and not columns.regression:
        columns, way_out = _with_target(table, columns, row=row)
        counted |= way_out
    cells = columns.encoding == "cells"
    inputs, facts = (
        encode_cells(table, features, columns, row=row)
        if cells
        else (encode_features(table, features, columns, row=row), None)
    )
    targets, classes = encode_target(table, columns, row=row)
    rows = _rows_by_client(table, columns, owners, row=row)
    tested = _test_rows(table, columns, rows, names, row=row)
    train = [part[~tested[part]] for part in rows]
    test = [part[tested[part]] for part in rows]
    data = from_arrays(
        [inputs[part] for part in train],
        [targets[part] for part in train],
        test_inputs=[inputs[part] for part in test] if tested.any() else None,
        test_targets=[targets[part] for part in test] if tested.any() else None,
        num_classes=len(classes),
        name=name,
        columns=facts,
    )
    encoder = row_rules(replace(columns, features=tuple(features), classes=classes))
    outside = outside_rules(table, features, columns, row=row)
    data = replace(data, clients=tuple(names), counted=counted, encoder=encoder, outside_rules=outside)
    held_out = columns.test_column is not None or columns.held_out > 0
    data = replace(data, held_out=held_out, ordered=columns.time is not None)
    if columns.group is None:
        return data
    groups, group_names = encode_owners(table, columns.group, columns, row=row)
    return replace(data, groups=_of_clients(groups, owners, columns.group, row=row), num_groups=len(group_names))


def row_rules(columns: ColumnSettings) -> ColumnSettings:
    """The settings of a table that give meaning to single rows: all of them public."""
    fills = tuple(text for text in columns.missing if text.partition("=")[0] in columns.features)
    columns = replace(columns, encoding="cells" if columns.encoding == "cells" else "declared")
    dates = {name for name, kind in columns.kinds.items() if kind == "date" and name in columns.features}
    types = tuple(text for text in columns.types if text.partition("=")[0] in dates)
    return replace(columns, missing=fills, types=types, test_column=None, test_share=0.0, time=None, group=None)


def encoded_rows(table: Any, encoder: ColumnSettings, *, row: Row) -> NDArray[np.float32]:
    """(rows, *input) the inputs of rows by the rules of a population (`FederatedData.encoder`)."""
    if encoder.encoding == "cells":
        return encode_cells(table, list(encoder.features), encoder, row=row)[0]
    return encode_features(table, list(encoder.features), encoder, row=row)


def _with_target(table: Any, columns: ColumnSettings, *, row: Row) -> tuple[ColumnSettings, dict[str, str]]:
    """The settings with an inferred target kind or classes, and how to declare them: only for rehearsals."""
    if columns.encoding != "cells":
        return columns, {"classes": "declare them (--classes; in Python classes=...)"}
    target = str(columns.target)
    if looks_numeric(table.column(target), target):
        return replace(columns, regression=True), {
            "regression": "declare it (--regression; in Python regression=True), or --classes if these are classes"
        }
    cells = read_names(table.column(target), target, columns, row=row)
    present = {cells.spellings[code] for code in np.unique(cells.codes[~cells.missing])}
    if len(present) == len(table) > 100:
        raise DataError(f"target = {target!r} differs in every row, like an id; choose another, or --regression.")
    return replace(columns, classes=in_order(present)), {"classes": "declare them (--classes; in Python classes=...)"}


def _rows_by_client(
    table: Any, columns: ColumnSettings, owners: NDArray[np.int64], *, row: Row
) -> list[NDArray[np.int64]]:
    """The rows of every client: in the given order, or oldest first if a column has their times."""
    times = (
        np.zeros(len(table)) if columns.time is None else read_times(table.column(columns.time), columns.time, row=row)
    )
    return np.split(np.lexsort((times, owners)), np.cumsum(np.bincount(owners))[:-1])


def _inferred(kinds: list[str]) -> dict[str, str]:
    """The inferred kinds of columns, as a constant that was not declared."""
    rules = ", ".join(f"{name!r}: {kind!r}" for name, _, kind in (text.rpartition("=") for text in kinds))
    return {"types": f"declare them (--types {' '.join(kinds)}; in Python types={{{rules}}})"} if kinds else {}


def _feature_names(table: Any, client: str, columns: ColumnSettings) -> tuple[list[str], dict[str, str]]:
    """The features, and how to declare them if a column that looks like row numbers was left out."""
    roles = {client, columns.target, columns.test_column, columns.time, columns.group}
    others = [name for name in table.column_names if name not in roles]
    numbers = [] if columns.features else [name for name in others if is_row_number(name)]
    names = list(columns.features) or [name for name in others if name not in numbers]
    if not names:
        raise DataError("no column is left to predict from; give a table with features.")
    ranges = columns.ranges.keys() - ({columns.target} if columns.regression else set())
    unused = sorted((columns.vocabulary.keys() | ranges | columns.fills.keys() - {columns.test_column}) - {*names})
    if unused:
        raise ConfigError(f"column {unused[0]!r} has a rule and is not among the features; add it, or drop the rule.")
    if not numbers:
        return names, {}
    return names, {
        "features": f"column {numbers[0]!r} looks like row numbers and is left out: declare the features "
        "(--feature-columns; in Python features=[...]) without it, or write the table without its index"
    }


def _test_rows(
    table: Any, columns: ColumnSettings, rows: list[NDArray[np.int64]], names: list[str], *, row: Row
) -> NDArray[np.bool_]:
    """(rows,) whether a row is held out; every client keeps at least one for training."""
    tested = np.zeros(len(table), dtype=bool)
    if columns.test_column is not None:
        tested = encode_test_rows(table, columns, row=row)
        for client, part in zip(names, rows, strict=True):
            if tested[part].all():
                raise DataError(
                    f"test_column = {columns.test_column!r} holds out every row of client {client!r}; leave each "
                    "client a row to train on, or remove the client."
                )
    elif columns.held_out:
        least = 1 if columns.encoding == "cells" else 0
        for client, part in zip(names, rows, strict=True):
            count = min(max(least, int(columns.held_out * len(part) + 0.5)), len(part) - 1)
            if columns.time is not None:
                tested[part[len(part) - count :]] = True
            else:
                places = stream(_SPLIT_SEED, f"test rows of {client}").permutation(len(part))[:count]
                tested[part[places]] = True
    return tested


def _of_clients(groups: NDArray[np.int64], owners: NDArray[np.int64], name: str, *, row: Row) -> NDArray[np.int64]:
    """(clients,) the true group of every client, from its rows."""
    first = np.zeros(int(owners.max()) + 1, dtype=np.int64)
    first[owners[::-1]] = groups[::-1]
    other = groups != first[owners]
    if other.any():
        raise DataError(
            f"group = {name!r}: {row(int(other.argmax()))} has a different group than the client's other "
            "rows; a client has one group."
        )
    return first
