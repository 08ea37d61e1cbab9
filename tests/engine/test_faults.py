"""Clients that drop out, lie or never come: the round completes, and costs what it always costs."""

import json

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.data.synthetic import linear_regression
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports, check_reports
from rrcluster.rng import Streams, stream
from rrcluster.settings import FaultSettings, LocalSettings
from rrcluster.simulation.clients import ATTACKS, Faults, Incidents
from rrcluster.simulation.simulate import simulate

K, CLIENTS = 3, 60
MECHANISMS = {
    "joint": {"mechanism": "joint", "noise_multiplier": 0.5},
    "joint with coins": {"mechanism": "joint", "noise_multiplier": 0.5, "min_cluster_size": 5},
    "identifier": {"mechanism": "identifier", "noise_multiplier": 0.5, "min_cluster_size": 5},
    "kary": {"mechanism": "identifier", "noise_multiplier": 0.5, "identifier": "kary"},
    "none": {"mechanism": "none", "min_cluster_size": 5},
}


@pytest.fixture(scope="module")
def data():
    return linear_regression(num_clients=CLIENTS, rng=stream(0, "partition"), ratio=(1, 1, 1), dimension=4).data


def plan_of(**settings):
    return PrivacyPlan.build(
        coordinates=METHODS["ifca"].split(make_model("linear", input_shape=(4,), num_classes=0)).coordinates,
        num_clusters=K,
        num_clients=CLIENTS,
        sample_rate=0.5,
        num_rounds=4,
        update_clip=1.0,
        delta=1e-3,
        **settings,
    )


def rounds(data, plan, *, faults=None, engine=BatchedEngine, ledger=None, seed=0):
    model = make_model("linear", input_shape=data.input_shape, num_classes=0)
    return list(
        simulate(
            data=data,
            model=model,
            method=METHODS["ifca"],
            plan=plan,
            engine=engine(model),
            streams=Streams(seed),
            local=LocalSettings(0.05, 1, 20),
            ledger=ledger,
            faults=faults,
        )
    )


def finite(record):
    release, models = record.release, record.state.models
    parts = (release.cluster_sums, release.sizes, release.denominators, release.cluster_means, models.clustered)
    return all(np.isfinite(part).all() for part in parts)


@pytest.mark.parametrize("settings", MECHANISMS.values(), ids=MECHANISMS.keys())
@pytest.mark.parametrize(
    "faults",
    [
        Faults(FaultSettings(0.5)),
        Faults(FaultSettings(1.0)),
        Faults(FaultSettings(0.0, 1.0)),
        Faults(FaultSettings(0.3, 0.5)),
    ],
    ids=str,
)
def test_every_round_completes_and_costs_the_same(data, settings, faults):
    plan, ledger, plain = plan_of(**settings), Ledger(), Ledger()
    records = rounds(data, plan, faults=faults, ledger=ledger)
    rounds(data, plan, ledger=plain)
    assert len(records) == plan.num_rounds
    assert all(finite(record) for record in records)
    assert ledger._charges == plain._charges  # the same rounds at the same cost: no retries, no substitutes


@pytest.mark.parametrize("engine", [BatchedEngine, ReferenceEngine])
def test_when_everybody_drops_out_every_round_is_noise_alone(data, engine):
    (first, *_) = rounds(data, plan_of(**MECHANISMS["joint"]), faults=Faults(FaultSettings(dropout=1.0)), engine=engine)
    assert first.collection.incidents.dropped > 0
    noise = stream(0, "release", 0).standard_normal(K * (5 + 1)) * plan_of(**MECHANISMS["joint"]).mechanism.noise_std
    assert np.allclose(first.release.cluster_sums.ravel(), noise[: K * 5])


def test_rate_zero_changes_nothing(data):
    one, two = (
        rounds(data, plan_of(**MECHANISMS["joint"])),
        rounds(data, plan_of(**MECHANISMS["joint"]), faults=Faults()),
    )
    assert (one[-1].state.models.clustered == two[-1].state.models.clustered).all()
    assert two[-1].collection.incidents == Incidents()


def test_who_drops_out_depends_on_nobody_else():
    """Keyed by client id: the same client drops out in any cohort, at a higher rate too, and not in every round."""
    faults, streams, everybody = Faults(FaultSettings(dropout=0.5)), Streams(3), np.arange(2000)
    stay = set(faults.remaining(everybody, streams=streams, round_index=1).tolist())
    assert 900 < len(stay) < 1100
    some = everybody[::3]
    assert set(faults.remaining(some, streams=streams, round_index=1).tolist()) == stay & set(some.tolist())
    stricter = set(Faults(FaultSettings(dropout=0.9)).remaining(everybody, streams=streams, round_index=1).tolist())
    assert stricter < stay
    assert set(faults.remaining(everybody, streams=streams, round_index=2).tolist()) != stay


def test_dropping_out_before_or_after_training_is_the_same_to_the_server(data):
    """The simulator drops clients before it trains them; a report lost on the way makes the same release."""
    plan, gone = plan_of(**MECHANISMS["joint"]), Faults(FaultSettings(dropout=0.5))
    (before, *_) = rounds(data, plan, faults=gone)

    class Late(BatchedEngine):
        """Trains everybody, then loses the reports of those who drop out."""

        def train(self, calls):
            clients = [call.cohort.clients for call in calls]
            stay = [np.isin(ids, gone.remaining(ids, streams=Streams(0), round_index=0)) for ids in clients]
            return [np.where(kept[:, None], one, np.nan) for kept, one in zip(stay, super().train(calls), strict=True)]

    (after, *_) = rounds(data, plan, engine=Late)
    assert np.allclose(before.release.cluster_sums, after.release.cluster_sums, atol=1e-6)
    assert np.allclose(before.release.sizes, after.release.sizes)


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_spoils_at_most_its_own_report(name):
    honest = Reports(np.full((3, 2), 0.25), np.array([0, 1, 2]), None, np.array([5, 6, 7]))
    update, choice = honest.updates[1], honest.choices[1]
    bad = ATTACKS[name](update, choice, K)
    updates = [honest.updates[0], *(row for row, _ in bad), honest.updates[2]]
    choices = [0, *(cluster for _, cluster in bad), 2]
    reports = check_reports(Reports(updates, choices, client_ids=[5, *[6] * len(bad), 7]), width=2, num_clusters=K)
    usable = name in ("norm 1e30", "duplicate")
    assert reports.valid.tolist() == [True, usable, True]
    assert np.isfinite(reports.updates).all()


def test_a_hostile_client_moves_a_release_by_no_more_than_an_honest_one(data):
    """Under joint the sums differ from those of the honest run by at most S per hostile client."""
    quiet = plan_of(mechanism="joint", noise_multiplier=0.011)
    (honest, *_), (attacked, *_) = rounds(data, quiet), rounds(data, quiet, faults=Faults(FaultSettings(hostile=0.4)))
    distance = np.linalg.norm(attacked.release.cluster_sums - honest.release.cluster_sums)
    assert 0 < distance <= 2 * attacked.collection.incidents.hostile * quiet.mechanism.update_clip


def test_a_second_report_does_not_stop_a_fixed_size_round(rng):
    """Regression: m reports and one duplicate were taken for a cohort of m + 1, and the round raised."""
    plan = plan_of(**MECHANISMS["identifier"])
    ids = [*range(30), 0]
    release = rr.release(np.ones((31, 5)), [0] * 31, plan=plan, rng=rng, client_ids=ids)
    assert release.sizes.sum() == 30


@pytest.mark.parametrize("settings", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_a_whole_cluster_gone_is_still_released(settings, rng):
    plan = plan_of(**settings)
    moved = [0] * 30 if plan.mechanism.flips_coins else None
    release = rr.release(np.ones((30, 5)), [0] * 30, plan=plan, rng=rng, destinations=moved)
    assert release.cluster_means.shape == (K, 5)
    assert np.isfinite(release.cluster_means).all()


def test_rates_are_checked():
    for bad in (-0.1, 1.1, float("nan"), True, "half"):
        with pytest.raises(ConfigError, match="dropout"):
            FaultSettings(dropout=bad)


def test_a_run_states_the_same_epsilon_and_counts_failures_as_diagnostics_only(tmp_path):
    settings = {
        "data": "synthetic",
        "num_clients": 60,
        "num_rounds": 4,
        "sample_rate": 0.5,
        "local_epochs": 1,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "evaluate_every": 4,
        "device": "cpu",
    }
    whole = rr.run(**settings, out=str(tmp_path / "whole"))
    half = rr.run(**settings, dropout=0.5, hostile=0.3, out=str(tmp_path / "half"))
    assert half.epsilon == whole.epsilon
    assert (tmp_path / "half" / "privacy.json").read_text() == (tmp_path / "whole" / "privacy.json").read_text()
    charges = [(tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("half", "whole")]
    events = [[json.loads(line)["event"] for line in lines] for lines in charges]
    assert events[0] == events[1]
    told = json.loads((tmp_path / "half" / "diagnostics.jsonl").read_text())
    assert told["dropped"] > 0
    assert told["hostile"] > 0
    for name in ("rounds.jsonl", "summary.json"):
        text = (tmp_path / "half" / name).read_text()
        assert "dropped" not in text
        assert "hostile" not in text
    assert "seconds" not in (tmp_path / "half" / "rounds.jsonl").read_text()
