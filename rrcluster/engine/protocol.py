"""The engine protocol: train cohorts and measure models, many calls at once. `n` clients, `k` models, `d` parameters.

Below it are functions for a single call, which methods and the simulation use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.settings import LocalSettings as LocalSettings
from rrcluster.types import Array

if TYPE_CHECKING:  # settings are checked before PyTorch is imported
    import torch

    from rrcluster.models.model import Model

Updates = Any  # (n, d) float32: a numpy array, or a torch tensor on the device that computed it


@dataclass(frozen=True, eq=False, repr=False)
class TrainingCall:
    """Local training of a cohort: client i starts from models[model_of[i]] and trains on its own samples.

    `key` and the client's id determine the order of its batches. A client without samples keeps its start.
    """

    models: Array  # (m, d)
    model_of: Array  # (n,)
    cohort: Cohort
    local: LocalSettings
    key: tuple[int, int]
    anchor: Array | None = None  # (n, d) centre of the proximal term; None: the start
    trainable: Array | None = None  # (d,) bool, the coordinates that move; None: all of them
    whole_models: bool = False  # return trained models instead of their difference from the start

    @property
    def start(self) -> Array:
        """(n, d) float32, the model each client starts from."""
        return np.asarray(self.models, dtype=np.float32)[self.model_of]

    def select(self, rows: slice, cohort: Cohort) -> "TrainingCall":
        """The same call for some of its clients, whose data is `cohort`, with only their initial models."""
        used, model_of = np.unique(self.model_of[rows], return_inverse=True)
        anchor = None if self.anchor is None else self.anchor[rows]
        return replace(self, models=self.models[used], model_of=model_of, cohort=cohort, anchor=anchor)

    def result(self, trained: Array) -> Updates:
        """The engine's result for this call, from the trained models (n, d)."""
        return trained if self.whole_models else trained - self.start


@dataclass(frozen=True, eq=False, repr=False)
class Question:
    """A request for the loss and accuracy of models on clients' training samples, or on one test set."""

    models: Array  # (k, d)
    samples: Cohort | TestSet


class Measured(NamedTuple):
    """Mean loss and accuracy of k models for n clients; n = 1 for a test set.

    Accuracy is NaN for regression; both are 0 for a client without samples.
    """

    loss: Array  # (n, k)
    accuracy: Array  # (n, k)

    @classmethod
    def of_sums(cls, sums: Array, sizes: Array) -> "Measured":
        """Means from sums over each client's samples, (n, k, 2), and the numbers of samples, (n,)."""
        return cls(*np.moveaxis(sums, -1, 0) / np.maximum(sizes, 1)[:, None])


class Engine(Protocol):
    """Computes clients. Every implementation gives the same numbers (float32, within 1e-4 after one round)."""

    @property
    def model(self) -> "Model":
        """The network it runs."""

    @property
    def device(self) -> "torch.device":
        """The device it computes on."""

    @property
    def part(self) -> int:
        """The number of clients per call; which ones are computed together can change last bits."""

    @property
    def isolates(self) -> bool:
        """Whether every client of a user's network gets fresh copies."""

    @property
    def described(self) -> str:
        """Its description for fingerprints: two engines may differ in the last bits."""

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """Changes by local training, (n, d) for each call; trained models where the call requests `whole_models`."""

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""


def losses(engine: Engine, models: Array, cohort: Cohort) -> Array:
    """Mean loss of each of k models on each client's own training samples: (k, d) -> (n, k)."""
    return measure(engine, models, cohort).loss


def measure(engine: Engine, models: Array, cohort: Cohort) -> Measured:
    """Mean loss and accuracy of each of k models on each client's own training samples: (k, d) -> (n, k), (n, k)."""
    return engine.measure([Question(models, cohort)])[0]


def test(engine: Engine, models: Array, tests: TestSet) -> tuple[Array, Array]:
    """Each of k models on one test set: mean loss (k,), and accuracy (k,) (NaN for regression)."""
    loss, accuracy = engine.measure([Question(models, tests)])[0]
    return loss[0], accuracy[0]


def changes(
    engine: Engine, models: Array, model_of: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
) -> Updates:
    """Changes by training when client i starts from models[model_of[i]]: (k, d), (n,) -> (n, d).

    The result may be a tensor on the engine's device.
    """
    return engine.train([TrainingCall(models, model_of, cohort, local, key)])[0]


def train(
    engine: Engine,
    start: Array,
    cohort: Cohort,
    *,
    local: LocalSettings,
    key: tuple[int, int],
    anchor: Array | None = None,
    trainable: Array | None = None,
) -> Array:
    """The trained model of each client, which starts from its own row of `start`: (n, d) -> (n, d) float32."""
    rows = np.arange(len(start))
    call = TrainingCall(start, rows, cohort, local, key, anchor, trainable, whole_models=True)
    return to_numpy(engine.train([call])[0])


def to_numpy(updates: Updates) -> Array:
    """Updates on the host."""
    return np.asarray(updates if isinstance(updates, np.ndarray) else updates.cpu().numpy())
