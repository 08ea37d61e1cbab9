import numpy as np
import pytest

from rrcluster.data.build import PARTITIONS, load_federated
from rrcluster.errors import ConfigError


def test_known_partitions():
    assert list(PARTITIONS) == ["rotation", "rotation-imbalanced", "dirichlet", "role", "label-flip"]


def test_fashion_mini_reuses_every_image_in_every_rotation():
    data = load_federated("fashion-mini", partition="rotation", num_clients=400, seed=0)
    assert (data.name, data.num_classes, data.input_shape) == ("fashion-mini", 10, (1, 28, 28))
    assert np.bincount(data.groups).tolist() == [100] * 4
    assert (data.sizes == 100).all()
    for group in range(4):
        used = np.concatenate([data.store.indices[client] for client in np.flatnonzero(data.groups == group)])
        assert sorted(used.tolist()) == list(range(10_000))
    assert [len(test.targets) for test in data.test_sets] == [1000] * 4
    assert np.array_equal(data.test_of, data.groups)


def test_without_reuse_every_image_is_used_once():
    data = load_federated("fashion-mini", partition="rotation", num_clients=200, seed=0, reuse=False)
    assert sorted(np.concatenate(data.store.indices).tolist()) == list(range(10_000))
    assert (data.sizes == 50).all()


def test_the_imbalanced_partition():
    data = load_federated("fashion-mini", partition="rotation-imbalanced", num_clients=200, seed=1)
    assert data.num_groups == 3
    assert np.bincount(data.groups).tolist() == [100, 50, 50]
    assert (data.sizes == 100).all()
    assert len(data.test_sets) == 3


def test_the_seed_decides():
    first, same, other = (load_federated("fashion-mini", num_clients=100, seed=seed) for seed in (0, 0, 1))
    a, b, c = (data.cohort([7, 42]) for data in (first, same, other))
    assert np.array_equal(first.groups, same.groups)
    assert np.array_equal(a.inputs, b.inputs)
    assert not np.array_equal(first.groups, other.groups)
    assert not np.array_equal(a.inputs, c.inputs)


def test_num_groups_and_ratio():
    assert load_federated("fashion-mini", num_clients=10, num_groups=2, seed=0).num_groups == 2
    ratio = load_federated("fashion-mini", num_clients=10, ratio=(4, 1), seed=0)
    assert np.bincount(ratio.groups).tolist() == [8, 2]
    synthetic = load_federated("synthetic", num_clients=10, num_groups=5, seed=0)
    assert (synthetic.num_groups, synthetic.num_classes) == (5, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"data": "cifar"},
            "data = 'cifar' is not known; did you mean cifar10 or cifar100",
        ),
        ({"partition": "dirichlets"}, "choose one of rotation, rotation-imbalanced"),
        ({"num_clients": 10_001, "reuse": False}, "there are 10000; lower num_clients"),
        ({"num_clients": 3}, "raise num_clients"),
        ({"num_clients": 0}, "num_clients"),
        ({"num_groups": 5}, "at most 4 groups"),
        ({"num_groups": 0}, "num_groups"),
        ({"partition": "rotation-imbalanced", "num_groups": 4}, "does not fit the ratio 2:1:1"),
        ({"ratio": (1, 1), "num_groups": 3}, "does not fit the ratio 1:1"),
        ({"data": "synthetic", "partition": "rotation"}, "remove partition and reuse"),
    ],
)
def test_bad_settings_name_the_way_out(options, expected):
    with pytest.raises(ConfigError, match=expected):
        load_federated(**{"data": "fashion-mini", "num_clients": 100, "seed": 0, **options})


def test_the_protocol_on_the_full_dataset(full):
    """1,000 clients with 60 images each, tested on all 10,000 test images in their rotation."""
    data = load_federated("fashion-mnist", partition="rotation", num_clients=1000, seed=0)
    assert (data.sizes == 60).all()
    assert np.bincount(data.groups).tolist() == [250] * 4
    assert sorted(np.concatenate(data.store.indices).tolist()) == list(range(60_000))
    turned = np.rot90(full.test_images[77], k=3) / 255.0
    np.testing.assert_allclose(data.test_sets[3].inputs[77, 0], (turned - 0.2860) / 0.3530, atol=2e-6)
    assert data.test_sets[3].inputs.shape == (10_000, 1, 28, 28)
