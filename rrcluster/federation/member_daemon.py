"""A member's daemon, built from its folder: the signed agreement, the data, the ledger and the clients' memory."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from rrcluster.data.arrays import at_most, from_arrays
from rrcluster.data.federated import ClientStore, FederatedData, Inputs, Targets
from rrcluster.data.frames import load_table
from rrcluster.errors import ConfigError, DataError, RunFolderError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreed_settings import MEMBERS, member_columns
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.client_ledger import ledger_of, signed_cost
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.runs.config import check_outside_runs
from rrcluster.runs.experiment import check_declared, load_population
from rrcluster.runs.folder import RunFolder
from rrcluster.runs.load import PersonalModel
from rrcluster.runs.run import save_models
from rrcluster.settings import ColumnSettings, names_file
from rrcluster.simulation.clients import ClientMemory
from rrcluster.storage import explain_write, make_subfolder, read_tensors, replace_file

_ARRAYS = ("inputs", "targets", "clients")
_EXPANDS = 32  # most times its size that a compressed file may expand to
_SMALL = 2**28  # bytes in memory below which this is not checked


@dataclass(frozen=True, repr=False)
class _Part:
    """Some clients of a population, from one number on."""

    store: ClientStore
    first: int

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """As in the whole population."""
        return self.store.client(self.first + client)


def load_member(agreed: AgreedRun, place: int, data: str | None, columns: ColumnSettings) -> FederatedData:
    """A member's clients: from `data`, or in a rehearsal its part of the agreed dataset."""
    agreement, config = agreed.agreement, agreed.experiment.config
    if config.data.data != MEMBERS:
        if data is not None:
            raise ConfigError(
                f"the agreement is a rehearsal on {config.data.data}, where every member gets a part; leave --data out."
            )
        whole = load_population(config)
        return _part(whole, agreement.first_client(place), agreement.members[place].num_clients)
    if data is None:
        raise ConfigError("the daemon needs --data: a CSV or Parquet file, an .npz file, or module:function.")
    population = _own(data, agreement, columns)
    check_declared(population, secure=agreed.plan.secure)
    most = config.data.max_samples
    return population if most is None else at_most(population, most)


def client_names(data: FederatedData) -> list[str]:
    """Names that identify clients in later data."""
    return list(data.clients) or [str(client) for client in range(data.num_clients)]


def _part(data: FederatedData, first: int, count: int) -> FederatedData:
    rows = slice(first, first + count)
    return replace(
        data,
        sizes=data.sizes[rows],
        groups=data.groups[rows],
        test_of=data.test_of[rows],
        store=_Part(data.store, first),
        clients=tuple(str(client) for client in range(first, first + count)),
    )


def _own(data: str, agreement: Agreement, columns: ColumnSettings) -> FederatedData:
    if data.lower().endswith(".npz"):
        return _from_npz(Path(data), agreement)
    if names_file(data):
        return load_table(data, member_columns(agreement.samples, columns))
    module, _, function = data.partition(":")
    if not module or not function:
        raise ConfigError(f"--data {data[:80]!r} is neither a file (.csv, .parquet, .npz) nor module:function.")
    return _from_function(module, function)


def _from_npz(path: Path, agreement: Agreement) -> FederatedData:
    """Arrays `inputs` (rows, ...), `targets` (rows, ...) and `clients` (rows,), the client of each row."""
    try:
        with np.load(path) as file:  # refuses pickled objects
            expanded, packed = sum(part.file_size for part in file.zip.infolist()), path.stat().st_size
            if expanded > max(_SMALL, _EXPANDS * packed):
                raise DataError(
                    f"{path}: {packed >> 20} MiB expand to {expanded >> 20}, more than {_EXPANDS} times as much; if "
                    "that is meant, write it with np.savez, uncompressed."
                )
            arrays = {name: file[name] for name in _ARRAYS if name in file}
    except DataError:
        raise
    except Exception:  # a damaged file can raise any error inside the reader
        raise DataError(f"{path}: cannot be read as an .npz file of plain arrays; write it with np.savez.") from None
    absent = [name for name in _ARRAYS if name not in arrays]
    if absent or len({len(values) for values in arrays.values()}) > 1:
        raise DataError(f"{path}: needs arrays {', '.join(_ARRAYS)} of one length.")
    names, owners, counts = np.unique(arrays["clients"], return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
    samples = agreement.samples
    return from_arrays(
        [arrays["inputs"][part] for part in rows],
        [arrays["targets"][part] for part in rows],
        num_classes=samples.num_classes,
        ids=samples.ids,
        names=names.astype(str).tolist(),
        name=path.stem,
    )


def _from_function(module: str, function: str) -> FederatedData:
    """The result of the operator's own function, which may be in the folder where the daemon was started."""
    if os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        population: Any = getattr(import_module(module), function)()
    except (ImportError, AttributeError):
        raise ConfigError(f"--data {module}:{function} cannot be imported; check the name and PYTHONPATH.") from None
    if not isinstance(population, FederatedData):
        raise DataError(f"{module}:{function} must return a population, from rr.from_arrays or rr.from_frame.")
    return population


def write_personal(path: Path, models: Sequence[PersonalModel]) -> None:
    """Write every client's own weights, one row each, readable only by the operator."""
    check_outside_runs(path)
    tensors = {
        "vectors": np.stack([model.vector for model in models]),
        "clusters": np.array([model.cluster for model in models], dtype=np.int64),
        "epochs": np.array([model.epochs for model in models], dtype=np.int64),
    }
    with explain_write(path):
        replace_file(path, save(tensors), mode=0o600)


LONGEST_TASK = 2**31  # bytes of a message to a daemon


def open_daemon(folder: MemberFolder, data: str | None, columns: ColumnSettings, **own: Any) -> Daemon:
    """The daemon of the signed agreement; `own` are settings of this machine (engine, device, data_folder)."""
    agreement, identity = folder.agreement(), folder.identity()
    place = agreement.place_of(identity.public_key().public_bytes_raw())
    agreed = AgreedRun.build(agreement, **own)
    signed_cost(folder, agreed)
    population = load_member(agreed, place, data, columns)
    numbers = folder.numbers(client_names(population), most=agreement.members[place].num_clients)
    memory_path, name = folder.path / "memory.safetensors", agreement.digest.hex()

    def remember(memory: ClientMemory) -> None:
        if memory.width:
            tensors = {key: np.ascontiguousarray(values) for key, values in memory.tensors().items()}
            with explain_write(memory_path):
                replace_file(memory_path, save(tensors, metadata={"federation": name}), mode=0o600)

    return Daemon(
        place,
        agreed,
        identity,
        population,
        ledger_of(folder),
        _recall(memory_path, name, agreed),
        numbers=numbers,
        withdrawn=folder.withdrawn,
        remember=remember,
        keep=lambda models: save_models(RunFolder(_released(folder)), agreed.experiment, models),
    )


def _released(folder: MemberFolder) -> Path:
    return make_subfolder(folder.path / "released")


def _recall(path: Path, name: str, agreed: AgreedRun) -> ClientMemory:
    """Clients' memory of this training; empty if the file is of another one."""
    fresh = agreed.first_memory()
    if not fresh.width or not path.exists():
        return fresh
    try:
        tensors, metadata = read_tensors(path)
        memory = ClientMemory.from_tensors(tensors)
    except Exception:  # a damaged file can raise any error inside the reader
        raise RunFolderError(f"{path}: is damaged; remove it, and the clients start afresh.") from None
    return memory if metadata.get("federation") == name and memory.width == fresh.width else fresh
