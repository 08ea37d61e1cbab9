"""Stacked clients of convolutional networks, whose channels lie last."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import rrcluster as rr
from rrcluster.engine import calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.models import fitted, from_module

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


def in_place():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


NETWORKS = {"functions": Functional, "layers": layers, "indices": indices, "in place": in_place}


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


class Weights(torch.autograd.Function):
    """Weighs classes outside of torch, as a user's loss may."""

    @staticmethod
    def forward(ctx, outputs, labels):
        return torch.as_tensor(np.array([1.0, 5.0, 0.2], dtype=np.float32)[labels.numpy()])

    @staticmethod
    def backward(ctx, slope):
        return None, None


@pytest.mark.parametrize("outside", [False, True], ids=["by numpy", "by a function of its own"])
def test_what_one_client_s_labels_are_never_shows_in_another_s_update(outside, rng):
    """However often steps have come before: nothing that is computed for one cohort is kept for the next."""
    table = torch.tensor([1.0, 5.0, 0.2])

    def loss(outputs, labels):
        weights = Weights.apply(outputs, labels) if outside else table[labels.numpy()]
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * weights

    inputs = rng.normal(size=(4, 30, 6)).astype(np.float32)
    labels = rng.integers(3, size=(4, 30))
    updates = []
    for changed in (labels[0], (labels[0] + 1) % 3):
        data = rr.from_arrays(list(inputs), [changed, *labels[1:]], num_classes=3)
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        with torch.no_grad():
            for value in module.parameters():
                value.fill_(0.1)
        model = fitted(from_module(module, loss=loss), data)
        engine, start = BatchedEngine(model), np.stack([model.given] * 2)
        local = LocalSettings(local_lr=0.1, local_epochs=40, batch_size=10)
        for clients in ([0, 1], [2, 3]):
            updates.append(calls.train(engine, start, data.cohort(clients), local=local, key=KEY))
    assert not np.array_equal(updates[0], updates[2])
    assert np.array_equal(updates[1], updates[3])
