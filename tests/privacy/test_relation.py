import itertools
import math

import numpy as np
import pytest

from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.relation import identifier_sensitivity, joint_sensitivity, update_sensitivity


def message(update, choice, destination, k, w, shared):
    """(shared part, k blocks, k counts) of one client whose update is a unit-clip vector of two parts."""
    blocks, counts = np.zeros((k, len(update) - shared)), np.zeros(k)
    blocks[destination], counts[choice] = update[shared:], w
    return np.concatenate([update[:shared], blocks.ravel(), counts])


@pytest.mark.parametrize("w", [0.0, 0.25, 1.0, 2.0])
@pytest.mark.parametrize("shared", [0, 1])
def test_the_joint_sensitivity_is_attained_and_never_exceeded(w, shared):
    k, worst = 3, 0.0
    for update in (np.array(v) / np.linalg.norm(v) for v in itertools.product((-1, 0, 1), repeat=2) if any(v)):
        for choice, destination in itertools.product(range(k), repeat=2):
            worst = max(worst, np.linalg.norm(message(update, choice, destination, k, w, shared)))
    assert worst == pytest.approx(joint_sensitivity(update_clip=1.0, count_weight=w, evaluation_weight=0.0))


@pytest.mark.parametrize("u", [0.1, 1.0])
def test_an_evaluation_adds_a_half_of_u_squared(u):
    plain = joint_sensitivity(update_clip=1.0, count_weight=0.25, evaluation_weight=0.0)
    judged = joint_sensitivity(update_clip=1.0, count_weight=0.25, evaluation_weight=u)
    assert judged**2 == pytest.approx(plain**2 + u**2 / 2)


def test_update_and_identifier_sensitivities():
    assert update_sensitivity(update_clip=0.3) == pytest.approx(0.6)
    assert identifier_sensitivity() == pytest.approx(np.linalg.norm(np.eye(4)[0] - np.eye(4)[2]))


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
