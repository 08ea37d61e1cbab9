"""Local training of stacked clients, from a call's arrays to the change of each client's model."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort
from rrcluster.engine.batched.cuda_graphs import Recorder, Tape
from rrcluster.engine.batched.device_tables import Table
from rrcluster.engine.batched.sample_order import visits
from rrcluster.engine.batched.steps import Pull, RecordedSteps, plain_steps
from rrcluster.engine.fast_cnn.gpu import LARGEST_BATCH, FusedCnn, fused_form
from rrcluster.engine.protocol import LocalSettings
from rrcluster.models.compiled_losses import losses_of
from rrcluster.models.model import Model
from rrcluster.types import Array

_BUCKET = 32  # clients: a recorded program serves every number up to the next multiple
_LARGEST_RECORDED = 256  # clients: beyond, kernels are long and launching them one by one costs nothing
_KEPT = 16  # programs of recorded steps, each for a population and a number of clients


@dataclass(frozen=True, eq=False)
class TrainingCall:
    """What one run asks for: its models (k, d), the model each client starts from, and how to train."""

    vectors: Array
    clusters: Array  # (G,)
    cohort: Cohort
    local: LocalSettings
    key: tuple[int, int]
    anchor: Array | None = None  # (G, d)
    trainable: Array | None = None  # (d,)

    @property
    def shape(self) -> tuple[object, ...]:
        """Calls of the same shape can run as one program."""
        local, moving = self.local, None if self.trainable is None else self.trainable.tobytes()
        return local.local_epochs, local.batch_size, local.proximal, self.anchor is None, moving


@dataclass(frozen=True, eq=False)
class Part:
    """Clients of one shape, of one call or several, as arrays: row i is one client."""

    vectors: Array  # (m, d) float32
    model_of: Array  # (G,) which of them the client starts from
    clients: Array  # (G,) ids
    starts: Array  # (G,) its first row in the table
    sizes: Array  # (G,)
    keys: Array  # (G, 2)
    rates: Array  # (G,) float32
    local: LocalSettings
    anchor: Array | None
    trainable: Array | None

    def rows(self, chosen: Array) -> "Part":
        """Some of the clients, in this order; of many models, those that they start from."""
        vectors, model_of = self.vectors, self.model_of[chosen]
        if len(vectors) > len(chosen):
            used, model_of = np.unique(model_of, return_inverse=True)
            vectors = vectors[used]
        return Part(
            vectors,
            model_of,
            self.clients[chosen],
            self.starts[chosen],
            self.sizes[chosen],
            self.keys[chosen],
            self.rates[chosen],
            self.local,
            None if self.anchor is None else self.anchor[chosen],
            self.trainable,
        )

    @property
    def batch(self) -> int:
        """Samples of the largest step."""
        return min(self.local.batch_size, int(self.sizes.max(initial=0)))

    @property
    def integers(self) -> Array:
        """(G, 6) what a device needs to know of each client, in one array."""
        columns = self.model_of, self.clients, self.starts, self.sizes, self.keys[:, 0], self.keys[:, 1]
        return np.stack(columns, axis=1).astype(np.int64)


def join(calls: Sequence[TrainingCall], table: Table) -> Part:
    """The clients of all calls, one call after the other."""
    first, counts = calls[0], [len(call.clusters) for call in calls]
    offsets = np.cumsum([0, *(len(call.vectors) for call in calls[:-1])])
    return Part(
        vectors=np.concatenate([np.asarray(call.vectors, dtype=np.float32) for call in calls]),
        model_of=np.concatenate([call.clusters + offset for call, offset in zip(calls, offsets, strict=True)]),
        clients=np.concatenate([call.cohort.clients for call in calls]),
        starts=np.concatenate([table.starts(call.cohort.clients) for call in calls]),
        sizes=np.concatenate([call.cohort.sizes for call in calls]),
        keys=np.repeat(np.array([call.key for call in calls], dtype=np.int64), counts, axis=0),
        rates=np.repeat(np.array([call.local.local_lr for call in calls], dtype=np.float32), counts),
        local=first.local,
        anchor=None if first.anchor is None else np.concatenate([call.anchor for call in calls]),
        trainable=first.trainable,
    )


class Trainer:
    """Trains parts: by the model's own kernels where it has some, else by autograd; recorded where that pays."""

    def __init__(self, model: Model, device: torch.device, capacity: int, precision: str) -> None:
        """Nothing is recorded or compiled before the first use."""
        self._model, self._device, self._capacity = model, device, capacity
        self._fused = fused_form(model, device, precision)
        self._tape, self._losses_of = Tape(), losses_of(model, device)
        self._recorder = Recorder(self._tape)
        self._recorded: OrderedDict[object, RecordedSteps] = OrderedDict()

    def train(self, part: Part, table: Table) -> Tensor:
        """(G, d) what training changes, in the part's order. At most `capacity` clients run at once, largest first."""
        order, at_once = np.argsort(-part.sizes, kind="stable"), self._at_once(part)
        if 0 < len(order) <= at_once and (order == np.arange(len(order))).all() and part.sizes[0]:
            return self._chunk(part, table)
        result = torch.zeros(len(order), part.vectors.shape[1], device=self._device)
        for first in range(0, len(order), at_once):
            chosen = order[first : first + at_once]
            chunk = part.rows(chosen)
            if chunk.sizes.any():
                result[torch.as_tensor(chosen, device=self._device)] = self._chunk(chunk, table)
        return result

    def _chunk(self, part: Part, table: Table) -> Tensor:
        fused, batch = self._kernels_for(part), part.batch
        return self._by_autograd(part, table, batch) if fused is None else self._by_kernels(fused, part, table, batch)

    def _kernels_for(self, part: Part) -> FusedCnn | None:
        plain = part.local.proximal == 0 and part.trainable is None
        return self._fused if plain and part.batch <= LARGEST_BATCH else None

    def _at_once(self, part: Part) -> int:
        """Compiled steps stay within what is recorded: every other number of clients would be compiled anew."""
        compiled = self._device.type == "cuda" and self._model.convolutional
        return min(self._capacity, _LARGEST_RECORDED) if compiled and not self._kernels_for(part) else self._capacity

    def _by_kernels(self, fused: FusedCnn, part: Part, table: Table, batch: int) -> Tensor:
        count, epochs = len(part.clients), part.local.local_epochs
        width = -(-int(part.sizes.max()) // batch) * batch
        integers, rates = _rounded_up(part.integers), _rounded_up(part.rates)
        program: Callable[..., Tensor] = partial(_kernel_program, fused, table, epochs, width, batch)
        if count <= _LARGEST_RECORDED and table.of_population:
            vectors = part.vectors if len(part.vectors) <= _BUCKET else _rounded_up(part.vectors)
            key = (table, epochs, width, batch, len(integers), len(vectors))
            inputs = (self._tensor(vectors), self._tensor(integers), self._tensor(rates))
            return self._recorder.run(key, program, *inputs)[:count].clone()
        return program(self._tensor(part.vectors), self._tensor(integers), self._tensor(rates))[:count]

    def _by_autograd(self, part: Part, table: Table, batch: int) -> Tensor:
        local, integers = part.local, self._tensor(part.integers)
        start = self._tensor(part.vectors)[integers[:, 0]]
        width = int(part.sizes.max())
        where = self._where(integers, epochs=local.local_epochs, width=width, batch=batch)
        active = [int((part.sizes > first).sum()) for first in range(0, width, batch)] * local.local_epochs
        anchors = start if part.anchor is None else self._tensor(np.asarray(part.anchor, dtype=np.float32))
        moving = None if part.trainable is None else self._tensor(part.trainable)
        pull = Pull(local.proximal, anchors if local.proximal else None, moving)
        params, rates = start.clone(), self._tensor(part.rates)[:, None]
        if self._device.type == "cuda" and len(params) <= _LARGEST_RECORDED and table.of_population:
            self._steps(table, len(params), batch, pull).run(params, where, active, rates, pull)
        else:
            plain_steps(self._model, self._losses_of, params, table, where, active, rates, pull)
        return params - start

    def _where(self, integers: Tensor, *, epochs: int, width: int, batch: int) -> Tensor:
        if self._device.type != "cuda" or len(integers) > _LARGEST_RECORDED:
            return _where(integers, epochs=epochs, width=width, batch=batch)
        count = len(integers)
        padded = torch.nn.functional.pad(integers, (0, 0, 0, -count % _BUCKET))
        program = partial(_where, epochs=epochs, width=width, batch=batch)
        return self._recorder.run(("where", len(padded), epochs, width, batch), program, padded)[:, :count].clone()

    def _steps(self, table: Table, count: int, batch: int, pull: Pull) -> RecordedSteps:
        bucket = 2 * _BUCKET if self._model.convolutional else _BUCKET
        room = -(-count // bucket) * bucket
        key = (table, room, batch, pull.proximal, pull.moving is None)
        if key not in self._recorded:
            if len(self._recorded) >= _KEPT:
                self._recorded.popitem(last=False)
            self._recorded[key] = RecordedSteps(
                self._model, self._losses_of, table, tape=self._tape, room=room, batch_size=batch, pull=pull
            )
        self._recorded.move_to_end(key)
        return self._recorded[key]

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), device=self._device)


def _rounded_up(rows: Array) -> Array:
    """The rows, followed by zeros up to the next multiple of `_BUCKET`."""
    full = np.zeros((-(-len(rows) // _BUCKET) * _BUCKET, *rows.shape[1:]), dtype=rows.dtype)
    full[: len(rows)] = rows
    return full


def _kernel_program(
    fused: FusedCnn, table: Table, epochs: int, width: int, batch: int, vectors: Tensor, integers: Tensor, rates: Tensor
) -> Tensor:
    where = _where(integers, epochs=epochs, width=width, batch=batch).to(torch.int32)
    start = fused.inward(vectors).index_select(0, integers[:, 0])
    trained = start.clone()
    fused.train(trained, table.images(fused), table.targets, where, rates)
    return fused.outward(trained - start)


def _where(integers: Tensor, *, epochs: int, width: int, batch: int) -> Tensor:
    """(steps, G, batch) rows of the table for every step, -1 where there is none left."""
    clients, starts, sizes, keys = integers[:, 1], integers[:, 2], integers[:, 3], integers[:, 4:6]
    order = visits(keys, clients, sizes, epochs=epochs, width=width)
    rows = torch.where(order >= 0, order + starts[:, None, None], -1)
    per_epoch = -(-width // batch)
    rows = torch.nn.functional.pad(rows, (0, per_epoch * batch - width), value=-1)
    return rows.reshape(len(clients), epochs * per_epoch, batch).transpose(0, 1).contiguous()
