"""A member's daemon from its folder: what was signed, the member's data, its ledger and what its clients remember."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from rrcluster.errors import RunFolderError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.client_ledger import ledger_of, signed_cost
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.member_data import client_names, load_member
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.runs.folder import RunFolder
from rrcluster.runs.run import save_models
from rrcluster.settings import ColumnSettings
from rrcluster.simulation.clients import ClientMemory
from rrcluster.storage import explain_write, make_subfolder, read_tensors, replace_file

LONGEST_TASK = 2**31  # bytes of a message to a daemon


def open_daemon(folder: MemberFolder, data: str | None, columns: ColumnSettings, **own: Any) -> Daemon:
    """The daemon of what the operator signed; `own` are settings of this machine (engine, device, data_folder)."""
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
    """What clients remember of this training; nothing where the file is of another one."""
    fresh = agreed.first_memory()
    if not fresh.width or not path.exists():
        return fresh
    try:
        tensors, metadata = read_tensors(path)
        memory = ClientMemory.from_tensors(tensors)
    except Exception:  # a damaged file fails in many ways inside the reader
        raise RunFolderError(f"{path}: is damaged; remove it, and the clients start afresh.") from None
    return memory if metadata.get("federation") == name and memory.width == fresh.width else fresh
