"""Stacked clients of convolutional networks, whose channels lie last, and recorded training steps."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import rrcluster as rr
from rrcluster.engine import calls
from rrcluster.engine.batched import gradients
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.models import fitted

SIZES, KEY = (7, 1, 12, 5), (1, 2)
LOCAL = LocalSettings(local_lr=0.1, local_epochs=2, batch_size=5)


class Functional(nn.Module):
    """Pools as functions, a normalisation without weights, a layer of several groups, and an average."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same", bias=False)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=2, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 8, affine=False), nn.Linear(8, 3)

    def forward(self, images):
        images = functional.max_pool2d(functional.relu(self.first(images)), 2)
        images = functional.avg_pool2d(self.norm(self.second(images)), 2, stride=1)
        return self.head(functional.adaptive_avg_pool2d(images, 1).flatten(1))


def layers():
    frozen = nn.Conv2d(3, 4, 1).requires_grad_(False)
    return nn.Sequential(
        frozen,
        nn.Conv2d(4, 16, 3),
        nn.GroupNorm(4, 16),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.Flatten(),
        nn.Linear(96, 3),
    )


def indices():
    """A pool that returns indices too, which is left to vmap."""

    class Indices(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 9, 3)

        def forward(self, images):
            return self.head(functional.max_pool2d(self.layer(images), 2, return_indices=True)[0].flatten(1))

    return Indices()


NETWORKS = {"functions": Functional, "layers": layers, "indices": indices}


def population(rng):
    images = [rng.normal(size=(size, 3, 8, 8)).astype(np.float32) for size in SIZES]
    return rr.from_arrays(images, [rng.integers(3, size=size) for size in SIZES], num_classes=3)


def made(name, rng):
    data = population(rng)
    torch.manual_seed(3)
    return fitted(rr.from_module(NETWORKS[name]()), data), data


@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_images_equal_the_reference(name, rng):
    model, data = made(name, rng)
    assert model.channels_last
    start, cohort = np.stack([model.given, *(model.given * scale for scale in (0.9, 1.1, 1.2))]), data.cohort(range(4))
    trained = [
        calls.train(engine, start, cohort, local=LOCAL, key=KEY)
        for engine in (ReferenceEngine(model), BatchedEngine(model))
    ]
    assert np.abs(trained[0] - start).max() > 1e-2
    assert np.abs(trained[0] - trained[1]).max() < 2e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_that_are_not_finite_stay_with_their_client(name, bad, rng):
    model, data = made(name, rng)
    cohort, start = data.cohort(range(4)), np.stack([model.given] * 4)
    engine = BatchedEngine(model)
    before = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    cohort.inputs[2] = bad
    start[2] = bad
    after = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    assert not np.isfinite(after[2]).all()
    others = [0, 1, 3]
    assert np.array_equal(before[others], after[others])


@pytest.mark.parametrize("network", ["functions", "layers"])
def test_recorded_steps_give_the_same_bits(network, rng, monkeypatch):
    model, data = made(network, rng)
    cohort, start = data.cohort(range(4)), np.stack([model.given] * 4)
    local = LocalSettings(local_lr=0.1, local_epochs=3, batch_size=5, local_momentum=0.5, proximal=0.1)
    plain = calls.train(BatchedEngine(model), start, cohort, local=local, key=KEY)
    monkeypatch.setattr(gradients, "_STEPS_BEFORE", 1)
    engine = BatchedEngine(model)
    recorded = calls.train(engine, start, cohort, local=local, key=KEY)
    programs = engine._trainer._gradients._programs
    assert programs
    assert None not in programs.values()
    assert np.array_equal(plain, recorded)


def test_a_step_that_cannot_be_recorded_is_computed_as_before(rng, monkeypatch):
    model, data = made("functions", rng)
    cohort, start = data.cohort(range(4)), np.stack([model.given] * 4)
    plain = calls.train(BatchedEngine(model), start, cohort, local=LOCAL, key=KEY)
    monkeypatch.setattr(gradients, "_STEPS_BEFORE", 0)
    for fault in (_raises, _differs):
        monkeypatch.setattr(gradients, "make_fx", fault)
        engine = BatchedEngine(model)
        assert np.array_equal(calls.train(engine, start, cohort, local=LOCAL, key=KEY), plain)
        assert set(engine._trainer._gradients._programs.values()) == {None}


def _raises(_):
    raise RuntimeError("a secret")


def _differs(function):
    made = torch.fx.experimental.proxy_tensor.make_fx(function)

    def record(*arguments):
        program = made(*arguments)
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.threshold_backward.default:
                node.args = (*node.args[:2], 0.5)
        return program

    return record
