"""Resume a run on the user's own data, model and method: with the same objects, and with the same data in them.

A seeded round that is repeated on other data adds the same noise to other sums and reveals their difference; a secure
run would state one guarantee for two populations. A plain digest would confirm a guess about the data, so the digest is
keyed by a secret of the run; both are in the private `checkpoint/`.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.data.arrays import ArrayStore, spaced
from rrcluster.data.federated import FederatedData
from rrcluster.errors import ConfigError, DataError, RunFolderError
from rrcluster.runs.config import RunConfig
from rrcluster.runs.experiment import Experiment, make_experiment, named_settings
from rrcluster.settings import names_file
from rrcluster.storage import explain_write, read_mapping, replace_file, to_json

KEY_FILE = "data.json"  # in checkpoint/
_MOST_CLIENTS = 1000  # of a population that is read from disk client by client


def remember(folder: Path, data: FederatedData) -> None:
    """Write a new key and the digest under it into the run's private folder."""
    path, key = folder / "checkpoint" / KEY_FILE, secrets.token_hex(32)
    with explain_write(path):
        replace_file(path, to_json({"key": key, "digest": keyed_digest(data, key)}), mode=0o600)


def check_same(folder: Path, data: FederatedData) -> None:
    """Refuse data other than the run was started with."""
    path = folder / "checkpoint" / KEY_FILE
    noted = read_mapping(path) if path.exists() else {}
    key, digest = noted.get("key"), noted.get("digest")
    if not isinstance(key, str) or not isinstance(digest, str):
        raise RunFolderError(f"{path}: does not say which data the run was started with; start a new run.")
    if not hmac.compare_digest(keyed_digest(data, key), digest):
        raise RunFolderError(
            f"{folder}: the data {data.name} is not what this run was started with; a run may not change its data. "
            "Restore it (the same rows in the same order), or start a new run."
        )


def keyed_digest(data: FederatedData, key: str) -> str:
    """HMAC-SHA256 of everything that a run reads: shapes, names (by which slots go), sizes, samples and test sets.

    Of a population that is not held in memory, of the samples of 1,000 clients at equal distances.
    """
    digest = hmac.new(key.encode(), digestmod="sha256")
    shapes = (data.input_shape, data.target_shape, str(data.input_dtype), data.layout)
    digest.update(repr((data.num_classes, data.num_groups, *shapes, data.clients)).encode())
    for numbers in (data.sizes, data.groups, data.test_of):
        digest.update(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())
    held = isinstance(data.store, ArrayStore)
    for client in spaced(data.num_clients, data.num_clients if held else _MOST_CLIENTS).tolist():
        for part in _samples(data, client):
            digest.update(np.ascontiguousarray(part).tobytes())
    for tests in data.test_sets if held else ():
        digest.update(np.ascontiguousarray(tests.inputs).tobytes() + np.ascontiguousarray(tests.targets).tobytes())
    return digest.hexdigest()


def _samples(data: FederatedData, client: int) -> tuple[Any, ...]:
    """The samples of a client; none where they cannot be used, which no error may say of a secure run."""
    try:
        return data.store.client(client)
    except DataError:
        return ()


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
