import numpy as np
import pytest

from rrcluster.clusters.choice import PRICE, TEMPERATURE, Guidance, choose, crowding_prices, fading
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server import guidance, release
from rrcluster.server_state import ServerSettings, ServerState, remember
from rrcluster.types import Coordinates, Models


def plan(**changes):
    settings = {"coordinates": Coordinates(0, 2), "num_clusters": 3, "num_clients": 1000, "sample_rate": 0.1}
    settings |= {"num_rounds": 10, "update_clip": 1.0, "noise_multiplier": 0.02}
    return PrivacyPlan.build(**(settings | changes))


def test_plain_guidance_is_the_plain_argmin_bit_for_bit(rng):
    scores = rng.normal(size=(500, 4))
    chosen = choose(scores, Guidance.plain(4), uniforms=rng.random((500, 4)))
    assert (chosen == scores.argmin(axis=1)).all()


def test_equal_scores_go_to_the_lowest_index(rng):
    assert (choose(np.zeros((5, 3)), Guidance.plain(3), uniforms=rng.random((5, 3))) == 0).all()


def test_prices_by_hand():
    assert crowding_prices(np.array([60.0, 30, 10, 0])).tolist() == pytest.approx([1.4, 0.2, -0.6, -1.0])
    assert crowding_prices(np.array([5.0, 5, 5])).tolist() == pytest.approx([0, 0, 0])
    assert crowding_prices(np.array([-3.0, -1.0])).tolist() == [0, 0]  # nothing known
    assert crowding_prices(np.array([-7.0, 10.0])).tolist() == [-1, 1]  # negative noisy sizes count as empty


def test_a_crowded_cluster_loses_clients_that_hardly_prefer_it(rng):
    scores = np.tile([1.0, 1.1], (10, 1))
    priced = Guidance(np.array([0.3, -0.3]), 0.0, np.eye(2))
    assert (choose(scores, priced, uniforms=rng.random((10, 2))) == 1).all()


def test_the_softened_choice_follows_the_softmax_of_the_scores(rng):
    scores = np.tile([0.0, 0.5, 1.0], (60_000, 1))
    chosen = choose(scores, Guidance(np.zeros(3), 0.5, np.eye(3)), uniforms=rng.random((60_000, 3)))
    expected = np.exp(-np.array([0.0, 0.5, 1.0]) / 0.5)
    assert np.allclose(np.bincount(chosen) / 60_000, expected / expected.sum(), atol=0.01)


def test_exploration_fades_out_halfway():
    assert [fading(t, 10) for t in range(7)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


def test_guidance_comes_from_releases_only_and_is_plain_at_strength_zero(rng):
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((3, 2))))
    first = guidance(state, plan=plan(), server=ServerSettings())
    assert (first.prices == 0).all()
    assert first.temperature == TEMPERATURE
    out = release(np.zeros((90, 2)), [0] * 60 + [1] * 30, plan=plan(), rng=rng)
    state = remember(state, out, memory=0.9, sums=False)
    told = guidance(state, plan=plan(), server=ServerSettings())
    assert np.allclose(told.prices, PRICE * crowding_prices(out.sizes))
    assert (told.transition == np.eye(3)).all()
    quiet = guidance(state, plan=plan(), server=ServerSettings(exploration=0.0))
    assert (quiet.prices == 0).all()
    assert quiet.temperature == 0
    moving = guidance(state, plan=plan(min_cluster_size=20), server=ServerSettings())
    assert moving.transition[0, 2] > 0
