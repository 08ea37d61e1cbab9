"""Batched engine: each training step is one tensor program over many clients, of one run or of several.

On a CUDA device the population's samples are uploaded once, steps are captured as CUDA graphs, and the `cnn` and linear
layers have their own kernels; updates stay on the device.
"""

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.engine.batched.device import PopulationTable, SampleTable, cohort_table, population_bytes
from rrcluster.engine.batched.evaluator import Evaluator
from rrcluster.engine.batched.training import Trainer, join, program_key
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.engine.reference import CPU
from rrcluster.errors import ConfigError
from rrcluster.models.model import Model
from rrcluster.types import Array


def pick_precision(name: str, device: torch.device) -> str:
    """Precision of the operands of matrix products; `auto` is tf32 on CUDA. The CPU always uses float32.

    A product has a relative error of 6e-8 in float32, 5e-4 in tf32 and 4e-3 in bfloat16; sums are float32 in all three.
    The effect on accuracy is in docs/results/selection/study.md.
    """
    if device.type != "cuda":
        return "float32"
    return "tf32" if name == "auto" else name


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run torch's own matrix products and convolutions at this precision; torch's switches are restored afterwards."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    shorter = precision == "bfloat16"
    cast = torch.autocast("cuda", torch.bfloat16, enabled=shorter) if shorter or torch.is_autocast_enabled() else None
    try:
        with cast or nullcontext():  # creating one takes as long as launching two kernels
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


# bytes of samples up to which a population's features are kept; larger ones are computed by cohort
_FEATURES_ON_CPU = 2**30
_POPULATION_SHARE = 0.3  # of the available device memory; a larger population is uploaded cohort by cohort


class BatchedEngine:
    """Stacks clients along one axis, at most `capacity` at once; more take several passes, with the same result.

    `precision` is that of matrix operands on a CUDA device (`pick_precision`); sums are float32.
    """

    isolates = False

    def __init__(
        self, model: Model, device: torch.device = CPU, capacity: int = 1024, precision: str = "float32"
    ) -> None:
        """Upload and compile nothing before the first call."""
        self.model, self.device, self.capacity, self.precision = model, device, capacity, precision
        fixed = model.fixed
        trained = model if fixed is None else fixed.rest  # features are computed once, for the tables
        self._tables: WeakKeyDictionary[FederatedData, PopulationTable] = WeakKeyDictionary()
        self._trainer = Trainer(trained, device, capacity, precision)
        self._evaluator = Evaluator(trained, device, capacity, precision, fixed=fixed)

    @property
    def part(self) -> int:
        """As many as are stacked at once; on a device the whole cohort, which the engine divides by itself."""
        return self.capacity if self.device.type == "cpu" else sys.maxsize

    @property
    def described(self) -> str:
        """Device and precision, for fingerprints."""
        return f"batched, {self.device.type}, {self.precision}"

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "device": self.device, "capacity": self.capacity, "precision": self.precision}

    def __setstate__(self, state: dict[str, Any]) -> None:
        BatchedEngine.__init__(self, **state)

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call; calls on one population that can share a program run together."""
        if self.model.not_batched and not (self.model.dropout_only and self.device.type == "cpu"):
            raise ConfigError(
                f"engine = batched cannot train {self.model.name}: {self.model.not_batched}; use engine = reference."
            )
        tables = [self._table(call.cohort) for call in calls]
        results: list[Updates] = [None] * len(calls)
        with matmul_precision(self.precision, self.device):
            for positions in _equal([(table, *program_key(call)) for table, call in zip(tables, calls, strict=True)]):
                together, table = [calls[position] for position in positions], tables[positions[0]]
                changes = self._trainer.train(join(together, table), table)
                parts = torch.split(changes, [len(call.model_of) for call in together])
                for position, call, part in zip(positions, together, parts, strict=True):
                    results[position] = self._result(call, part)
        return results

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question; those about one population are answered together."""
        figures: dict[int, Array] = {}  # (n, k, 2)
        cohorts: list[tuple[int, Array, Cohort, SampleTable]] = []
        with matmul_precision(self.precision, self.device):
            for position, question in enumerate(questions):
                models, samples = question.models, question.samples
                if isinstance(samples, TestSet):
                    figures[position] = self._evaluator.test_set(models, samples)
                else:
                    cohorts.append((position, models, samples, self._table(samples)))
            for members in _equal([(table, len(models)) for _, models, _, table in cohorts]):
                together = [cohorts[member] for member in members]
                pairs = [(models, cohort) for _, models, cohort, _ in together]
                answers = self._evaluator.cohorts(pairs, together[0][3])
                figures |= dict(zip((position for position, *_ in together), answers, strict=True))
        return [Measured(figures[place][..., 0], figures[place][..., 1]) for place in range(len(questions))]

    def _result(self, call: TrainingCall, changes: torch.Tensor) -> Updates:
        if call.whole_models:
            changes = changes + torch.as_tensor(call.start, device=self.device)
        return changes.numpy() if changes.device.type == "cpu" else changes

    def _table(self, cohort: Cohort) -> SampleTable:
        """The population's samples on the device, or only the cohort's where keeping them all does not fit or help.

        On a CPU, only the features of a model that begins with fixed ones are worth keeping.
        """
        population, fixed = cohort.population, self.model.fixed
        if population is None or (self.device.type == "cpu" and fixed is None):
            return cohort_table(cohort, self.device, fixed=fixed)
        if population not in self._tables:
            if population_bytes(population) > self._population_limit():
                return cohort_table(cohort, self.device, fixed=fixed)
            self._tables[population] = PopulationTable(population, self.device, fixed=fixed)
        everybody = np.arange(population.num_clients)  # on a device: gradual uploads would make every round wait
        return self._tables[population].holding(cohort.clients if self.device.type == "cpu" else everybody, population)

    def _population_limit(self) -> float:
        """The largest population, in bytes of samples, that is kept on the device."""
        if self.device.type == "cpu":
            return _FEATURES_ON_CPU
        with torch.cuda.device(self.device):
            share = torch.cuda.get_per_process_memory_fraction()  # below 1 beside other processes of a sweep
        return _POPULATION_SHARE * share * torch.cuda.get_device_properties(self.device).total_memory


def _equal(keys: Sequence[Hashable]) -> list[list[int]]:
    """Positions of equal keys."""
    positions: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        positions[key].append(position)
    return list(positions.values())
