from dataclasses import replace

import numpy as np
import pytest

from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server.choice import PRICE, TEMPERATURE, ChoiceRules, choose, crowding_prices, fading
from rrcluster.server.server import RoundServer, release
from rrcluster.server.state import ServerState
from rrcluster.settings import ServerSettings
from rrcluster.types import Coordinates, Models


def plan(**changes):
    settings = {"coordinates": Coordinates(0, 2), "num_clusters": 3, "num_clients": 1000, "sample_rate": 0.1}
    settings |= {"num_rounds": 10, "update_clip": 1.0, "noise_multiplier": 0.02}
    return PrivacyPlan.build(**(settings | changes))


def test_plain_guidance_is_the_plain_argmin_bit_for_bit(rng):
    scores = rng.normal(size=(500, 4))
    chosen = choose(scores, ChoiceRules.plain(4), uniforms=rng.random((500, 4)))
    assert (chosen == scores.argmin(axis=1)).all()


def test_equal_scores_go_to_the_lowest_index(rng):
    assert (choose(np.zeros((5, 3)), ChoiceRules.plain(3), uniforms=rng.random((5, 3))) == 0).all()


def test_prices_by_hand():
    assert crowding_prices(np.array([60.0, 30, 10, 0])).tolist() == pytest.approx([1.4, 0.2, -0.6, -1.0])
    assert crowding_prices(np.array([5.0, 5, 5])).tolist() == pytest.approx([0, 0, 0])
    assert crowding_prices(np.array([-3.0, -1.0])).tolist() == [0, 0]  # nothing known
    assert crowding_prices(np.array([-7.0, 10.0])).tolist() == [-1, 1]  # negative noisy sizes count as empty


def test_a_crowded_cluster_loses_clients_that_hardly_prefer_it(rng):
    scores = np.tile([1.0, 1.1], (10, 1))
    priced = ChoiceRules(np.array([0.3, -0.3]), 0.0, np.eye(2))
    assert (choose(scores, priced, uniforms=rng.random((10, 2))) == 1).all()


def test_the_softened_choice_follows_the_softmax_of_the_scores(rng):
    scores = np.tile([0.0, 0.5, 1.0], (60_000, 1))
    chosen = choose(scores, ChoiceRules(np.zeros(3), 0.5, np.eye(3)), uniforms=rng.random((60_000, 3)))
    expected = np.exp(-np.array([0.0, 0.5, 1.0]) / 0.5)
    assert np.allclose(np.bincount(chosen) / 60_000, expected / expected.sum(), atol=0.01)


def test_exploration_fades_out_halfway():
    assert [fading(t, 10) for t in range(7)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


def rules(state, *, explores=True, exploration=1.0, **changes):
    settings = ServerSettings(exploration=exploration)
    return RoundServer(plan(**changes), settings, explores, first_models=pytest.fail).tell(state).rules


def test_rules_come_from_releases_only_and_are_plain_at_strength_zero(rng):
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((3, 2))))
    first = rules(state)
    assert (first.prices == 0).all()
    assert (first.transition == np.eye(3)).all()
    assert first.temperature == TEMPERATURE
    out = release(np.zeros((90, 2)), [0] * 60 + [1] * 30, plan=plan(), rng=rng)
    state = replace(state, sizes=state.sizes.updated(out.sizes, memory=0.9))
    told = rules(state)
    assert np.allclose(told.prices, PRICE * crowding_prices(out.sizes))
    assert (told.transition == np.eye(3)).all()
    for quiet in (rules(state, exploration=0.0), rules(state, explores=False)):
        assert (quiet.prices == 0).all()
        assert quiet.temperature == 0
        assert not quiet.uses_chance
    moving = rules(state, min_cluster_size=20)
    assert moving.transition[0, 2] > 0


def test_prices_and_temperature_fade_with_the_rounds(rng):
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((3, 2))))
    state = replace(state, sizes=state.sizes.updated(np.array([60.0, 30.0, 0.0]), memory=0.9))
    at = [rules(replace(state, round_index=t)) for t in (0, 2, 5, 9)]
    assert [told.temperature / TEMPERATURE for told in at] == pytest.approx([1.0, 0.6, 0.0, 0.0])
    assert [told.prices[0] / PRICE for told in at] == pytest.approx([1.0, 0.6, 0.0, 0.0])
    assert [told.uses_chance for told in at] == [True, True, False, False]


@pytest.mark.parametrize(("mechanism", "noise"), [("identifier", 1.0), ("none", None)])
def test_where_the_mechanism_rebalances_by_itself_nobody_is_told_to_move(mechanism, noise):
    state = ServerState.fresh(Models(np.zeros(0), np.zeros((3, 2))))
    state = replace(state, sizes=state.sizes.updated(np.array([60.0, 30.0, 0.0]), memory=0.9))
    told = rules(state, mechanism=mechanism, noise_multiplier=noise, min_cluster_size=20)
    assert (told.transition == np.eye(3)).all()
