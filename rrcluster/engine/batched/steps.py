"""Local SGD of many clients at once for any model, by autograd: each step is one tensor program over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rrcluster.engine.batched.cuda_graphs import Tape
from rrcluster.engine.batched.device_tables import Table
from rrcluster.models.compiled_losses import Losses
from rrcluster.models.model import Model

_BUCKET = 16  # clients: a recorded step serves every number of them up to the next multiple
_COMPILED_BUCKET = 64  # where every number of them is a compilation of its own


@dataclass(frozen=True, eq=False)
class Pull:
    """What may be added to a plain step: a proximal term towards `anchors`, and a mask of the coordinates that move."""

    proximal: float = 0.0
    anchors: Tensor | None = None  # (G, d)
    moving: Tensor | None = None  # (d,) bool

    def first(self, count: int) -> "Pull":
        """For the first `count` clients."""
        return Pull(self.proximal, None if self.anchors is None else self.anchors[:count], self.moving)


def sgd_step(
    model: Model, losses_of: Losses, params: Tensor, table: Table, where: Tensor, rates: Tensor, pull: Pull
) -> None:
    """One SGD step, in place: params (G, d), rows of the table where (G, S), rates (G, 1).

    A row of -1 is padding and counts for nothing; a client with nothing else does not move. Padding is zeros, never a
    row of the table: that would be another client's sample, and 0 times what it makes of a weight may be no number.
    """
    present, rows = where >= 0, where.clamp(min=0)
    batch = table.inputs.index_select(0, rows.flatten()).reshape(*rows.shape, *table.inputs.shape[1:])
    targets = table.targets[rows]
    if batch.is_cuda or not present.all():  # a recorded step cannot ask
        batch = torch.where(present.reshape(*present.shape, *[1] * (batch.ndim - 2)), batch, 0)
        targets = torch.where(present, targets, 0)
    leaves = {name: value.detach().requires_grad_() for name, value in model.unflatten(params).items()}
    losses = losses_of(leaves, batch, targets, present)
    parts = torch.autograd.grad(losses.sum(), list(leaves.values()))
    with torch.no_grad():
        for layer, part in zip(model.layers, parts, strict=True):
            place, gradient = slice(layer.start, layer.stop), part.flatten(1)
            if pull.anchors is not None:
                towards = pull.proximal * (params[:, place] - pull.anchors[:, place])
                gradient = gradient + torch.where(present.any(1)[:, None], towards, 0.0)
            if pull.moving is not None:
                gradient = torch.where(pull.moving[place], gradient, 0.0)
            params[:, place].addcmul_(gradient, rates, value=-1.0)


def plain_steps(
    model: Model,
    losses_of: Losses,
    params: Tensor,
    table: Table,
    where: Tensor,
    active: Sequence[int],
    rates: Tensor,
    pull: Pull,
) -> None:
    """Every step in turn, in place: where (steps, G, S). Clients come largest first: step t is for the first active[t].

    So nothing is computed for a client that has no sample left, but for the padding of its last batch.
    """
    for rows, count in zip(where, active, strict=True):
        sgd_step(model, losses_of, params[:count], table, rows[:count], rates[:count], pull.first(count))


class RecordedSteps:
    """The same as CUDA graphs: one recording per number of active clients, rounded up, all on the same tensors."""

    def __init__(
        self, model: Model, losses_of: Losses, table: Table, *, tape: Tape, room: int, batch_size: int, pull: Pull
    ) -> None:
        """For up to `room` clients; `pull` says what is added, its tensors are copied at every use."""
        device = table.inputs.device
        self._model, self._losses_of, self._table, self._tape = model, losses_of, table, tape
        self._bucket = _COMPILED_BUCKET if model.convolutional else _BUCKET
        self._params = torch.zeros(room, model.num_parameters, device=device)
        self._rows = torch.full((room, batch_size), -1, dtype=torch.int64, device=device)
        self._rates = torch.zeros(room, 1, device=device)
        anchors = None if pull.anchors is None else torch.zeros_like(self._params)
        moving = None if pull.moving is None else torch.ones(model.num_parameters, dtype=torch.bool, device=device)
        self._pull = Pull(pull.proximal, anchors, moving)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self, params: Tensor, where: Tensor, active: Sequence[int], rates: Tensor, pull: Pull) -> None:
        """As `plain_steps`."""
        count = len(params)
        self._rows.fill_(-1)
        self._params[:count], self._rates[:count] = params, rates
        for kept, given in ((self._pull.anchors, pull.anchors), (self._pull.moving, pull.moving)):
            if kept is not None and given is not None:
                kept[: len(given)] = given
        buckets = {some: min(-(-some // self._bucket) * self._bucket, len(self._params)) for some in set(active)}
        for bucket in sorted(set(buckets.values()) - set(self._graphs)):
            self._graphs[bucket] = self._tape.record(partial(self._step, bucket))[0]  # no rows yet: nothing moves
        for rows, some in zip(where, active, strict=True):
            self._rows[:count] = rows
            self._graphs[buckets[some]].replay()
        params.copy_(self._params[:count])

    def _step(self, count: int) -> None:
        sgd_step(
            self._model,
            self._losses_of,
            self._params[:count],
            self._table,
            self._rows[:count],
            self._rates[:count],
            self._pull.first(count),
        )
