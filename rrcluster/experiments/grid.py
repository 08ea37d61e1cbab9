"""A grid of settings, in which some values are lists; or runs by name. Its jobs are the runs of every combination."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.experiments.config import RunConfig, closest, coerce, from_flat, takes_list
from rrcluster.settings import AFFECTS, FIELDS, SECTIONS

_LONGEST_NAME = 120
RUNS = "runs"  # in a file: settings of named runs


@dataclass(frozen=True)
class Cell:
    """One combination: the settings that vary, and all settings of its runs but seed and folder."""

    name: str  # tells it from the others; fit for a folder
    values: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """Settings of one value, settings of several, and seeds."""

    fixed: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    out: Path
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of named runs, instead of axes

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every combination, the last axis fastest; or the named runs."""
        if self.runs:
            return tuple(Cell(name, values, {**self.fixed, **values}) for name, values in self.runs.items())
        combinations = [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]
        digits = len(str(len(combinations)))
        return tuple(
            Cell(_folder_name(f"{place:0{digits}d}", values), values, {**self.fixed, **values})
            for place, values in enumerate(combinations, start=1)
        )

    def spelled(self) -> tuple[str, ...]:
        """One line per axis: "update_clip: 0.1, 0.2"."""
        return tuple(f"{name}: {', '.join(map(str, values))}" for name, values in self.axes.items())


def read_grid(settings: Mapping[str, Any], *, source: str, out: Path) -> Grid:
    """A grid from what a YAML file holds; names and types are checked here, combinations only when they are run."""
    fixed: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    for name, value in settings.items():
        if name == RUNS:
            continue
        _check_known(name, source)
        if name == "seeds" and value == []:  # as a run folder's config.yaml has it
            continue
        if isinstance(value, list) and not _one_value(name, value):
            axes[name] = _axis(name, value, source)
        else:
            fixed[name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    if fixed.get("tensorboard"):
        raise ConfigError(f"{source}: a sweep writes no TensorBoard events; leave tensorboard out.")
    seeds = axes.pop("seeds", ()) or axes.pop("seed", ()) or (fixed.pop("seed", 0),)
    if "seed" in axes or "seed" in fixed:
        raise ConfigError(f"{source}: gives both seed and seeds; give one of them.")
    if axes and RUNS in settings:
        raise ConfigError(
            f"{source}: has named runs and a list of values for {next(iter(axes))}; leave out one of them."
        )
    runs = _named_runs(settings[RUNS], source) if RUNS in settings else {}
    return Grid(fixed, axes, seeds, Path(fixed.pop("out", None) or out), runs)


def _check_known(name: str, source: str) -> None:
    if name not in FIELDS:
        raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")


def _named_runs(runs: object, source: str) -> dict[str, dict[str, Any]]:
    """Settings of each named run, checked one by one; a name is that of a folder."""
    if not isinstance(runs, dict) or not runs or not all(isinstance(given, dict) for given in runs.values()):
        raise ConfigError(f"{source}: {RUNS} holds one `name: {{setting: value, ...}}` per line.")
    checked: dict[str, dict[str, Any]] = {}
    for run, given in runs.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+=_-]*", str(run)):
            raise ConfigError(
                f"{source}: the name of a run = {run!r} must be letters, digits and .+=_-, for its folder."
            )
        checked[str(run)] = {}
        for name, value in given.items():
            _check_known(name, source)
            if AFFECTS[name] != "result" or name == "seed":
                raise ConfigError(f"{source}: {name} takes one value for the whole sweep; give it above {RUNS}.")
            checked[str(run)][name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    return checked


def _one_value(name: str, value: list[Any]) -> bool:
    """Whether a list is one value of a setting that takes lists; a list of lists has several."""
    return name != "seeds" and takes_list(name) and not any(isinstance(part, (list, dict)) for part in value)


def _axis(name: str, values: list[Any], source: str) -> tuple[Any, ...]:
    if AFFECTS[name] != "result" and name != "seeds":
        raise ConfigError(f"{source}: {name} takes one value for the whole sweep, not a list.")
    if not values:
        raise ConfigError(f"{source}: {name} is an empty list; give at least one value.")
    one = "seed" if name == "seeds" else name
    section = SECTIONS[FIELDS[one]]
    checked = tuple(coerce(section, one, value, source=source) for value in values)
    if len(set(map(repr, checked))) < len(checked):
        raise ConfigError(f"{source}: {name} = {list(checked)} names a value twice; name each once.")
    return checked


def _folder_name(number: str, values: Mapping[str, Any]) -> str:
    parts = [f"{name}={re.sub(r'[^A-Za-z0-9.+-]', '_', str(value))}" for name, value in values.items()]
    return "-".join([number, *parts])[:_LONGEST_NAME]


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    values: Mapping[str, Any]  # of the settings that vary
    settings: Mapping[str, Any]  # all of them, seed and folder included
    folder: Path

    @property
    def config(self) -> RunConfig:
        """Its settings, checked: raises where the combination makes no sense."""
        return from_flat(dict(self.settings), source=self.name)


def jobs(grid: Grid) -> tuple[Job, ...]:
    """One job per combination and seed: in `out/<combination>`, with several seeds in `seed-N` below it."""
    planned = []
    for cell in grid.cells:
        for seed in grid.seeds:
            several = len(grid.seeds) > 1
            folder = grid.out / cell.name / f"seed-{seed}" if several else grid.out / cell.name
            settings = {**cell.settings, "seed": seed, "out": str(folder)}
            planned.append(Job(f"{cell.name}, seed {seed}" if several else cell.name, cell.values, settings, folder))
    return tuple(planned)
