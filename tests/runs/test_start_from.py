"""A run that starts from the models of another one, and what both cost together."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.composition import account_runs
from rrcluster.privacy.cost import folder_cost
from rrcluster.report import make_report
from rrcluster.runs import experiment
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start

TINY = {"data": "fashion-mini", "num_clients": 60, "max_samples": 20, "sample_rate": 0.5}
TINY |= {"local_epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, "device": "cpu", "evaluate_every": 2}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished private run."""
    return rr.run(
        **TINY | {"num_rounds": 2, "model": "edges-coarse"}, out=str(tmp_path_factory.mktemp("first") / "run")
    ).folder


def settings(tiny, first, **changes):
    return tiny | {"num_rounds": 2, "model": "edges-coarse", "start_from": str(first)} | changes


def test_the_first_models_are_the_other_runs_and_the_statement_adds_both_up(tiny, first, tmp_path):
    made = make_experiment(from_flat(settings(tiny, first, noise_multiplier=2.0)))
    released = load_file(first / "models.safetensors")
    assert np.array_equal(made.start.models.clustered, released["clustered"].astype(float))
    folder = finish(start(made)).folder
    stated = json.loads((folder / "privacy.json").read_text())
    together = account_runs([first, folder])
    assert stated["started_from"]["epsilon_together"] == together.epsilon
    assert stated["epsilon"] < together.epsilon
    assert "together" in stated["notes"][0]
    assert stated["risk_in_words"].startswith("Somebody who sees all that this run alone released, knows")
    page = make_report([folder], tmp_path / "report").page.read_text()
    printed = re.search(r"epsilon = ([0-9.]+) at delta = 0.001 together", page)
    assert together.epsilon <= float(printed[1]) < together.epsilon + 0.01  # two decimals, never below
    assert together.runs[1].started_from == str(first)
    third = make_experiment(from_flat(settings(tiny, folder, out=str(tmp_path / "third"))))
    assert [count for _, count in third.start.parts] == [2, 2]
    assert third.start.describe(third.plan)["epsilon_together"] > together.epsilon


def test_a_stopped_run_goes_on_and_other_start_models_are_refused(tiny, first, tmp_path):
    copy = tmp_path / "first"
    shutil.copytree(first, copy)
    running = start(make_experiment(from_flat(settings(tiny, copy, num_rounds=3))))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    whole = finish(resume(tmp_path / "run")).models
    straight = rr.run(**settings(tiny, copy, num_rounds=3, out=str(tmp_path / "straight"))).models
    assert np.array_equal(whole.clustered, straight.clustered)

    again = start(make_experiment(from_flat(settings(tiny, copy, num_rounds=3, out=str(tmp_path / "killed")))))
    again._ledger.charge(0, again.experiment.plan.event)  # killed before the first checkpoint
    again.folder.release()
    moved = {name: values + 1 for name, values in load_file(copy / "models.safetensors").items()}
    from safetensors import safe_open

    with safe_open(copy / "models.safetensors", framework="np") as file:
        save_file(moved, copy / "models.safetensors", metadata=file.metadata())
    with pytest.raises(PrivacyError, match=r"different setup .*start"):
        finish(resume(tmp_path / "killed"))


def test_starts_that_the_statement_could_not_build_on_are_refused(tiny, first, tmp_path):
    for changes, kind, reason in (
        ({"algorithm": "fedavg"}, ConfigError, "trained 4 models by ifca, and this run trains 1 by fedavg"),
        ({"num_clusters": 3}, ConfigError, "use the same method and num_clusters"),
        ({"model": "edges"}, ConfigError, "where the run trained"),
        ({"mechanism": "identifier"}, PrivacyError, "different neighbouring relations"),
        ({"secure": True, "evaluate_every": None}, PrivacyError, "a secure run cannot build on it"),
        ({"init": "survey"}, ConfigError, "leave one out"),
        ({"start_from": str(tmp_path / "nothing")}, RunFolderError, "no models"),
    ):
        with pytest.raises(kind, match=reason):
            rr.run(**settings(tiny, first, **changes))
    assert not (tmp_path / "run").exists()


def test_a_start_among_members_is_under_another_relation(tiny, first, monkeypatch):
    """The event of a secure federation is that of add-remove, and what it states is zero-out."""
    cost = replace(folder_cost(first), adjacency="zero-out")
    monkeypatch.setattr(experiment, "folder_cost", lambda _: cost)
    with pytest.raises(PrivacyError, match="different neighbouring relations"):
        make_experiment(from_flat(settings(tiny, first)))


@pytest.mark.parametrize(
    ("file", "edit", "found"),
    [
        ("summary.json", lambda told: told | {"sizes": ["many", {}]}, "sizes that are not numbers"),
        ("privacy.json", lambda told: told | {"noise": {"count_weight": 0.1}}, "states no noise_std"),
    ],
)
def test_a_damaged_start_is_named_before_anything_is_spent(tiny, first, tmp_path, file, edit, found):
    copy = shutil.copytree(first, tmp_path / "first")
    (copy / file).write_text(json.dumps(edit(json.loads((copy / file).read_text()))))
    with pytest.raises(RunFolderError, match=found):
        rr.run(**settings(tiny, copy))
    assert not (tmp_path / "run").exists()


def test_raw_models_are_no_start_for_a_private_run(tiny, first, tmp_path):
    raw = {name: value for name, value in tiny.items() if name != "noise_multiplier"}
    raw |= {"mechanism": "none", "model": "edges-coarse", "num_rounds": 1}
    none = rr.run(**raw | {"out": str(tmp_path / "none")}).folder
    with pytest.raises(PrivacyError, match="a run without privacy: its models are raw"):
        rr.run(**settings(tiny, none))
    follow = rr.run(**raw | {"start_from": str(first)}).folder  # without privacy anything goes, and says so
    assert not json.loads((follow / "privacy.json").read_text())["private"]
