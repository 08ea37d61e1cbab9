import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrcluster.data.partition import assign_groups, group_sizes, split_equally, split_reusing
from rrcluster.errors import ConfigError
from rrcluster.rng import stream


@pytest.mark.parametrize(
    ("num_clients", "ratio", "expected"),
    [
        (8, (2, 1, 1), [4, 2, 2]),
        (1000, (1, 1, 1, 1), [250, 250, 250, 250]),
        (1000, (2, 1, 1), [500, 250, 250]),
        (10, (1, 1, 1, 1), [3, 3, 2, 2]),
        (7, (2, 1, 1), [3, 2, 2]),
        (10, (0.1, 0.2, 0.7), [1, 2, 7]),
        (3, (1,), [3]),
    ],
)
def test_group_sizes_by_hand(num_clients, ratio, expected):
    assert group_sizes(num_clients, ratio).tolist() == expected


@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_a_group_may_not_be_empty(num_clients):
    with pytest.raises(ConfigError, match="raise num_clients"):
        group_sizes(num_clients, (1, 1, 1, 1))


@pytest.mark.parametrize("ratio", [(), (1, 0), (1, -1), (1, float("nan")), (1, float("inf"))])
def test_a_ratio_that_is_none(ratio):
    with pytest.raises(ConfigError, match="ratio"):
        group_sizes(10, ratio)


@given(st.integers(5, 500), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_group_sizes_keep_their_guarantees(num_clients, ratio):
    exact = num_clients * np.array(ratio) / sum(ratio)
    if (exact < 1).any():
        return
    sizes = group_sizes(num_clients, ratio)
    assert sizes.sum() == num_clients
    assert (np.abs(sizes - exact) < 1).all()


def test_groups_have_their_sizes_and_are_not_contiguous(rng):
    groups = assign_groups(1000, (2, 1, 1), rng=rng)
    assert np.bincount(groups).tolist() == [500, 250, 250]
    assert np.count_nonzero(np.diff(groups)) > 400
    assert groups.dtype == np.int64


def test_the_seed_decides():
    first, same, other = (assign_groups(100, (1, 1), rng=stream(seed, "partition")) for seed in (0, 0, 1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 99))
def test_split_equally_uses_every_sample_once(num_samples, num_clients, seed):
    labels = np.zeros(num_samples, dtype=np.int64)
    if num_clients > num_samples:
        with pytest.raises(ConfigError, match=f"there are {num_samples}; lower num_clients"):
            split_equally(labels, num_clients, rng=stream(seed, "t"))
        return
    parts = split_equally(labels, num_clients, rng=stream(seed, "t"))
    sizes = [len(part) for part in parts]
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_samples))
    assert len(parts) == num_clients
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_split_reusing_by_hand(rng):
    """Four images, four clients, two groups of two: each group deals all four images, two to a client."""
    groups = np.array([0, 1, 1, 0])
    parts = split_reusing(np.zeros(4, dtype=np.int64), groups, rng=rng)
    for group in (0, 1):
        dealt = np.concatenate([parts[client] for client in np.flatnonzero(groups == group)])
        assert sorted(dealt.tolist()) == [0, 1, 2, 3]
    assert [len(part) for part in parts] == [2, 2, 2, 2]


@given(st.integers(5, 60), st.lists(st.integers(0, 2), min_size=1, max_size=15), st.integers(0, 99))
def test_split_reusing_keeps_its_guarantees(num_samples, ids, seed):
    groups = np.array(ids)
    members = np.bincount(groups)
    labels = np.zeros(num_samples, dtype=np.int64)
    if members.max() > num_samples:
        with pytest.raises(ConfigError, match="lower num_clients"):
            split_reusing(labels, groups, rng=stream(seed, "t"))
        return
    parts = split_reusing(labels, groups, rng=stream(seed, "t"))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for group in np.flatnonzero(members):
        dealt = np.concatenate([parts[client] for client in np.flatnonzero(groups == group)])
        assert len(set(dealt.tolist())) == len(dealt)
        if members[group] == members.max():
            assert len(dealt) == num_samples
