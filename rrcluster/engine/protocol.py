"""What an engine does: two calls on a cohort, and two on test data. `G` clients, `k` models, `d` parameters."""

from typing import Any, Protocol

import numpy as np
import torch

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.settings import LocalSettings as LocalSettings
from rrcluster.types import Array

CPU = torch.device("cpu")
Updates = Any  # (G, d) float32: a numpy array, or a torch tensor on the device it was made on


class Engine(Protocol):
    """Runs clients. Every implementation gives the same numbers (float32, within 1e-4 after one round)."""

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """Mean loss of each of k models on each client's own training data: (k, d) -> (G, k)."""

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """Mean loss and accuracy of each of k models on each client's own training data: (k, d) -> (G, k), (G, k).

        Accuracy is NaN for regression; both are 0 for a client without samples.
        """

    def train(
        self,
        start: Array,
        cohort: Cohort,
        *,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array | None = None,
        trainable: Array | None = None,
    ) -> Array:
        """Train each client's own model on its own data: (G, d) -> (G, d), float32.

        `key` decides the order of batches together with each client's id. `anchor` (G, d) is what the proximal term
        pulls towards (default: the start). `trainable` (d,) says which coordinates move (default: all). A client
        without samples returns its start.
        """

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """What training changes when client i starts from vectors[clusters[i]]: (k, d), (G,) -> (G, d).

        The same as `train` less the start, but an engine may keep it on its device.
        """

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """Each of k models on one test set: mean loss (k,), and accuracy (k,) (NaN for regression)."""


def changes_by_training(
    engine: Engine, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
) -> Updates:
    """`changes` of an engine that keeps nothing on a device."""
    start = np.asarray(vectors, dtype=np.float32)[clusters]
    return engine.train(start, cohort, local=local, key=key) - start
