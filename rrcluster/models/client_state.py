"""A client's fresh copies of network, loss and metric, which no other client has used.

State in attributes, lists, buffers or hooks ends with the copy. Global variables, classes, closures and state inside
functions are not copied: the trial of probe.py finds some of these, and the rest is trusted (privacy/statement.py).
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.models.model import Model, Task, copied
from rrcluster.types import Array

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class ClientNetwork:
    """A network on a device, with its loss and its metric."""

    model: Model
    module: nn.Module
    task: Task
    device: torch.device

    @classmethod
    def of(cls, model: Model, device: torch.device = CPU, *, measured: bool = False) -> "ClientNetwork":
        """Fresh copies, so that the model's own are never changed; in eval mode if `measured`."""
        module, task = copied(model.name, model.module, model.task)
        return cls(model, (module.eval() if measured else module).to(device), task, device)

    def fresh(self, vector: Array) -> "ClientNetwork":
        """Copies for one client, with the weights (d,). Built-in networks have no state, so one serves all clients.

        The copies reuse the memory of the previous ones, which end with this call.
        """
        if not self.model.own:
            self.load(vector)
            return self
        _load(self._weights, self.model, vector)
        pairs = zip(self.parameters, self._weights, strict=True)
        memo = {id(old): nn.Parameter(kept) for old, kept in pairs if type(old) is nn.Parameter}
        subclassed = len(memo) < len(self.parameters)  # these copy themselves
        network = ClientNetwork(self.model, *copied(self.model.name, self.module, self.task, memo), self.device)
        if subclassed:
            network.load(vector)
        return network

    @cached_property
    def _weights(self) -> list[Tensor]:
        """Memory for the trained weights: allocating it for every client costs more than filling it."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @cached_property
    def parameters(self) -> list[Tensor]:
        """The trained parameters."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def load(self, vector: Array) -> None:
        """Load the weights (d,)."""
        _load(self.parameters, self.model, vector)

    def dump(self, into: Array) -> None:
        """Write the weights, (d,) float32."""
        whole, parts = torch.from_numpy(into), [parameter.detach().reshape(-1) for parameter in self.parameters]
        if self.device.type == "cpu":
            torch.cat(parts, out=whole)
        else:
            whole.copy_(torch.cat(parts))

    def gradients(self, inputs: Tensor, targets: Tensor, *, seed: int = 0) -> Sequence[Tensor]:
        """Gradients of a batch's mean loss; random layers draw under the seed, from any generator."""
        self._seed(seed)
        loss = self.task.mean_loss(self.task.outputs(self.module, inputs), targets)
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = zip(gradients, self.parameters, strict=True)
        return [torch.zeros_like(of) if gradient is None else gradient for gradient, of in pairs]

    @torch.no_grad()
    def figures(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and metric of each sample, (s,)."""
        self._seed(0)
        batches = zip(*(torch.split(part, self.model.samples_at_once) for part in (inputs, targets)), strict=True)
        outputs = [(self.task.outputs(self.module, batch), truth) for batch, truth in batches]
        parts = [(self.task.losses(*pair), self.task.metrics(*pair)) for pair in outputs]
        losses, metrics = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(metrics)

    def _seed(self, seed: int) -> None:
        if self.model.own:  # built-in networks draw no random numbers
            seed_generators(seed, self.device)


@torch.no_grad()
def _load(weights: Sequence[Tensor], model: Model, vector: Array) -> None:
    values = model.unflatten(torch.as_tensor(np.asarray(vector, dtype=np.float32)))
    for weight, value in zip(weights, values.values(), strict=True):
        weight.copy_(value)


def seed_generators(seed: int, device: torch.device = CPU) -> None:
    """Seed all generators that networks and losses may use.

    `torch.manual_seed` seeds every device, at a cost per call.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def own_generators(device: torch.device = CPU) -> Iterator[None]:
    """Restore the program's generators after seeding and drawing inside."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            np.random.set_state(states[0])  # noqa: NPY002
            random.setstate(states[1])


def generator_states() -> dict[str, object]:
    """Generator states, to compare which generators were used."""
    _, words, *rest = cast(tuple[Any, ...], np.random.get_state())  # noqa: NPY002
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "numpy": (words.tobytes(), rest)}
    return states | {"random": random.getstate()}
