"""What a worker process computes for one client. Plain numbers and numpy arrays only, so that no worker needs torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rrcluster.types import Array

MeasureClient = Callable[[Array, Array], Array]  # inputs (n, *input), targets (n,) -> (k, 2)


@dataclass(frozen=True)
class Steps:
    """`LocalSettings` of a client as plain values, so that a worker imports nothing for them."""

    rate: float
    epochs: int
    batch_size: int
    proximal: float
    optimizer: str = "sgd"
    momentum: float = 0.0

    @property
    def plain(self) -> bool:
        """SGD without momentum."""
        return self.optimizer == "sgd" and not self.momentum


@dataclass(frozen=True, eq=False)
class ClientCall:
    """One client's local training: n > 0 samples, visited in the order `orders`."""

    start: Array  # (d,)
    inputs: Array  # (n, *input)
    targets: Array  # (n,)
    orders: Array  # (epochs, n)
    steps: Steps
    anchor: Array  # (d,) used when steps.proximal is above 0
    trainable: Array | None = None  # (d,) above 0 where a coordinate moves; None: all move
    seeds: Array | None = None  # (steps,) of what random layers draw in each step; None: the network has none


class ClientTrainer(Protocol):
    """Trains and measures one client at a time; no other client's samples change a bit of its result."""

    def train(self, call: ClientCall) -> Array:
        """The trained model (d,)."""

    def evaluator(self, models: Array) -> MeasureClient:
        """A function of samples: sums of loss and of correct answers for k models, (k, d) -> (k, 2) float64."""
