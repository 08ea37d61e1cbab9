"""For random neighbouring rounds a release moves by at most the declared sensitivity: the heart of the guarantee."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_cases import CLIP, VALUES, B, K, identifier, joint, joint_vector, update

from rrcluster.privacy.events import FOLDED
from rrcluster.privacy.rebalancing import coin_transition, flip_coins
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Streams, client_uniforms

values = st.sampled_from(list(VALUES.values())) | st.floats(-3 * CLIP, 3 * CLIP)
client = st.tuples(
    values, st.integers(0, 2), st.integers(-1, K), st.integers(-1, K)
)  # value, axis, choice, destination


def rows(clients, width):
    return np.array([update(value, width, axis) for value, axis, _, _ in clients]).reshape(-1, width)


def column(clients, place):
    return np.array([report[place] for report in clients], dtype=np.int64)


def released(mechanism, clients, *, coins):
    release = mechanism.release(
        Reports(
            rows(clients, mechanism.coordinates.width),
            column(clients, 2),
            destinations=column(clients, 3) if coins else None,
        ),
        rng=np.random.default_rng(0),
    )
    return joint_vector(release, mechanism)


@given(st.lists(client, max_size=12), client, st.integers(0, 1), st.booleans(), st.sampled_from([0.0, 0.125, 1.0]))
@settings(max_examples=400, deadline=None)
def test_joint_adding_one_client_moves_at_most_s(others, added, shared, coins, weight):
    mechanism = joint(shared=shared, count_weight=weight)
    without = released(mechanism, others, coins=coins)
    with_it = released(mechanism, [*others, added], coins=coins)
    assert np.isfinite(with_it).all()
    assert np.linalg.norm(with_it - without) <= mechanism.sensitivity * (1 + 1e-9)


def test_joint_the_sensitivity_is_attained():
    mechanism = joint()
    clients = [(CLIP, 0, 1, 1)]
    moved = np.linalg.norm(released(mechanism, clients, coins=True) - released(mechanism, [], coins=True))
    assert moved == pytest.approx(mechanism.sensitivity, rel=1e-5)


@pytest.mark.parametrize("sizes", list(itertools.product([0, B - 1, B, B + 1, 3 * B], repeat=2)), ids=str)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_joint_with_coins_around_every_critical_size(sizes, value):
    """Other clients' coins are held fixed (keyed by id); one more client, in every cluster, with every value."""
    mechanism = joint(min_cluster_size=B)
    natural = np.array([*sizes, 2 * B])
    transition = coin_transition(natural.astype(float), min_cluster_size=B)
    choices = np.repeat(np.arange(K), natural)
    key = Streams(5).client_key("coin", 0)
    ids = np.arange(len(choices) + 1)
    for cluster in range(K):
        everyone = np.append(choices, cluster)
        destinations = flip_coins(everyone, transition, uniforms=client_uniforms(key, ids)[:, 0])
        signs = np.where(np.arange(len(everyone)) % 2, 1.0, -1.0)
        updates = np.array([update(sign * CLIP, 2) for sign in signs])
        updates[-1] = update(value, 2)
        both = [
            joint_vector(
                mechanism.release(
                    Reports(updates[:n], everyone[:n], destinations=destinations[:n]), rng=np.random.default_rng(0)
                ),
                mechanism,
            )
            for n in (len(choices), len(everyone))
        ]
        assert np.isfinite(both[1]).all()
        assert np.linalg.norm(both[1] - both[0]) <= mechanism.sensitivity * (1 + 1e-9)


@dataclass(frozen=True)
class GivenAssignment:
    """Stands for the noisy identifiers that the guarantee conditions on: the same whatever is reported."""

    assignment: np.ndarray

    def assign(self, choices, valid, *, num_clusters, rng):
        return self.assignment

    def cost(self, update_multiplier, num_clusters):
        return update_multiplier, FOLDED

    def describe(self):
        return {"kind": "given"}


@given(
    st.lists(client, min_size=12, max_size=20),
    client,
    st.integers(0, 1),
    st.sampled_from([0, B - 1, B]),
    st.integers(0, 2**32),
)
@settings(max_examples=400, deadline=None)
def test_identifier_replacing_one_client_moves_at_most_2c_given_the_assignment(others, other, shared, b, seed):
    """Same noisy identifiers and coins, another client: the sums move by 2C at most and the sizes not at all."""
    assignment = np.random.default_rng(seed).integers(K, size=len(others))
    mechanism = replace(
        identifier(cohort=len(others), shared=shared, min_cluster_size=b), identifier=GivenAssignment(assignment)
    )
    out = [
        mechanism.release(
            Reports(rows(clients, mechanism.coordinates.width), column(clients, 2)), rng=np.random.default_rng(seed)
        )
        for clients in (others, [other, *others[1:]])
    ]
    assert (out[0].sizes == out[1].sizes).all()
    vectors = [np.concatenate([one.shared_sum, one.cluster_sums.ravel()]) for one in out]
    assert np.isfinite(vectors[1]).all()
    assert np.linalg.norm(vectors[0] - vectors[1]) <= mechanism.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("b", [0, B - 1, B, B + 1])
def test_identifier_releases_are_finite_whatever_is_sent(value, b, rng):
    mechanism = identifier(cohort=18, min_cluster_size=b)
    updates = np.array([update(CLIP, 2)] * 17 + [update(value, 2)])
    release = mechanism.release(Reports(updates, rng.integers(K, size=18)), rng=rng)
    assert np.isfinite(release.cluster_sums).all()
    assert (release.denominators >= b).all()
    assert release.sizes.sum() == 18


def test_the_shift_of_the_identifiers_is_root_two():
    """Finding 6: two one-hots are sqrt(2) apart, so the identifier part costs order / sigma_s^2, not half of it."""
    mechanism = identifier(cohort=10, noise_multiplier=3.0)
    fold = 2 / 0.8**2 + 1 / 3.0**2
    assert mechanism.event.noise_multiplier == pytest.approx(fold**-0.5)
