"""Populations too large to hold: by formula, generated, or mapped from files; and small ones exactly as ever."""

import hashlib
import pickle
import tracemalloc

import numpy as np
import pytest

from rrcluster.data.arrays import from_arrays, from_rows
from rrcluster.data.build import load_federated
from rrcluster.data.partition import DrawnIndices
from rrcluster.errors import ConfigError, DataError
from rrcluster.rng import stream

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("name", "partition", "num_clients", "expected"),
    [
        ("fashion-mini", "rotation", 1000, "5262d878e9b45377"),
        ("fashion-mini", "rotation-imbalanced", 200, "cf537bc5d26d97dd"),
        ("fashion-mini", "label-flip", 300, "c918eef78e626883"),
        ("fashion-mini", "dirichlet", 100, "cc86a1952b12916a"),
        ("synthetic", None, 300, "432dcbf79728978e"),
        ("synthetic-imbalanced-hard", None, 300, "c9fc95c7fc642c4b"),
    ],
)
def test_small_populations_never_change(name, partition, num_clients, expected):
    data = load_federated(name, partition=partition, num_clients=num_clients, seed=3)
    cohort, digest = data.cohort(np.arange(50)), hashlib.blake2b(digest_size=8)
    for values in (data.groups, data.sizes, data.test_of, cohort.inputs):
        digest.update(np.ascontiguousarray(values).tobytes())
    assert digest.hexdigest() == expected


def test_drawn_samples_are_distinct_and_a_function_of_the_client_alone():
    drawn, more = (DrawnIndices(5, clients, 30, 12) for clients in (10, MILLION))
    for client in range(10):
        assert len(set(drawn[client].tolist())) == 12
        assert 0 <= drawn[client].min() <= drawn[client].max() < 30
        assert np.array_equal(drawn[client], more[client])
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], DrawnIndices(6, 10, 30, 12)[0])


def test_drawn_samples_are_uniform():
    drawn = DrawnIndices(0, 4000, 20, 5)
    counts = np.bincount(np.concatenate([drawn[client] for client in range(4000)]), minlength=20)
    expected, variance = 4000 * 5 / 20, 4000 * 0.25 * 0.75
    assert np.abs(counts - expected).max() < 5 * np.sqrt(variance)


@pytest.mark.parametrize("partition", ["rotation", "rotation-imbalanced", "label-flip"])
def test_a_million_clients_of_the_bundled_images(partition):
    data = load_federated("fashion-mini", partition=partition, num_clients=MILLION, seed=0)
    assert data.num_clients == MILLION
    assert (data.sizes == 40).all()
    assert np.bincount(data.groups).max() == (500_000 if "imbalanced" in partition else 250_000)
    cohort = data.cohort([999_999, 17])
    again = load_federated("fashion-mini", partition=partition, num_clients=MILLION, seed=0).cohort([17])
    assert np.array_equal(cohort.inputs[1], again.inputs[0])
    assert not np.array_equal(cohort.targets[0], cohort.targets[1])


def test_drawn_clients_see_their_groups_rotation():
    data = load_federated("fashion-mini", num_clients=100, samples_per_client=7, seed=0)
    turned = int(np.flatnonzero(data.groups == 2)[0])
    inputs, labels = data.store.client(turned)
    picked = data.store.indices[turned]
    upright = data.store.dataset.train_images[picked][:, ::-1, ::-1] / 255.0
    np.testing.assert_allclose(inputs[:, 0], (upright - 0.2860) / 0.3530, atol=2e-6)
    assert np.array_equal(labels, data.store.dataset.train_labels[picked])


@pytest.mark.parametrize("name", ["synthetic", "synthetic-imbalanced-hard"])
def test_a_million_synthetic_clients_cost_a_few_numbers_each(name):
    tracemalloc.start()
    data = load_federated(name, num_clients=MILLION, seed=0)
    cohort = data.cohort(np.arange(0, MILLION, 10_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    alone = data.cohort([30_000])
    assert np.array_equal(cohort.targets[3, : alone.sizes[0]], alone.targets[0])
    back = pickle.loads(pickle.dumps(data))
    assert np.array_equal(back.cohort([5]).inputs, data.cohort([5]).inputs)


def test_generated_clients_follow_the_law_of_their_group():
    data = load_federated("synthetic", num_clients=30_000, seed=1)
    for group in range(4):
        cohort = data.cohort(np.flatnonzero(data.groups == group)[:30])
        x, y = cohort.inputs.reshape(-1, 20), cohort.targets.reshape(-1)
        fitted = np.linalg.lstsq(x, y, rcond=None)[0]
        tests = data.test_sets[group]
        assert np.std(tests.inputs @ fitted - tests.targets) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"samples_per_client": 10_001}, "more than the 10000 training samples there are; lower it"),
        ({"samples_per_client": 0}, "samples_per_client"),
        (
            {"samples_per_client": 5, "partition": "dirichlet"},
            "not supported by partition = 'dirichlet'; remove it",
        ),
        (
            {"samples_per_client": 5, "data": "synthetic-balanced-easy"},
            "not supported by data = 'synthetic",
        ),
        ({"num_clients": 50_000, "reuse": False}, "or set samples_per_client"),
    ],
)
def test_bad_settings_name_the_way_out(options, expected):
    with pytest.raises(ConfigError, match=expected):
        load_federated(**{"data": "fashion-mini", "num_clients": 100, "seed": 0, **options})


@pytest.fixture
def mapped(tmp_path):
    """40,000 clients with 1 to 3 samples each, on disk, and the same as arrays."""
    rng = stream(0, "mapped")
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 4, size=40_000))])
    inputs, targets = rng.standard_normal((offsets[-1], 16)).astype(np.float32), rng.integers(0, 5, size=offsets[-1])
    np.save(tmp_path / "inputs.npy", inputs)
    np.save(tmp_path / "targets.npy", targets)
    return tmp_path, inputs, targets, offsets


def test_mapped_rows_equal_arrays_and_are_not_read_before_asked_for(mapped):
    folder, inputs, targets, offsets = mapped
    files = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("inputs", "targets"))
    tracemalloc.start()
    data = from_rows(*files, offsets, num_classes=5, test_inputs=inputs[:9], test_targets=targets[:9])
    cohort = data.cohort([39_999, 0, 7])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5e6  # offsets, groups, sizes and test places; the inputs alone are 5 MB
    few = [slice(offsets[client], offsets[client + 1]) for client in (39_999, 0, 7)]
    held = from_arrays([inputs[rows] for rows in few], [targets[rows] for rows in few], num_classes=5)
    twin = held.cohort([0, 1, 2])
    assert np.array_equal(cohort.inputs, twin.inputs)
    assert np.array_equal(cohort.targets, twin.targets)
    assert cohort.targets.dtype == np.int64
    assert data.test_of.tolist() == [0] * 40_000


def test_regression_groups_and_ids_by_rows():
    data = from_rows(
        np.arange(6)[:, None], np.linspace(0, 1, 6), [0, 2, 3, 6], num_classes=0, ids=True, groups=[0, 1, 1]
    )
    assert data.num_groups == 2
    assert data.cohort([2]).inputs.tolist() == [[[3], [4], [5]]]
    assert (data.cohort([0]).inputs.dtype, data.cohort([0]).targets.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"offsets": [0, 2, 5]}, "offsets from 0 to 5"),
        ({"offsets": [0, 2, 2, 6]}, "client 1 has no row"),
        ({"offsets": [0.0, 6.0]}, "offsets must be integers"),
        ({"targets": np.zeros(5, dtype=np.int64)}, "6 inputs and 5 targets"),
        ({"test_inputs": np.zeros((2, 4)), "test_targets": np.zeros(2, dtype=np.int64)}, "test set 0 has samples"),
    ],
)
def test_rows_that_do_not_fit(changes, expected):
    fields = {"inputs": np.zeros((6, 3)), "targets": np.zeros(6, dtype=np.int64), "offsets": [0, 2, 6]}
    with pytest.raises(DataError, match=expected):
        from_rows(**{**fields, "num_classes": 2, **changes})


def test_a_bad_sample_is_found_when_its_client_is_read_and_only_the_client_is_named():
    inputs, targets = np.zeros((6, 3)), np.array([0, 1, 0, 1, 7, 0])
    inputs[2, 1] = np.nan
    data = from_rows(inputs, targets, [0, 2, 4, 6], num_classes=2)
    assert data.cohort([0]).sizes.tolist() == [2]
    with pytest.raises(DataError, match="client 1 has inputs that are not finite"):
        _ = data.cohort([1]).inputs
    with pytest.raises(DataError, match="client 2 has targets that are not classes from 0 to 1"):
        _ = data.cohort([2]).inputs
