"""Losses and accuracies of stacked models, on clients' own samples and on test sets."""

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.graphs import Recorder
from rrcluster.engine.kernels.cnn import FusedCnn, fused_form
from rrcluster.engine.tables import Table
from rrcluster.models.loss import sample_losses
from rrcluster.models.model import Model
from rrcluster.types import Array

_BUCKET = 32
_LARGEST_RECORDED = 4096  # clients times models
_IMAGES_AT_ONCE = 2**19  # of the kernels: bounds memory to about a gigabyte


class Judge:
    """Measures models. One that is asked again about a test set finds it on the device."""

    def __init__(self, model: Model, device: torch.device, capacity: int, precision: str) -> None:
        """Nothing is uploaded before the first use."""
        self._model, self._device, self._capacity = model, device, capacity
        self._fused = fused_form(model, device, precision)
        self._recorder = Recorder()
        self._tests: WeakKeyDictionary[TestSet, Table] = WeakKeyDictionary()

    def clients(self, vectors: Array, table: Table, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k), means over each client's samples; 0 for a client without any.

        Accuracy is NaN for regression.
        """
        models, starts, parts = self._models(vectors), table.starts(cohort.clients), []
        for first in range(0, len(starts), self._capacity):
            chunk = slice(first, first + self._capacity)
            rows = self._rows(starts[chunk], cohort.sizes[chunk])
            parts.append(self._means(models, table, rows, self._tensor(cohort.sizes[chunk])).double().cpu().numpy())
        figures = np.concatenate(parts) if parts else np.zeros((0, len(vectors), 2))
        return figures[..., 0], figures[..., 1]

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        table = self._test_table(tests)
        count = len(table.targets)
        rows, size = torch.arange(count, device=self._device)[None], torch.tensor([count], device=self._device)
        figures = self._means(self._models(vectors), table, rows, size, record=False).double().cpu().numpy()[0]
        return figures[:, 0], figures[:, 1]

    def _means(self, models: Tensor, table: Table, rows: Tensor, sizes: Tensor, *, record: bool = True) -> Tensor:
        """(G, k, 2) mean loss and accuracy over rows (G, s) of the table, -1 where there is none."""
        if self._fused is None or not rows.numel():
            return _by_module(self._model, models, table, rows, sizes)
        program: Callable[..., Tensor] = partial(_by_kernels, self._fused, table)
        groups = len(rows) * len(models)
        if record and groups <= _LARGEST_RECORDED and table.of_population:
            room = -(-len(rows) // _BUCKET) * _BUCKET
            padded = torch.nn.functional.pad(rows, (0, 0, 0, room - len(rows)), value=-1)
            counts = torch.nn.functional.pad(sizes, (0, room - len(rows)))
            key = (table, *padded.shape, len(models))
            return self._recorder.run(key, program, models, padded, counts)[: len(rows)].clone()
        at_once = max(1, _IMAGES_AT_ONCE // (rows.shape[1] * len(models)))
        pairs = zip(torch.split(rows, at_once), torch.split(sizes, at_once), strict=True)
        return torch.cat([program(models, some, counts) for some, counts in pairs])

    def _test_table(self, tests: TestSet) -> Table:
        if tests in self._tests:
            return self._tests[tests]
        inputs, targets = self._tensor(tests.inputs), self._tensor(tests.targets)
        table = Table(inputs, targets, np.zeros(1, dtype=np.int64), of_population=False)
        if tests.keep and self._device.type == "cuda":
            self._tests[tests] = table
        return table

    def _rows(self, starts: Array, sizes: Array) -> Tensor:
        """(G, s) rows of the table, -1 beyond a client's size."""
        position = np.arange(int(sizes.max(initial=0)))
        return self._tensor(np.where(position < sizes[:, None], starts[:, None] + position, -1))

    def _models(self, vectors: Array) -> Tensor:
        return self._tensor(np.asarray(vectors, dtype=np.float32))

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self._device)


def _by_kernels(fused: FusedCnn, table: Table, models: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    clients, k = len(rows), len(models)
    model_of = torch.arange(k, dtype=torch.int32, device=rows.device).repeat(clients)
    data_of = torch.arange(clients, dtype=torch.int32, device=rows.device).repeat_interleave(k, output_size=clients * k)
    figures = fused.judge(
        fused.inward(models), table.images(fused), table.targets, rows.to(torch.int32), model_of, data_of
    )
    totals = torch.stack([figure.sum(1) for figure in figures], dim=-1).reshape(clients, k, 2)
    return totals / sizes.clamp(min=1)[:, None, None]


@torch.no_grad()
def _by_module(model: Model, models: Tensor, table: Table, rows: Tensor, sizes: Tensor) -> Tensor:
    """One pass per model over the samples of all clients together; a client's are summed in their order."""
    real = rows >= 0
    chosen = rows[real]
    every = len(chosen) == len(table.targets) and len(rows) == 1
    inputs, targets = (table.inputs, table.targets) if every else (table.inputs[chosen], table.targets[chosen])
    columns = []
    for vector in models:
        parameters = model.unflatten(vector)
        chunks = torch.split(inputs, model.samples_at_once) if len(inputs) else (inputs,)
        outputs = torch.cat([model.single(parameters, chunk).float() for chunk in chunks])
        hits = (outputs.argmax(-1) == targets).float()
        missing = torch.full_like(hits, float("nan"))
        figures = sample_losses(outputs, targets), missing if targets.is_floating_point() else hits
        columns.append(torch.stack([_sums(figure, real) for figure in figures], dim=-1))
    means = torch.stack(columns, dim=1) / sizes.clamp(min=1)[:, None, None]
    return torch.where((sizes > 0)[:, None, None], means, 0.0)


def _sums(figures: Tensor, real: Tensor) -> Tensor:
    """(rows,) -> (G,) the sum over each client's samples."""
    spread = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    spread[real] = figures.double()
    return spread.sum(1)
