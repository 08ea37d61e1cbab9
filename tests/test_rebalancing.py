import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rrcluster.errors import ConfigError
from rrcluster.privacy.rebalancing import coin_transition, expected_sizes, flip_coins, rebalance


def test_by_hand(rng):
    # Four clients, two clusters, B = 2: cluster 1 has nobody, so two of the four move and two stay.
    moved = rebalance(np.array([0, 0, 0, 0]), num_clusters=2, min_cluster_size=2, rng=rng)
    assert np.bincount(moved).tolist() == [2, 2]


def test_movers_are_uniform_over_the_pooled_surplus(rng):
    # Sizes 5 and 3, B = 2 and one empty cluster: surplus 3 + 1, two movers; a member of the first cluster moves with
    # probability (2 * 3/4) / 5 = 0.3, one of the second with (2 * 1/4) / 3 = 1/6.
    start = np.array([0] * 5 + [1] * 3)
    moves = np.zeros(8)
    for _ in range(4000):
        moves += rebalance(start, num_clusters=3, min_cluster_size=2, rng=rng) == 2
    assert np.allclose(moves[:5] / 4000, 0.3, atol=0.035)
    assert np.allclose(moves[5:] / 4000, 1 / 6, atol=0.03)


@st.composite
def rounds(draw):
    k = draw(st.integers(1, 6))
    assignment = draw(st.lists(st.integers(0, k - 1), min_size=0, max_size=60))
    b = draw(st.integers(0, len(assignment) // k))
    return k, np.array(assignment, dtype=np.int64), b


@given(rounds(), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_four_guarantees(case, seed):
    k, before, b = case
    after = rebalance(before, num_clusters=k, min_cluster_size=b, rng=np.random.default_rng(seed))
    was, now = np.bincount(before, minlength=k), np.bincount(after, minlength=k)
    assert (now >= b).all()
    assert (now[was < b] == b).all()
    assert (after[before != after] != before[before != after]).all()
    assert (now[was >= b] <= was[was >= b]).all()
    stayed = was[was >= b] - now[was >= b]
    assert stayed.sum() == (before != after).sum() == np.maximum(b - was, 0).sum()  # nobody moved for nothing
    if b == 0:
        assert (after == before).all()


def test_zero_b_draws_nothing():
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    rebalance(np.array([0, 1, 1]), num_clusters=3, min_cluster_size=0, rng=first)
    assert first.random() == second.random()


def test_torch_in_torch_out(rng):
    moved = rebalance(torch.tensor([0, 0, 0, 1]), num_clusters=2, min_cluster_size=2, rng=rng)
    assert isinstance(moved, torch.Tensor)
    assert moved.dtype == torch.int64
    assert torch.bincount(moved).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("assignment", "k", "b", "text"),
    [
        ([0, 1], 2, 2, "B\\) = 2 needs 4 clients for 2 clusters, but this round has 2; lower B"),
        ([0, 5], 2, 0, "0..1 for 2 clusters"),
        ([0.5, 1.0], 2, 0, "whole numbers"),
        ([0, 1], 2, -1, "at least 0"),
    ],
)
def test_refusals(assignment, k, b, text, rng):
    with pytest.raises(ConfigError, match=text):
        rebalance(np.array(assignment), num_clusters=k, min_cluster_size=b, rng=rng)


def test_transition_by_hand():
    # 55/30/12/3 at B = 12: the last wants nine, from surpluses of 43 and 18; 12 has none to give.
    transition = coin_transition(np.array([55.0, 30, 12, 3]), min_cluster_size=12)
    assert np.allclose(transition[:, 3], [43 / 55 * 9 / 61, 18 / 30 * 9 / 61, 0, 1])
    assert np.allclose(expected_sizes(np.array([55, 30, 12, 3]), transition), [55 - 387 / 61, 30 - 162 / 61, 12, 12])


def test_a_size_just_above_b_changes_nothing_abruptly():
    # Were donors weighed by size, a cluster a hair above B would take a share of the need that it cannot give.
    for size in (11.99, 12.0, 12.01):
        after = expected_sizes(
            np.array([55, 30, size, 3]), coin_transition(np.array([55, 30, size, 3]), min_cluster_size=12)
        )
        assert after[3] == pytest.approx(12)


def test_the_cap_keeps_donors_at_b():
    transition = coin_transition(np.array([13.0, 0, 0]), min_cluster_size=12)
    assert expected_sizes(np.array([13.0, 0, 0]), transition)[0] == pytest.approx(12)


@given(st.lists(st.floats(-20, 80), min_size=1, max_size=6), st.integers(0, 30))
@settings(max_examples=300, deadline=None)
def test_transitions_are_probabilities_and_no_donor_is_expected_below_b(sizes, b):
    natural = np.maximum(np.array(sizes), 0)
    transition = coin_transition(np.array(sizes), min_cluster_size=b)
    assert np.allclose(transition.sum(axis=1), 1)
    assert (transition >= -1e-12).all()
    after = expected_sizes(natural, transition)
    assert (after[natural > b] >= b - 1e-9).all()
    assert (after[natural <= b] <= b + 1e-9).all()
    if natural.sum() >= b * len(sizes):
        assert (after >= b - 1e-9).all()
    if b == 0:
        assert (transition == np.eye(len(sizes))).all()


def test_nobody_moves_under_the_identity(rng):
    choices = rng.integers(4, size=1000)
    assert (flip_coins(choices, np.eye(4), uniforms=rng.random(1000)) == choices).all()


def test_coins_follow_their_probabilities(rng):
    transition = np.array([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.1, 0.0, 0.9]])
    choices = rng.integers(3, size=90_000)
    moved = flip_coins(choices, transition, uniforms=rng.random(90_000))
    for start in range(3):
        shares = np.bincount(moved[choices == start], minlength=3) / (choices == start).sum()
        assert np.allclose(shares, transition[start], atol=0.015)
