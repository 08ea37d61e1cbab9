"""The `cnn` of deep_networks.py, and no other network, in C on a CPU and in Triton on a GPU.

Both read its parameters in one packed order, in which channels come last: conv1 (64 taps, 16) and bias, conv2 (16 taps,
16, 32) and bias, fc1 (16 positions of 32 channels, 32) and bias, fc2 (32, outputs) and bias.
"""

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from rrcluster.engine.batched.kernels import Accelerator
from rrcluster.models.model import Model
from rrcluster.types import Array

if TYPE_CHECKING:
    from rrcluster_research.fast_cnn.gpu import CnnKernels
    from rrcluster_research.fast_cnn.native import NativeEngine

IMAGE = (1, 28, 28)  # shape of an input
_SHAPES = ((16, 1, 8, 8), (16,), (32, 16, 4, 4), (32,), (32, 512), (32,))  # up to the last layer, as PyTorch has them
# Where each array starts, in both orders; conv1 starts at 0.
BIAS1, CONV2, BIAS2, FC1, FC1_BIAS, FC2 = (sum(map(prod, _SHAPES[:count])) for count in range(1, 7))
_HIDDEN = 32  # inputs of fc2
ACTIVATIONS = 14 * 14 * 16, 13 * 13 * 16, 5 * 5 * 32, 4 * 4 * 32  # numbers of one image after conv1, pool, conv2, pool


def num_parameters(outputs: int) -> int:
    """Number of parameters (d) of a cnn with this many classes."""
    return FC2 + (_HIDDEN + 1) * outputs


@lru_cache(maxsize=4)
def packed_order(outputs: int, *, lanes: int = 1) -> Array:
    """Position in the flat vector of each packed entry; outputs are padded to a multiple of `lanes`.

    Padding has the position `num_parameters(outputs)`: append a zero to the vector.
    """
    shapes = (*_SHAPES, (outputs, _HIDDEN), (outputs,))
    end, padding = num_parameters(outputs), (0, -outputs % lanes)
    sizes = [prod(shape) for shape in shapes]
    pieces = np.split(np.arange(end), np.cumsum(sizes)[:-1])
    w1, b1, w2, b2, w3, b3, w4, b4 = (piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True))
    packed = [
        w1.reshape(16, 64).T,
        b1,
        w2.transpose(2, 3, 1, 0),
        b2,
        w3.reshape(32, 32, 16).transpose(
            2, 1, 0
        ),  # PyTorch flattens channel by channel, packed is position by position
        b3,
        np.pad(w4.T, ((0, 0), padding), constant_values=end),
        np.pad(b4, padding, constant_values=end),
    ]
    return np.concatenate([part.reshape(-1) for part in packed])


def cpu_engine(model: Model) -> "NativeEngine | None":
    """The engine over the compiled library; None where there is no compiler."""
    from rrcluster_research.fast_cnn.native import NativeEngine, native_library

    library = native_library()
    return None if library is None else NativeEngine(model, library)


def gpu_kernels(model: Model, precision: str) -> "CnnKernels | None":
    """The Triton kernels; None without Triton."""
    from rrcluster_research.fast_cnn.gpu import CnnKernels, kernels_here

    return CnnKernels(model.layers[-1].shape[0], precision) if kernels_here() else None


ACCELERATOR = Accelerator(cpu_engine, gpu_kernels)
