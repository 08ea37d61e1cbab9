"""Private selection: what it charges, what it leaves behind, and what it must never show."""

import json
import math
import re

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.cost import folder_cost
from rrcluster.runs import private_selection as module
from rrcluster.runs.private_selection import SelectSettings, candidates, select
from rrcluster.runs.sweep import read_grid

FOLDER = {
    "config.yaml",
    "privacy.json",
    "ledger.jsonl",
    "rounds.jsonl",
    "diagnostics.jsonl",
    "summary.json",
    "models.safetensors",
    *(f"cluster-{cluster}.safetensors" for cluster in range(4)),
}


@pytest.fixture
def settings(tiny, tmp_path):
    del tiny["noise_multiplier"]
    return {
        **tiny,
        "num_rounds": 2,
        "num_clients": 40,
        "delta": 1e-2,
        "epsilon": 8,
        "private_evaluation": 0.25,
        "server_lr": [0.5, 1.0],
        "out": str(tmp_path / "best"),
    }


def grid(settings):
    return read_grid(settings, source="grid.yaml", out="unused")


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_only_the_winner_is_left_and_everything_states_the_cost_of_the_selection(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 3)
    offer = candidates(grid(settings), SelectSettings(mean_repetitions=5))
    folder = select(offer).path
    assert {path.name for path in folder.iterdir()} == FOLDER
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    total = epsilon(offer.selection.event, num_rounds=1, delta=1e-2, accountant="rdp")
    assert total <= 8
    privacy, summary = read(folder, "privacy.json"), read(folder, "summary.json")
    assert privacy["epsilon"] == summary["epsilon"] == pytest.approx(total)
    assert "best of a random number of runs" in privacy["selection"]["what"]
    assert "server_lr: 0.5, 1.0" in privacy["selection"]["settings"]
    assert privacy["initialisation"] == {"init": "independent", "rounds": None}  # what `auto` stood for
    (charge,) = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert charge["event"]["type"] == "RepeatAndSelect"
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [0, 1]
    assert not any("epsilon" in line for line in rounds)  # it was spent before the first round, and privacy.json has it
    single = rr.PrivacyPlan.epsilon(module.replace(offer.experiments[0].plan, selection=None))
    assert single < total
    everything = "".join((folder / name).read_text() for name in FOLDER if not name.endswith(".safetensors"))
    assert f"{single:.4f}" not in everything  # the cost of one run is nowhere passed off as the cost
    assert not re.search(r'"repetitions"|num_repetitions', everything)


def test_the_best_score_wins_whatever_the_order(settings, monkeypatch):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 4)
    offer = candidates(grid(settings), SelectSettings())
    seen = []
    scores = iter([0.3, 0.9, math.nan, 0.4])

    def score(running):
        value = next(scores)
        seen.append((value, running.experiment.config.server.server_lr, running.state.average.clustered))
        return value

    folder = select(module.replace(offer, score=score)).path
    assert np.allclose(rr.load(folder).models.clustered, seen[1][2], atol=1e-6)
    assert len({models.tobytes() for _, _, models in seen}) == 4  # every run has noise of its own
    assert {rate for _, rate, _ in seen} == {0.5, 1.0}


def test_losers_are_gone_as_soon_as_they_lose_and_nobody_else_may_read(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 4)
    offer = candidates(grid(settings), SelectSettings())
    kept, modes = [], []

    def score(running):
        hidden = running.folder.path.parent
        kept.append(len(list(hidden.iterdir())))
        modes.append(hidden.stat().st_mode & 0o077)
        return 0.5

    select(module.replace(offer, score=score))
    assert kept == [1, 2, 2, 2]
    assert modes == [0] * 4


def test_a_crash_leaves_the_charge_and_nothing_else_and_the_same_again_is_charged_once(settings, monkeypatch):
    offer = candidates(grid(settings), SelectSettings())

    def crash(running):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(module.replace(offer, score=crash))
    assert [path.name for path in offer.out.iterdir()] == ["ledger.jsonl"]
    (offer.out / "checkpoint" / "selection-killed").mkdir(parents=True)  # what a kill -9 would leave
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 1)
    folder = select(offer).path
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == FOLDER


def test_it_is_charged_before_the_first_run(settings, monkeypatch):
    offer = candidates(grid(settings), SelectSettings())
    charged = []
    monkeypatch.setattr(
        module, "_repetition", lambda *_: charged.append((offer.out / "ledger.jsonl").read_text()) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        select(offer)
    assert "RepeatAndSelect" in charged[0]


def test_all_runs_have_the_same_clients(settings):
    one, two = candidates(grid(settings), SelectSettings()).experiments
    assert one.data is two.data
    assert one.plan.noise_multiplier == two.plan.noise_multiplier


def test_the_worst_combination_is_charged(settings):
    offer = candidates(grid(settings | {"num_rounds": [1, 2], "sample_rate": [0.25, 0.5]}), SelectSettings())
    assert offer.selection.event.num_rounds == 2
    assert offer.selection.event.run.sample_rate == 0.5
    assert offer.epsilon <= 8
    assert {it.plan.epsilon() for it in offer.experiments} == {offer.epsilon}


def test_given_noise_the_epsilon_follows(settings):
    del settings["epsilon"]
    offer = candidates(grid(settings | {"noise_multiplier": 1.5}), SelectSettings())
    assert offer.selection.event.run.noise_multiplier == 1.5


def test_a_poisoned_calibration_is_found_out(settings, monkeypatch):
    monkeypatch.setattr(module, "calibrate", lambda *args, **kwargs: 0.3)
    with pytest.raises(PrivacyError, match="more than the target 8"):
        candidates(grid(settings), SelectSettings())


REFUSED = {
    "nothing to choose": ({"server_lr": 1.0}, {}, ConfigError, "nothing to select among"),
    "several seeds": ({"seeds": [0, 1]}, {}, ConfigError, "repeats runs by itself"),
    "no score": ({"private_evaluation": 0.0}, {}, PrivacyError, "no private score.*above 0"),
    "over the budget": ({"epsilon": [1, 2]}, {}, PrivacyError, "epsilon cannot be selected privately"),
    "over the data": ({"partition": ["rotation", "rotation-imbalanced"]}, {}, PrivacyError, "partition cannot be"),
    "no privacy": ({"mechanism": "none", "epsilon": None, "private_evaluation": 0}, {}, PrivacyError, "no epsilon"),
    "an impossible combination": ({"min_cluster_size": [0, 20]}, {}, ConfigError, "needs 80 clients"),
    "no room": ({"mechanism": "identifier"}, {}, PrivacyError, "use mechanism = joint"),
    "one repetition": ({}, {"mean_repetitions": 1.0}, ConfigError, "must be more than 1"),
}


@pytest.mark.parametrize(("changes", "how", "kind", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_selected_is_refused_before_anything_is_charged(settings, changes, how, kind, text, tmp_path):
    with pytest.raises(kind, match=text):
        candidates(grid(settings | changes), SelectSettings(**how))
    assert not (tmp_path / "best").exists()


def test_a_folder_with_a_run_is_not_overwritten(settings, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.yaml").write_text("epsilon: 1\n")
    offer = candidates(grid(settings), SelectSettings())
    with pytest.raises(RunFolderError, match="already holds a run"):
        select(offer)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["config.yaml"]


def charges(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def stop(offer):
    def crash(running):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(module.replace(offer, score=crash))


def test_a_selection_with_other_settings_or_versions_is_not_taken_for_the_one_that_was_charged(settings, monkeypatch):
    stop(candidates(grid(settings), SelectSettings()))
    others = candidates(grid(settings | {"local_lr": 0.02}), SelectSettings())
    with pytest.raises(PrivacyError, match="settings have changed since round 0 was charged"):
        select(others)
    (charge,) = charges(others.out)
    assert {"config", "rrcluster", "torch", "machine"} <= set(charge["made_by"])
    monkeypatch.setattr("rrcluster.runs.fingerprint.__version__", "9.9")
    with pytest.raises(PrivacyError, match=r"already charged.*rrcluster"):
        select(candidates(grid(settings), SelectSettings()))
    assert len(charges(others.out)) == 1


def test_two_selections_keep_out_of_each_other_s_way_and_out_of_files_that_are_not_theirs(settings, monkeypatch):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 1)
    offer = candidates(grid(settings), SelectSettings())
    (offer.out / ".selection-mine").mkdir(parents=True)

    def second(running):
        with pytest.raises(RunFolderError, match="in use by another process"):
            select(offer)
        assert running.folder.path.exists()
        return 0.5

    folder = select(module.replace(offer, score=second)).path
    assert {path.name for path in folder.iterdir()} == {*FOLDER, ".selection-mine"}
    assert len(charges(folder)) == 1


@pytest.fixture
def secure(settings):
    del settings["evaluate_every"]
    return settings | {"secure": True}


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_a_secure_selection_leaves_a_secure_run_charged_once(secure, law, monkeypatch):
    seen = []
    draw = module.draw_repetitions
    monkeypatch.setattr(
        module, "draw_repetitions", lambda event, *, rng: seen.append(rng) or min(2, draw(event, rng=rng))
    )
    folder = select(candidates(grid(secure), SelectSettings(mean_repetitions=2, law=law))).path
    assert {path.name for path in folder.iterdir()} == FOLDER - {"diagnostics.jsonl"}
    assert [type(rng).__name__ for rng in seen] == ["SecureRng"]
    told = read(folder, "privacy.json")
    assert told["secure"]
    assert told["artefacts"].startswith("Releases with exact noise")
    assert read(folder, "summary.json")["seed"] is None
    assert len(charges(folder)) == 1
    assert folder_cost(folder).epsilon == told["epsilon"] <= 8


def test_a_secure_selection_that_was_stopped_is_charged_again_and_never_passes_the_target(secure, monkeypatch):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 1)
    offer = candidates(grid(secure), SelectSettings())
    stop(offer)
    with pytest.raises(PrivacyError, match=r"1 selections were charged here and stopped.*more than the target 8"):
        select(offer)
    del secure["epsilon"]
    given = candidates(grid(secure | {"noise_multiplier": 3.0, "out": str(offer.out) + "-2"}), SelectSettings())
    stop(given)
    folder = select(given).path
    assert len(charges(folder)) == 2
    twice = epsilon(given.selection.event, num_rounds=2, delta=1e-2, accountant="rdp")
    assert read(folder, "summary.json")["epsilon"] == folder_cost(folder).epsilon == pytest.approx(twice)
    assert twice > given.epsilon
