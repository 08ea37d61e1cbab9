import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrcluster.data.build import load_federated
from rrcluster.data.partition import dirichlet_images, draw_like, split_dirichlet
from rrcluster.errors import ConfigError
from rrcluster.rng import stream


@settings(deadline=None, max_examples=60)
@given(
    num_clients=st.integers(1, 12),
    classes=st.integers(1, 6),
    concentration=st.sampled_from([1e-8, 0.01, 0.1, 0.5, 100.0]),
    seed=st.integers(0, 50),
)
def test_every_sample_is_dealt_once_and_nobody_is_left_with_too_few(num_clients, classes, concentration, seed):
    rng = stream(seed, "test")
    labels = rng.integers(classes, size=20 * num_clients + 7)
    parts = split_dirichlet(labels, num_clients, concentration=concentration, rng=rng)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= 10


def test_a_draw_that_leaves_clients_empty_is_filled_up(rng):
    """At a tiny concentration one client gets a whole class: 2 classes, 10 clients, so at least 8 would be empty."""
    labels = np.repeat([0, 1], 150)
    sizes = sorted(len(part) for part in split_dirichlet(labels, 10, concentration=1e-9, rng=rng))
    assert sizes[:8] == [10] * 8
    assert sum(sizes) == 300


def test_concentration_decides_how_even_labels_are(rng):
    labels = np.tile(np.arange(10), 1000)
    held = {}
    for concentration in (0.1, 0.5, 1000.0):
        parts = split_dirichlet(labels, 50, concentration=concentration, rng=rng)
        held[concentration] = np.mean([(np.bincount(labels[part], minlength=10) / len(part)).max() for part in parts])
    assert held[0.1] > held[0.5] + 0.1
    assert held[1000.0] < 0.15


def test_the_shares_of_a_class_follow_the_dirichlet_law():
    """A client's share of a class has mean 1/M and variance (M - 1) / (M^2 (M a + 1))."""
    labels, clients, concentration = np.zeros(5000, dtype=np.int64), 5, 0.5
    draws = [
        split_dirichlet(labels, clients, concentration=concentration, rng=stream(seed, "law"), at_least=0)
        for seed in range(400)
    ]
    shares = np.array([[len(part) / 5000 for part in parts] for parts in draws])
    variance = (clients - 1) / (clients**2 * (clients * concentration + 1))
    assert np.abs(shares.mean(0) - 1 / clients).max() < 5 * np.sqrt(variance / 400)
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_draw_like_by_hand(rng):
    test = np.repeat([0, 1, 2], [50, 50, 3])
    like = np.repeat([0, 1, 2], [5, 3, 2])
    picked = draw_like(test, like, count=10, rng=rng)
    assert np.bincount(test[picked]).tolist() == [5, 3, 2]
    assert len(set(picked.tolist())) == 10
    scarce = draw_like(test, like, count=100, rng=rng)  # 50, 30 and 20 wanted, of class 2 there are 3
    assert np.bincount(test[scarce]).tolist() == [50, 30, 3]
    thirds = draw_like(test, np.array([0, 1, 2]), count=4, rng=rng)  # the remainder goes to the lowest class
    assert np.bincount(test[thirds]).tolist() == [2, 1, 1]


def test_a_population(rng):
    data = load_federated("fashion-mini", partition="dirichlet", concentration=0.1, num_clients=100, seed=0)
    assert (data.num_groups, data.groups.any(), data.num_classes) == (0, False, 10)
    assert data.sizes.sum() == 10_000
    assert data.test_of.tolist() == list(range(100))
    cohort = data.cohort([3, 50])
    for row, client in enumerate((3, 50)):
        size, tests = int(data.sizes[client]), data.test_sets[client]
        own = np.bincount(cohort.targets[row, :size], minlength=10) / size
        seen = np.bincount(tests.targets, minlength=10) / len(tests.targets)
        assert np.abs(own - seen).max() < 0.011
        assert tests.inputs.shape == (100, 1, 28, 28)
        assert tests.inputs is not tests.inputs  # made when asked for, not kept
    back = pickle.loads(pickle.dumps(data))
    assert np.array_equal(back.test_sets[7].inputs, data.test_sets[7].inputs)


def test_the_seed_decides():
    first, same, other = (
        load_federated("fashion-mini", partition="dirichlet", num_clients=50, seed=seed) for seed in (0, 0, 1)
    )
    assert np.array_equal(first.cohort([1]).inputs, same.cohort([1]).inputs)
    assert first.sizes.tolist() != other.sizes.tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_clients": 501}, "leaves 20.0 training samples per client.*use at most 500 clients"),
        ({"concentration": 0.0}, "concentration = 0.0"),
        ({"concentration": float("nan")}, "concentration"),
        ({"num_groups": 2}, "num_groups is not supported by partition = 'dirichlet'"),
        ({"ratio": (1, 1)}, "ratio is not supported"),
        ({"reuse": True}, "reuse is not supported"),
        ({"partition": "rotation", "concentration": 0.5}, "concentration is not supported by partition = 'rotation'"),
    ],
)
def test_bad_settings_are_named(options, expected):
    with pytest.raises(ConfigError, match=expected):
        load_federated(**{"data": "fashion-mini", "partition": "dirichlet", "num_clients": 50, "seed": 0, **options})


def test_a_client_without_a_test_image(four_images, rng, monkeypatch):
    monkeypatch.setattr("rrcluster.data.partition.split_dirichlet", lambda *args, **options: (np.array([1, 3]),))
    object.__setattr__(four_images, "test_labels", np.array([0, 0]))
    with pytest.raises(ConfigError, match="client 0 has classes without a test image"):
        dirichlet_images("four", four_images, num_clients=1, concentration=0.5, rng=rng)
