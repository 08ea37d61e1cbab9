"""All settings of a run, from flags or a flat mapping (declared in settings.py), and back.

A value from a YAML file is checked against its setting's declared type (`coerce`).
"""

import contextlib
import itertools
import reprlib
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rrcluster import registry
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.settings import (
    FIELDS,
    SECTIONS,
    USUAL_TEST_SHARE,
    ColumnSettings,
    DataSettings,
    FaultSettings,
    LocalSettings,
    MethodSettings,
    OutputSettings,
    PrivacySettings,
    ServerSettings,
    data_label,
    refuse_removed,
    spelled,
    without_removed,
)
from rrcluster.storage import explain_write, make_folders, read_mapping, replace_file, sync_folder

if TYPE_CHECKING:
    from rrcluster.privacy.plan import PrivacyPlan


CONFIG = "config.yaml"  # in a run folder


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run, or of several that differ in the seed."""

    data: DataSettings = field(default_factory=DataSettings)
    columns: ColumnSettings = field(default_factory=ColumnSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        output = self.output
        if not self.privacy.secure:
            if output.seed is None:
                raise ConfigError("seed must be a whole number; only secure = true runs without one.")
            return
        if output.seed or output.seeds:
            raise ConfigError("secure draws from the operating system and takes no seed; leave seed and seeds out.")
        if output.tensorboard:
            raise ConfigError(
                "secure writes no TensorBoard events: they carry the time of every round, which depends on who took "
                "part; leave tensorboard out."
            )
        on_raw_data = {
            "new_clients": self.data.new_clients,
            "personalise": output.personalise,
            "evaluate_every": output.evaluate_every,
        }
        for name in (name for name, value in on_raw_data.items() if value):
            raise ConfigError(
                f"{name} evaluates models on raw client data, which a secure run does not allow; leave it "
                "out, or rehearse without secure. Clients may still personalise released models: "
                "rr.personalise."
            )

    @property
    def seed(self) -> int | None:
        """The seed of all randomness; None for a secure run (the default 0 is ignored)."""
        return None if self.privacy.secure else self.output.seed

    @property
    def label(self) -> str:
        """The run's name: the given one, or method and budget."""
        if self.output.name:
            return self.output.name
        method, privacy = self.method, self.privacy
        size = f"-B{method.min_cluster_size}" if method.min_cluster_size else ""
        budget = "" if privacy.target_epsilon is None else f"-eps{privacy.target_epsilon:g}"
        noise = "" if privacy.noise_multiplier is None else f"-noise{privacy.noise_multiplier:g}"
        return f"{data_label(self.data.data)}-{self.algorithm}-{privacy.mechanism}{size}{budget}{noise}"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.output.out or Path("runs") / self.label

    def resolved(self) -> "RunConfig":
        """Resolve `model = auto` and the number of clients, so that config.yaml does not depend on future defaults.

        The clients of a file are counted here, unless their number was declared. A method with client memory is
        replaced by its memoryless form where the mechanism does not cover memory.
        """
        columns = self.columns
        if columns.encoding == "auto" and (self.data.from_file or self.data.table_columns):
            reads = registry.METHODS.fact(self.algorithm, "reads_cells", False)
            columns = replace(columns, encoding="cells" if reads else "declared")
        return replace(self, method=replace(self.method, algorithm=self.algorithm), columns=columns)._resolved()

    @property
    def algorithm(self) -> str:
        """The method: the named one; else mixed-effects on a user's table, unless other settings need ifca."""
        method, privacy, server = self.method, self.privacy, self.server
        if method.algorithm != "auto":
            return method.algorithm
        table = self.data.from_file or self.data.table_columns or registry.DATASETS.fact(self.data.data, "cells", False)
        other = (
            self.columns.encoding == "declared"
            or method.model not in ("auto", "table-linear")
            or method.min_cluster_size
            or privacy.mechanism != "joint"
            or privacy.participation == "schedule"
            or privacy.private_evaluation
            or server.init != "auto"
            or server.start_from
            or self.local != LocalSettings()
        )
        return "mixed-effects" if table and not other else "ifca"

    def _resolved(self) -> "RunConfig":
        self._check_columns()
        data, method, privacy = self.data, self.method, self.privacy
        if data.num_clients is None:
            counted = data.trained(self._counted()) if data.from_file else data.population_size
            data = replace(data, num_clients=counted)
        if method.model == "auto":
            usual = registry.DATASETS.fact(data.data, "usual_model", "linear")
            model = registry.METHODS.fact(method.algorithm, "usual_model", usual)
            if registry.METHODS.fact(method.algorithm, "splits_network", False):
                model = registry.MODELS.fact(model, "deeper", model)
            method = replace(method, model=model)
        memoryless = registry.METHODS.fact(method.algorithm, "memoryless")
        if memoryless and not registry.MECHANISMS.load(self.privacy.mechanism).covers_memory:
            method = replace(method, algorithm=memoryless)
        if registry.METHODS.fact(method.algorithm, "reads_cells", False):
            again = self.server.start_from is not None
            privacy = for_questions(privacy, data.population_size, num_rounds=_ROUNDS_AGAIN if again else _ROUNDS)
        privacy = replace(privacy, delta=privacy.target_delta(data.population_size))
        server = self.server if self.server.start_from is None else replace(self.server, exploration=0.0)
        return replace(self, data=data, columns=self._columns(), method=method, privacy=privacy, server=server)

    def _columns(self) -> ColumnSettings:
        """The columns of a table, with a named table's declarations, and the test share.

        A secure run tests nothing on raw data, so by default it trains on all rows.
        """
        declared, columns = self.data.table_columns, self.columns
        if not declared and not self.data.from_file:
            return columns
        if declared:
            columns = columns.filled(declared)
        if columns.test_share is None and columns.test_column is None:
            share = 0.0 if self.privacy.secure else USUAL_TEST_SHARE if declared else columns.held_out
            columns = replace(columns, test_share=share)
        return columns

    def _check_columns(self) -> None:
        """Refuse columns without a file, a file without columns, and undeclared public constants in a secure run."""
        data, columns = self.data, self.columns
        if data.table_columns:
            return
        if not data.from_file and columns != ColumnSettings():
            name = next(part.name for part in fields(columns) if getattr(columns, part.name) != part.default)
            raise ConfigError(
                f"{name} is about a column of your own data, and data = {data.data} is a dataset; give --data FILE."
            )
        if not data.from_file:
            return
        if columns.target is None:
            raise ConfigError(f"data = {data.data} needs the column to predict; give --target-column (target=).")
        if not self.privacy.secure:
            return
        if data.num_clients is None:
            raise ConfigError(
                f"a secure run on data = {data.data} needs --clients (num_clients=), a public bound that you declare "
                "(at least as many as there are); counted from the data it would tell how many clients there are."
            )
        if not columns.classes and not columns.regression:
            raise ConfigError(
                f"a secure run on data = {data.data} needs --classes (classes=), a public list that you declare; read "
                "from the data it would tell which labels there are."
            )

    def _counted(self) -> int:
        from rrcluster.data.table_files import count_clients

        return count_clients(Path(self.data.data), self.columns)

    def plan(self, num_clusters: int) -> "PrivacyPlan":
        """The privacy plan of a method with so many clusters, for reports of one coordinate.

        Cost and noise are those of reports of any shape (`PrivacyPlan.with_coordinates`).
        """
        from rrcluster.privacy.plan import PrivacyPlan
        from rrcluster.types import Coordinates

        return PrivacyPlan.build(
            replace(self.privacy, epsilon=self.privacy.target_epsilon),
            coordinates=Coordinates(0, 1),
            num_clients=self.data.population_size,
            num_clusters=num_clusters,
            min_cluster_size=self.method.min_cluster_size,
            size_floor=self.method.size_floor,
            server=self.server,
        )

    def with_seed(self, seed: int, out: Path) -> "RunConfig":
        """This config for one seed alone, written to `out`."""
        return replace(self, output=replace(self.output, seed=seed, seeds=(), out=out, name=self.label))

    def flat(self) -> dict[str, Any]:
        """All settings as one flat mapping, paths and tuples as plain YAML values."""
        merged: dict[str, Any] = {}
        for section in fields(self):
            merged.update(asdict(getattr(self, section.name)))
        divided = {"partition", "concentration", "samples_per_client", "data_folder"}
        left_out = divided if self.data.whole else {"new_clients", *(["references"] if self.output.references else [])}
        if not registry.METHODS.fact(self.algorithm, "reads_cells", False):
            left_out.add("personal")
        described = self.data.from_file or self.data.table_columns  # by its columns
        merged = {
            name: value
            for name, value in merged.items()
            if name not in left_out and (described or FIELDS[name] != "columns")
        }
        merged |= {name: list(value) for name, value in merged.items() if isinstance(value, tuple)}
        merged["out"] = None if self.output.out is None else str(self.output.out)
        merged["seed"] = self.seed
        return merged


_MOST_ANSWERING = 20_000  # clients in a round of a questionnaire
_ROUNDS, _ROUNDS_AGAIN = 40, 20  # rounds of a questionnaire, and of one that starts from another run's models


def for_questions(privacy: PrivacySettings, num_clients: int, *, num_rounds: int = _ROUNDS) -> PrivacySettings:
    """The settings of a questionnaire: everybody takes part (a Poisson sample of many clients); messages have length 1.

    Settings changed from the defaults of other methods stay.
    """
    usual = PrivacySettings()
    if privacy.update_clip not in (usual.update_clip, 1.0):
        raise ConfigError(
            f"update_clip = {privacy.update_clip:g}, and answers to questions are cut to length 1; leave it out."
        )
    privacy = replace(privacy, update_clip=1.0)
    sampled = num_clients > _MOST_ANSWERING
    if (privacy.participation, privacy.sample_rate) == (usual.participation, usual.sample_rate):
        if sampled or privacy.mechanism == "none":  # which draws cohorts by itself
            privacy = replace(privacy, sample_rate=min(1.0, _MOST_ANSWERING / num_clients))
        else:
            privacy = replace(privacy, participation="everybody")
    if privacy.num_rounds == usual.num_rounds and not sampled:
        privacy = replace(privacy, num_rounds=num_rounds)
    return privacy


def from_flat(settings: dict[str, Any], *, source: str = "config", resolved: bool = True) -> RunConfig:
    """A config from a flat mapping, every name and type checked; `source` names the file in errors.

    `resolved=False` is for callers that change it further.
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in settings.items():
        refuse_removed(name, value, source=source)
        if name not in FIELDS:
            raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")
        sections[FIELDS[name]][name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    config = RunConfig(**{name: SECTIONS[name](**values) for name, values in sections.items()})
    return config.resolved() if resolved else config


_ALSO_CALLED = {  # common spelling -> setting
    "k": "num_clusters",
    "clusters": "num_clusters",
    "n_clusters": "num_clusters",
    "b": "min_cluster_size",
    "m": "num_clients",
    "clients": "num_clients",
    "rounds": "num_rounds",
    "t": "num_rounds",
    "eps": "epsilon",
    "lr": "local_lr",
    "epochs": "local_epochs",
    "method": "algorithm",
    "sigma": "noise_multiplier",
    "random_state": "seed",
    **dict.fromkeys(("client_column", "client_id", "user", "groups"), "client"),
    **dict.fromkeys(("target_column", "label", "label_column", "y"), "target"),
    **dict.fromkeys(("feature_columns", "columns"), "features"),
    **{f"{name}_column": name for name in ("time", "group")},
}


def closest(name: str) -> str:
    """The known setting closest to an unknown name."""
    if name.lower() in _ALSO_CALLED:
        return f"write {_ALSO_CALLED[name.lower()]!r}."
    near = get_close_matches(name, FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else "see `rrcluster run --help-all` for all settings."


def takes_list(name: str) -> bool:
    """Whether one value of the setting is already a list (or mapping)."""
    hint = get_type_hints(SECTIONS[FIELDS[name]], include_extras=False)[name]
    return get_origin(hint) is tuple


def coerce(section: type, name: str, value: Any, *, source: str) -> Any:
    """`value` as the declared type of `section.name`; ConfigError naming both where it does not fit."""
    hint = get_type_hints(section, include_extras=False)[name]
    try:
        return _as(hint, spelled(name, value))
    except (TypeError, ValueError, OverflowError):
        declared = next(setting for setting in fields(section) if setting.name == name)
        why = f"; {declared.metadata['hint']}" if "hint" in declared.metadata else ""
        raise ConfigError(f"{source}: {name} = {_shortened(value)} should be {_spell(hint)}{why}.") from None


def _as(hint: Any, value: Any) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _as(options[0], value)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        return _as_one_of([option for option in options if option is not type(None)], value)
    if origin is Literal:
        return _checked(value, value in options)
    if origin is tuple:
        return tuple(_as(options[0], item) for item in _checked(value, isinstance(value, (list, tuple))))
    if hint is Path:
        return Path(_checked(value, isinstance(value, (str, Path))))
    if hint is str and isinstance(value, Path):
        return str(value) if value.suffix or len(value.parts) > 1 else f"./{value}"  # datasets have a plain name
    if hint is float:
        return float(_checked(_number(value), isinstance(_number(value), (int, float)) and not isinstance(value, bool)))
    if hint is int:
        return _checked(value, isinstance(value, int) and not isinstance(value, bool))
    return _checked(value, isinstance(value, hint))


def _as_one_of(options: list[Any], value: Any) -> Any:
    """The first option that fits; the last one's error if none does."""
    for option in options[:-1]:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _as(option, value)
    return _as(options[-1], value)


def _number(value: Any) -> Any:
    """YAML reads 1e-4 (no dot) as a string; convert it to a number."""
    return float(value) if isinstance(value, str) else value


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise TypeError
    return value


def _shortened(value: Any) -> str:
    """The value as typed, truncated for an error message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of too many digits
        return "a very large number"


def _spell(hint: Any) -> str:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join("empty" if option is type(None) else _spell(option) for option in options)
    if origin is Literal:
        return "one of " + ", ".join(map(str, options))
    if origin is tuple:
        return f"a list of {_spell(options[0])}s"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}.get(hint, str(hint))


def read_settings(run: Path) -> dict[str, Any]:
    """The settings of the run in a folder, without those of earlier versions that are gone."""
    if not (run / CONFIG).exists():
        raise RunFolderError(f"{run}: no run here (no {CONFIG}); start one with `rrcluster run`, or give its folder.")
    return without_removed(read_mapping(run / CONFIG))


def refuse_a_second_run(path: Path) -> None:
    """Refuse a folder that already contains a run."""
    try:
        if path.is_file():
            raise RunFolderError(f"{path} is a file, but a run needs a folder; choose one with --out.")
        if not (path / CONFIG).exists():
            return
    except OSError:  # creating the folder reports it
        return
    finished = (path / "models.safetensors").exists()
    way_out = f"`rrcluster report {path}` shows it" if finished else f"continue it with `rrcluster run --resume {path}`"
    raise RunFolderError(
        f"{path} already holds a run; {way_out}, or choose another folder with --out (out= in Python)."
    )


def new_folder(config: RunConfig) -> Path:
    """The folder of a new run: the requested one, or the first free one of runs/<label>, runs/<label>-2, ...

    A default folder is created here, so that two simultaneous runs get different ones.
    """
    if _named(config):
        return config.folder
    for path in _numbered(config):
        try:
            make_folders(path.parent)
            path.mkdir()
            sync_folder(path.parent)
        except FileExistsError:
            continue
        except OSError:  # creating the run reports it
            pass
        return path
    raise AssertionError  # there is always another number


def seeds_folder(config: RunConfig) -> Path:
    """The folder for the runs of several seeds: the requested one, or the first default without other settings.

    The same command thus finds its earlier runs.
    """
    if _named(config):
        refuse_a_second_run(config.folder)
        return config.folder
    return next(path for path in _numbered(config) if not path.exists() or _same_runs(config, path))


def _same_runs(config: RunConfig, path: Path) -> bool:
    runs = [path / f"seed-{seed}" for seed in config.output.seeds]
    if (path / CONFIG).exists() or not any(run.exists() for run in runs):
        return False
    existing = [(seed, run) for seed, run in zip(config.output.seeds, runs, strict=True) if (run / CONFIG).exists()]
    return all(from_flat(read_settings(run)) == config.with_seed(seed, run).resolved() for seed, run in existing)


def _named(config: RunConfig) -> bool:
    return config.output.out is not None or config.output.name is not None


def _numbered(config: RunConfig) -> Iterator[Path]:
    first = config.folder
    yield first
    yield from (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))


def write_private(path: str | Path, content: str | bytes) -> Path:
    """Write a table of who is in which cluster: readable by its owner alone, and not into a run folder."""
    target = Path(path)
    check_outside_runs(target)
    with explain_write(target):
        replace_file(target, content, mode=0o600)
    return target


def check_outside_runs(path: Path) -> None:
    """Refuse a file inside a run folder, links resolved."""
    for folder in path.resolve().parents:
        if (folder / "privacy.json").exists() and (folder / CONFIG).exists():
            raise PrivacyError(
                f"{path} lies inside the run folder {folder}. Who is in which cluster is private, and a run folder is "
                "made to be passed on; write the table somewhere else."
            )
