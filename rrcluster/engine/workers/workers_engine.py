"""Workers engine: clients one at a time in several single-threaded processes. Fastest for convolutions on a CPU."""

import pickle
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.fast_cnn.native_build import native_library
from rrcluster.engine.optimisers import step_seeds
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.engine.workers.pool import WorkerPool
from rrcluster.engine.workers.processes import cores
from rrcluster.engine.workers.worker import Steps, TrainerSpec, WorkerJob
from rrcluster.errors import ConfigError
from rrcluster.models.model import Model
from rrcluster.types import Array

_TEST_SAMPLES = 500  # one worker's part of a test set


class WorkersEngine:
    """A client's result does not depend, in any bit, on the number of workers or on the rest of the cohort.

    The processes start with the first call and end with `close`, with the engine or with this process, however it
    ends. At most `capacity` clients are in shared memory at a time; a larger cohort takes several passes.
    """

    def __init__(self, model: Model, num_workers: int = 0, capacity: int = 1024) -> None:
        """`num_workers` = 0: one for each core that this process may use."""
        self.model, self.num_workers, self.capacity = model, num_workers or cores(), capacity
        self._pool: WorkerPool | None = None

    @cached_property
    def spec(self) -> TrainerSpec:
        """What the workers compute with."""
        library = None if self.model.accelerated is None else native_library()
        if library is not None and self.model.accelerated is not None:
            return TrainerSpec(library, self.model.accelerated.outputs)
        try:
            module = pickle.dumps((self.model.module, self.model.task))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"model {self.model.name} cannot be sent to worker processes ({error}); use engine = batched."
            ) from error
        return TrainerSpec(module=module, samples_at_once=self.model.samples_at_once)

    @property
    def name(self) -> str:
        """For fingerprints: libraries compiled differently differ in their last bits."""
        return "workers" if self.spec.library is None else f"workers, {self.spec.library.stem}"

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [call.result(self._train(call)) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question.models, question.samples) for question in questions]

    def close(self) -> None:
        """End the worker processes; the next call starts new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def __enter__(self) -> "WorkersEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the running workers."""
        return () if self._pool is None else self._pool.process_ids

    def _train(self, call: TrainingCall) -> Array:
        local, trained = call.local, call.start
        steps = Steps.of(local)
        for rows, part in _passes(call.cohort, self.capacity):
            inputs, targets, spans = _flat(part)
            arrays = {"inputs": inputs, "targets": targets, "spans": spans, "start": trained[rows]}
            arrays["orders"] = batch_orders(call.key, part.clients, part.sizes, epochs=local.local_epochs)
            if self.model.own:  # those we ship draw no random numbers
                longest = int(part.sizes.max(initial=0))
                count = local.local_epochs * -(-longest // local.batch_size)
                arrays["seeds"] = step_seeds(call.key, part.clients, count)
            if call.anchor is not None and local.proximal:
                arrays["anchor"] = np.asarray(call.anchor[rows], dtype=np.float32)
            if call.trainable is not None:
                arrays["trainable"] = np.asarray(call.trainable, dtype=np.float32)
            trained[rows] = self._compute(arrays, arrays["start"].shape, "<f4", steps)
        return trained

    def _measure(self, models: Array, samples: Cohort | TestSet) -> Measured:
        if isinstance(samples, TestSet):
            starts = np.arange(0, len(samples.targets), _TEST_SAMPLES)
            spans = np.stack([starts, np.minimum(starts + _TEST_SAMPLES, len(samples.targets))], axis=1)
            sums = self._sums(models, samples.inputs, samples.targets, spans).sum(axis=0, keepdims=True)
            return Measured.of_sums(sums, np.array([len(samples.targets)]))
        parts = [self._sums(models, *_flat(part)) for _, part in _passes(samples, self.capacity)]
        sums = np.concatenate([np.zeros((0, len(models), 2)), *parts])
        return Measured.of_sums(sums, samples.sizes)

    def _sums(self, models: Array, inputs: Array, targets: Array, spans: Array) -> Array:
        """(k, d) -> (P, k, 2): loss and correct answers, summed over the samples of each span."""
        arrays = {"inputs": inputs, "targets": targets, "spans": spans}
        arrays["models"] = np.asarray(models, dtype=np.float32)
        return self._compute(arrays, (len(spans), len(models), 2), "<f8")

    def _compute(
        self, arrays: dict[str, Array], shape: tuple[int, ...], dtype: str, steps: Steps | None = None
    ) -> Array:
        if not len(arrays["spans"]):
            return np.zeros(shape, dtype=dtype)
        pool = self._pool = self._pool or self._start()
        specs = pool.share(arrays, (shape, dtype))
        try:
            pool.run(WorkerJob(pool.arena.size, specs, steps), np.diff(arrays["spans"], axis=1)[:, 0])
        except BaseException:  # the pool has closed itself: the next call starts a new one
            self._pool = None
            raise
        return np.array(pool.arena.view(specs["result"]))

    def _start(self) -> WorkerPool:
        pool = WorkerPool(self.spec, self.num_workers)
        weakref.finalize(self, pool.close)
        return pool


def _passes(cohort: Cohort, capacity: int) -> Iterator[tuple[slice, Cohort]]:
    """The cohort in order, in parts of at most `capacity` clients."""
    for first in range(0, len(cohort.clients), capacity):
        rows = slice(first, first + capacity)
        arrays = cohort.clients[rows], cohort.inputs[rows], cohort.targets[rows], cohort.sizes[rows]
        yield rows, Cohort.of_arrays(*arrays)


def _flat(cohort: Cohort) -> tuple[Array, Array, Array]:
    """All samples one after the other, and which belong to each client: (n s, *input), (n s, ...), (n, 2)."""
    count, longest = cohort.targets.shape[:2]
    first = np.arange(count) * longest
    spans = np.stack([first, first + cohort.sizes], axis=1)
    inputs = cohort.inputs.reshape(count * longest, *cohort.inputs.shape[2:])
    return inputs, cohort.targets.reshape(count * longest, *cohort.targets.shape[2:]), spans
