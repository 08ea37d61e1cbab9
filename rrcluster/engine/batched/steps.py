"""Local SGD of many clients at once for any model, by autograd: each step is one tensor program over all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rrcluster.engine.batched.device import GraphPool, SampleTable
from rrcluster.engine.local_steps import direction
from rrcluster.errors import ConfigError
from rrcluster.models.client_state import generator_states
from rrcluster.models.model import Model, Parameters, compiled
from rrcluster.models.stackable import Draw, draw_masks, record_draws
from rrcluster.types import Array


def masked_mean(losses: Tensor, present: Tensor) -> Tensor:
    """Mean over the last axis of the present entries, 0 where there are none: (..., s), (..., s) -> (...).

    Padding is excluded by `where`, never by multiplying: a NaN in the padding does not pass.
    """
    total = torch.where(present, losses, 0.0).sum(-1)
    return total / present.sum(-1).clamp(min=1)


Losses = Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]


def losses_of(model: Model, device: torch.device) -> Losses:
    """A function of parameters, inputs (G, s, ...), targets (G, s) and a presence mask (G, s): mean losses (G,).

    Compiled for convolutions on a CUDA device, whose normalisations and pools are otherwise separate passes over
    memory. torch caches compiled programs between processes.
    """
    if device.type == "cuda" and model.convolutional:
        return compiled(plain_losses(model))
    return plain_losses(model)


def plain_losses(model: Model, masks: Sequence[Tensor] = ()) -> Losses:
    """The same function, not compiled; `masks` are dropout masks."""

    def losses(parameters: Parameters, inputs: Tensor, targets: Tensor, present: Tensor) -> Tensor:
        return masked_mean(model.task.losses(model.grouped(parameters, inputs, masks), targets, axes=2), present)

    return losses


def unused(model: Model, device: torch.device) -> Model:
    """Copies of a user's network and loss for one pass, without state from earlier clients.

    Not on a CUDA device: captured steps run no Python code, and read the tensors of the model that was captured.
    """
    return model.copied() if model.own and device.type == "cpu" else model


class Gradients:
    """The gradient of each client's mean loss, one tensor (G, *shape) per layer."""

    def __init__(self, model: Model, device: torch.device) -> None:
        """Compile nothing before the first use."""
        self._given, self._device, self.model, self._losses_of = model, device, model, losses_of(model, device)

    def forget(self) -> None:
        """Discard state of a user's network and loss from earlier clients."""
        self.model = unused(self._given, self._device)
        self._losses_of = losses_of(self.model, self._device) if self._given.own else self._losses_of

    def __call__(
        self, params: Tensor, batch: Tensor, targets: Tensor, present: Tensor, masks: Sequence[Tensor] = ()
    ) -> Sequence[Tensor]:
        """Gradients at params (G, d) on a batch (G, s, ...); `masks` are dropout masks."""
        states = generator_states() if self.model.own else None
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self.model.unflatten(params).items()}
            losses_of = plain_losses(self.model, masks) if masks else self._losses_of
            losses = losses_of(leaves, batch, targets, present)
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        if states is not None and states != generator_states():
            raise ConfigError(
                f"model {self.model.name} or its loss draws random numbers for some samples, which clients that are "
                "computed together would share; draw them for all samples alike, or use engine = reference."
            )
        return gradients


_BUCKET = 16  # clients: one captured step serves all numbers up to the next multiple
_COMPILED_BUCKET = 64  # where every number needs its own compilation


@dataclass(frozen=True, eq=False)
class SgdOptions:
    """Additions to a plain step: a proximal term towards `anchors`, a mask of the coordinates that move, and what the
    clients' optimiser remembers from step to step."""

    proximal: float = 0.0
    anchors: Tensor | None = None  # (G, d)
    trainable: Tensor | None = None  # (d,) bool
    momentum: float = 0.0
    state: tuple[Tensor, ...] = ()  # (G, d) each: one for momentum, two for Adam; changed in place
    steps: Tensor | None = None  # (G, 1) steps taken, where there is a state

    def rows(self, clients: slice | Tensor) -> "SgdOptions":
        """The options of some clients: views of a slice, copies of any others."""
        return SgdOptions(
            self.proximal,
            None if self.anchors is None else self.anchors[clients],
            self.trainable,
            self.momentum,
            tuple(part[clients] for part in self.state),
            None if self.steps is None else self.steps[clients],
        )

    @property
    def remembered(self) -> tuple[Tensor, ...]:
        """All tensors that a step changes in place."""
        return self.state if self.steps is None else (*self.state, self.steps)


@dataclass(frozen=True, eq=False)
class StackedSgd:
    """SGD steps of stacked clients: `model` and its gradients, on the samples of a table."""

    model: Model
    gradients: Gradients
    table: SampleTable

    def step(
        self, params: Tensor, where: Tensor, rates: Tensor, options: SgdOptions, masks: Sequence[Tensor] = ()
    ) -> None:
        """One SGD step, in place: params (G, d), rows of the table where (G, S), rates (G, 1).

        A row of -1 is padding and has no effect; a client with only padding does not move. Padding is zeros, not a row
        of the table: that would be another client's sample, and 0 times a result of it may be NaN.
        """
        present, rows, table = where >= 0, where.clamp(min=0), self.table
        batch = table.inputs.index_select(0, rows.flatten()).reshape(*rows.shape, *table.inputs.shape[1:])
        targets = table.targets[rows]
        if batch.is_cuda or not present.all():  # a captured step cannot branch on data
            batch = torch.where(present.reshape(*present.shape, *[1] * (batch.ndim - 2)), batch, 0)
            targets = torch.where(present.reshape(*present.shape, *[1] * (targets.ndim - 2)), targets, 0)
        parts = self.gradients(params, batch, targets, present, masks)
        with torch.no_grad():
            gradient = torch.cat([part.flatten(1) for part in parts], dim=1)
            if options.anchors is not None:
                towards = options.proximal * (params - options.anchors)
                gradient += torch.where(present.any(1)[:, None], towards, 0.0)
            if options.trainable is not None:
                gradient = torch.where(options.trainable, gradient, 0.0)
            if options.steps is not None:
                options.steps.add_(1)
                gradient = direction(options.momentum, options.state, gradient, options.steps)
            params.addcmul_(gradient, rates, value=-1.0)

    def run(self, params: Tensor, where: Tensor, active: Sequence[int], rates: Tensor, options: SgdOptions) -> None:
        """All steps, in place: where (steps, G, S). Clients come largest first: step t is for the first active[t].

        Nothing is thus computed for a client without remaining samples, except the padding of its last batch.
        """
        for rows, count in zip(where, active, strict=True):
            self.step(params[:count], rows[:count], rates[:count], options.rows(slice(count)))


@dataclass(frozen=True, eq=False)
class DropoutSgd(StackedSgd):
    """The same steps with dropout on a CPU: each client's masks come from the seed of its own step.

    Clients whose batches have equal sizes are stacked: a mask has the size of its batch, without padding.
    """

    seeds: Array  # (G, steps) of each client's own steps
    _recorded: dict[int, tuple[Draw, ...]] = field(default_factory=dict)  # by the size of a batch

    def run(self, params: Tensor, where: Tensor, active: Sequence[int], rates: Tensor, options: SgdOptions) -> None:
        """As `StackedSgd.run`."""
        taken = torch.zeros(len(params), dtype=torch.int64)
        for rows, count in zip(where, active, strict=True):
            sizes = (rows[:count] >= 0).sum(1)
            for size in sizes.unique().tolist():
                clients = torch.nonzero(sizes == size)[:, 0] if size else taken[:0]
                if len(clients):
                    seeds = self.seeds[clients.numpy(), taken[clients].numpy()].tolist()
                    self._step(clients, params, rows[clients, :size], rates, options, seeds)
                    taken[clients] += 1

    def _step(
        self, clients: Tensor, params: Tensor, rows: Tensor, rates: Tensor, options: SgdOptions, seeds: Sequence[int]
    ) -> None:
        """One step of some clients, in place."""
        masks = draw_masks(self._draws(rows), seeds)
        state, chosen = params[clients], options.rows(clients)
        self.step(state, rows, rates[clients], chosen, masks)
        params[clients] = state
        for whole, part in zip(options.remembered, chosen.remembered, strict=True):
            whole[clients] = part

    def _draws(self, rows: Tensor) -> tuple[Draw, ...]:
        size = rows.shape[1]
        if size not in self._recorded:
            outputs = partial(self.model.task.outputs, self.model.module, self.table.inputs[rows[0]])
            with torch.no_grad():
                self._recorded[size] = record_draws(outputs)
        return self._recorded[size]


class CapturedSgd:
    """The same steps as CUDA graphs: one for each number of active clients, rounded up, all on the same tensors."""

    def __init__(self, sgd: StackedSgd, pool: GraphPool, *, room: int, batch_size: int, options: SgdOptions) -> None:
        """Prepare for up to `room` clients; the tensors of `options` are copied at every use."""
        model, device = sgd.model, sgd.table.inputs.device
        self._sgd, self._pool = sgd, pool
        self._bucket = _COMPILED_BUCKET if model.convolutional else _BUCKET
        self._params = torch.zeros(room, model.num_parameters, device=device)
        self._rows = torch.full((room, batch_size), -1, dtype=torch.int64, device=device)
        self._rates = torch.zeros(room, 1, device=device)
        anchors = None if options.anchors is None else torch.zeros_like(self._params)
        mask = None if options.trainable is None else torch.ones(model.num_parameters, dtype=torch.bool, device=device)
        self._options = SgdOptions(options.proximal, anchors, mask)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self, params: Tensor, where: Tensor, active: Sequence[int], rates: Tensor, options: SgdOptions) -> None:
        """As `StackedSgd.run`."""
        count, own = len(params), self._options
        self._rows.fill_(-1)
        self._params[:count], self._rates[:count] = params, rates
        for captured, value in ((own.anchors, options.anchors), (own.trainable, options.trainable)):
            if captured is not None and value is not None:
                captured[: len(value)] = value
        buckets = {size: min(-(-size // self._bucket) * self._bucket, len(self._params)) for size in set(active)}
        for bucket in sorted(set(buckets.values()) - set(self._graphs)):
            self._graphs[bucket] = self._pool.capture(partial(self._step, bucket))[0]  # no rows yet: nothing moves
        for rows, size in zip(where, active, strict=True):
            self._rows[:count] = rows
            self._graphs[buckets[size]].replay()
        params.copy_(self._params[:count])

    def _step(self, count: int) -> None:
        self._sgd.step(self._params[:count], self._rows[:count], self._rates[:count], self._options.rows(slice(count)))
