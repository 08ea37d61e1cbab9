"""What a worker process does for one client at a time. Numbers and numpy arrays only, so that no worker needs torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rrcluster.types import Array

Measure = Callable[[Array, Array], Array]  # inputs (n, *input), targets (n,) -> (k, 2)


@dataclass(frozen=True)
class Steps:
    """How a client trains: `LocalSettings` without what only a run needs."""

    rate: float
    epochs: int
    batch_size: int
    proximal: float


class Alone(Protocol):
    """Trains and measures one client, by itself: nobody else's samples change a bit of its result."""

    def train(
        self,
        start: Array,
        inputs: Array,
        targets: Array,
        *,
        orders: Array,
        steps: Steps,
        anchor: Array,
        moving: Array | None,
    ) -> Array:
        """SGD from `start` (d,) over samples (n, *input), n > 0, visited as `orders` (epochs, n) says: -> (d,)."""

    def measuring(self, vectors: Array) -> Measure:
        """Sums over samples (n, *input) of the loss and of right answers, for k models: (k, d) -> (k, 2) float64."""
