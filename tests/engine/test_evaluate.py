"""Clients that share test sets, and clients that have their own, are judged alike."""

import numpy as np
import pytest

from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.batched.evaluator import _clients_per_pass
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.simulation import evaluate as module
from rrcluster.simulation.hosts import Hosts


@pytest.fixture
def population(rng):
    """Twenty clients with test sets of their own, of different sizes."""

    def samples(*sizes):
        return [rng.normal(size=(n, 6)) for n in sizes], [rng.integers(3, size=n) for n in sizes]

    test_inputs, test_targets = samples(*range(1, 21))
    return from_arrays(*samples(*[5] * 20), test_inputs=test_inputs, test_targets=test_targets, num_classes=3)


def judged(vectors, choices, test_of, data, engine):
    """(n, 2) loss and accuracy of each client's chosen model, by this process."""
    method = METHODS["ifca"]
    hosts = Hosts.here(data, method=method, split=method.split(engine.model), engine=engine)
    return np.stack(module._cluster_models(vectors, choices, test_of, data, hosts), axis=1)


@pytest.mark.parametrize("engine", [BatchedEngine, ReferenceEngine])
def test_many_test_sets_at_once_give_what_each_gives_alone(population, rng, engine, monkeypatch):
    model = make_model("linear", input_shape=(6,), num_classes=3)
    vectors = np.stack([model.init(rng=rng) for _ in range(3)]).astype(np.float32)
    choices, test_of = rng.integers(3, size=20), population.test_of.copy()
    test_of[4] = -1
    found = {}
    for limit in (20, 0):  # of test sets that are few: set by set, or many at once
        monkeypatch.setattr(module, "FEW_SETS", limit)
        found[limit] = judged(vectors, choices, test_of, population, engine(model))
    few, many = found.values()
    assert np.isnan(few[4]).all()
    assert np.isnan(many[4]).all()
    assert len(np.unique(few[:, 0])) == 20, "every client has a loss of its own"
    np.testing.assert_allclose(few, many, atol=1e-6)


def test_a_test_set_that_clients_share_is_judged_once_and_large_ones_not_all_at_once(rng, monkeypatch):
    model = make_model("linear", input_shape=(6,), num_classes=3)
    groups, sizes = np.arange(100) % 20, np.arange(20) + 3  # twenty sets for a hundred clients
    data = from_arrays(
        rng.normal(size=(100, 5, 6)),
        rng.integers(3, size=(100, 5)),
        groups=groups,
        test_inputs=[rng.normal(size=(n, 6)) for n in sizes],
        test_targets=[rng.integers(3, size=n) for n in sizes],
        num_classes=3,
    )
    asked = []

    class Noted(BatchedEngine):
        def measure(self, questions):
            asked.extend(question.samples.targets.shape for question in questions)
            return super().measure(questions)

    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", 5 * sizes.max() + 1)
    vectors, choices = np.stack([model.init(rng=rng) for _ in range(2)]), (groups >= 13).astype(int)
    found = judged(vectors, choices, data.test_of, data, Noted(model))
    assert sum(sets for sets, _ in asked) == 20
    assert max(sets * longest for sets, longest in asked) <= 5 * sizes.max()
    for client in range(100):
        alone = calls.test(BatchedEngine(model), vectors[choices[[client]]], data.test_sets[groups[client]])
        np.testing.assert_allclose(found[client], np.concatenate(alone), atol=1e-6)


def test_the_population_of_test_sets_holds_their_samples(population):
    for place, tests in enumerate(population.test_sets):
        inputs, targets = population.tests.store.client(place)
        assert np.array_equal(inputs, tests.inputs)
        assert np.array_equal(targets, tests.targets)
    assert population.tests is population.tests, "an engine finds it on its device again"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([10, 10, 9], 10), ([10, 1, 1], 0), ([], 100), ([0, 0], 100), ([100], 1), ([101, 101], 0)],
)
def test_no_pass_on_a_device_has_more_samples_than_the_model_says(sizes, expected):
    """Clients larger than that are judged in several passes, like clients of unequal sizes."""
    assert _clients_per_pass(np.array(sizes, dtype=np.int64), 100) == expected
