"""What a client says about released models, by hand and by the slow engine."""

from dataclasses import replace

import numpy as np
import pytest

from rrcluster.client import own_evaluations
from rrcluster.data.arrays import from_arrays, with_validation
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


def test_held_out_samples_judge_and_training_samples_choose(case, rng):
    """By hand, and one client's held-out samples change nothing of what others say."""
    models, _, rest = case
    inputs = [rng.normal(size=(4, 1, 4, 4)).astype(np.float32) for _ in range(4)]
    targets = [rng.integers(3, size=4) for _ in range(4)]

    def data(first):
        held = [first, *inputs[1:3]]
        return from_arrays(
            inputs[:3],
            targets[:3],
            test_inputs=[part[:size] for part, size in zip(held, (4, 2, 0), strict=True)],
            test_targets=[targets[3][:size] for size in (4, 2, 0)],
            num_classes=3,
        )

    one, two = data(inputs[3]), data(-inputs[3])
    told, other = (own_evaluations(models, d.cohort(np.arange(3)), loss_bound=8.0, **rest) for d in (one, two))
    engine, vectors = rest["tools"].engine, rest["tools"].split.vectors(models)
    chosen = calls.measure(engine, vectors, one.cohort(np.arange(3))).loss.argmin(axis=1)
    for client in (0, 1):
        loss, accuracy = calls.test(engine, vectors, one.test_sets[client])
        assert told[client] == pytest.approx([accuracy[chosen[client]], loss[chosen[client]] / 8.0])
    assert told[2].tolist() == [0.5, 0.5]  # nothing is held out of this client's
    assert np.array_equal(told[1:], other[1:])
    assert not np.array_equal(told[0], other[0])


def test_samples_for_choosing_settings_are_not_trained_on(case, rng):
    models, _, rest = case
    sizes = (1, 2, 6, 11)
    inputs = [np.arange(size, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 4, 4)) for size in sizes]
    data = from_arrays(inputs, [rng.integers(3, size=size) for size in sizes], num_classes=3)
    for ordered in (False, True):
        kept = with_validation(replace(data, ordered=ordered))
        assert kept.validation.sizes.tolist() == [0, 1, 2, 3]
        for client, size in enumerate(sizes):
            trained, held = (one.store.client(client)[0][:, 0, 0, 0].tolist() for one in (kept, kept.validation))
            assert len(trained) == kept.sizes[client]
            assert sorted(trained + held) == list(range(size))
            assert not ordered or trained + held == list(range(size))  # the newest are held
        told = own_evaluations(models, kept.cohort(np.arange(4)), loss_bound=8.0, **rest)
        assert told[0].tolist() == [0.5, 0.5]
        loss, accuracy = calls.measure(
            rest["tools"].engine, rest["tools"].split.vectors(models), kept.validation.cohort([3])
        )
        own = (
            calls.measure(rest["tools"].engine, rest["tools"].split.vectors(models), kept.cohort([3])).loss[0].argmin()
        )
        assert told[3] == pytest.approx([accuracy[0, own], loss[0, own] / 8.0])
