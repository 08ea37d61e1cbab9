"""Go on with a run on objects of one's own: the same data, model and method as it was started with."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rrcluster.data_settings import names_file
from rrcluster.errors import ConfigError
from rrcluster.experiments.config import RunConfig
from rrcluster.experiments.setup import Experiment, make_experiment, named_settings

_OBJECTS = ("data", "model", "algorithm")


def with_objects(
    path: Path, objects: Mapping[str, Any], make: Callable[[RunConfig], Experiment] = make_experiment
) -> Callable[[RunConfig], Experiment]:
    """What makes the experiment of the run in `path`, given its objects; others, and other settings, are refused.

    A file of data may have moved; that its content is the same is checked where the run is resumed.
    """
    named = named_settings(objects)
    for name in named.keys() - {*_OBJECTS, "num_clients"}:
        raise ConfigError(f"{name} is a setting of the run, and resume takes those from its folder; leave it out.")
    given = {name: str(named[name]) for name in _OBJECTS if name in named}

    def make_again(config: RunConfig) -> Experiment:
        started = {"data": config.data.data, "model": config.method.model, "algorithm": config.method.algorithm}
        for name, value in given.items():
            moved = name == "data" and config.data.from_file and names_file(value)
            if value != started[name] and not moved:
                raise ConfigError(f"{path}: the run was started with {name} = {started[name]}, not {value}; give that.")
        return make(replace(config, data=replace(config.data, data=given.get("data", config.data.data))))

    return make_again
