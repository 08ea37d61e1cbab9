"""Many clients at once: each training step is one tensor program over all of them, of one run or of many.

On a CUDA device the population's samples are uploaded once, steps are recorded as CUDA graphs, and the `cnn` has
kernels of its own; results stay there until somebody asks for them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.engine.batched.device_tables import Table, cohort_table, population_bytes, population_table
from rrcluster.engine.batched.evaluator import Judge
from rrcluster.engine.batched.precision import precisely
from rrcluster.engine.batched.training import Trainer, TrainingCall, join
from rrcluster.engine.protocol import CPU, LocalSettings, Updates
from rrcluster.models.model import Model
from rrcluster.types import Array

_KEPT_ON_CPU = 2**30  # bytes of samples, their features being less: a larger population's are computed by cohort
_POPULATION_SHARE = 0.3  # of the device's memory that we may use: a larger population is uploaded cohort by cohort


@dataclass(frozen=True, eq=False)
class BatchedEngine:
    """Stacks clients along one axis: at most `capacity` at once; more take several passes, with the same result.

    `precision` is how operands of matrix products are rounded on a CUDA device (precision.py); sums are float32.
    """

    model: Model
    device: torch.device = CPU
    capacity: int = 1024
    precision: str = "float32"
    _tables: WeakKeyDictionary[FederatedData, Table] = field(default_factory=WeakKeyDictionary, init=False, repr=False)
    _trainer: Trainer = field(init=False, repr=False)
    _judge: Judge = field(init=False, repr=False)

    def __post_init__(self) -> None:
        fixed = self.model.fixed
        trained = self.model if fixed is None else fixed.rest  # features are computed once, for the tables
        object.__setattr__(self, "_trainer", Trainer(trained, self.device, self.capacity, self.precision))
        object.__setattr__(self, "_judge", Judge(trained, self.device, self.capacity, self.precision, fixed=fixed))

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k)."""
        return self.measure(vectors, cohort)[0]

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        figures = self.measure_many([(vectors, cohort)])[0]
        return figures[..., 0], figures[..., 1]

    def measure_many(self, questions: Sequence[tuple[Array, Cohort]]) -> list[Array]:
        """(G, k, 2) losses and accuracies for every question; those about one population are answered together."""
        tables = [self._table(cohort) for _, cohort in questions]
        together: dict[object, list[int]] = defaultdict(list)
        for place, (table, (vectors, _)) in enumerate(zip(tables, questions, strict=True)):
            together[(table, len(vectors))].append(place)
        answers: list[Array] = [np.zeros(0)] * len(questions)
        with precisely(self.precision, self.device):
            for places in together.values():
                figures = self._judge.clients([questions[place] for place in places], tables[places[0]])
                for place, answer in zip(places, figures, strict=True):
                    answers[place] = answer
        return answers

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        with precisely(self.precision, self.device):
            return self._judge.test(vectors, tests)

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
        start = np.asarray(start, dtype=np.float32)
        call = TrainingCall(start, np.arange(len(start)), cohort, local, key, anchor, trainable)
        return np.asarray(self.train_many([call])[0].add(self._tensor(start)).cpu().numpy())

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """(k, d), (G,) -> (G, d); a tensor on the device where that is not the CPU."""
        changed = self.train_many([TrainingCall(vectors, clusters, cohort, local, key)])[0]
        return changed.numpy() if changed.device.type == "cpu" else changed

    def train_many(self, calls: Sequence[TrainingCall]) -> list[Tensor]:
        """The changes (G, d) of every call; calls on one population and of one shape run as one program."""
        together: dict[object, list[int]] = defaultdict(list)
        tables = [self._table(call.cohort) for call in calls]
        for place, (table, call) in enumerate(zip(tables, calls, strict=True)):
            together[(table, *call.shape)].append(place)
        changes: list[Tensor] = [torch.empty(0)] * len(calls)
        with precisely(self.precision, self.device):
            for places in together.values():
                joined = join([calls[place] for place in places], tables[places[0]])
                parts = self._trainer.train(joined, tables[places[0]])
                sizes = [len(calls[place].clusters) for place in places]
                for place, part in zip(places, torch.split(parts, sizes), strict=True):
                    changes[place] = part
        return changes

    def _table(self, cohort: Cohort) -> Table:
        """The population's samples on the device, or the cohort's where they would not fit or are there already.

        On a CPU they are there already; what is kept is the features of a model that begins with fixed ones.
        """
        population, fixed = cohort.population, self.model.fixed
        if population is None or (self.device.type == "cpu" and fixed is None):
            return cohort_table(cohort, self.device, fixed=fixed)
        if population not in self._tables:
            if population_bytes(population) > self._room():
                return cohort_table(cohort, self.device, fixed=fixed)
            self._tables[population] = population_table(population, self.device, fixed=fixed)
        return self._tables[population]

    def _room(self) -> float:
        """Bytes that the samples of a population may take."""
        if self.device.type == "cpu":
            return _KEPT_ON_CPU
        with torch.cuda.device(self.device):
            ours = torch.cuda.get_per_process_memory_fraction()  # less than 1 beside other processes of a sweep
        return _POPULATION_SHARE * ours * torch.cuda.get_device_properties(self.device).total_memory

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self.device)
