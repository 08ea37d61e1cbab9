import pickle

import numpy as np
import pytest

from rrcluster.data.build import load_federated
from rrcluster.data.images import ImageDataset, normalise
from rrcluster.data.partition import rotated_images, split_equally
from rrcluster.errors import ConfigError, DataError


def pixels(inputs):
    """Undo the normalisation of `four_images`: mean 0.5, std 0.25."""
    return np.rint((inputs * 0.25 + 0.5) * 255).astype(int)


@pytest.fixture
def by_hand(four_images):
    """Four clients in four rotations: one image each, the last client two."""
    indices = tuple(np.array(part) for part in ([0], [1], [2], [3, 0]))
    return rotated_images("four", four_images, indices=indices, groups=np.array([0, 1, 2, 3]), num_groups=4)


def test_rotations_by_hand(by_hand):
    """[[1, 2], [3, 4]] turned counter-clockwise: the right column comes to the top."""
    cohort = by_hand.cohort([0, 1, 2, 3])
    turned = pixels(cohort.inputs[:, 0, 0])
    assert turned[0].tolist() == [[1, 2], [3, 4]]
    assert turned[1].tolist() == [[12, 14], [11, 13]]
    assert turned[2].tolist() == [[24, 23], [22, 21]]
    assert turned[3].tolist() == [[33, 31], [34, 32]]
    assert cohort.targets.tolist() == [[0, 0], [1, 0], [0, 0], [1, 0]]
    assert cohort.sizes.tolist() == [1, 1, 1, 2]
    assert by_hand.input_shape == (1, 2, 2)


def test_test_sets_are_in_the_rotation_of_the_group(by_hand):
    assert by_hand.test_of.tolist() == [0, 1, 2, 3]
    assert len(by_hand.test_sets) == 4
    assert pixels(by_hand.test_sets[1].inputs[1, 0]).tolist() == [[12, 14], [11, 13]]
    assert by_hand.test_sets[3].targets.tolist() == [0, 1]
    assert by_hand.test_sets[2].inputs is by_hand.test_sets[2].inputs


def test_padding_is_zero(by_hand):
    cohort = by_hand.cohort([3, 0])
    assert cohort.inputs.shape == (2, 2, 1, 2, 2)
    assert not cohort.inputs[1, 1].any()


def test_cohort_types_order_repeats_and_fresh_arrays(by_hand):
    cohort = by_hand.cohort([2, 0, 2])
    assert cohort.clients.tolist() == [2, 0, 2]
    kinds = (cohort.clients.dtype, cohort.inputs.dtype, cohort.targets.dtype, cohort.sizes.dtype)
    assert kinds == (np.int64, np.float32, np.int64, np.int64)
    assert np.array_equal(cohort.inputs[0], cohort.inputs[2])
    cohort.inputs[:] = 7
    cohort.targets[:] = 7
    cohort.sizes[:] = 7
    again = by_hand.cohort([2, 0, 2])
    assert not (again.inputs == 7).any()
    assert again.sizes.tolist() == [1, 1, 1]


def test_nobody_is_a_cohort_too(by_hand):
    cohort = by_hand.cohort([])
    assert cohort.inputs.shape == (0, 0, 1, 2, 2)
    assert cohort.targets.shape == (0, 0)


@pytest.mark.parametrize("clients", [[4], [-1], [0.5], [[0]], 0, ["a"]])
def test_ids_outside_the_population(by_hand, clients):
    with pytest.raises(ConfigError, match="ids"):
        by_hand.cohort(clients)


def test_cohort_equals_its_slow_twin():
    data = load_federated("fashion-mini", num_clients=300, seed=3)
    clients = [5, 299, 17, 100, 3]
    cohort = data.cohort(clients)
    for row, client in enumerate(clients):
        for sample, place in enumerate(data.store.indices[client]):
            image = data.store.dataset.train_images[place] / 255.0
            for _ in range(data.groups[client]):
                image = np.array([[image[r][27 - c] for r in range(28)] for c in range(28)])
            np.testing.assert_allclose(cohort.inputs[row, sample, 0], (image - 0.2860) / 0.3530, atol=2e-6)
            assert cohort.targets[row, sample] == data.store.dataset.train_labels[place]
        assert not cohort.inputs[row, data.sizes[client] :].any()


def test_the_population_travels_between_processes(by_hand):
    back = pickle.loads(pickle.dumps(by_hand))
    assert np.array_equal(back.cohort([1, 3]).inputs, by_hand.cohort([1, 3]).inputs)
    assert np.array_equal(back.test_sets[1].inputs, by_hand.test_sets[1].inputs)


def test_five_rotations_and_oblong_images(four_images, rng):
    indices = split_equally(four_images.train_labels, 4, rng=rng)
    with pytest.raises(ConfigError, match="at most 4 groups"):
        rotated_images("four", four_images, indices=indices, groups=np.arange(4), num_groups=5)
    images, labels = np.zeros((4, 2, 3), dtype=np.uint8), np.zeros(4, dtype=np.int64)
    oblong = ImageDataset(images, labels, images, labels, 1, 0.5, 0.5)
    with pytest.raises(ConfigError, match="2 x 3"):
        rotated_images("oblong", oblong, indices=indices, groups=np.array([0, 1, 0, 1]), num_groups=2)


def test_normalise_is_the_formula():
    values = np.arange(256, dtype=np.uint8)
    np.testing.assert_allclose(
        normalise(values, mean=0.286, std=0.353), (np.arange(256) / 255 - 0.286) / 0.353, atol=1e-6
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"train_images": np.zeros((4, 4), dtype=np.uint8)}, "train images must be uint8"),
        ({"test_images": np.zeros((2, 2, 2))}, "test images must be uint8"),
        ({"train_labels": np.zeros(4)}, "train labels must be integers"),
        ({"train_labels": np.zeros(3, dtype=np.int64)}, "4 images and 3 labels"),
        ({"test_labels": np.array([0, 2])}, "0 to 1, found 0 to 2"),
        ({"test_labels": np.array([-1, 0])}, "0 to 1, found -1 to 0"),
        ({"test_images": np.zeros((2, 3, 3), dtype=np.uint8)}, "the same size"),
        ({"std": 0.0}, "std greater than 0"),
    ],
)
def test_image_datasets_are_checked(four_images, change, expected):
    fields = {name: getattr(four_images, name) for name in four_images.__dataclass_fields__}
    with pytest.raises(DataError, match=expected):
        ImageDataset(**{**fields, **change})
