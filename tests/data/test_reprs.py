"""What a log or a traceback shows of clients' data: nothing."""

from dataclasses import replace

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.data.arrays import SomeRows, at_most
from rrcluster.engine.protocol import Question, TrainingCall
from rrcluster.methods.method import Clients, Trained
from rrcluster.settings import LocalSettings
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.hosts import Part

MARKER = 123456.0


@pytest.fixture
def data():
    inputs, targets = np.full((50, 4, 3), MARKER), np.full((50, 4), MARKER)
    return rr.from_arrays(
        inputs, targets, test_inputs=inputs[0], test_targets=targets[0], names=[f"{MARKER} {n}" for n in range(50)]
    )


def test_no_repr_shows_samples_names_or_how_many_there_are(data):
    rows = rr.from_rows(np.full((50, 3), MARKER), np.full(50, MARKER), np.arange(51), num_classes=0)
    cohort, models = data.cohort([0, 1]), np.full((1, 4), MARKER)
    experiment = rr.experiment(data=data, num_clusters=2, num_rounds=2, noise_multiplier=1.0, delta=1e-2)
    memory = ClientMemory(1, {0: np.array([MARKER])})
    clients = Clients(cohort, models, np.ones(1, dtype=bool))
    shown = [data, data.tests, data.tests.store, data.store, *data.test_sets, at_most(data, 2), rows, rows.store]
    shown += [cohort, clients, memory, Part(np.array([int(MARKER)]), memory), SomeRows(data.store, len)]
    shown += [TrainingCall(models, np.zeros(1), cohort, LocalSettings(), (0, 0)), Question(models, cohort)]
    shown += [Trained(models, models), experiment, experiment.hosts.host, replace(experiment, data=rows)]
    for value in shown:
        assert str(int(MARKER)) not in repr(value), type(value)
    assert repr(data) == "FederatedData('arrays', inputs (3,) of float32, targets numbers)"
    assert len(repr(experiment)) < 20_000
