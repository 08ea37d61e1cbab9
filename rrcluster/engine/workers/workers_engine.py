"""Clients one at a time in several processes with one thread each: the fastest there is for convolutions on a CPU."""

import os
import pickle
import weakref
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import nn

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.fast_cnn.native_build import compiled
from rrcluster.engine.protocol import LocalSettings, Updates, changes_by_training
from rrcluster.engine.workers.pool import Pool
from rrcluster.engine.workers.single_client import Steps
from rrcluster.engine.workers.worker import Job, Recipe
from rrcluster.errors import ConfigError
from rrcluster.models.image_networks import cnn
from rrcluster.models.model import Model
from rrcluster.types import Array

_SAMPLES_OF_A_TEST = 500  # one worker's part of a test set


@dataclass(eq=False)
class WorkersEngine:
    """A client's result does not depend, in any bit, on the number of workers or on who else is in the cohort.

    The processes start with the first call and end with `close`, with the engine or with this process, whatever ends
    it. At most `capacity` clients are in shared memory at a time; a larger cohort takes several passes.
    """

    model: Model
    num_workers: int = 0  # 0: one per core this process may use
    capacity: int = 1024
    _pools: list[Pool] = field(default_factory=list, init=False, repr=False)  # one, or none

    def __post_init__(self) -> None:
        self.num_workers = self.num_workers or cores()
        weakref.finalize(self, _close, self._pools)

    @cached_property
    def recipe(self) -> Recipe:
        """What the workers compute with."""
        library = compiled("cnn") if is_the_cnn(self.model) else None
        if library is not None:
            return Recipe(library, _num_outputs(self.model))
        try:
            module = pickle.dumps(self.model.module)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"model {self.model.name} cannot be sent to worker processes ({error}); use engine = batched."
            ) from error
        return Recipe(module=module, samples_at_once=self.model.samples_at_once)

    @property
    def name(self) -> str:
        """What computes: libraries compiled otherwise differ in their last bits."""
        return "workers" if self.recipe.library is None else f"workers, {self.recipe.library.stem}"

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k)."""
        return self.measure(vectors, cohort)[0]

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        sums = [self._sums(vectors, *_flat(part)) for part in _passes(cohort, self.capacity)]
        whole = np.concatenate([np.zeros((0, len(vectors), 2)), *sums])
        return _means(whole, cohort.sizes[:, None], cohort.targets)

    def train(
        self,
        start: Array,
        cohort: Cohort,
        *,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array | None = None,
        trainable: Array | None = None,
    ) -> Array:
        """(G, d) -> (G, d)."""
        trained = np.array(start, dtype=np.float32)
        steps = Steps(local.local_lr, local.local_epochs, local.batch_size, local.proximal)
        for first, part in enumerate(_passes(cohort, self.capacity)):
            rows = slice(first * self.capacity, (first + 1) * self.capacity)
            inputs, targets, spans = _flat(part)
            arrays = {"inputs": inputs, "targets": targets, "spans": spans, "start": trained[rows]}
            arrays["orders"] = batch_orders(key, part.clients, part.sizes, epochs=local.local_epochs)
            if anchor is not None and local.proximal:
                arrays["anchor"] = np.asarray(anchor[rows], dtype=np.float32)
            if trainable is not None:
                arrays["trainable"] = np.asarray(trainable, dtype=np.float32)
            trained[rows] = self._do(arrays, arrays["start"].shape, "<f4", steps)
        return trained

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        inputs, targets = tests.inputs, tests.targets
        ends = np.arange(0, len(targets), _SAMPLES_OF_A_TEST)
        spans = np.stack([ends, np.minimum(ends + _SAMPLES_OF_A_TEST, len(targets))], axis=1)
        sums = self._sums(vectors, inputs, targets, spans).sum(axis=0)
        return _means(sums, np.array(len(targets)), targets)

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """(k, d), (G,) -> (G, d)."""
        return changes_by_training(self, vectors, clusters, cohort, local=local, key=key)

    def close(self) -> None:
        """End the worker processes; the next call starts new ones."""
        _close(self._pools)

    def __enter__(self) -> "WorkersEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the workers that are running."""
        return tuple(found for pool in self._pools for found in pool.process_ids)

    def _sums(self, vectors: Array, inputs: Array, targets: Array, spans: Array) -> Array:
        """(k, d) -> (P, k, 2): loss and right answers, summed over the samples of each span."""
        arrays = {"inputs": inputs, "targets": targets, "spans": spans}
        arrays["vectors"] = np.asarray(vectors, dtype=np.float32)
        return self._do(arrays, (len(spans), len(vectors), 2), "<f8")

    def _do(self, arrays: dict[str, Array], shape: tuple[int, ...], kind: str, steps: Steps | None = None) -> Array:
        if not len(arrays["spans"]):
            return np.zeros(shape, dtype=kind)
        if not self._pools:
            self._pools.append(Pool(self.recipe, self.num_workers))
        pool = self._pools[0]
        slots = pool.lay(arrays, (shape, kind))
        try:
            pool.run(Job(pool.arena.size, slots, steps), np.diff(arrays["spans"], axis=1)[:, 0])
        except BaseException:  # it has closed: the next call starts anew
            self._pools.clear()
            raise
        return np.array(pool.arena.view(slots["result"]))


def cores() -> int:
    """The cores this process may use, shared fairly among the ranks that torchrun starts on one machine."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def is_the_cnn(model: Model) -> bool:
    """Whether the module is, layer by layer, the CNN that is compiled."""
    if type(model.module) is not nn.Sequential or not isinstance(model.module[-1], nn.Linear):
        return False
    outputs = _num_outputs(model)
    return outputs > 1 and repr(model.module) == repr(cnn((1, 28, 28), outputs).module)


def _num_outputs(model: Model) -> int:
    return int(model.layers[-1].shape[0])


def _close(pools: list[Pool]) -> None:
    while pools:
        pools.pop().close()


def _passes(cohort: Cohort, capacity: int) -> list[Cohort]:
    """The cohort in order, in parts of at most `capacity` clients."""
    rows = [slice(first, first + capacity) for first in range(0, len(cohort.clients), capacity)]
    return [Cohort.of_arrays(cohort.clients[r], cohort.inputs[r], cohort.targets[r], cohort.sizes[r]) for r in rows]


def _flat(cohort: Cohort) -> tuple[Array, Array, Array]:
    """All samples one after the other, and which belong to each client: (G s, *input), (G s,), (G, 2)."""
    count, longest = cohort.targets.shape
    first = np.arange(count) * longest
    spans = np.stack([first, first + cohort.sizes], axis=1)
    return cohort.inputs.reshape(count * longest, *cohort.inputs.shape[2:]), cohort.targets.reshape(-1), spans


def _means(sums: Array, sizes: Array, targets: Array) -> tuple[Array, Array]:
    """Mean loss and accuracy; 0 for a client without samples, and no accuracy for regression."""
    loss, accuracy = np.moveaxis(sums, -1, 0) / np.maximum(sizes, 1)
    if np.issubdtype(targets.dtype, np.floating):
        accuracy = np.full_like(accuracy, np.nan)
    return loss, accuracy
