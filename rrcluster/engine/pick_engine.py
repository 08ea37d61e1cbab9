"""The choice of engine and device for a run."""

import logging
from typing import get_args

import torch

from rrcluster import checks
from rrcluster.engine.batched.batched_engine import BatchedEngine, pick_precision
from rrcluster.engine.batched.kernels import accelerator
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.models.model import Model
from rrcluster.settings import EngineName, Precision

_STACKED_OWN = (
    25  # clients of a network that a user brings: more of them leave a core's cache (research/benchmarks/README.md)
)
_LARGEST_STACKED = 2**16  # parameters: for larger networks stacking on a CPU is slower than one client at a time
_LARGEST_RECURRENT = 20_000


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
            f"device = {name} was requested, but torch sees no CUDA device of that number; use device = cpu or auto."
        )
    return device


def pick_engine(
    name: str,
    *,
    model: Model,
    device: torch.device,
    capacity: int | None = None,
    precision: str = "auto",
    alone: bool = False,
) -> Engine:
    """The engine called `name`; `auto` picks the fastest by the network's kind, never by a clock.

    A seeded round must have the same bits when it is repeated, and engines differ in rounding. `capacity` bounds the
    number of clients in memory together, by default as suits the model; `precision` is for CUDA. `alone` is for runs
    with a guarantee, which give an engine one client at a time (`ClientSide.answer_singly`); clients of a user's
    network get their own copies.
    """
    checks.one_of(get_args(EngineName), engine=name)
    checks.one_of(get_args(Precision), precision=precision)
    on_cpu = device.type == "cpu"
    if alone and (model.own or not on_cpu) and name not in ("auto", "reference"):
        raise PrivacyError(
            f"engine = {name} computes clients of {model.name} with one copy of the network and the loss, "
            "which may carry state from one client to the next, and on a GPU computes features together; use "
            "engine = reference, or auto, for a secure run."
        )
    if alone and model.own:
        name = "reference"
    if name == "batched" and model.not_batched:
        raise ConfigError(f"engine = batched cannot train {model.name}: {model.not_batched}; use engine = auto.")
    fast = accelerator(model.accelerated) if name == "auto" and on_cpu else None
    if fast is not None and (compiled := fast.cpu_engine(model)) is not None:
        return compiled  # type: ignore[no-any-return]
    if name == "auto" and alone:
        return ReferenceEngine(model, device, shortcuts=True)
    if name == "reference" or (name == "auto" and _one_by_one(model, on_cpu=on_cpu)):
        return ReferenceEngine(model, device)
    at_once = capacity or (min(_STACKED_OWN, model.clients_at_once) if model.own and on_cpu else model.clients_at_once)
    return BatchedEngine(model, device, at_once, pick_precision(precision, device))


def _one_by_one(model: Model, *, on_cpu: bool) -> bool:
    """Whether clients are faster one after the other, or cannot be stacked."""
    if model.not_batched and not (on_cpu and model.dropout_only):
        logging.getLogger("rrcluster").warning(
            "model %s: clients run one at a time: %s.", model.name, model.not_batched
        )
        return True
    if not on_cpu:
        return False
    if not model.own:
        return model.convolutional or model.recurrent
    if model.convolves:
        return True
    return model.num_parameters > (_LARGEST_RECURRENT if model.recurs else _LARGEST_STACKED)


def stacked_or_single(model: Model) -> Engine:
    """On this processor: `batched`, or `reference` for a network that cannot be stacked."""
    return ReferenceEngine(model) if model.not_batched else BatchedEngine(model)
