"""Functions of an engine for one call each: what methods, the simulation and experiments use."""

import numpy as np

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.protocol import Engine, LocalSettings, Measured, Question, TrainingCall, Updates
from rrcluster.types import Array


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
    """What training changes when client i starts from models[model_of[i]]: (k, d), (n,) -> (n, d).

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
