"""Trains and measures one client with the compiled CNN (cnn.c), called through ctypes."""

import ctypes
from functools import partial
from pathlib import Path

import numpy as np

from rrcluster.engine.fast_cnn.layout import IMAGE, num_parameters, packed_order
from rrcluster.engine.workers.worker import ClientCall, MeasureClient
from rrcluster.types import Array

_LANES = 16  # cnn.c takes outputs padded to multiples of this


class NativeCnn:
    """A client trainer backed by the compiled library. `outputs` is the number of classes, two or more."""

    def __init__(self, library: Path, outputs: int) -> None:
        """Load the compiled library."""
        self.outputs = outputs
        self._library = ctypes.CDLL(str(library))
        pointer, size, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float
        self._train, self._measure = self._library.rrcluster_cnn_train, self._library.rrcluster_cnn_measure
        self._train.argtypes = [pointer] * 4 + [size] * 4 + [real] * 2 + [pointer] * 2
        self._measure.argtypes = [pointer, size, pointer, pointer, size, size, pointer]
        self._order = packed_order(outputs, lanes=_LANES)
        self._inverse = np.argsort(self._order)[: num_parameters(outputs)]  # padding sorts last

    def train(self, call: ClientCall) -> Array:
        """(d,) -> (d,)."""
        if not call.steps.plain:
            raise ValueError("the compiled cnn computes plain SGD alone")
        images, classes = self._samples(call.inputs, call.targets)
        orders, steps = np.ascontiguousarray(call.orders, dtype=np.int64), call.steps
        weights, anchor = self._pack(call.start), self._pack(call.anchor) if steps.proximal else None
        mask = None if call.trainable is None else self._pack(call.trainable)
        failed = self._train(
            weights.ctypes.data,
            images.ctypes.data,
            classes.ctypes.data,
            orders.ctypes.data,
            len(images),
            self.outputs,
            steps.epochs,
            steps.batch_size,
            steps.rate,
            steps.proximal,
            None if anchor is None else anchor.ctypes.data,
            None if mask is None else mask.ctypes.data,
        )
        if failed:
            raise MemoryError(f"no memory to train in batches of {steps.batch_size}")
        return weights[self._inverse]

    def evaluator(self, models: Array) -> MeasureClient:
        """(k, d) -> a function of samples that returns (k, 2) sums."""
        return partial(self._sums, np.stack([self._pack(model) for model in models]))

    def _sums(self, weights: Array, inputs: Array, targets: Array) -> Array:
        images, classes = self._samples(inputs, targets)
        sums = np.zeros((len(weights), 2))
        pointers = (weights.ctypes.data, len(weights), images.ctypes.data, classes.ctypes.data)
        if self._measure(*pointers, len(images), self.outputs, sums.ctypes.data):
            raise MemoryError("no memory to measure a client")
        return sums

    def _samples(self, inputs: Array, targets: Array) -> tuple[Array, Array]:
        """Samples as C reads them; values that it must not read are refused here."""
        if inputs.shape[1:] != IMAGE or targets.shape != inputs.shape[:1]:
            raise ValueError(f"the cnn takes images of shape {IMAGE}, with one class each")
        if len(targets) and not 0 <= targets.min() <= targets.max() < self.outputs:
            raise ValueError(f"targets must be classes 0 to {self.outputs - 1}")
        return np.ascontiguousarray(inputs, dtype=np.float32), np.ascontiguousarray(targets, dtype=np.int64)

    def _pack(self, vector: Array) -> Array:
        """Parameters in packed order, aligned to 64 bytes for speed (correctness does not need it)."""
        buffer = np.empty(len(self._order) + _LANES, dtype=np.float32)
        first = (-buffer.ctypes.data // 4) % _LANES
        packed = buffer[first : first + len(self._order)]
        return np.take(np.append(np.asarray(vector, dtype=np.float32), np.float32(0)), self._order, out=packed)
