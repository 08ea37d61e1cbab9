import numpy as np
import pytest

from rrcluster.clusters.rebalancing import flip_coins
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams, client_uniforms
from rrcluster.server import guidance, release, server_round
from rrcluster.server_state import ServerSettings, ServerState
from rrcluster.types import Coordinates, Models


def plan(**changes):
    settings = {
        "coordinates": Coordinates(0, 3),
        "num_clusters": 4,
        "num_clients": 1000,
        "sample_rate": 0.1,
        "num_rounds": 200,
        "update_clip": 1.0,
        "noise_multiplier": 1.0,
    }
    return PrivacyPlan.build(**(settings | changes))


def fresh():
    return ServerState.fresh(Models(np.zeros(0), np.zeros((4, 3))))


def test_coins_keep_small_clusters_at_b():
    """Natural sizes 55/30/12/3, B = 12, (almost) no noise: the last cluster holds 12 on average over 200 rounds."""
    quiet = plan(noise_multiplier=0.011, min_cluster_size=12)
    state, ledger, streams = fresh(), Ledger(), Streams(0)
    natural = np.array([55, 30, 12, 3])
    choices, ids = np.repeat(np.arange(4), natural), np.arange(100)
    sizes = []
    for t in range(200):
        uniforms = client_uniforms(streams.client_key("coin", t), ids)[:, 0]
        destinations = flip_coins(
            choices, guidance(state, plan=quiet, server=ServerSettings()).transition, uniforms=uniforms
        )
        sizes.append(np.bincount(destinations, minlength=4))
        state, out = server_round(
            state,
            np.zeros((100, 3)),
            choices,
            destinations=destinations,
            plan=quiet,
            server=ServerSettings(),
            ledger=ledger,
            rng=streams("release", t),
        )
        assert np.allclose(out.sizes, natural, atol=0.5)  # the released sizes are the natural ones
    assert np.mean(sizes, axis=0)[3] == pytest.approx(12, abs=0.5)
    assert (sizes[0] == natural).all()  # round 1: nobody moves
    assert ledger.num_charged == 200


def test_sizes_after_the_coin_would_hide_the_deficit():
    """Why the count row carries the choice before the coin: with counts after it, the need for movers vanishes."""
    from rrcluster.clusters.rebalancing import coin_transition, expected_sizes

    natural = np.array([55.0, 30, 12, 3])
    after = expected_sizes(natural, coin_transition(natural, min_cluster_size=12))
    assert (coin_transition(after, min_cluster_size=12) == np.eye(4)).all()


def test_a_round_is_charged_before_its_release(rng):
    ledger = Ledger()
    with pytest.raises(ValueError, match="one cluster per update"):
        server_round(fresh(), np.zeros((2, 3)), [0], plan=plan(), server=ServerSettings(), ledger=ledger, rng=rng)
    assert ledger.num_charged == 1


def test_an_empty_cohort_is_a_round_like_any_other(rng):
    state, out = server_round(
        fresh(), np.zeros((0, 3)), [], plan=plan(), server=ServerSettings(), ledger=Ledger(), rng=rng
    )
    assert state.round_index == 1
    assert np.isfinite(out.cluster_means).all()
    assert (out.cluster_means != 0).all()


def test_denominators_come_from_released_sizes_with_a_floor(rng):
    _, out = server_round(
        fresh(), np.zeros((90, 3)), [0] * 90, plan=plan(), server=ServerSettings(), ledger=Ledger(), rng=rng
    )
    assert out.denominators[0] == pytest.approx(max(15.0, out.sizes[0]))
    assert out.denominators[1] == pytest.approx(max(15.0, out.sizes[1]))
    assert not np.allclose(out.sizes, [90, 0, 0, 0])  # noisy, never the raw counts


@pytest.mark.parametrize("rebalance", ["none", "shrinkage"])
def test_release_is_the_mechanism_and_needs_no_server(rebalance, rng):
    out = release(np.ones((5, 3)), [0, 1, 2, 3, 0], plan=plan(rebalance=rebalance), rng=rng)
    assert out.cluster_means.shape == (4, 3)
    assert out.noise_std.shape == (4,)
