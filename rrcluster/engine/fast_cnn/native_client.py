"""One client at a time by the compiled CNN (engine/fast_cnn/cnn.c): the layout of its parameters, and its calls."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from rrcluster.engine.workers.single_client import Measure, Steps
from rrcluster.types import Array

LANES = 16  # outputs are padded to multiples of this
_IMAGE = (1, 28, 28)


class CompiledCnn:
    """Trains and measures one client's CNN. `outputs` is the number of classes, two or more."""

    def __init__(self, library: Path, outputs: int) -> None:
        """Load the compiled library."""
        self.outputs = outputs
        self._library = ctypes.CDLL(str(library))
        pointer, size, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float
        self._train, self._measure = self._library.rrcluster_cnn_train, self._library.rrcluster_cnn_measure
        self._train.argtypes = [pointer] * 4 + [size] * 4 + [real] * 2 + [pointer] * 2
        self._measure.argtypes = [pointer, size, pointer, pointer, size, size, pointer]
        self._places = packed_layout(outputs)
        self._back = np.argsort(self._places)[: num_parameters(outputs)]  # padding sorts last

    def train(
        self,
        start: Array,
        inputs: Array,
        targets: Array,
        *,
        orders: Array,
        steps: Steps,
        anchor: Array,
        moving: Array | None,
    ) -> Array:
        """(d,) -> (d,)."""
        images, classes = self._samples(inputs, targets)
        visits = np.ascontiguousarray(orders, dtype=np.int64)
        weights, pull = self._pack(start), self._pack(anchor) if steps.proximal else None
        mask = None if moving is None else self._pack(moving)
        failed = self._train(
            weights.ctypes.data,
            images.ctypes.data,
            classes.ctypes.data,
            visits.ctypes.data,
            len(images),
            self.outputs,
            steps.epochs,
            steps.batch_size,
            steps.rate,
            steps.proximal,
            None if pull is None else pull.ctypes.data,
            None if mask is None else mask.ctypes.data,
        )
        if failed:
            raise MemoryError(f"no memory to train in batches of {steps.batch_size}")
        return self._unpack(weights)

    def measuring(self, vectors: Array) -> Measure:
        """(k, d) -> (k, 2)."""
        return partial(self._sums, np.stack([self._pack(vector) for vector in vectors]))

    def _sums(self, weights: Array, inputs: Array, targets: Array) -> Array:
        images, classes = self._samples(inputs, targets)
        sums = np.zeros((len(weights), 2))
        where = (weights.ctypes.data, len(weights), images.ctypes.data, classes.ctypes.data)
        if self._measure(*where, len(images), self.outputs, sums.ctypes.data):
            raise MemoryError("no memory to measure a client")
        return sums

    def _samples(self, inputs: Array, targets: Array) -> tuple[Array, Array]:
        """As C reads them; what it must not read is refused here."""
        if inputs.shape[1:] != _IMAGE or targets.shape != inputs.shape[:1]:
            raise ValueError(f"the cnn takes images of shape {_IMAGE}, with one class each")
        if len(targets) and not 0 <= targets.min() <= targets.max() < self.outputs:
            raise ValueError(f"targets must be classes 0 to {self.outputs - 1}")
        return np.ascontiguousarray(inputs, dtype=np.float32), np.ascontiguousarray(targets, dtype=np.int64)

    def _pack(self, vector: Array) -> Array:
        """The parameters as cnn.c holds them, on a boundary of 64 bytes: faster, though not needed."""
        room = np.empty(len(self._places) + LANES, dtype=np.float32)
        first = (-room.ctypes.data // 4) % LANES
        packed = room[first : first + len(self._places)]
        return np.take(np.append(np.asarray(vector, dtype=np.float32), np.float32(0)), self._places, out=packed)

    def _unpack(self, packed: Array) -> Array:
        return packed[self._back]


def num_parameters(outputs: int) -> int:
    """d."""
    return 25_680 + 33 * outputs


@lru_cache(maxsize=4)
def packed_layout(outputs: int) -> Array:
    """For each packed entry its place in the flat vector; padding comes from a zero after its end."""
    shapes = [(16, 1, 8, 8), (16,), (32, 16, 4, 4), (32,), (32, 512), (32,), (outputs, 32), (outputs,)]
    w1, b1, w2, b2, w3, b3, w4, b4 = _numbered(shapes)
    missing, end = -outputs % LANES, b4[-1] + 1
    packed = [
        w1.reshape(16, 64).T,
        b1,
        w2.transpose(2, 3, 1, 0),
        b2,
        w3.reshape(32, 32, 16).transpose(2, 1, 0),  # PyTorch flattens channel by channel, we place by place
        b3,
        np.pad(w4.T, ((0, 0), (0, missing)), constant_values=end),
        np.pad(b4, (0, missing), constant_values=end),
    ]
    return np.concatenate([part.reshape(-1) for part in packed])


def _numbered(shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [np.arange(end - np.prod(shape), end).reshape(shape) for shape, end in zip(shapes, ends, strict=True)]
