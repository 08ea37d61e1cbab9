"""Reference engine: trains one client, one batch at a time with the plain `nn.Module`; the tests' oracle.

Secure runs use it: every tensor has the shape of the client's own data and its own memory, so that no bit of a result
depends on another client. A user's network is copied anew for every client, so that no state passes from one client to
the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.engine.local_steps import Optimiser, batch_orders, step_seeds
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.models.client_state import ClientNetwork, own_generators
from rrcluster.models.model import FixedPart, Model
from rrcluster.types import Array

CPU = torch.device("cpu")
_FEATURES_KEPT = 2**30  # bytes


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: the number of threads can change the last bits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(eq=False)
class ReferenceEngine:
    """A loop over clients. It works on copies of the module: the model's own is never changed.

    With `shortcuts`, which the tests' oracle does without, fixed features are computed once per client, and the
    gradient of a linear layer by its formula.
    """

    model: Model
    device: torch.device = CPU
    shortcuts: bool = False
    _features: WeakKeyDictionary[FederatedData, dict[int, Tensor]] = field(default_factory=WeakKeyDictionary)
    _room: int = _FEATURES_KEPT

    isolates: ClassVar[bool] = True

    @property
    def part(self) -> int:
        """Clients are computed one by one: any number gives the same bits."""
        return 32 if self.shortcuts else 13

    @property
    def described(self) -> str:
        """Device and kind, for fingerprints."""
        return f"{'single' if self.shortcuts else 'reference'}, {self.device.type}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.device, self.shortcuts)

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        with self._drawing():
            return [self._train(call) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        with self._drawing():
            return [self._measure(question) for question in questions]

    def _drawing(self) -> AbstractContextManager[None]:
        """Networks that we ship draw no random numbers."""
        return own_generators(self.device) if self.model.own else nullcontext()

    @property
    def _fixed(self) -> FixedPart | None:
        return self.model.fixed if self.shortcuts else None

    @property
    def _network(self) -> Model:
        return self.model if self._fixed is None else self._fixed.rest

    @cached_property
    def _trained(self) -> ClientNetwork:
        return ClientNetwork.of(self._network, self.device)

    @cached_property
    def _measured(self) -> ClientNetwork:
        return ClientNetwork.of(self._network, self.device, measured=True)

    def _train(self, call: TrainingCall) -> Array:
        cohort, local, models = call.cohort, call.local, np.asarray(call.models, dtype=np.float32)
        linear = self.shortcuts and self._network.one_linear_layer
        orders = batch_orders(call.key, cohort.clients, cohort.sizes, epochs=local.local_epochs)
        steps = orders.shape[1] * -(-orders.shape[2] // local.batch_size)
        seeds = step_seeds(call.key, cohort.clients, steps).tolist() if self.model.own else None
        result = np.empty((len(cohort.sizes), models.shape[1]), dtype=np.float32)
        for row, size in enumerate(cohort.sizes.tolist()):
            start = models[call.model_of[row]]
            if size:
                network = self._trained.fresh(start)
                inputs, targets = self._samples(cohort, row)
                if linear:
                    targets = torch.nn.functional.one_hot(targets, network.parameters[1].numel())
                anchor = start if call.anchor is None else np.asarray(call.anchor[row], dtype=np.float32)
                optimiser = Optimiser(network.parameters, local, anchor, call.trainable)
                step_seed = repeat(0) if seeds is None else iter(seeds[row])
                for order in self._tensor(orders[row, :, :size]):
                    epoch = (torch.split(part[order], local.batch_size) for part in (inputs, targets))
                    for batch in zip(*epoch, strict=True):
                        seed = next(step_seed)
                        slopes = _linear_gradients(network, *batch) if linear else network.gradients(*batch, seed=seed)
                        optimiser.step(slopes)
                network.dump(result[row])
            else:
                result[row] = start
            if not call.whole_models:
                result[row] -= start
        return result

    def _measure(self, question: Question) -> Measured:
        models, samples = question.models, question.samples
        if isinstance(samples, TestSet):
            clients = [(self._prepared(samples.inputs), self._tensor(samples.targets))]
        else:
            clients = [self._samples(samples, row) for row in range(len(samples.clients))]
        figures = np.zeros((len(clients), len(models), 2))
        for row, (inputs, targets) in enumerate(clients):
            network = self._measured.fresh(models[0]) if len(models) else self._measured
            for column, model in enumerate(models if len(targets) else ()):
                network.load(model)
                figures[row, column] = [float(part.mean()) for part in network.figures(inputs, targets)]
        return Measured(figures[..., 0], figures[..., 1])

    def _samples(self, cohort: Cohort, row: int) -> tuple[Tensor, Tensor]:
        """A client's inputs, or their features, and its targets."""
        client, size = int(cohort.clients[row]), int(cohort.sizes[row])
        targets = self._tensor(cohort.targets[row, :size])
        if self._fixed is None or cohort.population is None:
            return self._prepared(cohort.inputs[row, :size]), targets
        kept = self._features.setdefault(cohort.population, {})
        if client in kept:
            return kept[client], targets
        inputs = self._prepared(cohort.inputs[row, :size])
        if inputs.nbytes <= self._room:
            kept[client], self._room = inputs, self._room - inputs.nbytes
        return inputs, targets

    def _prepared(self, values: Array) -> Tensor:
        inputs = self._tensor(values)
        return inputs if self._fixed is None or not len(inputs) else self._fixed.of(inputs)

    def _tensor(self, values: Array) -> Tensor:
        """A copy: alignment in memory depends on the rest of the cohort, and may change the last bits."""
        return torch.tensor(values, device=self.device)


@torch.no_grad()
def _linear_gradients(network: ClientNetwork, inputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
    """Gradients of a linear layer's mean cross-entropy: (softmax - one-hot)' inputs / s, and the sum for the bias."""
    weight, bias = network.parameters
    rows = inputs.flatten(1)
    slopes = torch.softmax(torch.addmm(bias, rows, weight.t()), 1).sub_(targets).div_(len(targets))
    return [slopes.t() @ rows, slopes.sum(0)]
