"""Everything a release depends on besides the round: settings, versions, machine and data. Runs resume on no others.

Settings, versions and machine are recorded with every charge. A repeated seeded round must make the identical release:
the noise is the same, so two different releases would differ by raw values alone. The ledger compares these
fingerprints before a charged round is repeated.

A seeded round repeated on other data adds the same noise to other sums and reveals their difference; a secure run would
state one guarantee for two populations. A plain digest would confirm a guess about the data, so that of a user's own
data is keyed by a secret of the run; both are in the private `checkpoint/`.
"""

import hashlib
import hmac
import json
import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rrcluster import __version__, registry
from rrcluster.data.arrays import ArrayStore, spaced
from rrcluster.data.federated import FederatedData
from rrcluster.engine.pick_engine import pick_device
from rrcluster.engine.protocol import Engine
from rrcluster.errors import DataError, RunFolderError
from rrcluster.privacy.selection import Selection
from rrcluster.runs.config import RunConfig
from rrcluster.settings import AFFECTS
from rrcluster.storage import cache_folder, explain_write, read_mapping, replace_file, to_json

if TYPE_CHECKING:
    from rrcluster.runs.experiment import Experiment


def fingerprint(config: RunConfig, engine: Engine) -> dict[str, Any]:
    """Settings as one digest, and everything else by name, so that an error can name the change."""
    device = pick_device(config.output.device).type
    settings = {name: value for name, value in config.flat().items() if AFFECTS[name] == "result"}
    if config.data.from_file:  # files may move: their content is compared by a keyed digest
        del settings["data"]
    return {
        "config": plain_digest(settings),
        "rrcluster": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cpu": _cpu(),
        "mkl_cbwr": os.environ.get("MKL_CBWR"),  # MKL's code path, and with it the rounding of sums
        "engine": engine.described,
    }


def describe_parts(experiment: "Experiment") -> dict[str, Any]:
    """The network's layers and the method's functions, so that a round is not repeated with others of the same name.

    Of a network that a user brings also its class, structure, weights and loss.
    Where data lies (`data_folder`) is no part of it: data may be moved, and what counts is what it holds. The clients
    of a dataset are described for seeded runs alone, by a digest of their sizes and of a few samples. A digest of a
    user's own data, or in a secure run's public ledger, could confirm a guess: `keyed_digest` is in private.
    """
    method = experiment.method
    functions = [getattr(method, part.name) for part in fields(method) if callable(getattr(method, part.name))]
    names = [getattr(function, "__qualname__", repr(type(function))) for function in functions]
    model = experiment.model
    layers = model.signature if model.own else plain_digest([[layer.name, *layer.shape] for layer in model.layers])
    parts = {"model": layers, "method": plain_digest(names)}
    if experiment.start is not None:
        parts["start"] = hashlib.blake2b(experiment.start.models.rows.tobytes(), digest_size=8).hexdigest()
    if experiment.deployed is not None:
        return parts | {"federation": experiment.deployed.digest}
    if experiment.plan.secure or experiment.owns_data:
        return parts
    data, digest = experiment.data, hashlib.blake2b(experiment.data.sizes.tobytes(), digest_size=8)
    for client in sorted({0, data.num_clients // 2, data.num_clients - 1}):
        for array in data.store.client(client):
            digest.update(array.tobytes())
    return parts | {"data": digest.hexdigest()}


def own_code(experiment: "Experiment") -> list[str]:
    """User code that a run calls for several clients."""
    config, data, model = experiment.config, experiment.data, experiment.model
    method, mechanism = config.method.algorithm, config.privacy.mechanism
    own = {
        f"the network {model.name}, its loss and its metric": model.own,
        f"the method {method}": not registry.METHODS.ships(method),
        f"the mechanism {mechanism}": not registry.MECHANISMS.ships(mechanism),
        f"what reads {data.name}": not type(data.store).__module__.startswith("rrcluster."),
    }
    return [what for what, is_own in own.items() if is_own]


def describe_selection(experiments: Sequence["Experiment"], selection: Selection) -> dict[str, Any]:
    """Everything a selection's outcome depends on: its first run's fingerprint, and all candidate settings."""
    first, *others = (fingerprint(run.config, run.engine) | describe_parts(run) for run in experiments)
    offered = [first["config"], *([run["config"], run["model"], run["method"], run["engine"]] for run in others)]
    return first | {"config": plain_digest([offered, selection.score, list(selection.among)])}


def _cpu() -> str:
    """The kind of processor, by which libraries choose their kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def plain_digest(value: Any) -> str:
    """Digest of a value that JSON can represent."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


_AUDIT = "audit.json"  # in the cache folder
_PACKAGE = Path(__file__).parents[1]


def this_code() -> dict[str, str | None]:
    """The installed code: its version, the commit of its checkout, if any, and a digest of its text."""
    log, digest = _PACKAGE.parent / ".git", hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        folder = log if log.is_dir() else Path(log.read_text(encoding="utf-8").removeprefix("gitdir:").strip())
        commit = (folder / "logs" / "HEAD").read_text(encoding="utf-8").splitlines()[-1].split()[1]
    except (OSError, IndexError):
        commit = None
    return {"version": __version__, "commit": commit, "code": digest.hexdigest()[:16]}


def remember_audit(result: str) -> None:
    """Record the last audit of this code, for the folders of secure runs on this machine."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / _AUDIT, to_json(this_code() | {"result": result}))


def last_audit() -> dict[str, Any]:
    """The last audit on this machine, and whether it was of this code. No date: it would tell when a run started."""
    try:
        noted = read_mapping(cache_folder() / _AUDIT)
    except (OSError, RunFolderError):
        return {"result": "no audit ran on this machine"}
    names = ("version", "commit", "code", "result")
    return {name: noted.get(name) for name in names} | {"of_this_code": noted.get("code") == this_code()["code"]}


KEY_FILE = "data.json"  # in checkpoint/
_MOST_CLIENTS = 1000  # of a population that is read from disk client by client


def remember(folder: Path, data: FederatedData) -> None:
    """Write a new key and the data's digest under it into the run's private folder."""
    path, key = folder / "checkpoint" / KEY_FILE, secrets.token_hex(32)
    with explain_write(path):
        replace_file(path, to_json({"key": key, "digest": keyed_digest(data, key)}), mode=0o600)


def check_same(folder: Path, data: FederatedData) -> None:
    """Refuse data other than that of the run's start."""
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
    """HMAC-SHA256 of everything a run reads: shapes, names (which determine slots), sizes, samples and test sets.

    For a population that is not in memory, of the samples of 1,000 clients at equal distances.
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
    for part in (data.validation, data.newcomers):
        if part is not None:
            digest.update(keyed_digest(part, key).encode())
    return digest.hexdigest()


def _samples(data: FederatedData, client: int) -> tuple[Any, ...]:
    """The samples of a client; None where unusable, which no error of a secure run may reveal."""
    try:
        return data.store.client(client)
    except DataError:
        return ()
