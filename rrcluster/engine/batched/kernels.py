"""What a network's own GPU kernels offer the batched engine, and where they are found.

A linear layer on a CUDA device with its own Triton kernels: local training and evaluation of many clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rrcluster.models.model import Model
from rrcluster.registry import ACCELERATORS

TRITON_PRECISION = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}  # rounding of operands
_ALIGNED = 4  # numbers: rows of inputs begin at multiples of 16 bytes
_LARGEST_BATCH, _MOST_CLASSES = 64, 128  # that one program holds in registers
_ROWS_JUDGED = 32
BLOCK, WARPS, STAGES = 64, 4, 3  # features at once; measured on an H200


@dataclass(frozen=True, eq=False)
class LinearKernels:
    """Launches the kernels: one for all steps of a round, one for all models on all clients."""

    features: int
    outputs: int
    precision: str

    captured = False  # two launches: a graph of them would save nothing

    def fits(self, batch_size: int) -> bool:
        """Whether one program holds a batch of so many samples."""
        return batch_size <= _LARGEST_BATCH

    @staticmethod
    def form(inputs: Tensor) -> Tensor:
        """Inputs as the kernels read them: (n, ...) -> (n, pitch), rows padded with zeros."""
        flat = inputs.flatten(1)
        return torch.nn.functional.pad(flat, (0, -flat.shape[1] % _ALIGNED)).contiguous()

    def changes(
        self, inputs: Tensor, targets: Tensor, where: Tensor, models: Tensor, integers: Tensor, rates: Tensor
    ) -> Tensor:
        """(G, D) what SGD changes: where (steps, G, S) int32 rows of `inputs`, from models[integers[:, 0]]."""
        from rrcluster.engine.batched.kernels_triton import train

        steps, groups, samples = where.shape
        changes = torch.empty(groups, models.shape[1], device=models.device)
        train[(groups,)](
            models, integers, rates, inputs, targets, where, changes, groups, samples, steps,
            ROWS=power_of_two(samples), **self._options(inputs),
        )  # fmt: skip
        return changes

    def means(
        self,
        inputs: Tensor,
        targets: Tensor,
        about: Tensor,
        models: Tensor,
        *,
        k: int,
        width: int,  # noqa: ARG002 (of the longest client: read in blocks here)
    ) -> Tensor:
        """(G, k, 2) mean loss and accuracy, from `about` (G, 3): a client's first row, its size, its first model."""
        from rrcluster.engine.batched.kernels_triton import judge

        figures = torch.empty(len(about), k, 2, dtype=torch.float64, device=models.device)
        if len(about):
            judge[(len(about) * k,)](
                models, about, inputs, targets, figures, k,
                ROWS=_ROWS_JUDGED, **self._options(inputs),
            )  # fmt: skip
        return figures

    def _options(self, inputs: Tensor) -> dict[str, Any]:
        return {
            "F": self.features,
            "PITCH": inputs.shape[1],
            "CLASSES": self.outputs,
            "COLS": power_of_two(self.outputs),
            "PRECISION": TRITON_PRECISION[self.precision],
            "BLOCK": BLOCK,
            "num_warps": WARPS,
            "num_stages": STAGES,
        }


def linear_kernels(model: Model, device: torch.device, precision: str) -> LinearKernels | None:
    """The kernels for this model on this device, or None: for our own `linear` on a CUDA device with Triton."""
    if not model.one_linear_layer or device.type != "cuda" or model.layers[0].shape[0] > _MOST_CLASSES:
        return None
    try:
        import rrcluster.engine.batched.kernels_triton  # noqa: F401
    except ImportError:  # torch without Triton: the general path computes the same
        return None
    outputs, features = model.layers[0].shape
    return LinearKernels(features, outputs, precision)


def power_of_two(count: int) -> int:
    """The next power of two from 16, the smallest operand of a matrix unit."""
    return max(16, 1 << (count - 1).bit_length())


class Kernels(Protocol):
    """Local training and evaluation of many clients; models are (G, D), one row each."""

    @property
    def captured(self) -> bool:
        """Whether a round is many launches, which a CUDA graph repeats as one."""

    @property
    def form(self) -> Callable[[Tensor], Tensor]:
        """Samples as the kernels read them, made once."""

    def fits(self, batch_size: int) -> bool:
        """Whether one program holds a batch of so many samples."""

    def changes(
        self, inputs: Tensor, targets: Tensor, where: Tensor, models: Tensor, integers: Tensor, rates: Tensor
    ) -> Tensor:
        """(G, D) what SGD changes: where (steps, G, S) int32 rows of `inputs`, from models[integers[:, 0]]."""

    def means(self, inputs: Tensor, targets: Tensor, about: Tensor, models: Tensor, *, k: int, width: int) -> Tensor:
        """(G, k, 2) mean loss and accuracy, from `about` (G, 3): a client's first row, its size, its first model."""


def own_kernels(model: Model, device: torch.device, precision: str) -> Kernels | None:
    """The kernels of a model that has its own on this device; None: the general path computes the same."""
    if device.type != "cuda":
        return None
    if fast := accelerator(model):
        return fast.gpu_kernels(model, precision)
    return linear_kernels(model, device, precision)


@dataclass(frozen=True)
class Accelerator:
    """Code for exactly one network, of another distribution: `Model.accelerated` names it, and nothing else does."""

    cpu_engine: Callable[[Model], Any]  # an engine, or None where it cannot be built here
    gpu_kernels: Callable[[Model, str], Kernels | None]


def accelerator(model: Model) -> Accelerator | None:
    """The code for a network; None where what brings it is not installed: the general path computes the same."""
    return ACCELERATORS.load(model.accelerated) if model.accelerated in ACCELERATORS else None
