"""Which engine and device a run uses."""

import logging
import os
import pickle
from dataclasses import replace
from typing import get_args

import torch

from rrcluster import checks
from rrcluster.engine.batched.batched_engine import BatchedEngine, pick_precision
from rrcluster.engine.fast_cnn.native_build import native_library
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.spread import SpreadEngine
from rrcluster.engine.workers.processes import cores
from rrcluster.engine.workers.workers_engine import WorkersEngine
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.models.model import Model
from rrcluster.settings import EngineName, Precision

# Samples per round times parameters from which worker processes save time within a few rounds: those that run compiled
# code start in a fraction of a second, those that import torch in a few seconds (benchmarks/README.md).
_WORK_FOR_COMPILED, _WORK_FOR_TORCH = 3e7, 3e8


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where available, else the CPU; other names are torch's."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device = {name!r} is not known to torch; use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {name} was asked for but torch sees no CUDA device of that number; use device = cpu or auto."
        )
    return device


def pick_engine(
    name: str,
    *,
    model: Model,
    device: torch.device,
    samples: float = 0.0,
    capacity: int | None = None,
    precision: str = "auto",
    alone: bool = False,
) -> Engine:
    """The engine called `name`; `auto` picks the fastest.

    `auto` is `batched`, on a GPU `reference` for networks that cannot be stacked. On a CPU, a network that a user
    brings is computed in parts, stacked or one at a time, and by several processes once it has shown how long it takes
    (spread.py). Our convolutions and recurrences are as fast one client at a time there: `workers` if a round trains on
    enough `samples` (all epochs of all clients) to repay starting the processes, and there is a second core or compiled
    code to gain from, else `reference`. `capacity` bounds how many clients are in memory together, by default as many
    as suit the model; `precision` is for CUDA. `alone` is for runs with a guarantee: clients of a network that a user
    brings are computed one at a time, with copies of their own, whose bits nobody else's data can change.
    """
    checks.one_of(get_args(EngineName), engine=name)
    checks.one_of(get_args(Precision), precision=precision)
    if alone and model.own:
        if name not in ("auto", "reference"):
            raise PrivacyError(
                f"engine = {name} computes clients of {model.name} with one copy of the network and the loss, which "
                "may keep something of a client for the next; a secure run takes engine = reference, or auto."
            )
        name = "reference"
    capacity = capacity or model.clients_at_once
    if name == "workers" and (device.type != "cpu" or not _has_workers()):
        raise ConfigError(
            f"engine = workers runs on the processor of a POSIX system, not on device = {device.type} under {os.name}; "
            "use engine = auto."
        )
    if name == "batched" and model.not_batched:
        raise ConfigError(f"engine = batched cannot train {model.name}: {model.not_batched}; use engine = auto.")
    on_cpu = device.type == "cpu"
    if name == "auto" and model.not_batched and not (on_cpu and model.dropout_only):
        _say(f"model {model.name}: clients run one at a time: {model.not_batched}.")
    if name == "auto" and model.own and on_cpu:
        return SpreadEngine(model, processes=cores() if _model_pickles(model) else 1, capacity=capacity)
    if name == "auto" and on_cpu and (model.convolutional or model.recurrent):
        name = "workers" if _workers_pay_off(model, samples) else "reference"
    if name == "auto" and model.not_batched:
        name = "reference"
    if name == "workers":
        return WorkersEngine(model, capacity=capacity)
    if name == "reference":
        return ReferenceEngine(model, device)
    return BatchedEngine(model, device, capacity, pick_precision(precision, device))


def stacked_or_single(model: Model) -> Engine:
    """On this processor: `batched`, or `reference` for a network that cannot be stacked."""
    return ReferenceEngine(model) if model.not_batched else BatchedEngine(model)


def describe(engine: Engine) -> str:
    """The engine in words, for fingerprints: numbers of two engines may differ in their last bits."""
    if isinstance(engine, BatchedEngine):
        return f"batched, {engine.device.type}, {engine.precision}"
    if isinstance(engine, SpreadEngine):
        return f"{describe(engine.engine)}, in equal parts of up to {engine.part}, larger ones first"
    return engine.name if isinstance(engine, WorkersEngine) else type(engine).__name__


def _workers_pay_off(model: Model, samples: float) -> bool:
    work = samples * model.num_parameters
    if not _has_workers() or work < _WORK_FOR_COMPILED:
        return False
    compiled = model.accelerated is not None and native_library() is not None
    return compiled or (cores() > 1 and work >= _WORK_FOR_TORCH)


def _say(line: str) -> None:
    logging.getLogger("rrcluster").warning(line)


def _model_pickles(model: Model) -> bool:
    """Whether a process can be sent the model: what a script defines itself, it cannot import."""
    return _has_workers() and _pickles(replace(model))


def _pickles(value: object) -> bool:
    try:
        return b"__main__" not in pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def _has_workers() -> bool:
    return os.name == "posix"
