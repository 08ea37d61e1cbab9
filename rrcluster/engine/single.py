"""Single engine: one client at a time, for secure runs with networks that we ship.

Every tensor has the shape of the client's own data and memory of its own, so that no bit of a result depends on another
client. It takes shortcuts that the reference engine, the tests' oracle, does not: fixed features are computed once per
client, and the gradient of a linear layer by its formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.engine.local_steps import Optimiser, batch_orders
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.engine.reference import CPU
from rrcluster.models.client_state import ClientNetwork
from rrcluster.models.model import Model
from rrcluster.types import Array

_FEATURES_KEPT = 2**30  # bytes


@dataclass
class SingleEngine:
    """A loop over clients, on tensors of their own shapes."""

    model: Model
    device: torch.device = CPU
    _features: WeakKeyDictionary[FederatedData, dict[int, Tensor]] = field(default_factory=WeakKeyDictionary)
    _room: int = _FEATURES_KEPT

    part: ClassVar[int] = 32  # clients are computed one by one: any number gives the same bits
    isolates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        trained = self.model if self.model.fixed is None else self.model.fixed.rest
        self._trained = ClientNetwork.of(trained, self.device)
        self._measured = ClientNetwork.of(trained, self.device, measured=True)
        self._linear = trained.one_linear_layer
        self._gradients = _linear_gradients if self._linear else ClientNetwork.gradients

    @property
    def described(self) -> str:
        """For fingerprints."""
        return f"single, {self.device.type}"

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        SingleEngine.__init__(self, **state)

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [call.result(self._train(call)) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return [self._measure(question) for question in questions]

    def _train(self, call: TrainingCall) -> Array:
        cohort, local, network, trained = call.cohort, call.local, self._trained, call.start
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        anchors = trained.copy() if call.anchor is None else np.asarray(call.anchor, dtype=np.float32)
        for row, size in enumerate(cohort.sizes.tolist()):
            if not size:
                continue
            inputs, targets = self._samples(cohort, row)
            if self._linear:
                targets = torch.nn.functional.one_hot(targets, network.parameters[1].numel())
            network.load(trained[row])
            optimiser = Optimiser(network.parameters, local, anchors[row], call.trainable)
            for order in orders[row, :, :size]:
                places = torch.tensor(order, device=self.device)
                batches = zip(*(torch.split(part[places], local.batch_size) for part in (inputs, targets)), strict=True)
                for batch, truth in batches:
                    optimiser.step(self._gradients(network, batch, truth))
            network.dump(trained[row])
        return trained

    def _measure(self, question: Question) -> Measured:
        samples, network = question.samples, self._measured
        if isinstance(samples, TestSet):
            owners = [(self._prepared(samples.inputs), torch.tensor(samples.targets, device=self.device))]
        else:
            owners = [self._samples(samples, row) for row in range(len(samples.clients))]
        figures = np.zeros((len(owners), len(question.models), 2))
        for row, (inputs, targets) in enumerate(owners):
            for column, model in enumerate(question.models if len(targets) else ()):
                network.load(model)
                figures[row, column] = [float(part.mean()) for part in network.figures(inputs, targets)]
        return Measured(figures[..., 0], figures[..., 1])

    def _samples(self, cohort: Cohort, row: int) -> tuple[Tensor, Tensor]:
        """A client's inputs, or their features, and its targets: copies, because where rows lie in memory, which
        depends on the rest of the cohort, may change last bits."""
        client, size = int(cohort.clients[row]), int(cohort.sizes[row])
        targets = torch.tensor(cohort.targets[row, :size], device=self.device)
        kept = {} if cohort.population is None else self._features.setdefault(cohort.population, {})
        if client in kept:
            return kept[client], targets
        inputs = self._prepared(cohort.inputs[row, :size])
        if self.model.fixed is not None and inputs.nbytes <= self._room:
            kept[client], self._room = inputs, self._room - inputs.nbytes
        return inputs, targets

    def _prepared(self, values: Array) -> Tensor:
        inputs = torch.tensor(values, device=self.device)
        return inputs if self.model.fixed is None or not len(inputs) else self.model.fixed.of(inputs)


@torch.no_grad()
def _linear_gradients(network: ClientNetwork, inputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
    """Of the mean cross-entropy of one linear layer: (softmax - one-hot)' inputs / s, and its sum for the bias."""
    weight, bias = network.parameters
    rows = inputs.flatten(1)
    slopes = torch.softmax(torch.addmm(bias, rows, weight.t()), 1).sub_(targets).div_(len(targets))
    return [slopes.t() @ rows, slopes.sum(0)]
