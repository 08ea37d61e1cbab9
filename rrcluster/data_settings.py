"""Settings of the clients' data: a dataset by name, or a file of one's own and what its columns mean."""

import csv
import io
import math
import os
import re
from collections.abc import ItemsView, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Annotated, Any, Literal

import tyro

from rrcluster import checks, registry
from rrcluster.errors import ConfigError
from rrcluster.spelling import spelling

Flag = tyro.conf.arg

# What a setting affects beside the result itself; the default is the result.
PLACE = {"affects": "place"}  # where, and on which machine, a run is made: no number depends on it
DISPLAY = {"affects": "display"}  # how closely a run is watched and what is written beside it
_BY_COLUMN = {"by_column": True}  # a mapping from columns; on the command line `column=value,value`

USUAL_CLIENTS = 1000
FILE_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
KINDS = ("number", "boolean", "text", "date", "list")  # of the columns of a typed table


def names_file(data: str) -> bool:
    """Whether `data` is the path of a file, or of a folder of files, and not the name of a dataset."""
    return data.lower().endswith(FILE_ENDINGS) or "/" in data or "\\" in data


def data_label(data: str) -> str:
    """The name of a dataset, or that of a file without its folder and ending."""
    if not names_file(data):
        return data
    name = PurePath(data.replace("\\", "/")).name
    ending = max((end for end in FILE_ENDINGS if name.lower().endswith(end)), key=len, default="")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name[: len(name) - len(ending)]).strip(".-")[:80] or "data"


@dataclass(frozen=True)
class DataSettings:
    """The population: who the clients are and how they differ."""

    data: Annotated[str, Flag(metavar="NAME|FILE")] = "fashion-mini"
    """Dataset, or your own data: a CSV or Parquet file, or a folder with one file per client (with --client-column:
    with parts of one table). `rrcluster data list` names all datasets; fashion-mini comes with the package."""
    partition: Literal["rotation", "rotation-imbalanced", "dirichlet", "role", "label-flip"] = "rotation"
    """How clients differ (shakespeare is by role; the synthetic sets draw their own groups)."""
    ratio: Annotated[tuple[float, ...], Flag(metavar="SHARE ...")] = ()
    """Simulated groups: one share for each, such as 8 1 1 1; default: four groups, equal but in rotation-imbalanced."""
    concentration: float = 0.5
    """dirichlet: how even a client's labels are; small values give it few classes."""
    num_clients: Annotated[int | None, Flag(name="clients", metavar="INT")] = None
    """Clients in the population (M). Default 1000; for your own data as many as it has. A secure run must be told: a
    declared bound under joint, which any smaller population fits (noise is for as many), the exact number under
    identifier."""
    samples_per_client: int | None = None
    """Every client draws this many images for itself, by formula, instead of being dealt its share of them: for
    populations of any size. Default: dealt; 40 where fashion-mini has more clients in a group than images."""
    max_samples: int | None = None
    """Most samples of a client, for training and for testing, taken at equal distances; default all."""
    data_folder: str | None = field(default=None, metadata=PLACE)
    """Where the files of `data` are; default: the usual places."""

    def __post_init__(self) -> None:
        if self.from_file:
            checks.path(data=self.data)
            self._check_alone()
        elif self.data not in registry.DATASETS and os.path.isdir(self.data):  # noqa: PTH112 (any text)
            raise ConfigError(
                f"data = {self.data!r} is not a dataset; write ./{self.data} for the folder of that name."
            )
        else:
            registry.DATASETS.check(data=self.data)
        if self.num_clients is not None:
            checks.count(num_clients=self.num_clients)
        if self.max_samples is not None:
            checks.count(max_samples=self.max_samples)
        checks.positive(concentration=self.concentration)
        for share in self.ratio:
            checks.positive(ratio=share)
        if self.samples_per_client is not None:
            checks.count(samples_per_client=self.samples_per_client)
        if self.data_folder is not None:
            checks.path(data_folder=self.data_folder)

    @property
    def from_file(self) -> bool:
        """Whether the clients come from a file of the user's own."""
        return names_file(self.data)

    @property
    def whole(self) -> bool:
        """Whether the data has clients of its own, and is not divided among simulated ones."""
        return self.from_file or not registry.DATASETS.fact(self.data, "divided", True)

    @property
    def population_size(self) -> int:
        """M, the declared number of clients, or the usual one."""
        return USUAL_CLIENTS if self.num_clients is None else self.num_clients

    def _check_alone(self) -> None:
        """Refuse settings that divide a dataset among clients: a file has clients of its own."""
        for name in ("partition", "ratio", "concentration", "samples_per_client", "data_folder"):
            default = next(part.default for part in fields(self) if part.name == name)
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} divides a dataset among clients, and {self.data} has clients of "
                    f"its own; leave {name} out."
                )


@dataclass(frozen=True)
class ColumnSettings:
    """Your own data: what its columns mean. Declared, never fitted to the clients' values."""

    client: Annotated[str | None, Flag(name="client-column", metavar="COLUMN")] = None
    """Column that names the client of a row; a folder of one file per client needs none."""
    target: Annotated[str | None, Flag(name="target-column", metavar="COLUMN")] = None
    """Column to predict: classes, or a number with --regression."""
    features: Annotated[tuple[str, ...], Flag(name="feature-columns", metavar="COLUMN ...")] = ()
    """Columns to predict it from; default: all that have no other role."""
    classes: Annotated[tuple[int | str, ...], Flag(metavar="CLASS ...")] = ()
    """All classes, a public list. Default: those in the target column, which no guarantee covers."""
    regression: bool = False
    """Predict a number, not a class."""
    categories: Annotated[tuple[str, ...], Flag(metavar="COLUMN=VALUE,VALUE ...")] = field(
        default=(), metadata=_BY_COLUMN
    )
    """Public vocabulary of text columns: one input per value, and one for all other values."""
    scale: Annotated[tuple[str, ...], Flag(metavar="COLUMN=LOW,HIGH ...")] = field(default=(), metadata=_BY_COLUMN)
    """Public range of number columns, mapped to 0..1; other columns are used as they are."""
    missing: Annotated[tuple[str, ...], Flag(metavar="COLUMN=VALUE ...")] = field(default=(), metadata=_BY_COLUMN)
    """What a missing value of a column stands for; without it, a missing value is an error."""
    test_column: Annotated[str | None, Flag(metavar="COLUMN")] = None
    """True or false: rows to test on, not trained on."""
    test_share: float = 0.0
    """Share of every client's rows to test on, drawn for each client by itself."""
    group: Annotated[str | None, Flag(name="group-column", metavar="COLUMN")] = None
    """True group of the client, where known: for diagnostics alone."""
    types: Annotated[tuple[str, ...], Flag(metavar="COLUMN=KIND ...")] = field(default=(), metadata=_BY_COLUMN)
    """Parquet and data frames: the kind of every column that is not text (number, boolean, date, list). A public
    constant, which a secure run needs; in CSV every cell is text and read by itself."""

    def __post_init__(self) -> None:
        checks.fraction(test_share=self.test_share)
        if self.test_share and self.test_column is not None:
            raise ConfigError(
                f"test_share and test_column = {self.test_column!r} exclude each other; give one of them."
            )
        if len(self.classes) == 1:
            raise ConfigError(f"classes = {list(self.classes)} leaves nothing to tell apart; list all classes.")
        if len(set(self.class_names)) < len(self.classes):
            raise ConfigError(f"classes = {list(self.classes)} names a class twice; name each once.")
        if self.classes and self.regression:
            raise ConfigError("classes and regression exclude each other; leave one of them out.")
        roles = [self.client, self.target, self.test_column, self.group, *self.features]
        named = [name for name in roles if name is not None]
        for name in named:
            if named.count(name) > 1:
                raise ConfigError(f"column {name!r} has two roles; give every column one.")
        both = sorted(self.vocabulary.keys() & self.ranges.keys())
        if both:
            raise ConfigError(f"column {both[0]!r} has both categories and scale; give one of them.")
        _ = self.fills, self.kinds

    @property
    def class_names(self) -> tuple[str, ...]:
        """The declared classes as text, spelled as a table's cells are."""
        return tuple(spelling(value) or "" for value in self.classes)

    @property
    def vocabulary(self) -> dict[str, tuple[str, ...]]:
        """The values of every text column, spelled as a table's cells are, none twice."""
        entries = {column: tuple(map(spelling, values)) for column, values in _entries("categories", self.categories)}
        for column, values in entries.items():
            if len(set(values)) < len(values) or "" in values:
                raise ConfigError(f"categories of {column!r} have an empty value or one twice; name each value once.")
        return {column: tuple(map(str, values)) for column, values in entries.items()}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The range of every scaled column."""
        return {column: _range(column, values) for column, values in _entries("scale", self.scale)}

    @property
    def fills(self) -> dict[str, str]:
        """What a missing value stands for, by column, as text."""
        return _single_values("missing", self.missing)

    @property
    def kinds(self) -> dict[str, str]:
        """The declared kind of every column of a typed table; a column that is not named is text."""
        kinds = _single_values("types", self.types)
        for column, kind in kinds.items():
            if kind not in KINDS:
                raise ConfigError(
                    f"types = {column}={kind[:80]} is no kind of column; write one of {', '.join(KINDS)}."
                )
        return kinds


COLUMN_RULES = frozenset(part.name for part in fields(ColumnSettings) if part.metadata.get("by_column"))


def spelled(name: str, value: Any) -> Any:
    """A mapping from columns as the texts that settings hold: {"age": (0, 100)} -> ("age=0,100",)."""
    if name not in COLUMN_RULES or not isinstance(value, Mapping):
        return value
    return tuple(f"{column}={_joined(values)}" for column, values in value.items())


def declared_columns(**named: Any) -> ColumnSettings:
    """The settings of columns as Python gives them: lists for tuples, mappings for texts, None for what is left out."""
    given = {name: spelled(name, value) for name, value in named.items() if value is not None}
    lists = {
        name: (value,) if isinstance(value, str) else tuple(value) for name, value in given.items() if name in _LISTS
    }
    return ColumnSettings(**(given | lists))


_LISTS = COLUMN_RULES | {"features", "classes"}


def _joined(values: Any) -> str:
    parts = [values] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    text = io.StringIO()
    csv.writer(text).writerow([str(part).lower() if isinstance(part, bool) else part for part in parts])
    return text.getvalue().removesuffix("\r\n")


def _single_values(name: str, texts: tuple[str, ...]) -> dict[str, str]:
    entries = dict(_entries(name, texts))
    for column, values in entries.items():
        if len(values) != 1:
            raise ConfigError(f"{name} = {column}={','.join(values)} must name one value; write column=value.")
    return {column: value for column, (value,) in entries.items()}


def _entries(name: str, texts: tuple[str, ...]) -> ItemsView[str, tuple[str, ...]]:
    """`column=value,value` apart; values with commas are in double quotes."""
    entries: dict[str, tuple[str, ...]] = {}
    for text in texts:
        column, equals, values = str(text).partition("=")
        if not column or not equals or not values:
            raise ConfigError(f"{name} = {str(text)[:80]!r} must be written column=value,value.")
        if column in entries:
            raise ConfigError(f"{name} names the column {column!r} twice; name it once, with all its values.")
        entries[column] = tuple(next(csv.reader(io.StringIO(values, newline=""))))
    return entries.items()


def _range(column: str, values: tuple[str, ...]) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in values)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"scale = {column}={','.join(values)[:80]} must be two numbers, the lower first: column=0,100."
        )
    return low, high
