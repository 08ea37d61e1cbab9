"""Which engine and device a run uses."""

import os

import torch

from rrcluster import checks
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.batched.precision import PRECISIONS, pick_precision
from rrcluster.engine.fast_cnn.native_build import compiled
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.workers.workers_engine import WorkersEngine, cores, is_the_cnn
from rrcluster.errors import ConfigError
from rrcluster.models.model import Model

ENGINES = ("auto", "batched", "reference", "workers")
# Samples trained on in a round, times parameters, from which worker processes pay within a few rounds: compiled ones
# start in a fraction of a second, those that import torch in a few (benchmarks/README.md).
_WORTH_COMPILED, _WORTH_TORCH = 3e7, 3e8


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU; anything else is taken as torch names it."""
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
) -> Engine:
    """`auto`: batched, but on a CPU one client at a time for convolutions and recurrences: batched, they are slower.

    Then in worker processes, if training on `samples` samples a round (all epochs of all clients) is enough work to be
    worth starting them, and there is a second core or a compiled network to gain by. `capacity` bounds how many clients
    are in memory together, by default as many as suit the model; `precision` is for CUDA.
    """
    checks.one_of(ENGINES, engine=name)
    checks.one_of(PRECISIONS, precision=precision)
    at_once = capacity or model.clients_at_once
    if name == "workers" and (device.type != "cpu" or not _can_share()):
        raise ConfigError(
            f"engine = workers runs on the processor of a POSIX system, not on device = {device.type} under {os.name}; "
            "use engine = auto."
        )
    if name == "auto" and device.type == "cpu" and (model.convolutional or model.recurrent):
        name = "workers" if _worth_workers(model, samples) else "reference"
    if name == "workers":
        return WorkersEngine(model, capacity=at_once)
    if name == "reference":
        return ReferenceEngine(model, device)
    return BatchedEngine(model, device, at_once, pick_precision(precision, device))


def describe(engine: Engine) -> str:
    """What computes, for the record: numbers of two engines may differ in their last bits."""
    if isinstance(engine, BatchedEngine):
        return f"batched, {engine.device.type}, {engine.precision}"
    return engine.name if isinstance(engine, WorkersEngine) else type(engine).__name__


def _worth_workers(model: Model, samples: float) -> bool:
    work = samples * model.num_parameters
    if not _can_share() or work < _WORTH_COMPILED:
        return False
    fast = is_the_cnn(model) and compiled("cnn") is not None
    return fast or (cores() > 1 and work >= _WORTH_TORCH)


def _can_share() -> bool:
    return os.name == "posix"
