"""The `cnn` on a CUDA device with its own Triton kernels: local training and evaluation of many clients."""

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rrcluster_research.fast_cnn import ACTIVATIONS, BIAS1, CONV2, num_parameters, packed_order
from rrcluster_research.linear_kernels import TRITON_PRECISION, power_of_two

LARGEST_BATCH = 64
_PROGRAMS_PER_PROCESSOR = 16
_Z1, _H1, _Z2, _H2 = 14 * 16 * 16, *ACTIVATIONS[1:]  # numbers of an image; rows of conv1's 14 places are padded to 16


@dataclass(frozen=True)
class LaunchShape:
    """Launch parameters of a kernel: images per program, positions at once, warps. Measured on an H200."""

    images: int
    tile: int
    warps: int

    def blocks(self, samples: int) -> int:
        """Programs needed for one client's batch."""
        return -(-samples // self.images)

    @property
    def options(self) -> dict[str, int]:
        """Launch options of the kernel."""
        return {"N": self.images, **self.warps_alone}

    @property
    def warps_alone(self) -> dict[str, int]:
        """The same for a kernel whose programs compute one image each."""
        return {"num_warps": self.warps, "num_stages": 1}


FORWARD1, FORWARD2 = LaunchShape(1, 32, 4), LaunchShape(1, 0, 4)
BACKWARD2, BACKWARD1, UPDATE = LaunchShape(1, 0, 4), LaunchShape(1, 16, 1), LaunchShape(2, 64, 2)
JUDGE = LaunchShape(2, 64, 4)


@dataclass(frozen=True, eq=False)
class CnnKernels:
    """Launches the kernels. Models (G, D) are in packed order: `pack` and `unpack` convert them."""

    outputs: int
    precision: str

    captured = True  # six launches a step

    def fits(self, batch_size: int) -> bool:
        """Whether one program holds a batch of so many samples."""
        return batch_size <= LARGEST_BATCH

    @staticmethod
    def form(inputs: Tensor) -> Tensor:
        """Images in the kernels' layout: (rows, 1, 28, 28) -> (rows, 17, 17, 4).

        Three zeros are added on each side, and a square of 2 x 2 pixels lies together: conv1, with its stride of 2,
        then reads 16 numbers in a row at once.
        """
        padded = torch.nn.functional.pad(inputs.reshape(-1, 28, 28), (3, 3, 3, 3))
        return padded.reshape(-1, 17, 2, 17, 2).transpose(2, 3).contiguous()

    def changes(
        self, images: Tensor, targets: Tensor, where: Tensor, models: Tensor, integers: Tensor, rates: Tensor
    ) -> Tensor:
        """(G, D) changes by SGD: where (steps, G, S) int32 rows of `images`, from models[integers[:, 0]]."""
        start = self.pack(models).index_select(0, integers[:, 0])
        trained = start.clone()
        self.train(trained, images, targets, where, rates)
        return self.unpack(trained - start)

    def pack(self, models: Tensor) -> Tensor:
        """(G, D) from the model's order of parameters to the packed order."""
        return models.index_select(1, _orders(self.outputs, models.device)[0])

    def unpack(self, models: Tensor) -> Tensor:
        """(G, D) from packed order back to the model's."""
        return models.index_select(1, _orders(self.outputs, models.device)[1])

    def train(self, vectors: Tensor, images: Tensor, targets: Tensor, where: Tensor, rates: Tensor) -> None:
        """SGD in place: vectors (G, D), where (steps, G, S) int32 rows of `images`, rates (G,)."""
        kernels = _kernels()
        groups, samples = where.shape[1:]
        count = groups * samples
        h1, place1 = _with_bytes(vectors, count * _H1)
        h2, place2 = _with_bytes(vectors, count * _H2)
        dh2, z1, z2 = torch.empty_like(h2), vectors.new_empty(count * _Z1), vectors.new_empty(count * _Z2)
        slopes, dz2 = z1.view(torch.int32), z2  # reused: after pooling, z1 and z2 are not read again
        partial = vectors.new_empty(count * CONV2)
        options = self._options
        precision = {"PRECISION": options["PRECISION"]}
        for rows in where:
            kernels.forward1[(count,)](
                vectors, images, rows, z1, h1, place1, samples, TILE=FORWARD1.tile, **FORWARD1.warps_alone, **options
            )
            kernels.forward2[(groups * FORWARD2.blocks(samples),)](
                vectors, rows, h1, z2, h2, place2, samples, FORWARD2.blocks(samples), **FORWARD2.options, **options
            )
            kernels.classify[(groups,)](
                vectors, targets, rows, rates, h2, dh2, samples, ROWS=power_of_two(samples), **self._classes, **options
            )
            kernels.backward2[(groups * BACKWARD2.blocks(samples),)](
                vectors, rows, slopes, place1, place2, dh2, dz2, samples, BACKWARD2.blocks(samples),
                **BACKWARD2.options, **options,
            )  # fmt: skip
            kernels.backward1[(count,)](
                images, rows, slopes, partial, ROWS=BACKWARD1.tile // 16, **BACKWARD1.warps_alone, **precision
            )
            kernels.update[(groups * 5,)](vectors, rows, rates, h1, dz2, partial, samples, **UPDATE.options, **options)

    def evaluate(
        self, vectors: Tensor, images: Tensor, targets: Tensor, where: Tensor, model_of: Tensor, data_of: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and correctness (G, S) of model `model_of[g]` on the images `where[data_of[g]]`; 0 for absent ones."""
        kernels = _kernels()
        groups, samples = len(model_of), where.shape[1]
        blocks, tiles = groups * JUDGE.blocks(samples), -(-samples // 32)
        programs = _programs(vectors.device, blocks)
        scratch = vectors.new_empty(programs * (_Z1 + JUDGE.images * (_H1 + _Z2)))
        h2 = vectors.new_empty(groups * samples * _H2)
        losses, hits = vectors.new_empty(groups, samples), vectors.new_empty(groups, samples)
        kernels.forward[(programs,)](
            vectors, images, where, model_of, data_of, scratch, h2, h2, blocks, samples,
            JUDGE.blocks(samples), TILE=JUDGE.tile, **JUDGE.options, **self._options,
        )  # fmt: skip
        kernels.evaluate[(groups * tiles,)](
            vectors, targets, where, model_of, data_of, h2, losses, hits, samples, tiles,
            ROWS=32, **self._classes, **self._options,
        )  # fmt: skip
        return losses, hits

    def means(self, inputs: Tensor, targets: Tensor, about: Tensor, models: Tensor, *, k: int, width: int) -> Tensor:
        """(G, k, 2) mean loss and accuracy, from `about` (G, 3): a client's first row, its size, its first model."""
        start, sizes, base = about[:, :1], about[:, 1:2], about[:, 2:]
        position = torch.arange(width, device=about.device)
        rows = torch.where(position < sizes, start + position, -1).to(torch.int32)
        model_of = (base + torch.arange(k, device=about.device)).flatten().to(torch.int32)
        data_of = (torch.arange(len(about) * k, device=about.device) // k).to(torch.int32)
        figures = self.evaluate(self.pack(models), inputs, targets, rows, model_of, data_of)
        totals = torch.stack([figure.sum(1) for figure in figures], dim=-1).reshape(len(about), k, 2)
        return totals / sizes.clamp(min=1)[:, :, None]

    @property
    def _options(self) -> dict[str, Any]:
        return {"D": num_parameters(self.outputs), "PRECISION": TRITON_PRECISION[self.precision]}

    @property
    def _classes(self) -> dict[str, int]:
        return {"CLASSES": self.outputs, "COLS": power_of_two(self.outputs)}


def kernels_here() -> bool:
    """Whether Triton can be imported."""
    try:
        _kernels()
    except ImportError:
        return False
    return True


@cache
def _orders(outputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(D,) position in the model's vector of each packed entry, and the inverse."""
    order = packed_order(outputs).copy()
    taps = np.arange(64).reshape(4, 2, 4, 2).transpose(0, 2, 1, 3).ravel()  # conv1's taps in the layout of `form`
    order[:BIAS1] = order[:BIAS1].reshape(64, -1)[taps].ravel()
    return torch.as_tensor(order, device=device), torch.as_tensor(np.argsort(order), device=device)


def _kernels() -> ModuleType:
    from rrcluster_research.fast_cnn import cnn_triton

    return cnn_triton


def _with_bytes(like: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """An uninitialised array of numbers, and one of as many bytes."""
    return like.new_empty(count), torch.empty(count, dtype=torch.int8, device=like.device)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _programs(device: torch.device, blocks: int) -> int:
    return min(blocks, _PROGRAMS_PER_PROCESSOR * _processors(device) if device.type == "cuda" else 2)
