"""Losses and accuracies of models on clients' own samples and on test sets."""

from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.device import GraphCache, GraphPool, SampleTable
from rrcluster.engine.batched.kernels import own_kernels
from rrcluster.engine.batched.steps import unused
from rrcluster.engine.batched.training import joined
from rrcluster.models.model import FixedPart, Model
from rrcluster.types import Array

_BUCKET = 32
_LARGEST_CAPTURED = 1024  # clients times models, of one run; those of a stack differ in size every time
_SAMPLES_CAPTURED = 2**14
_SAMPLES_OF_PART = 256  # of a test set
_IMAGES_AT_ONCE = 2**19  # for the kernels: bounds memory to about a gigabyte


class Evaluator:
    """Measures models. Test sets in repeated use stay on the device."""

    def __init__(
        self, model: Model, device: torch.device, capacity: int, precision: str, *, fixed: FixedPart | None = None
    ) -> None:
        """Upload nothing before the first use. `fixed` computes the model's inputs from samples."""
        self._fixed = fixed
        self._model, self._device, self._capacity = model, device, capacity
        self._kernels = own_kernels(model, device, precision)
        self._graphs = GraphCache(GraphPool())
        self._tests: WeakKeyDictionary[TestSet, SampleTable] = WeakKeyDictionary()

    def cohorts(self, questions: Sequence[tuple[Array, Cohort]], table: SampleTable) -> list[Array]:
        """(k, d) models, a cohort -> (G, k, 2) mean loss and accuracy over each client's samples; 0 without any.

        Accuracy is NaN for regression. All cohorts are of one table, and all questions have equally many models.
        """
        if self._kernels is None:
            parts = [self._by_module(models, cohort, table) for models, cohort in questions]
            figures = torch.cat(parts).double().cpu().numpy()  # one wait for all of them
            return np.split(figures, np.cumsum([len(part) for part in parts])[:-1])
        k, counts = len(questions[0][0]), [len(cohort.clients) for _, cohort in questions]
        models = self._models(joined([models for models, _ in questions]))
        starts = np.concatenate([table.starts(cohort.clients) for _, cohort in questions])
        sizes = np.concatenate([cohort.sizes for _, cohort in questions])
        about = np.stack([starts, sizes, np.repeat(k * np.arange(len(questions)), counts)], axis=1)
        figures = self._means(models, table, about, k=k).double().cpu().numpy()
        return np.split(figures, np.cumsum(counts)[:-1])

    def _by_module(self, vectors: Array, cohort: Cohort, table: SampleTable) -> Tensor:
        models, starts = self._models(vectors), table.starts(cohort.clients)
        padded = _clients_per_pass(cohort.sizes, self._model.samples_at_once) if self._device.type == "cuda" else 0
        even, at_once = padded > 0, min(self._capacity, padded or self._capacity)
        parts = [torch.zeros(0, len(vectors), 2, device=self._device)]
        for first in range(0, len(starts), at_once):
            chunk = slice(first, first + at_once)
            rows, sizes = self._rows(starts[chunk], cohort.sizes[chunk]), self._tensor(cohort.sizes[chunk])
            means = (
                self._even_means if even and rows.numel() else partial(_by_module, unused(self._model, self._device))
            )
            parts.append(means(models, table, rows, sizes))
        return torch.cat(parts)

    def _even_means(self, models: Tensor, table: SampleTable, rows: Tensor, sizes: Tensor) -> Tensor:
        """By the module, on clients of about equal size: captured for a population, up to a number of samples."""
        if rows.numel() > _SAMPLES_CAPTURED or not table.of_population:
            return _padded_by_module(self._model, table, models, rows, sizes)
        more = -len(rows) % _BUCKET
        padded = torch.nn.functional.pad(rows, (0, 0, 0, more), value=-1)
        counts = torch.nn.functional.pad(sizes, (0, more))
        program: Callable[..., Tensor] = partial(_padded_by_module, self._model, table)
        key = (table, *padded.shape, len(models))
        return self._graphs.run(key, program, models, padded, counts)[: len(rows)].clone()

    def test_set(self, vectors: Array, tests: TestSet) -> Array:
        """(k, d) -> (1, k, 2) mean loss and accuracy over all samples."""
        table, models = self._test_table(tests), self._models(vectors)
        count = len(table.targets)
        if self._kernels is not None:
            about = _parts_of(count)
            sums = self._means(models, table, about, k=len(models)).double().cpu().numpy() * about[:, 1, None, None]
            return np.asarray(sums.sum(axis=0, keepdims=True) / max(count, 1))
        rows, size = torch.arange(count, device=self._device)[None], torch.tensor([count], device=self._device)
        means = _by_module(unused(self._model, self._device), models, table, rows, size)
        return np.asarray(means.double().cpu().numpy())

    def _means(self, models: Tensor, table: SampleTable, about: Array, *, k: int) -> Tensor:
        """(G, k, 2) means of k models by the model's own kernels, from about (G, 3): first row, size, first model.

        Those of the `cnn` are captured for a cohort, and take several passes for more.
        """
        assert self._kernels is not None
        width, kernels = int(about[:, 1].max(initial=0)), self._kernels
        if not width:
            return torch.zeros(len(about), k, 2, device=self._device)
        inputs = table.inputs_as(kernels.form)

        def program(models: Tensor, about: Tensor) -> Tensor:
            return kernels.means(inputs, table.targets, about, models, k=k, width=width)

        if not kernels.captured:
            return program(models, self._tensor(about))
        if len(about) * k <= _LARGEST_CAPTURED and table.of_population:
            padded = self._tensor(np.pad(about, ((0, -len(about) % _BUCKET), (0, 0))))
            key = (table, len(padded), width, len(models), k)
            return self._graphs.run(key, program, models, padded)[: len(about)].clone()
        at_once = max(1, _IMAGES_AT_ONCE // (width * k))
        return torch.cat([program(models, part) for part in torch.split(self._tensor(about), at_once)])

    def _test_table(self, tests: TestSet) -> SampleTable:
        if tests in self._tests:
            return self._tests[tests]
        inputs, targets = self._tensor(tests.inputs), self._tensor(tests.targets)
        inputs = inputs if self._fixed is None else self._fixed.of(inputs)
        table = SampleTable(inputs, targets, np.zeros(1, dtype=np.int64), of_population=False)
        if tests.keep and (self._device.type == "cuda" or self._fixed is not None):
            self._tests[tests] = table
        return table

    def _rows(self, starts: Array, sizes: Array) -> Tensor:
        """(G, s) rows of the table, -1 beyond a client's size."""
        position = np.arange(int(sizes.max(initial=0)))
        return self._tensor(np.where(position < sizes[:, None], starts[:, None] + position, -1))

    def _models(self, vectors: Array) -> Tensor:
        return self._tensor(np.asarray(vectors, dtype=np.float32))

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values)).to(self._device, non_blocking=True)


def _parts_of(count: int) -> Array:
    """(parts, 3) a test set as clients with some of its samples each, measured side by side."""
    first = np.arange(0, count, _SAMPLES_OF_PART)
    return np.stack([first, np.minimum(count - first, _SAMPLES_OF_PART), np.zeros_like(first)], axis=1)


def _clients_per_pass(sizes: Array, most_samples: int) -> int:
    """The number of clients for one pass of at most `most_samples` samples, padding included.

    0 where clients differ much in size, or one has more samples than that.
    """
    width = int(sizes.max(initial=0))
    if width > most_samples or sizes.sum() < 0.8 * width * len(sizes):
        return 0
    return most_samples // max(width, 1)


@torch.no_grad()
def _by_module(model: Model, models: Tensor, table: SampleTable, rows: Tensor, sizes: Tensor) -> Tensor:
    """One pass per model over the samples of all clients together; a client's are summed in their order."""
    real = rows >= 0
    chosen = rows[real]
    whole = len(chosen) == len(table.targets) and len(rows) == 1
    inputs, targets = (table.inputs, table.targets) if whole else (table.inputs[chosen], table.targets[chosen])
    columns = []
    for vector in models:
        parameters = model.unflatten(vector)
        chunks = torch.split(inputs, model.samples_at_once) if len(inputs) else (inputs,)
        outputs = torch.cat([model.single(parameters, chunk).float() for chunk in chunks])
        columns.append(torch.stack([_sums(figure, real) for figure in _figures(model, outputs, targets)], dim=-1))
    means = torch.stack(columns, dim=1) / sizes.clamp(min=1)[:, None, None]
    return torch.where((sizes > 0)[:, None, None], means, 0.0)


@torch.no_grad()
def _padded_by_module(model: Model, table: SampleTable, models: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    """The same with tensors of fixed shapes: padding is computed too, and left out by `where`."""
    real, chosen = rows >= 0, rows.clamp(min=0).flatten()
    inputs, targets = table.inputs.index_select(0, chosen), table.targets.index_select(0, chosen)
    columns = []
    for vector in models.unbind():
        figures = _figures(model, model.single(model.unflatten(vector), inputs).float(), targets)
        totals = [torch.where(real, figure.reshape(real.shape).double(), 0.0).sum(1) for figure in figures]
        columns.append(torch.stack(totals, dim=-1))
    means = torch.stack(columns, dim=1) / sizes.clamp(min=1)[:, None, None]
    return torch.where((sizes > 0)[:, None, None], means, 0.0)


def _figures(model: Model, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and metric of each sample."""
    return model.task.losses(outputs, targets), model.task.metrics(outputs, targets)


def _sums(figures: Tensor, real: Tensor) -> Tensor:
    """(rows,) -> (G,) the sum over each client's samples."""
    spread = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    spread[real] = figures.double()
    return spread.sum(1)
