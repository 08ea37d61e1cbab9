import math
from dataclasses import replace

import numpy as np
import pytest

from rrcluster.methods import METHODS
from rrcluster.privacy import joint
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.simulation.evaluate import (
    adjusted_rand,
    client_bytes,
    evaluate,
    expected_norm,
    measure_round,
    signal_to_noise,
)
from rrcluster.simulation.simulate import simulate
from rrcluster.types import Coordinates


def plan(**changes):
    settings = {"coordinates": Coordinates(3, 5), "num_clusters": 4, "num_clients": 100, "sample_rate": 0.5}
    settings |= {"num_rounds": 2, "update_clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-3}
    return PrivacyPlan.build(**(settings | changes))


def index(choices, groups, num_clusters=4):
    return adjusted_rand(np.array(choices), np.array(groups), num_clusters, max(groups) + 1)


def test_adjusted_rand_by_hand():
    assert index([1, 1, 0, 0], [0, 0, 1, 1]) == 1.0  # the names of clusters do not matter
    # table [[2, 1], [0, 3]]: pairs together 1 + 3, by cluster 3 + 3, by group 1 + 6, of 15: expected 2.8, most 6.5
    assert index([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]) == pytest.approx((4 - 2.8) / (6.5 - 2.8))
    assert index([0, 1, 0, 1], [0, 0, 1, 1]) == pytest.approx(-0.5)  # 0 together, expected 2/3, most 2
    assert index([0, 0, 0, 0], [0, 0, 1, 1]) == 0.0  # everybody in one cluster tells nothing
    assert index([0, 0, 0], [0, 0, 0]) == 1.0
    assert index([0, 1, 2], [0, 1, 2]) == 1.0
    assert math.isnan(adjusted_rand(np.array([0, 1]), np.array([0, 0]), 2, 0))


def test_random_partitions_agree_as_chance_does(rng):
    found = [index(rng.integers(4, size=100).tolist(), [i % 4 for i in range(100)]) for _ in range(200)]
    assert np.mean(found) == pytest.approx(0.0, abs=0.01)


def test_bytes_of_a_client_by_hand():
    ifca, oracle = METHODS["ifca"], METHODS["oracle"]
    assert client_bytes(plan(), ifca) == (4 * (3 + 4 * 5), 4 * (8 + 1))
    assert client_bytes(plan(min_cluster_size=5), ifca) == (4 * (3 + 4 * 5), 4 * (8 + 2))  # where the coin sent it
    assert client_bytes(plan(private_evaluation=0.25), ifca) == (2 * 4 * (3 + 4 * 5), 4 * (8 + 3))
    assert client_bytes(plan(), oracle) == (4 * (3 + 5), 4 * (8 + 1))
    one = plan(coordinates=Coordinates(8, 0), num_clusters=1)
    assert client_bytes(one, METHODS["fedavg"]) == (4 * 8, 4 * 8)
    assert client_bytes(plan(mechanism="none", noise_multiplier=None), METHODS["local"]) == (0, 0)
    for mechanism, noise in (("identifier", 2.0), ("none", None)):
        assert client_bytes(plan(mechanism=mechanism, noise_multiplier=noise), ifca) == (4 * 23, 4 * 9)


def test_the_expected_norm_of_noise(rng):
    for width in (1, 2, 50):
        drawn = np.linalg.norm(3.0 * rng.standard_normal((20_000, width)), axis=1).mean()
        assert expected_norm(3.0, width) == pytest.approx(drawn, rel=0.02)
    assert expected_norm(1.0, 2) == pytest.approx(math.sqrt(math.pi / 2))
    assert expected_norm(1.0, 0) == 0.0


def test_signal_to_noise_by_hand():
    """By sums of messages under joint, by single reports under identifier."""
    updates, ids = np.zeros((3, 8)), np.arange(3)
    updates[0, 3], updates[1, 3], updates[2, 0] = 30.0, 0.5, 0.25  # the first is clipped to 1
    chosen = Reports(updates, np.array([2, 2, 1]), client_ids=ids)
    joint_plan, identifier_plan = plan(), plan(mechanism="identifier")
    moved = replace(chosen, destinations=np.array([0, 2, 1]))
    for used, collected in ((joint_plan, summed(joint_plan, chosen)), (identifier_plan, chosen)):
        shared, clustered = signal_to_noise(collected, plan=used)
        noise = used.mechanism.noise_std
        assert clustered == pytest.approx((0, 0, 1.5 / expected_norm(noise, 5), 0), rel=1e-5)
        assert shared == pytest.approx(0.25 / expected_norm(noise, 3), rel=1e-5)
    assert signal_to_noise(summed(joint_plan, moved), plan=joint_plan)[1][0] > 0
    assert signal_to_noise(chosen, plan=plan(mechanism="none", noise_multiplier=None)) == (None, None)


def summed(used, reports):
    return MessageSum(used.mechanism.sum_messages(reports))


def experiment(**changes):
    base = {"data": "synthetic-balanced-easy", "num_clients": 40, "num_rounds": 2, "sample_rate": 0.5, "device": "cpu"}
    return make_experiment(from_flat({**base, "local_epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, **changes}))


def last_record(it):
    parts = {"data": it.data, "model": it.model, "method": it.method, "plan": it.plan, "engine": it.engine}
    return list(simulate(**parts, streams=it.streams, local=it.local, server=it.server, faults=it.faults))[-1]


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_a_round_with_faults_is_measured(mechanism):
    it = experiment(mechanism=mechanism, dropout=0.3, hostile=0.3)
    record = last_record(it)
    found = measure_round(record, plan=it.plan, method=it.method)
    down, up = client_bytes(it.plan, it.method)
    raw = record.collection
    assert 0 < raw.incidents.dropped < it.data.num_clients
    assert found.bytes_up == up * raw.num_reports
    assert found.bytes_down == down * (raw.num_reports + raw.incidents.dropped)
    assert len(found.signal_to_noise) == 4
    assert np.isfinite(found.signal_to_noise).all()


def test_a_secure_run_keeps_no_raw_report_to_measure():
    it = experiment(secure=True, seed=0)
    record = last_record(it)
    assert record.collection.honest is None
    assert record.collection.num_reports == 0
    assert measure_round(record, plan=it.plan, method=it.method) is None


def test_deciles_median_and_clusters_alive(rng):
    it = experiment(data="fashion-mini", num_clients=40, max_samples=20, num_rounds=1)
    models = it.method.init(it.model, num_clusters=4, rng=rng)
    models.clustered[3] = 1e3 * rng.normal(size=models.clustered.shape[1])  # nobody's least loss
    found = evaluate(models, it.data, method=it.method, split=it.split, engine=it.engine)
    assert found.worst_decile <= found.median <= found.best_decile
    assert found.worst_decile <= found.accuracy <= found.best_decile
    assert found.choice_sizes[3] == 0
    assert math.isnan(found.cluster_accuracy[3])
    assert found.clusters_alive == sum(size > 0 for size in found.choice_sizes) <= 3
    weighted = [size * mean for size, mean in zip(found.choice_sizes, found.cluster_accuracy, strict=True) if size]
    assert sum(weighted) / 40 == pytest.approx(found.accuracy)


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_what_hostile_clients_send_is_in_the_release_and_in_no_diagnostic(mechanism):
    honest, attacked = (last_record(experiment(mechanism=mechanism, num_rounds=1, hostile=rate)) for rate in (0, 0.5))
    assert attacked.collection.incidents.hostile > 0
    assert not np.array_equal(attacked.release.cluster_sums, honest.release.cluster_sums)
    it = experiment(mechanism=mechanism, num_rounds=1)
    figures = [measure_round(record, plan=it.plan, method=it.method) for record in (honest, attacked)]
    assert figures[0] == figures[1]


def test_diagnostics_of_a_round_do_not_clip_its_updates_again(monkeypatch):
    clipped, real = [], joint.clip_to_grid
    monkeypatch.setattr(joint, "clip_to_grid", lambda *args, **more: clipped.append(1) or real(*args, **more))
    it = experiment(exploration=0.0)
    record = last_record(it)
    parts = len(clipped)
    assert parts >= it.plan.num_rounds
    assert measure_round(record, plan=it.plan, method=it.method).signal_to_noise
    assert len(clipped) == parts
