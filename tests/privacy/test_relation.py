import itertools
import math

import numpy as np
import pytest

from rrcluster.clusters.rebalancing import rebalance
from rrcluster.errors import ConfigError
from rrcluster.privacy.events import ADD_REMOVE, REPLACE_ONE
from rrcluster.privacy.relation import (
    identifier_sensitivity,
    joint_sensitivity,
    update_sensitivity,
)


def message(update, choice, destination, k, w, shared):
    """(shared part, k blocks, k counts) of one client whose update is a unit-clip vector of two parts."""
    blocks, counts = np.zeros((k, len(update) - shared)), np.zeros(k)
    blocks[destination], counts[choice] = update[shared:], w
    return np.concatenate([update[:shared], blocks.ravel(), counts])


@pytest.mark.parametrize("w", [0.0, 0.25, 1.0, 2.0])
@pytest.mark.parametrize("shared", [0, 1])
def test_joint_sensitivities_are_attained_and_never_exceeded(w, shared, rng):
    k, worst = 3, {ADD_REMOVE: 0.0, REPLACE_ONE: 0.0}
    directions = [np.array(v) / np.linalg.norm(v) for v in itertools.product((-1, 0, 1), repeat=2) if any(v)]
    for one, two in itertools.product(directions, repeat=2):
        for a, b in itertools.product(range(k), repeat=2):
            first, second = message(one, a, a, k, w, shared), message(two, b, b, k, w, shared)
            worst[ADD_REMOVE] = max(worst[ADD_REMOVE], np.linalg.norm(first))
            worst[REPLACE_ONE] = max(worst[REPLACE_ONE], np.linalg.norm(first - second))
    for adjacency, found in worst.items():
        claimed = joint_sensitivity(
            update_clip=1.0, count_weight=w, adjacency=adjacency, has_shared=bool(shared), num_clusters=k
        )
        assert found == pytest.approx(claimed)


@pytest.mark.parametrize("u", [0.1, 1.0])
@pytest.mark.parametrize("shared", [0, 1])
def test_an_evaluation_adds_a_half_of_u_squared_under_add_remove_and_two_under_replace_one(u, shared):
    settings = {"update_clip": 1.0, "count_weight": 0.25, "has_shared": bool(shared), "num_clusters": 3}
    for adjacency, factor in ((ADD_REMOVE, 0.5), (REPLACE_ONE, 2.0)):
        plain = joint_sensitivity(adjacency=adjacency, **settings)
        judged = joint_sensitivity(adjacency=adjacency, evaluation_weight=u, **settings)
        assert judged**2 == pytest.approx(plain**2 + factor * u**2)
    one = joint_sensitivity(
        update_clip=1, count_weight=0.25, adjacency=REPLACE_ONE, num_clusters=1, evaluation_weight=u
    )
    assert one == pytest.approx(math.hypot(2, math.sqrt(2) * u))


def test_replace_one_is_2c_exactly_when_w_is_at_most_c():
    assert joint_sensitivity(update_clip=1, count_weight=1, adjacency=REPLACE_ONE) == 2
    assert joint_sensitivity(update_clip=1, count_weight=1.01, adjacency=REPLACE_ONE) > 2


def test_update_and_identifier_sensitivities():
    assert update_sensitivity(update_clip=0.3, adjacency=REPLACE_ONE) == pytest.approx(0.6)
    assert update_sensitivity(update_clip=0.3, adjacency=ADD_REMOVE) == pytest.approx(0.3)
    assert identifier_sensitivity(adjacency=REPLACE_ONE) == pytest.approx(np.linalg.norm(np.eye(4)[0] - np.eye(4)[2]))
    with pytest.raises(ConfigError, match="no finite sensitivity"):
        identifier_sensitivity(adjacency=ADD_REMOVE)


def sums_after(values, assignment, k, b, seed):
    moved = rebalance(np.array(assignment), num_clusters=k, min_cluster_size=b, rng=np.random.default_rng(seed))
    return tuple(sum(v for v, j in zip(values, moved, strict=True) if j == cluster) for cluster in range(k))


def test_exact_rebalancing_moves_three_clips_under_add_remove():
    """Clusters {}, {-C}, {+C, +C} with B = 1: before, the sums are (1, -1, 1) for certain. Add +C to the second
    cluster: with some coins they become (-1, 1, 2), 3C away."""
    before = {sums_after([-1, 1, 1], [1, 2, 2], 3, 1, seed) for seed in range(50)}
    after = {sums_after([-1, 1, 1, 1], [1, 2, 2, 1], 3, 1, seed) for seed in range(200)}
    assert before == {(1, -1, 1)}
    assert max(math.dist((1, -1, 1), sums) for sums in after) == pytest.approx(3)  # Theorem 2


def test_exact_rebalancing_moves_root_five_clips_with_one_donor():
    """Cluster 1 of B clients with A among them, cluster 2 all -C: removing A shifts the sums by (-2C, +C)."""
    with_a = {sums_after([1, 1, -1, -1, -1, -1], [0, 0, 1, 1, 1, 1], 2, 2, seed) for seed in range(20)}
    without = {sums_after([1, -1, -1, -1, -1], [0, 1, 1, 1, 1], 2, 2, seed) for seed in range(20)}
    assert with_a == {(2, -4)}
    assert without == {(0, -3)}
    assert math.dist((2, -4), (0, -3)) == pytest.approx(math.sqrt(5))  # Theorem 2
