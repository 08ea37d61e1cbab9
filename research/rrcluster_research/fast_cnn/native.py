"""The `cnn` on a CPU, by compiled code (cnn.c) called through ctypes: one client after the other, on one thread.

cnn.c is compiled for this machine on first use, and the library is kept in the user's cache folder. The file name
contains a digest of source, flags, compiler and processor: a change of any of them compiles again, and a home folder
shared by different machines has one library for each.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from subprocess import SubprocessError

import numpy as np

from rrcluster.data.federated import TestSet
from rrcluster.engine.local_steps import batch_orders
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.engine.reference import CPU
from rrcluster.models.model import Model
from rrcluster.processes import run_program
from rrcluster.settings import LocalSettings
from rrcluster.storage import cache_folder, replace_file
from rrcluster.types import Array
from rrcluster_research.fast_cnn import IMAGE, num_parameters, packed_order

COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-w", "-fPIC", "-shared")
_SWITCH = "RRCLUSTER_COMPILE"  # 0: never compile


@cache
def native_library() -> Path | None:
    """The compiled library; None, with a warning that gives the reason, where it cannot be built."""
    source = Path(__file__).with_name("cnn.c")
    if os.environ.get(_SWITCH) == "0":
        return None
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        _warn(f"no C compiler ({', '.join(COMPILERS)}) found")
        return None
    try:
        target = cache_folder("native") / f"cnn-{_digest(source, compiler)}.so"
        if not target.exists():
            _compile(compiler, source, target)
    except (OSError, SubprocessError) as error:
        _warn(f"{compiler} failed ({type(error).__name__})")
        return None
    return target


def _compile(compiler: str, source: Path, target: Path) -> None:
    """Compile elsewhere, then move the library into place at once: other processes never see a partial one."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / target.name
        run_program([compiler, *_FLAGS, str(source), "-o", str(library), "-lm"])
        replace_file(target, library.read_bytes())


def _digest(source: Path, compiler: str) -> str:
    version = run_program([compiler, "--version"])
    parts = (source.read_bytes(), " ".join(_FLAGS).encode(), version, _processor().encode())
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    )


def _warn(reason: str) -> None:
    logging.getLogger("rrcluster").warning("%s: PyTorch trains the cnn instead, more slowly.", reason)


_LANES = 16  # cnn.c takes outputs padded to multiples of this


class NativeEngine:
    """The engine of the compiled library. No bit of a client's result depends on another client."""

    device, part, isolates = CPU, 8, True

    def __init__(self, model: Model, library: Path) -> None:
        """Keep the path; the library is loaded with the first call, so that an engine can be sent elsewhere."""
        self.model, self._path = model, library

    @property
    def described(self) -> str:
        """The library for fingerprints: libraries compiled differently differ in their last bits."""
        return f"compiled, {self._path.stem}"

    @cached_property
    def _cnn(self) -> "NativeCnn":
        return NativeCnn(self._path, self.model.layers[-1].shape[0])

    def __getstate__(self) -> dict[str, object]:
        return {"model": self.model, "_path": self._path}

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [call.result(self._train(call)) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    def _train(self, call: TrainingCall) -> Array:
        cohort, trained = call.cohort, call.start
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=call.local.local_epochs)
        anchors = trained if call.anchor is None else np.asarray(call.anchor, dtype=np.float32)
        for row, size in enumerate(cohort.sizes.tolist()):
            if size:
                samples = cohort.inputs[row, :size], cohort.targets[row, :size]
                trained[row] = self._cnn.train(
                    trained[row], *samples, orders[row, :, :size], call.local, anchors[row], call.trainable
                )
        return trained

    def _measure(self, question: Question) -> Measured:
        samples, weights = question.samples, self._cnn.packed(question.models)
        if isinstance(samples, TestSet):
            sums = self._cnn.sums(weights, samples.inputs, samples.targets)[None]
            return Measured.of_sums(sums, np.array([len(samples.targets)]))
        sums = np.zeros((len(samples.sizes), len(weights), 2))
        for row, size in enumerate(samples.sizes.tolist()):
            sums[row] = self._cnn.sums(weights, samples.inputs[row, :size], samples.targets[row, :size])
        return Measured.of_sums(sums, samples.sizes)


class NativeCnn:
    """The compiled library. `outputs` is the number of classes, two or more."""

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

    def train(
        self,
        start: Array,
        inputs: Array,
        targets: Array,
        orders: Array,
        local: LocalSettings,
        anchor: Array,
        trainable: Array | None,
    ) -> Array:
        """The trained model (d,) of a client that visits its n > 0 samples in the order `orders`, (epochs, n)."""
        if not local.plain_sgd:
            raise ValueError("the compiled cnn computes plain SGD alone")
        images, classes = self._samples(inputs, targets)
        visits = np.ascontiguousarray(orders, dtype=np.int64)
        weights, centre = self._pack(start), self._pack(anchor) if local.proximal else None
        mask = None if trainable is None else self._pack(np.asarray(trainable, dtype=np.float32))
        failed = self._train(
            weights.ctypes.data,
            images.ctypes.data,
            classes.ctypes.data,
            visits.ctypes.data,
            len(images),
            self.outputs,
            local.local_epochs,
            local.batch_size,
            local.local_lr,
            local.proximal,
            None if centre is None else centre.ctypes.data,
            None if mask is None else mask.ctypes.data,
        )
        if failed:
            raise MemoryError(f"no memory to train in batches of {local.batch_size}")
        return weights[self._inverse]

    def packed(self, models: Array) -> Array:
        """(k, d) models in the layout of cnn.c."""
        return np.stack([self._pack(model) for model in models])

    def sums(self, weights: Array, inputs: Array, targets: Array) -> Array:
        """(k, 2) sums of loss and of correct answers of packed models over samples."""
        images, classes = self._samples(inputs, targets)
        sums = np.zeros((len(weights), 2))
        pointers = (weights.ctypes.data, len(weights), images.ctypes.data, classes.ctypes.data)
        if self._measure(*pointers, len(images), self.outputs, sums.ctypes.data):
            raise MemoryError("no memory to measure a client")
        return sums

    def _samples(self, inputs: Array, targets: Array) -> tuple[Array, Array]:
        """Samples in the layout of cnn.c, after checking their values."""
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
