"""One linear layer on a CUDA device with Triton kernels: local training and evaluation of many clients, and draws."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rrcluster.engine.batched.kernels import Accelerator
from rrcluster.models.model import Model

TRITON_PRECISION = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}  # rounding of operands
_ALIGNED = 4  # numbers: rows of inputs begin at multiples of 16 bytes
_LARGEST_BATCH, _MOST_CLASSES = 64, 128  # limits of one program's registers
_ROWS_JUDGED = 32
BLOCK, WARPS, STAGES = 64, 4, 3  # features at once; measured on an H200


@dataclass(frozen=True, eq=False)
class LinearKernels:
    """Launches the kernels: one for all steps of a round, one for all models on all clients."""

    features: int
    outputs: int
    precision: str

    captured = False  # two launches, which a graph would not speed up

    def fits(self, batch_size: int) -> bool:
        """Whether one program holds a batch of so many samples."""
        return batch_size <= _LARGEST_BATCH

    @staticmethod
    def form(inputs: Tensor) -> Tensor:
        """Inputs in the kernels' layout: (n, ...) -> (n, pitch), rows padded with zeros."""
        flat = inputs.flatten(1)
        return torch.nn.functional.pad(flat, (0, -flat.shape[1] % _ALIGNED)).contiguous()

    def changes(
        self, inputs: Tensor, targets: Tensor, where: Tensor, models: Tensor, integers: Tensor, rates: Tensor
    ) -> Tensor:
        """(G, D) changes by SGD: where (steps, G, S) int32 rows of `inputs`, from models[integers[:, 0]]."""
        from rrcluster_research.kernels_triton import train

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
        from rrcluster_research.kernels_triton import judge

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
        import rrcluster_research.kernels_triton  # noqa: F401
    except ImportError:  # torch without Triton: the general path computes the same
        return None
    outputs, features = model.layers[0].shape
    return LinearKernels(features, outputs, precision)


def power_of_two(count: int) -> int:
    """The next power of two from 16, the smallest operand of a matrix unit."""
    return max(16, 1 << (count - 1).bit_length())


_BLOCKS_AT_ONCE = 128


def rows_by_kernel(integers: Tensor, epochs: int, per_epoch: int, step: int) -> Tensor:
    """(steps, n, step) int32: `local_steps.step_rows` by one kernel."""
    from rrcluster_research import kernels_triton

    count = len(integers)
    out = torch.empty(epochs * per_epoch, count, step, dtype=torch.int32, device=integers.device)
    width = 1 << (per_epoch * step - 1).bit_length()
    kernels_triton.step_rows[(count, epochs)](integers, out, count, step, per_epoch, WIDTH=width)
    return out


def drawn_by_kernel(keys: Tensor, clients: Tensor, blocks: int) -> Tensor:
    """(n, 4 blocks): `local_steps.words_on` by one kernel."""
    from rrcluster_research.kernels_triton import words

    out = torch.empty(len(clients), 4 * blocks, dtype=torch.int64, device=clients.device)
    if len(clients) and blocks:
        words[(len(clients), -(-blocks // _BLOCKS_AT_ONCE))](
            keys.contiguous(), clients.contiguous(), out, blocks, TILE=_BLOCKS_AT_ONCE
        )
    return out


LINEAR = Accelerator(lambda _: None, lambda model, precision: linear_kernels(model, torch.device("cuda"), precision))


def __getattr__(name: str) -> Any:
    """`DRAWS`: functions for `local_steps`; ImportError without Triton."""
    if name != "DRAWS":
        raise AttributeError(name)
    import rrcluster_research.kernels_triton  # noqa: F401

    return SimpleNamespace(rows=rows_by_kernel, words=drawn_by_kernel)
