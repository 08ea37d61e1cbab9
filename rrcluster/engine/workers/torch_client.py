"""Trains and measures one client with PyTorch on one thread; images and convolution weights are channels last."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rrcluster.engine.optimisers import direction, state_size
from rrcluster.engine.recording import Arguments, Form, Program, RecordedFunction, in_form, made_up_parameters
from rrcluster.engine.workers.worker import ClientCall, MeasureClient, Steps
from rrcluster.models.client_state import seed_generators
from rrcluster.models.model import eval_copy
from rrcluster.models.task import Task
from rrcluster.types import Array


class TorchClientTrainer:
    """A client trainer that reuses one module for every client."""

    def __init__(
        self, module: nn.Module, task: Task, samples_at_once: int, *, trial: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """`samples_at_once`: most samples of one forward pass without gradients. With a `trial`, made-up samples, steps
        are recorded; the module may draw no random numbers then.
        """
        for parameter in module.parameters():
            parameter.data = _channels_last(parameter.data)
        self._module, self._measured, self._task = module, eval_copy(module), task
        self._parameters: list[Tensor] = [part for part in module.parameters() if part.requires_grad]
        self._samples_at_once = samples_at_once
        self._given, self._trial = [value.detach().clone() for value in self._parameters], trial
        self.recorder = None if trial is None else RecordedFunction(self._computed, self._copied)
        self._compute: Program = self.recorder or self._computed

    def record(self, forms: Iterable[Form]) -> None:
        """Record steps of these forms; only in a process that has seen no client."""
        if self.recorder is not None:
            for form in forms:
                self.recorder.record(form, self._made_up, samples=form[-1][0][0])

    def train(self, call: ClientCall) -> Array:
        """(d,) -> (d,)."""
        self._load(call.start)
        inputs, targets, orders, steps = _tensor(call.inputs), _tensor(call.targets), _tensor(call.orders), call.steps
        anchor = self._parts(call.anchor) if steps.proximal else None
        masks = None if call.trainable is None else [part > 0 for part in self._parts(call.trainable)]
        size = state_size(steps.optimizer, steps.momentum)
        states = [[torch.zeros_like(part) for _ in range(size)] for part in self._parameters] if size else None
        batches = [batch for epoch in orders for batch in torch.split(epoch, steps.batch_size)]
        for number, batch in enumerate(batches):
            if call.seeds is not None:
                seed_generators(int(call.seeds[number]))
            gradients = self._compute(*self._parameters, _channels_last(inputs[batch]), targets[batch])
            self._move(gradients, steps, anchor, masks, states, number + 1)
        return self._dump()

    def evaluator(self, models: Array) -> MeasureClient:
        """(k, d) -> a function of samples that returns (k, 2) sums."""
        return partial(self._sums, models)

    @torch.no_grad()
    def _sums(self, models: Array, inputs: Array, targets: Array) -> Array:
        batches = torch.split(_channels_last(_tensor(inputs)), self._samples_at_once)
        labels = torch.split(_tensor(targets), self._samples_at_once)
        sums = np.zeros((len(models), 2))
        for row, model in enumerate(models):
            self._load(model)
            for batch, truth in zip(batches, labels, strict=True):
                outputs = self._task.outputs(self._measured, batch)
                sums[row, 0] += self._task.losses(outputs, truth).double().sum().item()
                sums[row, 1] += self._task.metrics(outputs, truth).double().sum().item()
        return sums

    def _computed(self, *arguments: Tensor) -> Sequence[Tensor]:
        """Gradients of parameters, inputs, targets; the module's own parameters become the given ones."""
        with torch.no_grad():
            for own, value in zip(self._parameters, arguments, strict=False):
                if own is not value:
                    own.copy_(value)
        return self._gradients(self._module, self._parameters, *arguments[-2:])

    def _gradients(
        self, module: Callable[..., Any], parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor
    ) -> Sequence[Tensor]:
        with torch.enable_grad():
            loss = self._task.losses(self._task.outputs(module, inputs), targets).mean()
            return torch.autograd.grad(loss, parameters, materialize_grads=True)

    def _copied(self) -> Program:
        """`_computed` as a function of the parameters that it is given; a client's are not in it."""
        module = copy.deepcopy(self._module)
        for value in module.parameters():
            if value.requires_grad:
                value.data.fill_(torch.nan)
        names = [name for name, value in module.named_parameters() if value.requires_grad]

        def gradients(*arguments: Tensor) -> Sequence[Tensor]:
            leaves = [value.detach().requires_grad_() for value in arguments[:-2]]
            given = dict(zip(names, leaves, strict=True))

            def call(*inputs: Tensor, **named: Tensor) -> Any:
                return functional_call(module, given, inputs, named)

            return self._gradients(call, leaves, *arguments[-2:])

        return gradients

    def _made_up(self, form: Form, generator: torch.Generator) -> Arguments:
        """Parameters around the given ones, and samples of the trial."""
        assert self._trial is not None
        rows = torch.randint(len(self._trial[0]), form[-1][0][:1], generator=generator)
        drawn = [*(made_up_parameters(value, generator) for value in self._given)]
        drawn += [values[rows] for values in self._trial]
        return [in_form(one, new) for one, new in zip(form, drawn, strict=True)]

    @torch.no_grad()
    def _move(
        self,
        gradients: Sequence[Tensor],
        steps: Steps,
        anchor: list[Tensor] | None,
        masks: list[Tensor] | None,
        states: list[list[Tensor]] | None,
        number: int,
    ) -> None:
        if anchor is not None:
            distances = [parameter - centre for parameter, centre in zip(self._parameters, anchor, strict=True)]
            gradients = torch._foreach_add(list(gradients), distances, alpha=steps.proximal)  # two may be one tensor
        if masks is not None:
            gradients = [torch.where(mask, part, 0.0) for mask, part in zip(masks, gradients, strict=True)]
        if states is not None:
            pairs = zip(states, gradients, strict=True)
            gradients = [direction(steps.momentum, state, part, number) for state, part in pairs]
        torch._foreach_add_(self._parameters, list(gradients), alpha=-steps.rate)

    def _parts(self, vector: Array) -> list[Tensor]:
        """A flat vector in the shapes of the parameters; to be read at once."""
        vector = np.asarray(vector, dtype=np.float32)
        flat = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
        pieces = torch.split(flat, [part.numel() for part in self._parameters])
        return [piece.reshape(part.shape) for piece, part in zip(pieces, self._parameters, strict=True)]

    @torch.no_grad()
    def _load(self, vector: Array) -> None:
        for parameter, value in zip(self._parameters, self._parts(vector), strict=True):
            parameter.copy_(value)

    def _dump(self) -> Array:
        parts = [parameter.detach().contiguous().reshape(-1) for parameter in self._parameters]
        return np.asarray(torch.cat(parts).numpy())


def _tensor(values: Array) -> Tensor:
    """A copy, so that results cannot depend on the alignment of shared memory."""
    return torch.from_numpy(np.array(values))


def _channels_last(samples: Tensor) -> Tensor:
    return samples.contiguous(memory_format=torch.channels_last) if samples.dim() == 4 else samples
