"""Local training of stacked clients, from training calls to the change of each client's model."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rrcluster.engine.batched.device import GraphCache, GraphPool, SampleTable
from rrcluster.engine.batched.kernels import Kernels, own_kernels
from rrcluster.engine.batched.steps import CapturedSgd, DropoutSgd, Gradients, SgdOptions, StackedSgd
from rrcluster.engine.local_steps import state_size, step_rows, step_seeds
from rrcluster.engine.protocol import LocalSettings, TrainingCall
from rrcluster.models.model import Model
from rrcluster.types import Array

_BUCKET = 32  # clients: a captured program serves every number up to the next multiple
_LARGEST_CAPTURED = 256  # clients: beyond, kernels are long and separate launches cost nothing
_MOST_CAPTURED = 16  # captured sequences of steps, each for a population and a number of clients


@dataclass(frozen=True, eq=False)
class ClientBatch:
    """Clients that can be trained by one program, of one call or several, as arrays: row i is one client."""

    models: Array  # (m, d) float32
    model_of: Array  # (G,) the model each client starts from
    clients: Array  # (G,) ids
    starts: Array  # (G,) first row of the client in the table
    sizes: Array  # (G,)
    keys: Array  # (G, 2)
    rates: Array  # (G,) float32
    local: LocalSettings
    anchor: Array | None
    trainable: Array | None

    def rows(self, chosen: Array) -> "ClientBatch":
        """Some of the clients, in this order, with only their initial models."""
        models, model_of = self.models, self.model_of[chosen]
        if len(models) > len(chosen):
            used, model_of = np.unique(model_of, return_inverse=True)
            models = models[used]
        parts = {name: getattr(self, name)[chosen] for name in ("clients", "starts", "sizes", "keys", "rates")}
        anchor = None if self.anchor is None else self.anchor[chosen]
        return replace(self, models=models, model_of=model_of, anchor=anchor, **parts)

    @property
    def step_size(self) -> int:
        """Samples of the largest step."""
        return min(self.local.batch_size, int(self.sizes.max(initial=0)))

    @property
    def remembered(self) -> int:
        """Numbers per coordinate in the clients' optimiser state."""
        return state_size(self.local.local_optimizer, self.local.local_momentum)

    @property
    def integers(self) -> Array:
        """(G, 6) the integers that describe each client, in one array to upload."""
        columns = self.model_of, self.clients, self.starts, self.sizes, self.keys[:, 0], self.keys[:, 1]
        return np.stack(columns, axis=1).astype(np.int64)


def program_key(call: TrainingCall) -> tuple[object, ...]:
    """Calls with equal keys can run as one program."""
    local, mask = call.local, None if call.trainable is None else call.trainable.tobytes()
    optimiser = local.local_optimizer, local.local_momentum
    return local.local_epochs, local.batch_size, local.proximal, optimiser, call.anchor is None, mask


def join(calls: Sequence[TrainingCall], table: SampleTable) -> ClientBatch:
    """The clients of all calls, one call after the other."""
    first, counts = calls[0], [len(call.model_of) for call in calls]
    offsets = np.cumsum([0, *(len(call.models) for call in calls[:-1])])
    return ClientBatch(
        models=joined([np.asarray(call.models, dtype=np.float32) for call in calls]),
        model_of=np.concatenate([call.model_of + offset for call, offset in zip(calls, offsets, strict=True)]),
        clients=np.concatenate([call.cohort.clients for call in calls]),
        starts=np.concatenate([table.starts(call.cohort.clients) for call in calls]),
        sizes=np.concatenate([call.cohort.sizes for call in calls]),
        keys=np.repeat(np.array([call.key for call in calls], dtype=np.int64), counts, axis=0),
        rates=np.repeat(np.array([call.local.local_lr for call in calls], dtype=np.float32), counts),
        local=first.local,
        anchor=None if first.anchor is None else np.concatenate([call.anchor for call in calls]),
        trainable=first.trainable,
    )


def joined(parts: Sequence[Array]) -> Array:
    """The rows of all parts; of a single part, the array itself."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Trainer:
    """Trains client batches by the model's own kernels where it has them, else by autograd; captured if it pays."""

    def __init__(self, model: Model, device: torch.device, capacity: int, precision: str) -> None:
        """Capture and compile nothing before the first use."""
        self._model, self._device, self._capacity = model, device, capacity
        self._kernels = own_kernels(model, device, precision)
        self._pool, self.gradients = GraphPool(), Gradients(model, device)
        self._graphs = GraphCache(self._pool)
        self._captured: OrderedDict[object, CapturedSgd] = OrderedDict()

    def train(self, batch: ClientBatch, table: SampleTable) -> Tensor:
        """(G, d) changes by training, in the batch's order. At most `capacity` clients run at once, largest first."""
        order, at_once = np.argsort(-batch.sizes, kind="stable"), self._at_once(batch)
        if 0 < len(order) <= at_once and (order == np.arange(len(order))).all() and batch.sizes[0]:
            return self._pass(batch, table)
        result = torch.zeros(len(order), batch.models.shape[1], device=self._device)
        for first in range(0, len(order), at_once):
            chosen = order[first : first + at_once]
            part = batch.rows(chosen)
            if part.sizes.any():
                result[torch.as_tensor(chosen, device=self._device)] = self._pass(part, table)
        return result

    def _pass(self, batch: ClientBatch, table: SampleTable) -> Tensor:
        kernels = self._kernels_for(batch)
        return self._by_autograd(batch, table) if kernels is None else self._by_kernels(kernels, batch, table)

    def _kernels_for(self, batch: ClientBatch) -> Kernels | None:
        plain = batch.local.proximal == 0 and batch.trainable is None and batch.remembered == 0
        return self._kernels if plain and self._kernels and self._kernels.fits(batch.step_size) else None

    def _at_once(self, batch: ClientBatch) -> int:
        """Clients at once: compiled steps stay within the captured size, or each number would compile again."""
        compiled = self._device.type == "cuda" and self._model.convolutional
        return min(self._capacity, _LARGEST_CAPTURED) if compiled and not self._kernels_for(batch) else self._capacity

    def _by_kernels(self, kernels: Kernels, batch: ClientBatch, table: SampleTable) -> Tensor:
        count, epochs, step = len(batch.clients), batch.local.local_epochs, batch.step_size
        width = -(-int(batch.sizes.max()) // step) * step
        program: Callable[..., Tensor] = partial(_kernel_program, kernels, table, epochs, width, step)
        if not kernels.captured or count > _LARGEST_CAPTURED or not table.of_population:
            return program(self._tensor(batch.models), self._tensor(batch.integers), self._tensor(batch.rates))
        models = batch.models if len(batch.models) <= _BUCKET else _rounded_up(batch.models)
        integers, rates = _rounded_up(batch.integers), _rounded_up(batch.rates)
        key = (table, epochs, width, step, len(integers), len(models))
        inputs = (self._tensor(models), self._tensor(integers), self._tensor(rates))
        return self._graphs.run(key, program, *inputs)[:count].clone()

    def _by_autograd(self, batch: ClientBatch, table: SampleTable) -> Tensor:
        local, integers, step = batch.local, self._tensor(batch.integers), batch.step_size
        start = self._tensor(batch.models)[integers[:, 0]]
        width = int(batch.sizes.max())
        where = step_rows(integers, epochs=local.local_epochs, width=width, step=step).long()
        active = [int((batch.sizes > first).sum()) for first in range(0, width, step)] * local.local_epochs
        anchors = start if batch.anchor is None else self._tensor(np.asarray(batch.anchor, dtype=np.float32))
        mask = None if batch.trainable is None else self._tensor(batch.trainable)
        state = tuple(torch.zeros_like(start) for _ in range(batch.remembered))
        steps = torch.zeros(len(start), 1, device=self._device) if state else None
        options = SgdOptions(
            local.proximal, anchors if local.proximal else None, mask, local.local_momentum, state, steps
        )
        params, rates = start.clone(), self._tensor(batch.rates)[:, None]
        self.gradients.forget()
        sgd = (
            self._dropout_sgd(batch, table)
            if self._model.dropout_only
            else self._sgd(table, len(params), step, options)
        )
        sgd.run(params, where, active, rates, options)
        return params - start

    def _dropout_sgd(self, batch: ClientBatch, table: SampleTable) -> DropoutSgd:
        count = batch.local.local_epochs * -(-int(batch.sizes.max()) // batch.local.batch_size)
        seeds = step_seeds((batch.keys[:, :1], batch.keys[:, 1:]), batch.clients, count)
        return DropoutSgd(self.gradients.model, self.gradients, table, seeds)

    def _sgd(self, table: SampleTable, count: int, step: int, options: SgdOptions) -> StackedSgd | CapturedSgd:
        sgd = StackedSgd(self._model, self.gradients, table)
        if self._device.type != "cuda" or count > _LARGEST_CAPTURED or not table.of_population or options.state:
            return sgd
        bucket = 2 * _BUCKET if self._model.convolutional else _BUCKET
        room = -(-count // bucket) * bucket
        key = (table, room, step, options.proximal, options.trainable is None)
        if key not in self._captured:
            if len(self._captured) >= _MOST_CAPTURED:
                self._captured.popitem(last=False)
            self._captured[key] = CapturedSgd(sgd, self._pool, room=room, batch_size=step, options=options)
        self._captured.move_to_end(key)
        return self._captured[key]

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values)).to(self._device, non_blocking=True)


def _rounded_up(rows: Array) -> Array:
    """The rows, followed by zeros up to the next multiple of `_BUCKET`."""
    padded = np.zeros((-(-len(rows) // _BUCKET) * _BUCKET, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _kernel_program(
    kernels: Kernels,
    table: SampleTable,
    epochs: int,
    width: int,
    step: int,
    models: Tensor,
    integers: Tensor,
    rates: Tensor,
) -> Tensor:
    where = step_rows(integers, epochs=epochs, width=width, step=step).to(torch.int32)
    return kernels.changes(table.inputs_as(kernels.form), table.targets, where, models, integers, rates)
