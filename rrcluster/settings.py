"""Every setting, declared once and without torch: type, default, check, help, and effect.

The sections below are those of the command line, the keys of a YAML file (flat: field names are unique across
sections), and the arguments of the code: a plan takes `PrivacySettings`, an engine `LocalSettings`, the server
`ServerSettings`.

Settings of the clients' data: a named dataset, or a user's file and the meaning of its columns.
"""

import csv
import io
import math
import os
import re
from collections.abc import ItemsView, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import tyro

from rrcluster import checks, registry
from rrcluster.errors import ConfigError
from rrcluster.spelling import instant, spelling

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Flag = tyro.conf.arg

# The effect of a setting; by default it affects the result.
PLACE = {"affects": "place"}  # the machine and folder of a run, which no number depends on
DISPLAY = {"affects": "display"}  # the display of a run and its additional files
_BY_COLUMN = {"by_column": True}  # a mapping from columns; on the command line `column=value,value`

USUAL_CLIENTS = 1000
USUAL_TEST_SHARE = 0.3  # default share of a table's rows for testing
FILE_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
OTHER_TABLES = (
    ".xlsx",
    ".xls",
    ".ods",
    ".json",
    ".jsonl",
    ".txt",
    ".feather",
    ".dta",
    ".sav",
    ".sas7bdat",
    ".db",
    ".zip",
)
_PATHS = ("data", "data_folder", "out", "start_from")
KINDS = ("number", "boolean", "text", "date", "list")  # kinds of columns in a typed table
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DATE_PARTS: dict[str, tuple[str, ...]] = {  # vocabulary of each derived column; years are numbers
    "year": (),
    "month": tuple(map(str, range(1, 13))),
    "weekday": _WEEKDAYS,
    "hour": tuple(map(str, range(24))),
}
_count_or_zero = partial(checks.count, at_least=0)


def refuse_other_table(path: str) -> None:
    """Refuse addresses, and files of tables in a format that cannot be read."""
    if "://" in path:
        raise ConfigError(f"{path} is an address; download the file, and give its path.")
    if path.lower().endswith(OTHER_TABLES):
        raise ConfigError(
            f"{path} is neither CSV nor Parquet; save the table as CSV (a spreadsheet: Save as), or "
            "give a data frame in Python."
        )


def names_file(data: str) -> bool:
    """Whether `data` is the path of a file or folder, rather than a dataset's name."""
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
    """The population: its clients and how they differ."""

    data: Annotated[str, Flag(metavar="NAME|FILE")] = "fashion-mini"
    """Dataset, or your own data: a CSV or Parquet file, or a folder with one file per client (with --client-column:
    with parts of one table). `rrcluster data list` shows all datasets; fashion-mini is bundled."""
    partition: Literal["rotation", "rotation-imbalanced", "dirichlet", "role", "label-flip"] = "rotation"
    """How images are divided among simulated clients (shakespeare: by role; synthetic sets: their own groups)."""
    ratio: Annotated[tuple[float, ...], Flag(metavar="SHARE ...")] = ()
    """Relative sizes of simulated groups, such as 8 1 1 1; default: four equal groups (rotation-imbalanced: 2 1 1)."""
    concentration: float = 0.5
    """dirichlet: evenness of a client's labels; small values give a client few classes."""
    num_clients: Annotated[int | None, Flag(name="clients", metavar="INT")] = None
    """Clients in the population (M). Default 1000; for your own data as many as it has. A secure run must be told: a
    declared bound under joint, which any smaller population fits (noise is for as many), the exact number under
    identifier."""
    samples_per_client: int | None = None
    """Every client draws this many images for itself, by formula, instead of being dealt its share of them: for
    populations of any size. Default: dealt; 40 where fashion-mini has more clients in a group than images."""
    max_samples: int | None = None
    """Keep at most this many samples of a client, evenly spaced, for training and for testing; default all."""
    new_clients: float = 0.0
    """Share of the clients of your own data that take no part, to see how the models serve clients they never saw
    (diagnostic)."""
    data_folder: str | None = field(default=None, metadata=PLACE)
    """Folder of the data's files; default: the usual places."""

    def __post_init__(self) -> None:
        refuse_other_table(self.data)
        if self.from_file:
            checks.path(data=self.data)
            self._check_alone()
        elif self.data not in registry.DATASETS and os.path.isdir(self.data):  # noqa: PTH112 (any text)
            raise ConfigError(
                f"data = {self.data!r} is not a dataset; write ./{self.data} for the folder of that name."
            )
        else:
            registry.DATASETS.check(data=self.data)
            if self.table_columns:
                self._check_alone("data_folder")
        checks.each(checks.count, self, "num_clients", "max_samples", "samples_per_client")
        checks.each(checks.positive, self, "concentration")
        for share in self.ratio:
            checks.positive(ratio=share)
        checks.each(checks.path, self, "data_folder")
        if checks.fraction(new_clients=self.new_clients) and not self.whole:
            raise ConfigError(
                f"new_clients = {self.new_clients:g} only applies to data with its own clients; leave it out."
            )

    @property
    def from_file(self) -> bool:
        """Whether the clients come from a file of the user's own."""
        return names_file(self.data)

    @property
    def whole(self) -> bool:
        """Whether the data has its own clients, instead of being divided among simulated ones."""
        return self.from_file or not registry.DATASETS.fact(self.data, "divided", True)

    @property
    def table_columns(self) -> Mapping[str, Any]:
        """Public facts about a named table's columns; empty for other data."""
        return {} if self.from_file else registry.DATASETS.fact(self.data, "columns", {})

    @property
    def population_size(self) -> int:
        """M: the declared number of clients, that of a table that has a name, or the usual one."""
        usual: int = registry.DATASETS.fact(self.data, "num_clients", USUAL_CLIENTS)
        return self.trained(usual) if self.num_clients is None else self.num_clients

    def trained(self, present: int) -> int:
        """The number of clients in training, of those present."""
        return present - round(self.new_clients * present)

    def _check_alone(self, *allowed: str) -> None:
        """Refuse settings that divide a dataset among clients: a table has its own."""
        dividing = ("partition", "ratio", "concentration", "samples_per_client", "data_folder")
        for name in (name for name in dividing if name not in allowed):
            default = next(part.default for part in fields(self) if part.name == name)
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} divides a dataset among clients, but {self.data} has its "
                    f"own clients; leave {name} out."
                )


@dataclass(frozen=True)
class ColumnSettings:
    """The columns of a user's table: declared, never inferred from clients' values."""

    client: Annotated[str | None, Flag(name="client-column", metavar="COLUMN")] = None
    """Column with the client of each row; not needed for a folder with one file per client."""
    target: Annotated[str | None, Flag(name="target-column", metavar="COLUMN")] = None
    """Column to predict: classes, or a number with --regression."""
    features: Annotated[tuple[str, ...], Flag(name="feature-columns", metavar="COLUMN ...")] = ()
    """Columns to predict from; default: all without another role."""
    classes: Annotated[tuple[int | str, ...], Flag(metavar="CLASS ...")] = ()
    """All classes, a public list, or @FILE with one per line. Default: those in the target column, which no guarantee
    covers."""
    regression: bool = False
    """Predict a number, not a class."""
    categories: Annotated[tuple[str, ...], Flag(metavar="COLUMN=VALUE,VALUE ...")] = field(
        default=(), metadata=_BY_COLUMN
    )
    """Public vocabulary of text columns: one input per value, and one for all other values. COLUMN=@FILE reads the
    values from a file, one in a line."""
    scale: Annotated[tuple[str, ...], Flag(metavar="COLUMN=LOW,HIGH ...")] = field(default=(), metadata=_BY_COLUMN)
    """Public range of number columns, mapped to 0..1; other columns are used as they are."""
    missing: Annotated[tuple[str, ...], Flag(metavar="COLUMN=VALUE ...")] = field(default=(), metadata=_BY_COLUMN)
    """Replacement for a column's missing values; without one, a missing value is an error."""
    test_column: Annotated[str | None, Flag(metavar="COLUMN")] = None
    """Column of true and false that marks test rows, which are not trained on."""
    test_share: float | None = None
    """Share of every client's rows to test on: the newest by time_column, or drawn for each client by itself. Default:
    0.3 where cells decide for themselves, else none."""
    time: Annotated[str | None, Flag(name="time-column", metavar="COLUMN")] = None
    """Column that orders a client's rows, a number or an ISO date: the newest become test rows."""
    group: Annotated[str | None, Flag(name="group-column", metavar="COLUMN")] = None
    """Column with the client's true group, where known; used in diagnostics only."""
    types: Annotated[tuple[str, ...], Flag(metavar="COLUMN=KIND ...")] = field(default=(), metadata=_BY_COLUMN)
    """Parquet and data frames: the kind of every column that is not text (number, boolean, date, list). A public
    constant, which a secure run needs; in CSV every cell is text and read by itself. In every table, COLUMN=date
    reads ISO dates as days, and COLUMN=year,month,weekday,hour as these parts of them."""
    encoding: Annotated[Literal["auto", "declared", "cells"], Flag(name="features")] = "auto"
    """auto: cells for mixed-effects, else declared. declared: a column that is not a number needs a rule. cells: every
    cell decides for itself, as a number, as hashed text or as missing, and rules are for what is known beforehand."""

    filled_from_data: Annotated[tuple[str, ...], Flag(metavar="COLUMN ...")] = ()
    """Columns whose rules or classes were taken from the clients' data (`data describe --fill-from-data`): the privacy
    statement lists them as not covered by epsilon."""

    def __post_init__(self) -> None:
        checks.one_of(("auto", "declared", "cells"), encoding=self.encoding)
        if len(self.classes) == 1 and str(self.classes[0]).startswith("@"):
            object.__setattr__(self, "classes", _lines_of("classes", str(self.classes[0])[1:]))
        object.__setattr__(self, "categories", tuple(map(_with_values, self.categories)))
        checks.fraction(test_share=self.test_share or 0.0)
        if self.test_share and self.test_column is not None:
            raise ConfigError(
                f"test_share and test_column = {self.test_column!r} exclude each other; give one of them."
            )
        if len(self.classes) == 1:
            raise ConfigError(
                f"classes = {list(self.classes)} leaves nothing to tell apart; list all classes, or predict another "
                "column (--target-column)."
            )
        if len(set(self.class_names)) < len(self.classes):
            raise ConfigError(f"classes = {list(self.classes)} names a class twice; name each once.")
        if self.classes and self.regression:
            raise ConfigError("classes and regression exclude each other; leave one of them out.")
        roles = [self.client, self.target, self.test_column, self.group, *self.features]
        columns = [name for name in roles if name is not None]
        for name in columns:
            if columns.count(name) > 1:
                raise ConfigError(f"column {name!r} has two roles; give every column one.")
        twice = sorted(self.vocabulary.keys() & self.ranges.keys())
        if twice:
            raise ConfigError(f"column {twice[0]!r} has both categories and scale; give one of them.")
        if self.time in (self.client, self.target, self.group, self.test_column) and self.time is not None:
            raise ConfigError(f"column {self.time!r} has two roles; give every column one.")
        _ = self.fills, self.kinds
        self._check_date_parts()

    def _check_date_parts(self) -> None:
        for column, parts in self.date_parts.items():
            rule = "categories" if column in self.vocabulary else "scale" if column in self.ranges else None
            if rule is not None and (rule, "year" in parts) != ("scale", True):
                raise ConfigError(
                    f"{rule} means nothing for {','.join(parts)} of the dates in {column!r}; leave it out."
                )
            if column in self.fills and instant(self.fills[column]) is None:
                raise ConfigError(
                    f"missing = {column}=... must be a date, as the column is; write {column}=2024-01-31."
                )

    def filled(self, declared: Mapping[str, Any]) -> "ColumnSettings":
        """These settings, with defaults replaced by the declarations of a named table.

        Who predicts another column declares its kind too.
        """
        changed_names = {part.name for part in fields(self) if getattr(self, part.name) != part.default}
        changed_names |= {"classes", "regression"} if changed_names & {"target", "classes", "regression"} else set()
        defaults: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in declared.items()
            if name not in changed_names
        }
        return replace(self, **defaults)

    @property
    def held_out(self) -> float:
        """The share of a client's rows for testing, with all defaults; 0 where a column marks them."""
        if self.test_share is None:
            return USUAL_TEST_SHARE if self.encoding == "cells" and self.test_column is None else 0.0
        return self.test_share

    @property
    def class_names(self) -> tuple[str, ...]:
        """The declared classes as text, in the spelling of cells."""
        return tuple(spelling(value) or "" for value in self.classes)

    @property
    def vocabulary(self) -> dict[str, tuple[str, ...]]:
        """The values of every text column, in the spelling of cells, without duplicates."""
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
        """The replacement of missing values, by column, as text."""
        return _single_values("missing", self.missing)

    @property
    def kinds(self) -> dict[str, str]:
        """The declared kind of every column of a typed table; a column that is not named is text."""
        kinds = {}
        for column, values in _entries("types", self.types):
            parts = DATE_PARTS.keys() >= set(values) and len(set(values)) == len(values)
            if not parts and (len(values) != 1 or values[0] not in KINDS):
                raise ConfigError(
                    f"types = {column}={','.join(values)[:80]} is no kind of column; write one of {', '.join(KINDS)}, "
                    f"or parts of dates: {','.join(DATE_PARTS)}."
                )
            kinds[column] = "date" if parts else values[0]
        return kinds

    @property
    def date_parts(self) -> dict[str, tuple[str, ...]]:
        """The parts that the dates of a column are read as, by column."""
        return {column: values for column, values in _entries("types", self.types) if values[0] in DATE_PARTS}

    def without_dates(self) -> "ColumnSettings":
        """The rules for a table that has a column for each declared part of a date, named `flown month`."""
        parts = self.date_parts
        names = {
            name: [f"{name} {part}" for part in parts[name]] if name in parts else [name] for name in self.features
        }
        derived = [(f"{name} {part}", DATE_PARTS[part]) for name in parts for part in parts[name]]

        def others(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(text for text in texts if text.partition("=")[0] not in parts)

        years = [f"{name} year={low},{high}" for name, (low, high) in self.ranges.items() if name in parts]
        return replace(
            self,
            features=tuple(part for name in self.features for part in names[name]),
            categories=(*self.categories, *(f"{name}={','.join(values)}" for name, values in derived if values)),
            scale=(*others(self.scale), *years),
            missing=others(self.missing),
            types=others(self.types),
        )


COLUMN_RULES = frozenset(part.name for part in fields(ColumnSettings) if part.metadata.get("by_column"))


def spelled(name: str, value: Any) -> Any:
    """A mapping of columns in the form that settings have: {"age": (0, 100)} -> ("age=0,100",); expands ~."""
    if name in _PATHS and isinstance(value, (str, Path)) and str(value).startswith("~"):
        return os.path.expanduser(value)  # noqa: PTH111 (a missing home folder is no error)
    if name not in COLUMN_RULES or not isinstance(value, Mapping):
        return value
    return tuple(f"{column}={_joined(values)}" for column, values in value.items())


def declared_columns(**named: Any) -> ColumnSettings:
    """Column settings from Python values: lists for tuples, mappings for texts, None for omitted ones."""
    texts = {name: spelled(name, value) for name, value in named.items() if value is not None}
    lists = {
        name: (value,) if isinstance(value, str) else tuple(value) for name, value in texts.items() if name in _LISTS
    }
    return ColumnSettings(**(texts | lists))


_LISTS = COLUMN_RULES | {"features", "classes", "filled_from_data"}


def _joined(values: Any) -> str:
    parts = [values] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    text = io.StringIO()
    parts = [str(part).lower() if isinstance(part, bool) else part for part in parts]
    literal = not isinstance(values, str) and str(parts[:1]).startswith("['@")  # a list names values, not a file
    csv.writer(text, quoting=csv.QUOTE_ALL if literal else csv.QUOTE_MINIMAL).writerow(parts)
    return text.getvalue().removesuffix("\r\n")


def _with_values(text: str) -> str:
    """`column=value,value` for `column=@file`; any other text unchanged."""
    column, _, values = str(text).partition("=")
    return f"{column}={_joined(_lines_of('categories', values[1:]))}" if values.startswith("@") else text


def _lines_of(name: str, path: str) -> tuple[str, ...]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{name} = @{path}: no such file in UTF-8; write one value per line.") from None
    return tuple(line.strip() for line in lines if line.strip())


def _single_values(name: str, texts: tuple[str, ...]) -> dict[str, str]:
    entries = dict(_entries(name, texts))
    for column, values in entries.items():
        if len(values) != 1:
            raise ConfigError(f"{name} = {column}={','.join(values)} must name one value; write column=value.")
    return {column: value for column, (value,) in entries.items()}


def _entries(name: str, texts: tuple[str, ...]) -> ItemsView[str, tuple[str, ...]]:
    """The parsed entries `column=value,value`; values with commas are in double quotes."""
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


Section = TypeVar("Section", bound="DataclassInstance")
Participation = Literal["poisson", "schedule", "everybody"]
Identifier = Literal["gaussian", "kary"]
Accountant = Literal["pld", "rdp", "paper"]
Optimizer = Literal["sgd", "adam"]
Init = Literal["auto", "survey", "independent"]
EngineName = Literal["auto", "batched", "reference"]
Precision = Literal["auto", "float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class MethodSettings:
    """The method and its models."""

    algorithm: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.METHODS.hint)] = "auto"
    """Federated method; auto: mixed-effects on a table of your own, else ifca. local (no federation) and oracle (true
    groups given) are reference points."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Models to train (k); methods without clusters always train one."""
    model: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.MODELS.hint)] = "auto"
    """Network; auto: the usual one of the data (edges or edges-coarse on images, lstm on text, else linear), with more
    layers (edges-mlp, mlp) for methods that split off the last one."""
    min_cluster_size: Annotated[int, Flag(name="min-cluster-size", aliases=["-B"])] = 0
    """Rebalance clusters below this size (B): by clients' own coins under joint, exactly otherwise; 0 is the base
    method."""
    personal: bool = True
    """mixed-effects: add each client's random effects to the shared model."""
    size_floor: float | None = None
    """Public lower bound on denominators of cluster means; default 0.6 of the expected cluster size."""

    def __post_init__(self) -> None:
        if self.algorithm != "auto":
            registry.METHODS.check(algorithm=self.algorithm)
        if self.model != "auto":
            registry.MODELS.check(model=self.model)
        checks.each(checks.count, self, "num_clusters")
        checks.each(_count_or_zero, self, "min_cluster_size")
        checks.each(checks.non_negative, self, "size_floor")


@dataclass(frozen=True)
class PrivacySettings:
    """The guarantee: mechanism, sampling, rounds, budget and noise."""

    mechanism: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.MECHANISMS.hint)] = "joint"
    """joint (add-remove, Poisson cohorts), identifier (the paper's; replace-one, cohorts of fixed size) or none."""
    sample_rate: float = 0.1
    """Share of the clients in a round (q); not used with schedule or everybody."""
    participation: Participation = "poisson"
    """joint: participants of a round: a secret sample (poisson), a public slot (schedule), or everybody."""
    slots: int | None = field(
        default=None,
        metadata={"hint": "which client is in which slot follows from slot_key: slots by hand may depend on data"},
    )
    """schedule: number of slots (b); a client takes part once in b rounds, under noise correlated over rounds."""
    slot_key: str = "rrcluster"
    """schedule: public key that hashes clients' ids to slots; fix it before anybody enrols."""
    num_rounds: Annotated[int, Flag(name="rounds")] = 100
    """Rounds (T)."""
    epsilon: float | None = None
    """Target epsilon of the whole run, which determines the noise. Default 4, unless noise_multiplier is given."""
    delta: float | None = None
    """Target delta; at most 1/(10 M) is advised, more than 1/M refused. Default 1e-4; above 10,000 clients the largest
    power of ten that is at most 1/(10 M)."""
    noise_multiplier: float | None = None
    """Noise std divided by sensitivity (of the whole round), instead of epsilon."""
    update_clip: float = 0.4
    """Clip: the largest L2 norm of a client's update (C)."""
    count_weight: float = 0.25
    """joint: weight of the count row, in units of the clip."""
    identifier: Identifier = "gaussian"
    """identifier: privatise choices by Gaussian noise, or by k-ary randomised response."""
    identifier_share: float = 0.5
    """identifier: share of a round's budget spent on choices."""
    accountant: Accountant = "pld"
    """Accountant that calibrates the noise."""
    private_evaluation: float = 0.0
    """joint: release accuracy and loss with every round, at this weight in units of the clip; 0: off, usual: 0.25."""
    evaluation_loss_bound: float = 4.0
    """Private evaluation: clip of a client's loss."""
    secure: bool = False
    """Release for real: exact noise from the operating system, no seed, no diagnostics."""
    reserve_rounds: int = 0
    """Calibrate the noise for this many additional releases, for rounds that a secure run repeats after a crash."""
    max_epsilon: float | None = None
    """End before the round that would exceed this epsilon."""

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        registry.MECHANISMS.check(mechanism=self.mechanism)
        checks.rate(sample_rate=self.sample_rate)
        checks.each(checks.count, self, "num_rounds")
        checks.each(_count_or_zero, self, "reserve_rounds")
        for name in ("num_rounds", "reserve_rounds"):
            if getattr(self, name) > MAX_ROUNDS:
                raise ConfigError(f"{name} = {getattr(self, name)} is more than {MAX_ROUNDS}, the most accounted.")
        checks.one_of(get_args(Participation), participation=self.participation)
        checks.slots(self.participation, self.slots, num_rounds=self.num_rounds, reserve_rounds=self.reserve_rounds)
        checks.one_of(get_args(Identifier), identifier=self.identifier)
        checks.one_of(get_args(Accountant), accountant=self.accountant)
        checks.each(checks.fraction, self, "identifier_share")
        checks.each(checks.non_negative, self, "count_weight", "private_evaluation")
        positive = ("delta", "update_clip", "evaluation_loss_bound", "max_epsilon", "epsilon", "noise_multiplier")
        checks.each(checks.positive, self, *positive)
        if self.max_epsilon is not None and self.mechanism == "none":
            raise ConfigError("mechanism = none has no epsilon, so max_epsilon does not apply; leave it out.")

    @property
    def num_slots(self) -> int:
        """b; 1 where everybody may take part in every round."""
        return self.slots or 1

    @property
    def slot_rate(self) -> float:
        """q': the participation probability of an eligible client."""
        return 1.0 if self.participation in ("schedule", "everybody") else self.sample_rate

    @property
    def cohort_share(self) -> float:
        """Expected share of the clients in a round."""
        return self.slot_rate / self.num_slots

    @property
    def target_epsilon(self) -> float | None:
        """The target epsilon: the given one, else 4; None if the noise is given or there is none."""
        if self.mechanism == "none" or self.noise_multiplier is not None:
            return self.epsilon
        return 4.0 if self.epsilon is None else self.epsilon

    def target_delta(self, num_clients: int) -> float:
        """The delta given, else the default for so many clients."""
        return usual_delta(num_clients) if self.delta is None else self.delta


def usual_delta(num_clients: int) -> float:
    """1e-4; above 10,000 clients the largest power of ten that is at most 1/(10 M)."""
    return 1e-4 if num_clients <= 10_000 else float(f"1e-{len(str(10 * num_clients - 1))}")


MAX_ROUNDS = 1_000_000


@dataclass(frozen=True)
class LocalSettings:
    """A client's local training."""

    local_lr: float = 0.05
    """Learning rate of the clients."""
    local_epochs: int = 5
    """Passes over the client's data per round."""
    batch_size: int = 20
    """Samples per step."""
    proximal: float = 0.0
    """Strength of the pull towards the server's model in fedprox and mr-mtl; 0: the method's default."""
    local_optimizer: Optimizer = "sgd"
    """Optimiser of the clients; its state is fresh in every round."""
    local_momentum: float = 0.0
    """Momentum of the clients' SGD."""

    def __post_init__(self) -> None:
        checks.one_of(get_args(Optimizer), local_optimizer=self.local_optimizer)
        checks.fraction(local_momentum=self.local_momentum)
        if self.local_momentum and self.local_optimizer == "adam":
            raise ConfigError(
                f"local_momentum = {self.local_momentum:g} is for local_optimizer = sgd; adam has its own, set it to 0."
            )
        checks.each(checks.positive, self, "local_lr")
        checks.each(checks.count, self, "local_epochs", "batch_size")
        checks.each(checks.non_negative, self, "proximal")

    @property
    def plain_sgd(self) -> bool:
        """SGD without momentum."""
        return self.local_optimizer == "sgd" and not self.local_momentum


@dataclass(frozen=True)
class ServerSettings:
    """The server's steps and its guidance for clients."""

    server_lr: float = 1.0
    """Step size of the server: a factor on released means."""
    server_momentum: float = 0.0
    """Momentum of the server's step."""
    memory: float = 0.9
    """Decay of the running average of released sizes."""
    exploration: float = 1.0
    """Strength of exploration in early rounds, which separates the clusters; 0: none (better where no groups exist)."""
    average_last: float = 0.5
    """Share of the last rounds whose models are averaged at the end; 0: the last models."""
    init: Init = "auto"
    """First models: one for each group that early rounds find, at most k (survey), or independent random ones. auto:
    survey for ifca with one trained layer and B = 0 where noise leaves enough to find groups, else independent."""
    init_rounds: int | None = None
    """How many of the run's rounds a survey takes; default: as many as the noise asks for: at least 9 and at most 22%
    of the run, but 4 in short runs."""
    start_from: Annotated[str | None, Flag(metavar="RUN")] = None
    """Start from the models of this finished run instead of random ones; the statement adds up the cost of both."""

    def __post_init__(self) -> None:
        checks.each(checks.positive, self, "server_lr")
        checks.each(checks.fraction, self, "server_momentum", "memory")
        checks.each(checks.non_negative, self, "exploration")
        if self.average_last != 1:
            checks.fraction(average_last=self.average_last)
        checks.one_of(get_args(Init), init=self.init)
        checks.each(_count_or_zero, self, "init_rounds")
        checks.each(checks.path, self, "start_from")
        if self.start_from is not None and self.init not in ("auto", "independent"):
            raise ConfigError(f"init = {self.init} and start_from both determine the first models; leave one out.")
        if self.start_from is not None and self.exploration not in (0.0, 1.0):
            raise ConfigError(
                f"exploration = {self.exploration:g} separates models that begin alike, and those of start_from are "
                "apart already; leave it out."
            )


@dataclass(frozen=True)
class FaultSettings:
    """Simulated clients that drop out or send invalid reports; the guarantee is unaffected."""

    dropout: float = 0.0
    """Share of the sampled clients that drop out, without replacement."""
    hostile: float = 0.0
    """Share of the remaining clients that send invalid reports: NaN, huge norms, wrong shapes, duplicates."""

    def __post_init__(self) -> None:
        checks.each(checks.share, self, "dropout", "hostile")


@dataclass(frozen=True)
class OutputSettings:
    """Seeds, machine and output."""

    name: str | None = field(default=None, metadata=PLACE)
    """Name of the run; default: method and budget."""
    seed: int | None = 0
    """Seed of all randomness; not allowed with --secure."""
    seeds: tuple[int, ...] = field(default=(), metadata=PLACE)
    """Several seeds: one run each, in folders seed-N."""
    out: Path | None = field(default=None, metadata=PLACE)
    """Run folder; default runs/<name>."""
    device: str = field(default="auto", metadata=PLACE)
    """auto, cpu or cuda."""
    engine: EngineName = field(default="auto", metadata=PLACE)
    """Program that computes clients; all engines give the same numbers."""
    processes: int | None = field(default=None, metadata=PLACE)
    """Number of processes that compute clients; results do not depend on it. Default: one per core in longer runs."""
    capacity: int | None = None
    """Limit on clients trained together (bounds memory, never changes results); default: chosen for the model."""
    precision: Precision = "auto"
    """CUDA: precision of matrix products; auto: tf32."""
    evaluate_every: int | None = field(default=None, metadata=DISPLAY)
    """Rounds between diagnostic evaluations; default: ten evaluations per run."""
    references: bool = field(default=True, metadata=DISPLAY)
    """Rehearsals on your own data: finally train one model for all, and personalise it, for comparison."""
    personalise: bool = field(default=False, metadata=DISPLAY)
    """Finally measure the models that clients get by fitting the released one to their own data (diagnostic)."""
    tensorboard: bool = field(default=False, metadata=DISPLAY)
    """Also write TensorBoard events (diagnostics are tagged as such)."""
    keep_checkpoint: bool = field(default=False, metadata=DISPLAY)
    """Keep checkpoint/ after the run has finished."""

    def __post_init__(self) -> None:
        checks.each(checks.file_name, self, "name")
        checks.each(checks.path, self, "out")
        checks.each(_count_or_zero, self, "seed")
        for seed in self.seeds:
            checks.count(seeds=seed, at_least=0)
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds = {list(self.seeds)} names a seed twice; name each once.")
        checks.each(checks.count, self, "evaluate_every", "capacity", "processes")


SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "columns": ColumnSettings,
    "method": MethodSettings,
    "privacy": PrivacySettings,
    "local": LocalSettings,
    "server": ServerSettings,
    "faults": FaultSettings,
    "output": OutputSettings,
}
FIELDS: dict[str, str] = {
    setting.name: section for section, kind in SECTIONS.items() for setting in fields(kind)
}  # setting -> section
AFFECTS: dict[str, str] = {
    setting.name: setting.metadata.get("affects", "result") for kind in SECTIONS.values() for setting in fields(kind)
}  # setting -> "result", "place" or "display"

# Removed settings, and their replacement.
REMOVED: dict[str, str] = {
    "rebalance": "small clusters are helped by coins under joint and exactly otherwise; set min_cluster_size alone",
    "sampling": "every mechanism has its own sampling; choose the mechanism",
    "adjacency": "every mechanism has its own neighbouring relation; choose the mechanism",
    "public_score": "a selection scores runs by private_evaluation, inside its budget",
    "correlation": "a schedule correlates its noise by the square root, than which nothing was better",
    "identifier_loss_bound": "identifiers read the choice alone; use identifier = gaussian or kary",
}


# Removed values of settings, and their replacement.
_SURVEY = "use init = survey, which finds the groups first, or init = independent"
REMOVED_VALUES: dict[str, dict[str, str]] = {
    "init": {"warm": _SURVEY, "kmeans++": _SURVEY},
    "participation": {"within-slot": "use schedule, which needs no secret, or poisson, which has less noise"},
    "engine": {"workers": "clients are computed in several processes by themselves (processes = N), by any engine"},
}


def refuse_removed(name: str, value: object = None, *, source: str = "") -> None:
    """ConfigError for a removed setting or value, which names the replacement."""
    where = f"{source}: " if source else ""
    if name in REMOVED:
        raise ConfigError(f"{where}setting {name!r} is gone: {REMOVED[name]}.")
    if isinstance(value, str) and value in REMOVED_VALUES.get(name, {}):
        raise ConfigError(f"{where}{name} = {value} is gone: {REMOVED_VALUES[name][value]}.")


def changed(section: Section, changes: Mapping[str, Any]) -> Section:
    """A section with some settings changed; ConfigError for unknown names."""
    names = [setting.name for setting in fields(section)]
    for name in changes:
        refuse_removed(name, changes[name])
        if name not in names:
            near = get_close_matches(name, names, n=1)
            way_out = f"did you mean {near[0]!r}?" if near else f"use {', '.join(names)}."
            raise ConfigError(f"setting {name!r} is not known; {way_out}")
    return replace(section, **changes)


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a run folder of an earlier version, without removed ones."""
    removed = {
        name
        for name, value in settings.items()
        if name in REMOVED or (isinstance(value, str) and value in REMOVED_VALUES.get(name, ()))
    }
    refuse_files(settings)
    return {name: value for name, value in settings.items() if name not in removed}


def refuse_files(settings: Mapping[str, Any]) -> None:
    """Refuse a received list of columns that would read a file here: files of runs contain values only."""
    texts = [spelled(name, settings.get(name)) for name in ("classes", "categories")]
    classes, categories = (list(value) if isinstance(value, (list, tuple)) else [value] for value in texts)
    files = [str(text) for text in classes if len(classes) == 1] + [str(text).partition("=")[2] for text in categories]
    if any(text.startswith("@") for text in files):
        raise ConfigError("classes or categories name a file (@FILE); a run folder or agreement has their values.")
