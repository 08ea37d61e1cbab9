"""Which engine and device a run uses."""

import torch

from rrcluster import checks
from rrcluster.contract import Engine
from rrcluster.engine.batched import BatchedEngine
from rrcluster.engine.precision import PRECISIONS, pick_precision
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.models.model import Model

ENGINES = ("auto", "batched", "reference")


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
    name: str, *, model: Model, device: torch.device, capacity: int | None = None, precision: str = "auto"
) -> Engine:
    """`auto`: batched, but one client at a time for convolutions and recurrences on a CPU: batched, they are slower.

    `capacity` and `precision` are the batched engine's; by default as many clients at once as the model says.
    """
    checks.one_of(ENGINES, engine=name)
    checks.one_of(PRECISIONS, precision=precision)
    alone = device.type == "cpu" and (model.convolutional or model.recurrent)
    if name == "reference" or (name == "auto" and alone):
        return ReferenceEngine(model, device)
    return BatchedEngine(model, device, capacity or model.clients_at_once, pick_precision(precision, device))
