"""The `cnn` on a CUDA device by kernels of its own (cnn_triton.py): local training and losses of many clients."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcluster.models.model import Model

LARGEST_BATCH = 64
DOTS = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}  # precision -> how Triton rounds operands
_PROGRAMS_PER_PROCESSOR = 16
_SCRATCH = 3136 + 2704 + 800  # numbers per image in flight


@dataclass(frozen=True)
class Shape:
    """How a kernel is laid out: images per program, positions at once, warps. Measured on an H200."""

    images: int
    tile: int
    warps: int

    def blocks(self, samples: int) -> int:
        """Programs' worth of work in one client's batch."""
        return -(-samples // self.images)

    @property
    def launch(self) -> dict[str, int]:
        """As the kernels take it."""
        return {"N": self.images, "num_warps": self.warps, "num_stages": 1}


FORWARD, BACKWARD, UPDATE = Shape(2, 64, 4), Shape(1, 16, 1), Shape(2, 64, 2)


@dataclass(frozen=True, eq=False)
class FusedCnn:
    """Launches the kernels. Models (G, D) are in the kernels' order: `inward` and `outward` change to it and back."""

    num_classes: int
    precision: str

    @property
    def num_parameters(self) -> int:
        """D."""
        return 25680 + 33 * self.num_classes

    def images(self, inputs: Tensor) -> Tensor:
        """(rows, 1, 28, 28) -> (rows, 34, 34), as the kernels read them."""
        return torch.nn.functional.pad(inputs.reshape(-1, 28, 28), (3, 3, 3, 3))

    def inward(self, models: Tensor) -> Tensor:
        """(G, D) from the model's order of parameters to the kernels'."""
        return models.index_select(1, _order(self.num_classes, models.device)[0])

    def outward(self, models: Tensor) -> Tensor:
        """(G, D) and back."""
        return models.index_select(1, _order(self.num_classes, models.device)[1])

    def train(self, vectors: Tensor, images: Tensor, targets: Tensor, where: Tensor, rates: Tensor) -> None:
        """SGD in place: vectors (G, D), where (steps, G, S) int32 rows of `images`, rates (G,)."""
        kernels = _kernels()
        groups, samples = where.shape[1:]
        there, back = groups * FORWARD.blocks(samples), groups * BACKWARD.blocks(samples)
        scratch = vectors.new_empty(_programs(vectors.device, max(there, back)) * FORWARD.images * _SCRATCH)
        h1, place1 = _pair(vectors, groups * samples * 2704)
        h2, place2 = _pair(vectors, groups * samples * 512)
        dh2, dz2 = torch.empty_like(h2), vectors.new_empty(groups * samples * 800)
        partial = vectors.new_empty(back * 1040)
        own = torch.arange(groups, dtype=torch.int32, device=vectors.device)
        every: dict[str, Any] = {"D": self.num_parameters, "PRECISION": DOTS[self.precision]}
        for rows in where:
            kernels.forward[(_programs(vectors.device, there),)](
                vectors, images, rows, own, own, scratch, h1, place1, h2, place2,
                there, samples, FORWARD.blocks(samples), TILE=FORWARD.tile, TRAIN=True, **FORWARD.launch, **every,
            )  # fmt: skip
            kernels.classify[(groups,)](
                vectors, targets, rows, rates, h2, dh2, samples, ROWS=_power_of_two(samples), **self._classes, **every
            )
            kernels.backward[(_programs(vectors.device, back),)](
                vectors, images, rows, scratch.view(torch.int32), place1, place2, dh2, dz2, partial,
                back, samples, BACKWARD.blocks(samples), TILE=BACKWARD.tile, **BACKWARD.launch, **every,
            )  # fmt: skip
            kernels.update[(groups * 4,)](
                vectors, rows, rates, h1, dz2, partial, samples, BACKWARD.blocks(samples),
                OF_PARTIAL=BACKWARD.images, **UPDATE.launch, **every,
            )  # fmt: skip

    def judge(
        self, vectors: Tensor, images: Tensor, targets: Tensor, where: Tensor, model_of: Tensor, data_of: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and correctness (G, S) of model `model_of[g]` on the images `where[data_of[g]]`; 0 for absent ones."""
        kernels = _kernels()
        groups, samples = len(model_of), where.shape[1]
        blocks, tiles = groups * FORWARD.blocks(samples), -(-samples // 32)
        programs = _programs(vectors.device, blocks)
        scratch = vectors.new_empty(programs * FORWARD.images * _SCRATCH)
        h2 = vectors.new_empty(groups * samples * 512)
        losses, hits = vectors.new_empty(groups, samples), vectors.new_empty(groups, samples)
        every: dict[str, Any] = {"D": self.num_parameters, "PRECISION": DOTS[self.precision]}
        kernels.forward[(programs,)](
            vectors, images, where, model_of, data_of, scratch, h2, h2, h2, h2,
            blocks, samples, FORWARD.blocks(samples), TILE=FORWARD.tile, TRAIN=False, **FORWARD.launch, **every,
        )  # fmt: skip
        kernels.judge[(groups * tiles,)](
            vectors, targets, where, model_of, data_of, h2, losses, hits, samples, tiles,
            ROWS=32, **self._classes, **every,
        )  # fmt: skip
        return losses, hits

    @property
    def _classes(self) -> dict[str, int]:
        return {"CLASSES": self.num_classes, "COLS": _power_of_two(self.num_classes)}


@cache
def _order(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(D,) which parameter of the model stands at each place of the kernels' order, and the inverse."""
    conv1, bias1, conv2, bias2, fc1, bias3, fc2, bias4 = np.split(
        np.arange(25680 + 33 * num_classes), np.cumsum([1024, 16, 8192, 32, 16384, 32, 32 * num_classes])
    )
    order = np.concatenate(
        [
            conv1.reshape(16, 64).T.ravel(),
            bias1,
            conv2.reshape(32, 16, 16).transpose(2, 1, 0).ravel(),  # out, channel, tap -> tap, channel, out
            bias2,
            fc1.reshape(32, 32, 16).transpose(2, 1, 0).ravel(),  # out, channel, spot -> spot, channel, out
            bias3,
            fc2.reshape(num_classes, 32).T.ravel(),
            bias4,
        ]
    )
    return torch.as_tensor(order, device=device), torch.as_tensor(np.argsort(order), device=device)


def fused_form(model: Model, device: torch.device, precision: str) -> FusedCnn | None:
    """The kernels for this model on this device, or None where there are none."""
    if model.name != "cnn" or device.type != "cuda":
        return None
    try:
        _kernels()
    except ImportError:  # torch without Triton: the general path serves
        return None
    return FusedCnn((model.num_parameters - 25680) // 33, precision)


def _kernels() -> Any:
    from rrcluster.engine.fast_cnn import cnn_triton

    return cnn_triton


def _pair(like: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return like.new_empty(count), torch.empty(count, dtype=torch.int8, device=like.device)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _programs(device: torch.device, blocks: int) -> int:
    return min(blocks, _PROGRAMS_PER_PROCESSOR * _processors(device) if device.type == "cuda" else 2)


def _power_of_two(count: int) -> int:
    """The next power of two from 16, the least a matrix unit takes."""
    return max(16, 1 << (count - 1).bit_length())
