"""Reference engine: trains one client, one batch at a time with the plain `nn.Module`; the tests' oracle.

Networks that a user brings are copied anew for every client, so nothing of one client is left for the next: secure runs
compute those here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import TestSet
from rrcluster.engine.local_steps import Optimiser, batch_orders, step_seeds
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.models.client_state import ClientNetwork, own_generators
from rrcluster.models.model import Model
from rrcluster.types import Array

CPU = torch.device("cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: how many there are can change the last bits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class ReferenceEngine:
    """A loop over clients. It works on copies of the module: the model's own is never changed."""

    model: Model
    device: torch.device = CPU

    part: ClassVar[int] = 13  # clients are computed one by one: any number gives the same bits
    isolates: ClassVar[bool] = True

    @property
    def described(self) -> str:
        """For fingerprints."""
        return f"reference, {self.device.type}"

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        with own_generators(self.device):
            return [self._train(call) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        with own_generators(self.device):
            return [self._measure(question) for question in questions]

    @cached_property
    def _trained(self) -> ClientNetwork:
        return ClientNetwork.of(self.model, self.device)

    @cached_property
    def _measured(self) -> ClientNetwork:
        return ClientNetwork.of(self.model, self.device, measured=True)

    def _train(self, call: TrainingCall) -> Array:
        cohort, local, models = call.cohort, call.local, np.asarray(call.models, dtype=np.float32)
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        seeds = step_seeds(call.key, cohort.clients, orders.shape[1] * -(-orders.shape[2] // local.batch_size))
        result = np.empty((len(cohort.sizes), models.shape[1]), dtype=np.float32)
        for row, size in enumerate(cohort.sizes.tolist()):
            start = models[call.model_of[row]]
            if size:
                network = self._trained.fresh(start)
                inputs, targets = self._tensor(cohort.inputs[row, :size]), self._tensor(cohort.targets[row, :size])
                anchor = start if call.anchor is None else np.asarray(call.anchor[row], dtype=np.float32)
                optimiser = Optimiser(network.parameters, local, anchor, call.trainable)
                epochs = self._tensor(orders[row, :, :size])
                batches = [batch for order in epochs for batch in order.split(local.batch_size)]
                for seed, chosen in zip(seeds[row].tolist(), batches, strict=False):
                    optimiser.step(network.gradients(inputs[chosen], targets[chosen], seed=seed))
                network.dump(result[row])
            else:
                result[row] = start
            if not call.whole_models:
                result[row] -= start
        return result

    def _measure(self, question: Question) -> Measured:
        models, samples = question.models, question.samples
        if isinstance(samples, TestSet):
            clients = [(samples.inputs, samples.targets)]
        else:
            clients = [
                (samples.inputs[row, :size], samples.targets[row, :size]) for row, size in enumerate(samples.sizes)
            ]
        figures = np.zeros((len(clients), len(models), 2))
        for row, client in enumerate(clients):
            inputs, targets = (self._tensor(values) for values in client)
            network = self._measured.fresh(models[0]) if len(models) else self._measured
            for column, model in enumerate(models if len(targets) else ()):
                network.load(model)
                figures[row, column] = [float(part.mean()) for part in network.figures(inputs, targets)]
        return Measured(figures[..., 0], figures[..., 1])

    def _tensor(self, values: Array) -> Tensor:
        """A copy: where rows lie in memory depends on the rest of the cohort, and may change the last bits."""
        return torch.tensor(values, device=self.device)
