"""Reference engine: trains one client, one batch at a time with the plain `nn.Module`; the tests' oracle."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.data.federated import TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.optimisers import Optimiser, seed_step, step_seeds
from rrcluster.engine.protocol import CPU, Measured, Question, TrainingCall, Updates
from rrcluster.models.model import Model, eval_copy
from rrcluster.types import Array


@dataclass(frozen=True)
class ReferenceEngine:
    """A loop over clients. It works on a copy of the module: the model's own is never changed."""

    model: Model
    device: torch.device = CPU

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [call.result(self._train(call)) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    @cached_property
    def _module(self) -> nn.Module:
        return copy.deepcopy(self.model.module).to(self.device)

    @cached_property
    def _measured(self) -> nn.Module:
        return eval_copy(self._module)

    @cached_property
    def _parameters(self) -> list[Tensor]:
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def _train(self, call: TrainingCall) -> Array:
        cohort, local, trained = call.cohort, call.local, call.start
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        seeds = step_seeds(call.key, cohort.clients, orders.shape[1] * -(-orders.shape[2] // local.batch_size))
        anchors = trained.copy() if call.anchor is None else np.asarray(call.anchor, dtype=np.float32)
        with own_generator():
            for row, size in enumerate(cohort.sizes.tolist()):
                self._load(trained[row])
                inputs, targets = self._tensor(cohort.inputs[row, :size]), self._tensor(cohort.targets[row, :size])
                optimiser = Optimiser(self._parameters, local, anchors[row], call.trainable)
                batches = [batch for order in orders[row, :, :size] for batch in _split(order, local.batch_size)]
                for seed, batch in zip(seeds[row].tolist(), batches, strict=False):
                    if self.model.own:  # those we ship draw no random numbers
                        seed_step(seed, self.device)
                    chosen = self._tensor(batch)
                    outputs = self.model.task.outputs(self._module, inputs[chosen])
                    loss = self.model.task.losses(outputs, targets[chosen]).mean()
                    optimiser.step(torch.autograd.grad(loss, self._parameters, materialize_grads=True))
                trained[row] = self._dump()
        return trained

    def _measure(self, question: Question) -> Measured:
        models, samples = question.models, question.samples
        if isinstance(samples, TestSet):
            clients = [(samples.inputs, samples.targets)]
        else:
            clients = [
                (samples.inputs[row, :size], samples.targets[row, :size]) for row, size in enumerate(samples.sizes)
            ]
        figures = np.zeros((len(clients), len(models), 2))
        for column, model in enumerate(models):
            self._load(model)
            for row, (inputs, targets) in enumerate(clients):
                if len(targets):
                    figures[row, column] = self._means(self._tensor(inputs), self._tensor(targets))
        return Measured(figures[..., 0], figures[..., 1])

    @torch.no_grad()
    def _means(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        task = self.model.task
        outputs = task.outputs(self._measured, inputs)
        return float(task.losses(outputs, targets).mean()), float(task.metrics(outputs, targets).mean())

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    @torch.no_grad()
    def _load(self, vector: Array) -> None:
        values = self.model.unflatten(torch.as_tensor(np.asarray(vector, dtype=np.float32)))
        for parameter, value in zip(self._parameters, values.values(), strict=True):
            parameter.copy_(value)

    def _dump(self) -> Array:
        return np.asarray(torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters]).cpu().numpy())


def _split(order: Array, size: int) -> list[Array]:
    return [order[first : first + size] for first in range(0, len(order), size)]


@contextmanager
def own_generator() -> Iterator[None]:
    """Networks may draw random numbers (dropout) from torch's generator, which is as before afterwards."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
