"""Users' files: CSV and Parquet as Arrow tables, alone or as a folder of one file per client.

Light: without torch, so that a wrong path or column is reported at once. No error shows the value of a cell.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from csv import Error as CsvError
from csv import reader
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError, DataError, install_extra
from rrcluster.settings import FILE_ENDINGS, ColumnSettings

FILE_NAME = "(file name)"  # the client column if every client has a file
_SHOWN = 12  # columns listed in an error


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow; a `DataError` says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise DataError(
            f"tables of your own are read by pyarrow, which is not installed; {install_extra('frames')}."
        ) from None


def read_table(path: Path, columns: ColumnSettings) -> tuple[Any, str]:
    """All rows of a file or folder as one Arrow table, and the name of its client column."""
    check_table(path, columns)
    if not path.is_dir():
        return _whole(path), str(columns.client)
    tables = [_whole(file) for file in _files(path)]
    if columns.client is not None:
        return _joined(path, tables), columns.client
    pa = arrow()
    named = [
        table.append_column(FILE_NAME, pa.array([_client_of(file)] * len(table), pa.string()))
        for file, table in zip(_files(path), tables, strict=True)
    ]
    return _joined(path, named), FILE_NAME


def count_clients(path: Path, columns: ColumnSettings) -> int:
    """The number of clients; reads only their column."""
    check_table(path, columns)
    if path.is_dir() and columns.client is None:
        return len(_files(path))
    tables = [_whole(file, only=columns.client) for file in _files(path)]
    return len(_joined(path, tables).column(0).cast("string").unique())


def check_table(path: Path, columns: ColumnSettings) -> None:
    """Refuse a missing path, a path without a table, or missing columns."""
    arrow()
    files = _files(path)
    if path.is_dir() and columns.client is None:
        _check_names(path, files)
    elif columns.client is None:
        raise ConfigError(
            f"{path} needs the column that names the client of each row; give --client-column (client= in Python)."
        )
    first = header(files[0])
    check_columns(first, columns, source=str(files[0]))
    for file in files[1:]:
        other = header(file)
        if set(other) != set(first):
            odd = sorted(set(first) ^ set(other))[0]
            has, lacks = (files[0], file) if odd in first else (file, files[0])
            raise DataError(f"{lacks}: has no column {odd!r}, which {has.name} has; all files need the same columns.")


def table_names(path: Path) -> list[str]:
    """The names of the columns of a file, or of the files of a folder."""
    return header(_files(path)[0])


def header(file: Path) -> list[str]:
    """The names of a file's columns; no row is read."""
    pa = arrow()
    try:
        if _is_parquet(file):
            names = arrow("pyarrow.parquet").read_schema(file).names
        else:
            with arrow("pyarrow.csv").open_csv(file, parse_options=_parsing(file)) as rows:
                names = rows.schema.names
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _unreadable(file, error) from None
    for mark, spoken in {";": "semicolons", "\t": "tabs", "|": "bars"}.items():
        if len(names) == 1 and mark in names[0]:
            raise DataError(f"{file}: has {spoken} between columns; write commas, or tabs in a file that ends in .tsv.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{file}: column {twice[0]!r} appears twice; rename one.")
    return list(names)


def check_columns(names: Sequence[str], columns: ColumnSettings, *, source: str) -> None:
    """Refuse settings that name a missing column, with the nearest existing one."""
    roles = {"client": columns.client, "target": columns.target, "test_column": columns.test_column}
    roles["time"] = columns.time
    uses = [(role, name) for role, name in (roles | {"group": columns.group}).items() if name is not None]
    uses += [("features", name) for name in columns.features]
    rules: dict[str, Mapping[str, object]] = {
        "categories": columns.vocabulary,
        "scale": columns.ranges,
        "missing": columns.fills,
        "types": columns.kinds,
    }
    uses += [(rule, name) for rule, entries in rules.items() for name in entries]
    for role, name in uses:
        if name not in names:
            alike = [other for other in names if other.strip().lower() == name.strip().lower()]
            near = alike or get_close_matches(name, names, n=1)
            listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            meant = f"did you mean {near[0]!r}?" if near else f"its columns are {listed}."
            raise DataError(f"{source}: {role} = {name!r} is not a column of it; {meant}")


def _files(path: Path) -> list[Path]:
    """The file itself, or the files of a folder, in order of their names."""
    endings = ", ".join(FILE_ENDINGS)
    if not path.exists():
        raise DataError(f"{path}: no such file; give a file that ends in {endings}, or a folder of them.")
    if not path.is_dir():
        if not path.name.lower().endswith(FILE_ENDINGS):
            raise DataError(f"{path}: cannot be read as a table; give a file that ends in {endings}.")
        return [path]
    files = sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
    odd = [file for file in files if file.is_dir() or not file.name.lower().endswith(FILE_ENDINGS)]
    if odd or not files:
        problem = f"holds {odd[0].name}, which is no table" if odd else "is empty"
        raise DataError(f"{path}: {problem}; a folder of data holds files that end in {endings}, and nothing else.")
    return files


def _client_of(file: Path) -> str:
    ending = max((end for end in FILE_ENDINGS if file.name.lower().endswith(end)), key=len)
    return file.name[: len(file.name) - len(ending)]


def _check_names(path: Path, files: list[Path]) -> None:
    seen: dict[str, str] = {}
    for file in files:
        client = _client_of(file)
        if client in seen:
            raise DataError(
                f"{path}: {seen[client]} and {file.name} are both client {client!r}; every client has one file, so "
                "join the two or rename one."
            )
        seen[client] = file.name


def _whole(file: Path, *, only: str | None = None) -> Any:
    table = _read(file, only=only)
    if not len(table):
        raise DataError(f"{file}: holds no rows; every file needs at least one.")
    return table


def _read(file: Path, *, only: str | None = None) -> Any:
    """The rows of one file; every cell of a CSV is text, whatever the cells above and below it are."""
    pa = arrow()
    try:
        if _is_parquet(file):
            return arrow("pyarrow.parquet").read_table(file, columns=None if only is None else [only])
        csv = arrow("pyarrow.csv")
        names = header(file) if only is None else [only]
        convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=names)
        serial = csv.ReadOptions(use_threads=False)  # errors then name the row
        table = csv.read_csv(file, read_options=serial, parse_options=_parsing(file), convert_options=convert)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _unreadable(file, error) from None
    _check_quotes(file, rows=len(table))
    return table


def _check_quotes(file: Path, *, rows: int) -> None:
    """Refuse quotation marks that open or close within a cell: one of them would swallow others' rows."""
    opened = gzip.open if file.name.lower().endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as text:
        lines = reader(text, delimiter=_parsing(file).delimiter, strict=True)
        try:
            whole = sum(1 for cells in lines if cells) == rows + 1
        except CsvError:
            whole = False
        if not whole:
            raise DataError(
                f"{file}: line {lines.line_num} ends a cell with unbalanced quotation marks; double a "
                "quotation mark within a cell ("
                ") and quote the whole cell, as CSV requires."
            )


def is_row_number(name: str) -> bool:
    """Whether a column looks like row numbers written by a program: they change as other clients leave."""
    return re.fullmatch(r"\s*|Unnamed: .*|__index_level_\d+__|level_\d+|index|row[._]?names?", name) is not None


def is_typed(path: Path) -> bool:
    """Whether the columns of a file or folder have types, which a program may have inferred from all rows."""
    return any(_is_parquet(file) for file in _files(path))


def _is_parquet(file: Path) -> bool:
    return file.name.lower().endswith((".parquet", ".pq"))


def _parsing(file: Path) -> Any:
    tabs = file.name.lower().endswith((".tsv", ".tsv.gz"))
    return arrow("pyarrow.csv").ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True)


def _unreadable(file: Path, error: Exception) -> DataError:
    """What is wrong with a file, by row and column; pyarrow's own message would show cells."""
    text = str(error)
    row, column = re.search(r"Row #(\d+)", text), re.search(r"In CSV column #(\d+)", text)
    if file.is_file() and not file.name.lower().endswith((".gz", ".parquet", ".pq")):
        content = file.read_bytes()
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as odd:
            line = content.count(b"\n", 0, odd.start) + 1
            return DataError(
                f"{file}: line {line} is not in UTF-8; save the file as UTF-8 (CSV UTF-8 in spreadsheets)."
            )
        if lines and lines[0].count(";") > lines[0].count(","):
            return DataError(
                f"{file}: has semicolons between columns; write commas, or tabs in a file that ends in .tsv."
            )
    if "Empty CSV file" in text or (file.is_file() and file.stat().st_size == 0):
        return DataError(f"{file}: is empty; give a table with a header and rows.")
    if isinstance(error, PermissionError):
        return DataError(f"{file}: permission to read it was denied; check its permissions.")
    if row is None and re.search(r"Expected \d+ columns, got \d+", text) is not None:
        return DataError(f"{file}: a line has more or fewer cells than the header; give every row the same.")
    if row is not None:
        return DataError(f"{file}: line {row[1]} has more or fewer cells than the header; give every row the same.")
    if column is not None:
        return DataError(f"{file}: column {header(file)[int(column[1])]!r} is not in UTF-8; save the file as UTF-8.")
    return DataError(f"{file}: is damaged or no table; write it again as CSV with a header, or as Parquet.")


def _widened(table: Any) -> Any:
    """The table with 64-bit floats: narrower ones would round integers of other files on joining."""
    pa = arrow()
    narrow = {pa.float16(), pa.float32()}
    schema = pa.schema(
        [pa.field(part.name, pa.float64() if part.type in narrow else part.type) for part in table.schema]
    )
    return table.cast(schema)


def _joined(path: Path, tables: list[Any]) -> Any:
    """The rows of all tables, columns in order of their names; numbers become floats if another file has floats.

    Neither the order of columns in one file nor the width of its floats changes the content of other files.
    """
    pa = arrow()
    tables = [_widened(table.select(sorted(table.column_names))) for table in tables]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        first = tables[0].schema
        odd = next(
            name
            for name in first.names
            if any(not table.schema.field(name).type.equals(first.field(name).type) for table in tables)
        )
        raise DataError(
            f"{path}: column {odd!r} has text in some files and numbers in others; give it one type in all."
        ) from None
