"""What a client says about released models, by hand and by the slow engine."""

from dataclasses import replace

import numpy as np
import pytest

from rrcluster.client import own_evaluations
from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.methods import METHODS
from rrcluster.methods.method import Tools
from rrcluster.models import make_model
from rrcluster.settings import LocalSettings


@pytest.fixture
def case(rng):
    inputs = [rng.normal(size=(size, 1, 4, 4)).astype(np.float32) for size in (6, 3, 2)]
    data = from_arrays(inputs, [rng.integers(3, size=len(part)) for part in inputs], num_classes=3)
    model = make_model("linear", input_shape=(1, 4, 4), num_classes=3)
    method = METHODS["ifca"]
    models = method.init(model, num_clusters=2, rng=rng)
    tools = Tools(method.split(model), ReferenceEngine(model), LocalSettings(), key=(0, 0))
    rest = {"method": method, "tools": tools}
    cohort = data.cohort(np.arange(3))
    return models, replace(cohort, sizes=np.array([6, 3, 0])), rest


def test_a_client_judges_its_own_best_model_on_its_own_samples(case):
    models, cohort, rest = case
    told = own_evaluations(
        models,
        cohort,
        loss_bound=8.0,
        **rest,
    )
    loss, accuracy = calls.measure(rest["tools"].engine, rest["tools"].split.vectors(models), cohort)
    for client in (0, 1):
        best = loss[client].argmin()
        assert told[client] == pytest.approx([accuracy[client, best], loss[client, best] / 8.0])
    assert told[2].tolist() == [0.5, 0.5]  # no samples: zero in the message


def test_a_failing_model_counts_as_the_worst_instead_of_dropping_out(case):
    models, cohort, rest = case
    cohort.inputs[0] = np.inf
    told = own_evaluations(models, cohort, loss_bound=4.0, **rest)
    assert told[0, 1] == 1.0
    assert np.isfinite(told).all()


def test_nothing_is_computed_where_it_is_off(case):
    models, cohort, rest = case
    assert own_evaluations(models, cohort, loss_bound=None, **rest) is None
