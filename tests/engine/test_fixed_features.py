"""The fixed features of images, on images small enough for paper."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.models import make_model
from rrcluster.models.networks import LENGTH, Edges, Pooled, additive
from rrcluster.rng import Streams


def test_pooling_by_hand_keeps_the_norm_of_a_smooth_image():
    image = torch.tensor([[[[1.0, 1.0, 3.0, 3.0], [1.0, 1.0, 3.0, 3.0]]]])
    assert Pooled(2)(image).tolist() == [[2.0, 6.0]]
    assert Pooled(2)(image).norm() == pytest.approx(image.norm())


def test_edges_by_hand():
    # Columns 0, 0, 1, 1: the gradient points to the right, in the two middle columns. One cell; directions 45 degrees
    # apart have 1, sqrt(1/2), 0, 0, 0, 0, 0, sqrt(1/2) of it.
    image = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(1, 1, 4, 4)
    raw = torch.tensor([1.0, 0.5**0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5**0.5])
    for squared in (False, True):
        expected = raw.square() if squared else raw
        expected = expected - expected.mean()
        found = Edges(4, 2, squared=squared)(image)[0]
        assert torch.allclose(found[:8], LENGTH * expected / expected.norm(), atol=1e-4)
        assert torch.allclose(found[8:], LENGTH * torch.tensor([-0.5, 0.5, -0.5, 0.5]), atol=1e-4)


def test_contrast_changes_no_edge_feature_and_a_turn_moves_them(rng):
    images = torch.as_tensor(rng.normal(size=(2, 1, 28, 28)))
    features = Edges(7, 4, squared=True)
    assert torch.allclose(features(3 * images + 1), features(images), atol=1e-4)
    turned = features(torch.rot90(images, dims=(2, 3)))[:, :128].reshape(2, 8, 4, 4)
    there = features(images)[:, :128].reshape(2, 8, 4, 4)
    # a quarter turn against the clock: the cells turn, and what pointed right (0) now points up (6)
    assert torch.allclose(turned, torch.rot90(there, dims=(2, 3)).roll(-2, dims=1), atol=1e-4)


def test_a_blank_image_has_no_features():
    assert (Edges(4, 4, squared=False)(torch.full((1, 3, 32, 32), 0.7)) == 0).all()


@pytest.mark.parametrize("sizes", [[3, 1, 4], []])
def test_features_computed_once_per_sample_train_the_model_that_the_module_trains(sizes, rng):
    model = additive(make_model("edges", input_shape=(1, 28, 28), num_classes=4))  # two of them, as FedCAM has it
    inputs = [rng.normal(size=(size, 1, 28, 28)) for size in (*sizes, 2)]
    data = from_arrays(inputs, [rng.integers(4, size=len(own)) for own in inputs], num_classes=4)
    cohort = data.cohort(np.arange(len(sizes)))
    start = np.stack([model.init(rng=rng) for _ in (*sizes, 0)])
    local, key = LocalSettings(local_lr=0.01, local_epochs=2, batch_size=2), Streams(1).client_key("batches", 0)
    slow, fast = ReferenceEngine(model), BatchedEngine(model)
    expected = calls.train(slow, start[: len(sizes)], cohort, local=local, key=key)
    trained = calls.train(fast, start[: len(sizes)], cohort, local=local, key=key)
    assert trained.shape == expected.shape
    assert np.allclose(trained, expected, atol=1e-4)
    assert np.allclose(calls.losses(fast, start, cohort), calls.losses(slow, start, cohort), atol=1e-4)


def test_features_of_a_client_are_computed_when_it_first_takes_part(rng):
    model = make_model("edges", input_shape=(1, 28, 28), num_classes=4)
    inputs = [rng.normal(size=(size, 1, 28, 28)) for size in (3, 1, 2, 4, 2)]
    data = from_arrays(inputs, [rng.integers(4, size=len(own)) for own in inputs], num_classes=4)
    seen = []

    def features(images, of=model.fixed.features):
        seen.append(len(images))
        return of(images)

    counted = BatchedEngine(replace(model, fixed=replace(model.fixed, features=features)))
    start = np.stack([model.init(rng=rng) for _ in range(2)])
    for ids, new in (([3, 1], 5), ([1, 3, 1], 0), ([], 0), ([4, 3, 0], 5), ([0, 1, 2, 3, 4], 2)):
        seen.clear()
        cohort = data.cohort(ids)
        assert np.array_equal(
            calls.losses(counted, start, cohort), calls.losses(BatchedEngine(model), start, data.cohort(ids))
        )
        assert sum(seen) == new


def test_the_two_forms_of_a_model_must_be_one_vector():
    model = make_model("edges", input_shape=(1, 28, 28), num_classes=4)
    other = make_model("edges", input_shape=(1, 28, 28), num_classes=5)
    with pytest.raises(ConfigError, match=r"1768 parameters.*2210.*same vector"):
        replace(model, fixed=other.fixed)


def test_features_kept_for_a_population_change_nothing(rng, monkeypatch):
    model = make_model("edges-coarse", input_shape=(3, 32, 32), num_classes=4)
    inputs = [rng.normal(size=(size, 3, 32, 32)) for size in (3, 1, 5)]
    data = from_arrays(inputs, [rng.integers(4, size=len(own)) for own in inputs], num_classes=4)
    cohort, models = data.cohort(np.array([2, 0])), np.stack([model.init(rng=rng) for _ in range(2)])
    found = []
    for room in (0, 2**30):
        monkeypatch.setattr("rrcluster.engine.batched.batched_engine._FEATURES_ON_CPU", room)
        engine = BatchedEngine(model)
        trained = calls.train(engine, models, cohort, local=LocalSettings(), key=(1, 2))
        found.append((calls.losses(engine, models, cohort), trained))
        assert len(engine._tables) == (room > 0)
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()


def test_features_of_a_test_set_are_computed_once_too(rng):
    model = make_model("edges", input_shape=(1, 28, 28), num_classes=4)
    seen = []

    def counted(images):
        seen.append(len(images))
        return model.fixed.features(images)

    engine = BatchedEngine(replace(model, fixed=replace(model.fixed, features=counted)))
    inputs, targets = rng.normal(size=(1, 9, 1, 28, 28)), rng.integers(4, size=(1, 9))
    data = from_arrays(inputs, targets, test_inputs=inputs[0], test_targets=targets[0], num_classes=4)
    vectors = np.stack([model.init(rng=rng) for _ in range(2)])
    first, again = (calls.test(engine, vectors, data.test_sets[0]) for _ in range(2))
    assert seen == [9]
    assert np.array_equal(first, again)
