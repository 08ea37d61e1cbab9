"""rr.Server: a federation's own loop around it cannot void the guarantee, and a killed process loses no charge."""

import json
import shutil

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.cost import folder_cost
from rrcluster.types import Coordinates

K, D, M = 3, 4, 200


def plan(**changes):
    settings = {"coordinates": Coordinates(0, D), "num_clusters": K, "num_clients": M, "sample_rate": 0.3}
    settings |= {"num_rounds": 3, "noise_multiplier": 1.0, "delta": 1e-3, "update_clip": 1.0}
    return rr.PrivacyPlan.build(**settings | changes)


def serve(folder, made=None, **changes):
    made = made or plan()
    seed = {} if made.secure else {"seed": 0}
    return rr.Server(made, np.zeros((K, D)), folder=folder, **seed | changes)


def answer(server, **changes):
    """One round of clients that report ones."""
    ids = server.cohort()
    rng = np.random.default_rng(server.round_index)
    choices, destinations = server.guidance.choose(rng.random((len(ids), K)), rng=rng)
    reports = {"updates": np.ones((len(ids), D)), "choices": choices, "destinations": destinations, "client_ids": ids}
    return server.finish(**reports | changes)


def charges(folder):
    path = folder / "ledger.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("b", [0, 10])
def test_a_plan_of_three_rounds_makes_three_and_refuses_the_fourth(tmp_path, b):
    with serve(tmp_path / "fed", plan(min_cluster_size=b)) as server:
        for t in range(3):
            assert server.round_index == t
            assert not server.finished
            answer(server)
            assert len(charges(tmp_path / "fed")) == t + 1
        assert server.finished
        for ask in (server.cohort, lambda: server.finish([], [], client_ids=[], destinations=[])):
            with pytest.raises(PrivacyError, match=r"3 rounds \(3 of 3 releases\) are done"):
                ask()
        assert len(charges(tmp_path / "fed")) == 3
        assert np.abs(server.models).sum() > 0
        assert server.epsilon == server.plan.epsilon()
    assert folder_cost(tmp_path / "fed").epsilon == server.plan.epsilon()
    assert len((tmp_path / "fed" / "rounds.jsonl").read_text().splitlines()) == 3


def test_the_charge_is_on_disk_before_raw_values_are_read(tmp_path, monkeypatch):
    server, seen = serve(tmp_path / "fed"), []
    kind = type(server.plan.mechanism)
    honest = kind.release
    monkeypatch.setattr(kind, "release", lambda *a, **b: seen.append(len(charges(tmp_path / "fed"))) or honest(*a, **b))
    answer(server)
    answer(server)
    assert seen == [1, 2]


def test_a_plan_with_b_and_no_destinations_raises_and_costs_nothing(tmp_path):
    server = serve(tmp_path / "fed", plan(min_cluster_size=5))
    with pytest.raises(ConfigError, match=r"none were given; pass those of guidance\.choose"):
        answer(server, destinations=None)
    assert charges(tmp_path / "fed") == []
    with pytest.raises(ConfigError, match="none were given"):
        rr.release(
            np.zeros((2, D)), [0, 1], plan=plan(min_cluster_size=5), rng=np.random.default_rng(0), client_ids=[0, 1]
        )


def test_a_round_needs_its_cohort_and_keeps_it(tmp_path):
    server = serve(tmp_path / "fed")
    with pytest.raises(PrivacyError, match=r"round 0 has no cohort yet; ask `cohort\(\)` first"):
        server.finish(np.zeros((1, D)), [0], client_ids=[0])
    first = server.cohort()
    assert (server.cohort() == first).all()
    answer(server)
    assert not np.array_equal(server.cohort(), first)


def test_reports_of_strangers_and_second_reports_do_not_count(tmp_path):
    """Noise aside, the release is that of the cohort's own reports."""
    sums = []
    for extra in (False, True):
        server = serve(tmp_path / f"fed-{extra}", plan(noise_multiplier=0.011))
        ids = server.cohort()
        stranger = np.setdiff1d(np.arange(M), ids)[0]
        named = [*ids, *([stranger, ids[0], M + 7, "x"] if extra else [])]
        out = server.finish(np.full((len(named), D), 0.1), np.zeros(len(named), dtype=int), client_ids=named)
        sums.append(out.cluster_sums)
    assert np.array_equal(*sums)


def test_ids_that_are_not_the_cohorts_numbers_are_an_error_before_the_charge(tmp_path):
    server = serve(tmp_path / "fed")
    ids = server.cohort()
    with pytest.raises(ConfigError, match="whole numbers that cohort"):
        server.finish(np.zeros((len(ids), D)), np.zeros(len(ids), int), client_ids=[str(client) for client in ids])
    with pytest.raises(ConfigError, match="one row per client"):
        server.finish(np.zeros((1, D)), np.zeros(len(ids), int), client_ids=ids)
    assert charges(tmp_path / "fed") == []


def test_an_empty_cohort_is_released_too(tmp_path):
    server = serve(tmp_path / "fed")
    server.cohort()
    out = server.finish(np.zeros((0, D)), np.zeros(0, dtype=int), client_ids=[])
    assert np.isfinite(out.cluster_means).all()


@pytest.mark.parametrize("rate", [0.3, 1.0])  # 1: the same cohort reports the same, so that noise alone differs
def test_a_killed_process_goes_on_and_its_open_round_is_charged_again_with_fresh_noise(tmp_path, monkeypatch, rate):
    folder = tmp_path / "fed"
    made = plan(reserve_rounds=1, sample_rate=rate)
    server = serve(folder, made)
    answer(server)
    before, release = server.models, []
    monkeypatch.setattr(type(server._folder), "add_round", lambda _, record: release.append(record.release) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answer(server)  # released, and the process dies before the state is on disk
    server.close()
    monkeypatch.undo()
    assert len(charges(folder)) == 2
    with serve(folder, made) as again:
        assert again.round_index == 1
        assert np.array_equal(again.models, before)
        repeated = answer(again)
        assert not np.array_equal(repeated.sizes, release[0].sizes)
        assert len(charges(folder)) == 3
        answer(again)
        assert again.finished
    assert len(charges(folder)) == 4


def test_without_a_reserve_a_crash_costs_a_round(tmp_path, monkeypatch):
    folder = tmp_path / "fed"
    server = serve(folder)
    monkeypatch.setattr(type(server._folder), "add_round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answer(server)
    server.close()
    monkeypatch.undo()
    with serve(folder) as again:
        while not again.finished:
            answer(again)
        assert again.round_index == 2
    assert len(charges(folder)) == 3


def test_a_folder_belongs_to_one_plan_one_process_and_one_start(tmp_path, tiny):
    folder = tmp_path / "fed"
    server = serve(folder)
    with pytest.raises(RunFolderError, match="in use by another process"):
        serve(folder)
    answer(server)
    server.close()
    with pytest.raises(RunFolderError, match="was closed"):
        server.cohort()
    with pytest.raises(RunFolderError, match="another event"):
        serve(folder, plan(noise_multiplier=2.0))
    with pytest.raises(PrivacyError, match="settings have changed"):
        serve(folder, server_lr=0.5)
    (folder / "privacy.json").unlink()
    with pytest.raises(RunFolderError, match=r"a ledger without privacy\.json"):
        serve(folder)
    rr.run(**tiny)
    with pytest.raises(RunFolderError, match=r"holds a run of rr\.run"):
        serve(tmp_path / "run")


def test_a_secure_server_takes_no_seed_and_a_copy_of_its_folder_does_not_go_on(tmp_path):
    secure = plan(secure=True)
    with pytest.raises(ConfigError, match="takes no seed"):
        rr.Server(secure, np.zeros((K, D)), folder=tmp_path / "fed", seed=0)
    with pytest.raises(ConfigError, match="needs a seed"):
        rr.Server(plan(), np.zeros((K, D)), folder=tmp_path / "fed")
    with serve(tmp_path / "fed", secure) as server:
        answer(server)
    shutil.copytree(tmp_path / "fed", tmp_path / "copy")
    with pytest.raises(PrivacyError, match="looks like a copy"):
        serve(tmp_path / "copy", secure)
    with serve(tmp_path / "copy", secure, adopt=True) as copy:
        answer(copy)
    with serve(tmp_path / "fed", secure) as server:
        answer(server)
    stated = json.loads((tmp_path / "fed" / "privacy.json").read_text())
    assert stated["secure"]


def test_wrong_models_and_settings_are_refused_before_anything_is_written(tmp_path):
    for models, changes, reason in (
        (np.zeros((K, D + 1)), {}, r"shape \(3, 4\)"),
        (np.full((K, D), np.nan), {}, "finite"),
        (np.zeros((K, D)), {"init": "warm"}, "init = warm is gone"),
        (np.zeros((K, D)), {"server_rl": 1}, "did you mean 'server_lr'"),
    ):
        with pytest.raises(ConfigError, match=reason):
            rr.Server(plan(), models, folder=tmp_path / "fed", seed=0, **changes)
    assert not (tmp_path / "fed").exists()
    server = serve(tmp_path / "fed")
    with pytest.raises(ConfigError, match=r"losses must be \(clients, 3\)"):
        server.guidance.choose(np.zeros((2, 4)), rng=np.random.default_rng(0))


def test_guidance_prices_crowded_clusters_and_moves_by_coins(tmp_path):
    server = serve(tmp_path / "fed", plan(num_rounds=10, noise_multiplier=0.011, min_cluster_size=15))
    ids = server.cohort()
    assert (server.guidance.rules.transition == np.eye(K)).all()
    everybody = np.zeros(len(ids), dtype=int)  # all clients in cluster 0
    server.finish(np.zeros((len(ids), D)), everybody, destinations=everybody, client_ids=ids)
    rules = server.guidance.rules
    assert rules.prices[0] > rules.prices[1]
    assert rules.transition[0, 0] < 1
    losses = np.tile([0.0, 100.0, 100.0], (4000, 1))
    choices, destinations = server.guidance.choose(losses, rng=np.random.default_rng(0))
    assert (choices == 0).all()
    assert np.mean(destinations != 0) == pytest.approx(1 - rules.transition[0, 0], abs=0.03)


def test_a_noisy_sum_finishes_a_round(tmp_path):
    server = serve(tmp_path / "fed")
    server.cohort()
    server.finish_sum(np.zeros(server.plan.mechanism.message_width))
    assert server.round_index == 1
