from dataclasses import replace

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.clusters.choice import ChoiceRules, choose, newcomer_probability
from rrcluster.clusters.schedule import PERTURBATION, make_schedule, open_clusters, warm_start
from rrcluster.errors import ConfigError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.setup import make_experiment, plan_for
from rrcluster.methods import ALGORITHMS
from rrcluster.methods.compatibility import check_init
from rrcluster.privacy.ledger import Ledger
from rrcluster.rng import Streams
from rrcluster.server import Server
from rrcluster.server_state import RunningMean, ServerState
from rrcluster.settings import ServerSettings
from rrcluster.simulation.simulate import simulate
from rrcluster.types import Coordinates, Models

INITS = ("independent", "kmeans++", "warm")
WARM, PLUS = ServerSettings(init="warm", init_rounds=3), ServerSettings(init="kmeans++", init_rounds=8)


def settings(**changes):
    base = {"data": "synthetic-balanced-easy", "num_clients": 40, "num_rounds": 8, "sample_rate": 0.5}
    return from_flat({**base, "local_epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, "device": "cpu", **changes})


def records(config, **continued):
    it = make_experiment(config)
    parts = {"data": it.data, "model": it.model, "algorithm": it.algorithm, "plan": it.plan, "engine": it.engine}
    return list(simulate(**parts, streams=it.streams, local=it.local, server=it.server, **continued))


def test_which_clusters_are_open_by_hand():
    def num_open(server, rounds):
        schedule = make_schedule(server, num_rounds=20, num_clusters=4)
        return [schedule.num_open(t) for t in range(rounds)]

    assert num_open(WARM, 5) == [1, 1, 1, 4, 4]
    assert num_open(PLUS, 9) == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert num_open(replace(PLUS, init_rounds=10), 11) == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    assert num_open(ServerSettings(), 2) == [4, 4]


def test_closed_clusters_are_never_chosen(rng):
    scores = rng.normal(size=(300, 4)) - np.array([0.0, 0.0, 9.0, 9.0])
    told = replace(ChoiceRules.plain(4), num_open=2)
    chosen = choose(scores, told, uniforms=rng.random((300, 4)))
    assert (chosen == scores[:, :2].argmin(axis=1)).all()


def test_who_is_badly_served_tries_the_new_cluster(rng):
    scores = np.array([[0.5, 9.0, 1.0], [1.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 5.0, 1.0]])
    assert newcomer_probability(scores, 2.0).tolist() == pytest.approx([0.25, 1.0, 1.0, 0.0])
    told = replace(ChoiceRules.plain(3), num_open=3, newcomer_power=2.0)
    many = np.repeat(scores, 20_000, axis=0)
    chosen = choose(many, told, uniforms=rng.random((len(many), 3))).reshape(4, -1)
    assert (chosen == 2).mean(axis=1).tolist() == pytest.approx([0.25, 1.0, 1.0, 0.0], abs=0.01)
    assert set(np.unique(chosen[0])) == {0, 2}  # who does not try it stays with the best of the others


@pytest.mark.parametrize(
    "row", [[0.0, 0.0], [np.inf, np.inf], [np.nan, 1.0], [1.0, np.nan], [np.inf, 1.0], [1.0, np.inf]]
)
def test_a_probability_is_one_whatever_the_scores(row):
    (share,) = newcomer_probability(np.array([row]), 2.0)
    assert 0 <= share <= 1


def test_a_choice_during_the_opening_is_the_clients_own(rng):
    scores, uniforms = rng.random((50, 4)), rng.random((50, 4))
    told = replace(ChoiceRules.plain(4), num_open=3, newcomer_power=2.0)
    some = np.array([3, 17, 40])
    together = choose(scores, told, uniforms=uniforms)[some]
    assert (together == choose(scores[some], told, uniforms=uniforms[some])).all()


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_epsilon_and_charges_do_not_depend_on_the_initialisation(mechanism):
    found = {}
    for init in INITS:
        config = settings(mechanism=mechanism, init=init)
        plan, ledger = plan_for(config), Ledger()
        records(config, ledger=ledger)
        found[init] = (plan.epsilon(), plan.event, ledger.num_charged)
    assert found["warm"] == found["kmeans++"] == found["independent"]
    assert found["warm"][2] == 8


@pytest.mark.parametrize("mechanism", ["none", "identifier"])
def test_the_warm_phase_is_fedavg(mechanism):
    """Bit for bit without noise; with it, the same clients train the same model and only the noise differs."""
    quiet = {"mechanism": "none", "noise_multiplier": None} if mechanism == "none" else {}
    if mechanism == "identifier":  # all go to cluster 0; a clip and noise this small change nothing visible
        quiet = {"mechanism": "identifier", "noise_multiplier": 1e-6, "identifier_share": 1e-6, "update_clip": 100.0}
        quiet |= {"size_floor": 0.0, "accountant": "rdp"}
    warm = records(settings(**quiet, init="warm", init_rounds=4))
    one = records(settings(**quiet, algorithm="fedavg"))
    for ours, theirs in zip(warm[:4], one[:4], strict=True):
        assert ours.release.cluster_sums[0] == pytest.approx(theirs.release.shared_sum, abs=1e-2)
        assert not ours.release.cluster_sums[1:].any()
        if mechanism == "none":
            assert (ours.release.cluster_sums[0] == theirs.release.shared_sum).all()
            assert (ours.state.models.clustered[0] == theirs.state.models.shared).all()
            assert ours.release.sizes.tolist() == [20, 0, 0, 0]


def test_closed_models_are_held_still_under_noise():
    config = settings(init="kmeans++", init_rounds=4)
    first, *_, last = records(config)
    it = make_experiment(config)
    start = it.algorithm.init(it.model, num_clusters=4, rng=Streams(0)("init")).clustered
    assert (first.state.models.clustered[1:] == start[1:]).all()
    assert (first.state.models.clustered[0] != start[0]).all()
    assert (last.state.models.clustered != start).all()


def test_after_the_warm_phase_every_cluster_starts_near_the_warm_model():
    state = ServerState.fresh(Models(np.ones(2), np.arange(6.0).reshape(3, 2)))
    state = replace(state, round_index=3, sizes=RunningMean(np.array([9.0, 0, 0]), 1.0), num_averaged=2)
    towards = np.array([[10.0, 0], [0, 10], [-10, 0]])
    schedule = make_schedule(WARM, num_rounds=20, num_clusters=3)
    after = open_clusters(state, schedule, warm_start(state.models, Models(np.zeros(2), towards)))
    assert np.allclose(after.models.clustered, (1 - PERTURBATION) * np.array([0.0, 1.0]) + PERTURBATION * towards)
    assert (after.models.shared == state.models.shared).all()
    assert after.sizes.empty
    assert after.num_averaged == 0
    assert [t for t in range(20) if schedule.opens_clusters(t)] == [3]
    plain = make_schedule(ServerSettings(), num_rounds=20, num_clusters=3)
    assert not any(plain.opens_clusters(t) for t in range(20))


def test_the_server_draws_random_models_in_the_round_that_ends_the_warm_phase_alone():
    state = ServerState.fresh(Models(np.ones(1), np.arange(6.0).reshape(3, 2)))
    state = replace(state, sizes=RunningMean(np.array([9.0, 0, 0]), 1.0))
    plan = rr.PrivacyPlan.build(
        coordinates=Coordinates(1, 2), num_clusters=3, num_clients=100, num_rounds=20, noise_multiplier=1.0
    )
    for t in (0, 1, 2, 4):
        told = Server(plan, WARM, True, random_models=pytest.fail).tell(replace(state, round_index=t))
        assert told.models is state.models
    drawn = []
    server = Server(plan, WARM, True, lambda name: drawn.append(name) or Models(np.zeros(1), np.zeros((3, 2))))
    told = server.tell(replace(state, round_index=3))
    assert drawn == ["warm start"]
    assert np.allclose(told.models.clustered, (1 - PERTURBATION) * np.array([0.0, 1.0]))
    assert (told.average.clustered == told.models.clustered).all()
    assert (told.rules.prices == 0).all()  # sizes of the warm phase say nothing


@pytest.mark.parametrize("init", ["warm", "kmeans++"])
def test_a_run_stopped_in_its_initialisation_goes_on_bit_for_bit(init):
    config = settings(init=init, init_rounds=5, min_cluster_size=3)
    whole = records(config)
    for record in whole[:6]:
        resumed = records(config, state=record.state)
        assert (resumed[-1].state.models.clustered == whole[-1].state.models.clustered).all()
        assert (resumed[-1].state.average.clustered == whole[-1].state.average.clustered).all()


def test_nobody_is_moved_before_the_clusters_are_open():
    plain, moved = (
        records(settings(init="warm", init_rounds=4, min_cluster_size=b, size_floor=5.0, num_rounds=12)) for b in (0, 5)
    )
    for base, coins in zip(plain[:4], moved[:4], strict=True):
        assert (coins.release.cluster_sums == base.release.cluster_sums).all()
        assert (coins.reports.destinations == coins.reports.choices).all()
    assert any((coins.reports.destinations != coins.reports.choices).any() for coins in moved[4:])


@pytest.mark.parametrize("init", ["warm", "kmeans++"])
def test_a_secure_run_can_be_initialised(init, tmp_path):
    config = {**settings().flat(), "seed": None, "secure": True, "init": init, "num_clusters": 2, "out": tmp_path / "r"}
    result = rr.run(from_flat({**config, "out": str(tmp_path / "r"), "seed": 0}))
    assert np.isfinite(result.models.clustered).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"init": "warm", "init_rounds": 8}, "less than num_rounds = 8"),
        ({"init": "warm", "init_rounds": 0}, "at least 1"),
        ({"init": "kmeans++", "init_rounds": 3}, "at least 4"),
        ({"init_rounds": 3}, "takes no rounds"),
        ({"init": "warm", "algorithm": "fedavg"}, "has one model"),
        ({"init": "kmeans++", "algorithm": "oracle"}, "given its clusters"),
    ],
)
def test_what_cannot_be_initialised_so_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        make_experiment(settings(**changes))


def test_an_unknown_initialisation_is_refused_by_the_simulator_too():
    with pytest.raises(ConfigError, match="init"):
        make_schedule(ServerSettings(init="magic"), num_rounds=5, num_clusters=2)


def test_methods_with_one_model_take_no_initialisation_and_all_others_do():
    for name, method in ALGORITHMS.items():
        if method.num_clusters(2) == 2 and name != "oracle":
            check_init(method, "warm")
        else:
            with pytest.raises(ConfigError, match=r"has no effect; remove init|does nothing; remove it"):
                check_init(method, "kmeans++")


def test_rounds_by_default():
    def rounds(init, num_rounds, k):
        config = settings(init=init, num_rounds=num_rounds, num_clusters=k)
        return make_schedule(config.server, num_rounds=num_rounds, num_clusters=k).num_rounds

    assert (rounds("independent", 100, 4), rounds("warm", 100, 4), rounds("warm", 5, 4)) == (0, 10, 1)
    assert (rounds("kmeans++", 100, 4), rounds("kmeans++", 20, 4), rounds("kmeans++", 5, 4)) == (10, 4, 4)
