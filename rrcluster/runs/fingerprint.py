"""What a release depends on besides the round: settings, versions and machine. It is written with every charge.

A seeded round that is run again must make the identical release: the noise is the same, so two different releases would
differ by raw values alone. The ledger compares these fingerprints before it lets a charged round be repeated.
"""

import hashlib
import json
import os
import platform
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrcluster import __version__, registry
from rrcluster.runs.config import RunConfig
from rrcluster.settings import AFFECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rrcluster.engine.protocol import Engine
    from rrcluster.models import Model
    from rrcluster.privacy.selection import Selection
    from rrcluster.runs.experiment import Experiment


def fingerprint(config: RunConfig, engine: "Engine") -> dict[str, Any]:
    """Settings as one digest, and everything else by name, so that an error can say what changed."""
    import numpy as np
    import torch

    from rrcluster.engine.pick_engine import pick_device

    device = pick_device(config.output.device).type
    settings = {name: value for name, value in config.flat().items() if AFFECTS[name] == "result"}
    if config.data.from_file:  # which may move: what it holds is compared by a keyed digest (own_data.py)
        del settings["data"]
    return {
        "config": _digest(settings),
        "rrcluster": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cpu": _cpu(),
        "mkl_cbwr": os.environ.get("MKL_CBWR"),  # which code path MKL takes, and with it how sums are rounded
        "engine": engine.described,
    }


def describe_parts(experiment: "Experiment") -> dict[str, Any]:
    """The network's layers and the method's functions, so that a round is not repeated with others of the same name.

    Where data lies (`data_folder`) is no part of it: data may be moved, and what counts is what it holds. The clients
    of a dataset are described for seeded runs alone, by a digest of their sizes and of a few samples. A digest of a
    user's own data, or in a secure run's public ledger, could confirm a guess: own_data.py keeps a keyed one, in
    private.
    """
    method = experiment.method
    functions = [getattr(method, part.name) for part in fields(method) if callable(getattr(method, part.name))]
    named = [getattr(function, "__qualname__", repr(type(function))) for function in functions]
    parts = {
        "model": _describe_model(experiment.model),
        "method": _digest(named),
    }
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
    """What a run calls for several clients and rrcluster does not ship."""
    config, data, model = experiment.config, experiment.data, experiment.model
    method, mechanism = config.method.algorithm, config.privacy.mechanism
    own = {
        f"the network {model.name}, its loss and its metric": model.own,
        f"the method {method}": not registry.METHODS.ships(method),
        f"the mechanism {mechanism}": not registry.MECHANISMS.ships(mechanism),
        f"what reads {data.name}": not type(data.store).__module__.startswith("rrcluster."),
    }
    return [what for what, is_own in own.items() if is_own]


def _describe_model(model: "Model") -> str:
    """The layers of a network; of one that a user brings also its class, structure, weights and loss."""
    return model.signature if model.own else _digest([[layer.name, *layer.shape] for layer in model.layers])


def describe_selection(experiments: "Sequence[Experiment]", selection: "Selection") -> dict[str, Any]:
    """What the outcome of a selection depends on: the fingerprint of its first run, and of all settings on offer."""
    first, *others = (fingerprint(run.config, run.engine) | describe_parts(run) for run in experiments)
    offered = [first["config"], *([run["config"], run["model"], run["method"], run["engine"]] for run in others)]
    return first | {"config": _digest([offered, selection.score, list(selection.among)])}


def _cpu() -> str:
    """The kind of processor: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
