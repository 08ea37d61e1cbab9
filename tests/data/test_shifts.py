"""Label flips and the paper's noisy lines."""

import numpy as np
import pytest

from rrcluster.data import SOURCES, load_federated
from rrcluster.data.build import GENERATED, IMAGES, PARTITIONS
from rrcluster.data.images import flipped
from rrcluster.data.synthetic import INTERCEPTS, SCENARIOS, SLOPES, noisy_lines
from rrcluster.errors import ConfigError


def test_flips_by_hand():
    labels = np.array([0, 1, 9])
    assert flipped(labels, 0, 10).tolist() == [0, 1, 9]
    assert flipped(labels, 2, 10).tolist() == [2, 3, 1]


def test_any_two_groups_disagree_on_every_class():
    names = [flipped(np.arange(10), group, 10) for group in range(10)]
    assert all(sorted(own.tolist()) == list(range(10)) for own in names)
    assert all((names[a] != names[b]).all() for a in range(10) for b in range(a))


def test_a_population_with_flipped_labels():
    data = load_federated("fashion-mini", partition="label-flip", num_clients=40, seed=0)
    plain = load_federated("fashion-mini", partition="rotation", num_clients=40, seed=0)
    assert np.bincount(data.groups).tolist() == [10] * 4
    client = int(np.flatnonzero(data.groups == 3)[0])
    own, true = data.cohort([client]), plain.store.labels[plain.store.indices[client]]
    assert np.array_equal(own.targets[0], (true + 3) % 10)
    zero = int(np.flatnonzero(data.groups == 0)[0])
    assert np.array_equal(data.cohort([zero]).inputs, plain.cohort([zero]).inputs)
    assert data.test_sets[0].inputs is data.test_sets[3].inputs
    assert np.array_equal(data.test_sets[3].targets, (data.test_sets[0].targets + 3) % 10)


def test_more_groups_than_classes():
    with pytest.raises(ConfigError, match="11 groups need as many classes, but fashion-mini has 10"):
        load_federated("fashion-mini", partition="label-flip", num_clients=40, num_groups=11, seed=0)
    ten = load_federated("fashion-mini", partition="label-flip", num_clients=40, num_groups=10, seed=0)
    assert ten.num_groups == 10


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_four_scenarios(name):
    data = load_federated(name, num_clients=160, seed=0)
    balanced = "imbalanced" not in name
    assert np.bincount(data.groups).tolist() == ([40] * 4 if balanced else [80, 40, 20, 20])
    assert (data.name, data.num_classes, data.input_shape) == (name, 0, (1,))
    assert (data.sizes.min() >= 20, data.sizes.max() <= 60, len(set(data.sizes.tolist())) > 10) == (True, True, True)
    noise = 0.1 if "easy" in name else 0.5
    for group in range(4):
        tests = data.test_sets[group]
        slope, intercept = np.polyfit(tests.inputs[:, 0], tests.targets, 1)
        assert slope == pytest.approx(SLOPES[group], abs=6 * noise / np.sqrt(1000 / 3))
        assert intercept == pytest.approx(INTERCEPTS[group], abs=6 * noise / np.sqrt(1000))
        residual = tests.targets - slope * tests.inputs[:, 0] - intercept
        assert residual.std() == pytest.approx(noise, rel=0.12)


def test_noiseless_lines_are_exact(rng):
    data = noisy_lines("lines", num_clients=6, ratio=(2, 1), noise_std=0.0, rng=rng, sizes=(3, 3))
    cohort = data.cohort(np.arange(6))
    slopes, intercepts = np.array(SLOPES)[data.groups], np.array(INTERCEPTS)[data.groups]
    np.testing.assert_allclose(
        cohort.targets, slopes[:, None] * cohort.inputs[:, :, 0] + intercepts[:, None], atol=1e-6
    )


def test_bad_lines(rng):
    with pytest.raises(ConfigError, match="5 groups are more than the 4 lines"):
        load_federated("synthetic-balanced-easy", num_clients=20, num_groups=5, seed=0)
    with pytest.raises(ConfigError, match="samples"):
        noisy_lines("lines", num_clients=6, ratio=(2, 1), noise_std=0.1, rng=rng, sizes=(5, 3))
    with pytest.raises(ConfigError, match="remove partition and reuse"):
        load_federated("synthetic-balanced-hard", num_clients=20, partition="rotation", seed=0)


def test_every_dataset_has_a_loader_and_a_partition():
    for name, source in SOURCES.items():
        assert (name in IMAGES) + (name in GENERATED) + (name == "shakespeare") + bool(source.wheel) == 1
        if source.wheel is None:  # a table has clients of its own
            assert (name in GENERATED) == (not source.partitions) == (not source.load)
        assert set(SOURCES[name].partitions) <= set(PARTITIONS)


@pytest.mark.parametrize("name", ["fashion-mini", "synthetic", "synthetic-balanced-easy"])
def test_the_catalogue_knows_the_number_of_classes(name):
    assert load_federated(name, num_clients=20, seed=0).num_classes == SOURCES[name].num_classes
