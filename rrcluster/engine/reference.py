"""Reference engine: trains one client, one batch at a time with the plain `nn.Module`. Slow; the tests' oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rrcluster.data.federated import TestSet
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.protocol import CPU, LocalSettings, Measured, Question, TrainingCall, Updates
from rrcluster.models.losses import sample_losses
from rrcluster.models.model import Model
from rrcluster.types import Array


@dataclass(frozen=True)
class ReferenceEngine:
    """A loop over clients."""

    model: Model
    device: torch.device = CPU

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [call.result(self._train(call)) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    def _train(self, call: TrainingCall) -> Array:
        cohort, local, trained = call.cohort, call.local, call.start
        trainable = np.ones(self.model.num_parameters, dtype=bool) if call.trainable is None else call.trainable
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        for row, size in enumerate(cohort.sizes):
            anchor = trained[row].copy() if call.anchor is None else call.anchor[row]
            self._load(trained[row])
            for epoch in range(local.local_epochs):
                for first in range(0, int(size), local.batch_size):
                    batch = orders[row, epoch, first : min(first + local.batch_size, size)]
                    inputs, targets = cohort.inputs[row][batch], cohort.targets[row][batch]
                    self._step(self._tensor(inputs), self._tensor(targets), local, anchor, trainable)
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
        loss, accuracy = np.zeros((2, len(clients), len(models)))
        for row, (inputs, targets) in enumerate(clients):
            if len(targets):
                loss[row], accuracy[row] = self._means(models, self._tensor(inputs), self._tensor(targets))
        return Measured(loss, accuracy)

    def _means(self, models: Array, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], list[float]]:
        losses, accuracies = [], []
        for model in models:
            self._load(model)
            with torch.no_grad():
                outputs = self.model.module(inputs)
            losses.append(float(sample_losses(outputs, targets).mean()))
            correct = (outputs.argmax(-1) == targets).float().mean()
            accuracies.append(float("nan") if targets.is_floating_point() else float(correct))
        return losses, accuracies

    def _step(
        self, inputs: torch.Tensor, targets: torch.Tensor, local: LocalSettings, anchor: Array, trainable: Array
    ) -> None:
        parameters = list(self.model.module.parameters())
        loss = sample_losses(self.model.module(inputs), targets).mean()
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)]).cpu().numpy()
        current = self._dump()
        gradient = gradient + np.float32(local.proximal) * (current - anchor.astype(np.float32))
        self._load(current - np.float32(local.local_lr) * np.where(trainable, gradient, np.float32(0)))

    def _tensor(self, values: Array) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device)

    def _load(self, vector: Array) -> None:
        values = self.model.unflatten(torch.as_tensor(np.asarray(vector, dtype=np.float32)))
        with torch.no_grad():
            for name, parameter in self.model.module.named_parameters():
                parameter.copy_(values[name])

    def _dump(self) -> Array:
        parameters = [parameter.detach().reshape(-1) for parameter in self.model.module.parameters()]
        return np.asarray(torch.cat(parameters).cpu().numpy())
