"""A grid of settings: a flat mapping in which some values are lists, and every combination of them."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.experiments.coerce import coerce
from rrcluster.experiments.config import closest
from rrcluster.settings import AFFECTS, FIELDS, SECTIONS

_LONGEST_NAME = 120


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

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every combination, the last axis fastest."""
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
        if name not in FIELDS:
            raise ConfigError(f"{source}: setting {name!r} is not known; {closest(str(name))}")
        if name == "seeds" and value == []:  # as a run folder's config.yaml has it
            continue
        if isinstance(value, list):
            axes[name] = _axis(name, value, source)
        else:
            fixed[name] = coerce(SECTIONS[FIELDS[name]], name, value, source=source)
    if fixed.get("tensorboard"):
        raise ConfigError(f"{source}: a sweep writes no TensorBoard events; leave tensorboard out.")
    seeds = axes.pop("seeds", ()) or axes.pop("seed", ()) or (fixed.pop("seed", 0),)
    if "seed" in axes or "seed" in fixed:
        raise ConfigError(f"{source}: gives both seed and seeds; give one of them.")
    return Grid(fixed, axes, seeds, Path(fixed.pop("out", None) or out))


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
