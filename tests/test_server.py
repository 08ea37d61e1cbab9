"""The server alone, its loop, and that a federation written by hand is the simulation bit for bit."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods import Tools
from rrcluster.privacy.clip import grid_step
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.rebalancing import coin_transition, expected_sizes, flip_coins
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.privacy.sums import grid_noise
from rrcluster.rng import Streams, client_uniforms
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.server.choice import choose
from rrcluster.server.server import Charge, RoundServer, release, run_rounds
from rrcluster.settings import ServerSettings
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.simulate import simulate
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


def serve(made=None, **settings):
    made = made or plan()
    d, k = made.mechanism.coordinates, made.mechanism.num_clusters
    return RoundServer(
        made, ServerSettings(**settings), True, lambda: Models(np.zeros(d.shared), np.zeros((k, d.clustered)))
    )


def one_round(reports, *, server=None, rng):
    server = server or serve()
    state = server.first_state()
    return server.finish(state, server.tell(state), reports, rng=rng)


def assert_same(one, other, where=""):
    """Equal bit for bit, field by field, down to the arrays."""
    assert type(one) is type(other), where
    if is_dataclass(one):
        for part in fields(one):
            assert_same(getattr(one, part.name), getattr(other, part.name), f"{where}.{part.name}")
    else:
        assert np.array_equal(one, other), where


def test_coins_keep_small_clusters_at_b():
    """Natural sizes 55/30/12/3, B = 12, (almost) no noise: the last cluster holds 12 on average over 200 rounds."""
    server = serve(plan(noise_multiplier=0.011, min_cluster_size=12))
    state, ledger, streams = server.first_state(), Ledger(), Streams(0)
    natural = np.array([55, 30, 12, 3])
    choices, ids = np.repeat(np.arange(4), natural), np.arange(100)
    sizes = []

    def collect(guidance, charge):
        uniforms = client_uniforms(streams.client_key("coin", guidance.round_index), ids)[:, 0]
        destinations = flip_coins(choices, guidance.rules.transition, uniforms=uniforms)
        sizes.append(np.bincount(destinations, minlength=4))
        charge()
        return Reports(np.zeros((100, 3)), choices, destinations)

    for done in run_rounds(server, collect, state=state, ledger=ledger, streams=streams):
        assert np.allclose(done.release.sizes, natural, atol=0.5)  # the released sizes are the natural ones
    assert len(sizes) == 200
    assert np.mean(sizes, axis=0)[3] == pytest.approx(12, abs=0.5)
    assert (sizes[0] == natural).all()  # round 1: nobody moves
    assert ledger.num_charged == 200


def test_sizes_after_the_coin_would_hide_the_deficit():
    """Why the count row carries the choice before the coin: with counts after it, the need for movers vanishes."""
    natural = np.array([55.0, 30, 12, 3])
    after = expected_sizes(natural, coin_transition(natural, min_cluster_size=12))
    assert (coin_transition(after, min_cluster_size=12) == np.eye(4)).all()


def rounds(server, collect, ledger):
    return run_rounds(server, collect, state=server.first_state(), ledger=ledger, streams=Streams(0))


def test_a_round_is_charged_before_its_release():
    ledger = Ledger()

    def collect(_, charge):
        charge()
        assert ledger.num_charged == 1
        return Reports(np.zeros((2, 3)), [0])

    with pytest.raises(ValueError, match="one cluster per update"):
        next(rounds(serve(), collect, ledger))
    assert ledger.num_charged == 1


@pytest.mark.parametrize("sums", [False, True])
def test_a_round_that_was_not_charged_is_never_released(sums):
    """Whatever was collected: there is no release, and the rounds end."""
    server, ledger, looked = serve(), Ledger(), []

    class Looking(Reports):
        def __getattribute__(self, name):
            looked.append(name)
            return super().__getattribute__(name)

    raw = NoisySum(np.zeros(server.plan.mechanism.message_width)) if sums else Looking(np.zeros((1, 3)), [0])
    looked.clear()
    loop = rounds(server, lambda *_: raw, ledger)
    with pytest.raises(PrivacyError, match=r"round 0 was collected but not charged.*charge\(\) first"):
        next(loop)
    assert looked == []
    assert ledger.num_charged == 0
    assert list(loop) == []


def test_every_round_needs_a_charge_of_its_own():
    ledger, charges = Ledger(), []

    def collect(guidance, charge):
        charges.append(charge)
        charges[0]()  # the first round's, again
        if guidance.round_index == 0:
            assert charge.made
        return Reports(np.zeros((0, 3)), [])

    loop = rounds(serve(), collect, ledger)
    next(loop)
    with pytest.raises(PrivacyError, match="round 1 was collected but not charged"):
        next(loop)
    assert ledger.num_charged == 1


@pytest.mark.parametrize("secure", [False, True])
def test_a_charge_is_made_once_however_often_it_is_called(tmp_path, secure):
    """A secure ledger counts every attempt, so a second charge would cost a round."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, secure=secure)
    charge = Charge(ledger, 0, plan())
    assert not charge.made
    assert ledger.num_charged == 0
    for _ in range(3):
        charge()
        assert charge.made
        assert ledger.num_charged == 1
        assert len(path.read_text().splitlines()) == 1  # on disk when the call returns
    Charge(ledger, 0, plan())()  # another attempt at the same round
    assert ledger.num_charged == (2 if secure else 1)


def test_without_privacy_a_charge_costs_nothing_and_is_made():
    ledger = Ledger()
    charge = Charge(ledger, 0, plan(mechanism="none", noise_multiplier=None))
    charge()
    assert charge.made


def test_a_charge_that_fails_is_not_made():
    class Full:
        def charge(self, *_):
            raise OSError("disk full")

    charge = Charge(Full(), 0, plan())
    with pytest.raises(OSError, match="disk full"):
        charge()
    assert not charge.made


def test_rounds_end_with_the_plan_or_with_the_ledger():
    def collect(_, charge):
        charge()
        return Reports(np.zeros((0, 3)), [])

    few = serve(plan(num_rounds=5))
    done = list(rounds(few, collect, Ledger()))
    assert [one.round_index for one in done] == [0, 1, 2, 3, 4]
    assert [one.state.round_index for one in done] == [1, 2, 3, 4, 5]
    assert len(list(rounds(few, collect, Ledger(limit=3)))) == 3
    resumed = run_rounds(few, collect, state=done[2].state, ledger=Ledger(), streams=Streams(0))
    for one, other in zip(done[3:], resumed, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("off", [-1, 1])
def test_guidance_of_another_round_is_refused_before_anything_is_looked_at(off, rng):
    server = serve()
    state = replace(server.first_state(), round_index=4)
    told = server.tell(state)
    assert told.round_index == 4
    with pytest.raises(PrivacyError, match=rf"guidance is of round {4 + off}, the state of round 4; use tell\(state\)"):
        server.finish(state, replace(told, round_index=4 + off), None, rng=rng)
    with pytest.raises(PrivacyError, match="the state of round 5"):
        server.finish(replace(state, round_index=5), told, None, rng=rng)


@pytest.mark.parametrize("b", [0, 12])
def test_a_noisy_sum_finishes_a_round_as_the_reports_do(b, rng):
    """What a secure aggregation hands over, noise included, needs no report and no randomness of the server's."""
    server = serve(plan(coordinates=Coordinates(2, 3), min_cluster_size=b), server_momentum=0.5)
    mechanism = server.plan.mechanism
    direct = summed = server.first_state()
    for t in range(4):
        choices = rng.integers(4, size=90)
        destinations = rng.integers(4, size=90) if b else None
        reports = Reports(rng.normal(size=(90, 5)), choices, destinations)
        told = server.tell(direct)
        direct, first = server.finish(direct, told, reports, rng=np.random.default_rng(t))
        noise = grid_noise(
            mechanism.message_width,
            noise_std=mechanism.noise_std,
            step=grid_step(1.0),
            exact=False,
            rng=np.random.default_rng(t),
        )
        messages = [
            mechanism.message(row, choice, destination=moved)
            for row, choice, moved in zip(
                reports.updates, choices, choices if destinations is None else destinations, strict=True
            )
        ]
        summed, second = server.finish(summed, server.tell(summed), NoisySum(noise + sum(messages)), rng=None)
        assert_same(first, second)
        assert_same(direct, summed)


@pytest.mark.parametrize(("mechanism", "noise"), [("identifier", 1.0), ("none", None)])
def test_who_needs_every_row_refuses_a_sum(mechanism, noise, rng):
    with pytest.raises(PrivacyError, match=r"cannot use a .*sum"):
        one_round(NoisySum(np.zeros(18)), server=serve(plan(mechanism=mechanism, noise_multiplier=noise)), rng=rng)


def test_an_empty_cohort_is_a_round_like_any_other(rng):
    state, out = one_round(Reports(np.zeros((0, 3)), []), rng=rng)
    assert state.round_index == 1
    assert np.isfinite(out.cluster_means).all()
    assert (out.cluster_means != 0).all()


def test_denominators_come_from_released_sizes_with_a_floor(rng):
    _, out = one_round(Reports(np.zeros((90, 3)), [0] * 90), rng=rng)
    assert out.denominators[0] == pytest.approx(max(15.0, out.sizes[0]))
    assert out.denominators[1] == pytest.approx(max(15.0, out.sizes[1]))
    assert not np.allclose(out.sizes, [90, 0, 0, 0])  # noisy, never the raw counts


def test_finishing_needs_the_destinations_that_the_plan_asks_for(rng):
    with pytest.raises(ConfigError, match="none were given"):
        one_round(Reports(np.zeros((1, 3)), [0]), server=serve(plan(min_cluster_size=5)), rng=rng)


def test_release_is_the_mechanism_and_needs_no_server(rng):
    out = release(np.ones((5, 3)), [0, 1, 2, 3, 0], plan=plan(), rng=rng)
    assert out.cluster_means.shape == (4, 3)
    assert out.noise_std.shape == (4,)


def test_release_by_arrays_is_the_mechanism_s_bit_for_bit():
    made = plan(min_cluster_size=5, private_evaluation=0.25)
    parts = (np.ones((3, 3)), [0, 1, 2], [1, 1, 2], [7, 8, 7], [[0.5, 0.5]] * 3)
    named = dict(zip(("updates", "choices", "destinations", "client_ids", "evaluations"), parts, strict=True))
    first = release(**named, plan=made, rng=np.random.default_rng(1))
    assert_same(first, made.mechanism.release(Reports(*parts), rng=np.random.default_rng(1)))


@pytest.mark.parametrize(
    "extra", [{}, {"private_evaluation": 0.25, "server_momentum": 0.3}], ids=["plain", "evaluated"]
)
def test_a_federation_written_by_hand_is_the_simulation_bit_for_bit(extra):
    """tell, collect, charge, finish, in a loop that shares no code with `run_rounds` and `SimulatedClients`."""
    data = {"data": "fashion-mini", "model": "pooled-linear", "samples_per_client": 8} if extra else {}
    base = {
        "data": "synthetic-balanced-easy",
        "num_clients": 40,
        "num_rounds": 10,
        "sample_rate": 0.5,
        "init": "independent",
    }
    base |= {"local_epochs": 1, "noise_multiplier": 0.3, "delta": 1e-3, "device": "cpu", "engine": "batched"}
    base |= {"min_cluster_size": 4, "exploration": 1.0}
    config = from_flat(base | data | extra)
    it = make_experiment(config)
    assert it.plan.mechanism.flips_coins
    assert it.method.chooses_by_loss
    parts = {"data": it.data, "model": it.model, "method": it.method, "plan": it.plan, "engine": it.engine}
    simulated = list(simulate(**parts, streams=it.streams, local=it.local, server=it.server, ledger=Ledger()))

    streams, k, ledger = Streams(0), it.plan.mechanism.num_clusters, Ledger()
    server = RoundServer(
        it.plan,
        it.server,
        explores=True,
        first_models=lambda: it.method.init(it.model, num_clusters=k, rng=streams("init")),
    )
    state, moved, softened = server.first_state(), 0, 0
    for t in range(10):
        told = server.tell(state)
        ids = it.plan.sampler.draw(40, rng=streams("cohort", t))
        tools = Tools(it.split, it.engine, it.local, key=streams.client_key("batches", t))
        clients = ClientMemory(0).recall(it.data.cohort(ids))
        scores = it.method.scores(told.models, clients, tools=tools)
        draws = client_uniforms(streams.client_key("choice", t), ids, k)
        choices = np.array(
            [
                choose(scores[[place]], told.rules, uniforms=draws[[place]])[0]  # each client by itself
                for place in range(len(ids))
            ],
            dtype=np.int64,
        )
        softened += (choices != scores.argmin(axis=1)).sum()
        coins = client_uniforms(streams.client_key("coin", t), ids)[:, 0]
        destinations = flip_coins(choices, told.rules.transition, uniforms=coins)
        moved += (choices != destinations).sum()
        trained = it.method.local(told.models, clients, destinations, tools=tools)
        said = None
        if extra:
            from rrcluster.client import own_evaluations

            bound = it.plan.mechanism.loss_bound
            said = own_evaluations(told.average, clients.cohort, loss_bound=bound, method=it.method, tools=tools)
        ledger.charge(t, it.plan.event)
        reports = Reports(trained.updates, choices, destinations, ids, said)
        state, out = server.finish(state, told, reports, rng=streams("release", t))
        assert_same(out, simulated[t].release, f"release {t}")
        assert_same(state, simulated[t].state, f"state {t}")
    assert len(simulated) == ledger.num_charged == 10
    assert moved > 0
    assert softened > 0
