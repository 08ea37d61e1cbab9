"""The interface of a network's own GPU kernels for the batched engine; the kernels are in rrcluster-research."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rrcluster.models.model import Model
from rrcluster.registry import ACCELERATORS


class Kernels(Protocol):
    """Local training and evaluation of many clients; models are (G, D), one row each."""

    @property
    def captured(self) -> bool:
        """Whether a round is many launches, which a CUDA graph repeats as one."""

    @property
    def form(self) -> Callable[[Tensor], Tensor]:
        """Samples in the kernels' layout, computed once."""

    def fits(self, batch_size: int) -> bool:
        """Whether one program holds a batch of so many samples."""

    def changes(
        self, inputs: Tensor, targets: Tensor, where: Tensor, models: Tensor, integers: Tensor, rates: Tensor
    ) -> Tensor:
        """(G, D) changes by SGD: where (steps, G, S) int32 rows of `inputs`, from models[integers[:, 0]]."""

    def means(self, inputs: Tensor, targets: Tensor, about: Tensor, models: Tensor, *, k: int, width: int) -> Tensor:
        """(G, k, 2) mean loss and accuracy, from `about` (G, 3): a client's first row, its size, its first model."""


def own_kernels(model: Model, device: torch.device, precision: str) -> Kernels | None:
    """The model's own kernels on this device; None: the general path computes the same."""
    if device.type != "cuda":
        return None
    fast = accelerator(model.accelerated or ("linear" if model.one_linear_layer else ""))
    return None if fast is None else fast.gpu_kernels(model, precision)


@dataclass(frozen=True)
class Accelerator:
    """Code for exactly one network, from another distribution, found only through `Model.accelerated`."""

    cpu_engine: Callable[[Model], Any]  # an engine, or None where it cannot be built here
    gpu_kernels: Callable[[Model, str], Kernels | None]


def accelerator(name: str) -> Accelerator | None:
    """The code for a network; None if its distribution is not installed: the general path computes the same."""
    return ACCELERATORS.load(name) if name in ACCELERATORS else None
