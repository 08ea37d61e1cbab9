"""Secure runs: no seed, no diagnostics, nothing on disk that would let the noise be regenerated."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import rrcluster as rr
from rrcluster import entropy
from rrcluster.errors import ConfigError, NotDeclared, PrivacyError, RunFolderError
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import build_experiment, make_experiment, processes_for
from rrcluster.runs.fingerprint import describe_parts, fingerprint
from rrcluster.runs.run import finish, resume, start


@pytest.fixture
def secure(tiny):
    """Settings of a secure run that takes a second."""
    del tiny["evaluate_every"]
    return tiny | {"secure": True}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def windows(folder):
    """Every run of eight bytes in every file of a folder, as whole numbers, and all the text as one."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
            for offset in range(8):
                whole = content[offset : offset + (len(content) - offset) // 8 * 8]
                yield from np.frombuffer(whole.tobytes(), dtype=np.uint64).tolist()


def test_nothing_that_was_drawn_is_on_disk(secure, tmp_path, monkeypatch):
    """Every word the operating system gave is looked for in every file, also in the checkpoint that is kept here."""
    drawn, real = [], entropy.os.urandom
    monkeypatch.setattr(entropy.os, "urandom", lambda count: drawn.append(real(count)) or drawn[-1])
    rr.run(**secure, keep_checkpoint=True)
    words = {word for content in drawn for word in np.frombuffer(content[: len(content) // 8 * 8], "<u8").tolist()}
    assert len(words) > 100_000
    found = words & set(windows(tmp_path / "run"))
    assert len(found) <= 1, found  # chance: about 1e6 windows x 1e6 words / 2^64
    text = " ".join(path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix in (".json", ".jsonl"))
    assert not any(str(word) in text for word in list(words)[:2000])


def test_the_noise_is_not_on_disk(secure, tmp_path, monkeypatch):
    from rrcluster.privacy import sums

    drawn, real = [], sums.discrete_gaussian
    monkeypatch.setattr(sums, "discrete_gaussian", lambda *args: drawn.append(real(*args)) or drawn[-1])
    rr.run(**secure, keep_checkpoint=True)
    noise = set(np.concatenate(drawn).astype(np.int64).view(np.uint64).tolist())
    assert len(noise) > 4 * 4 * 4000, "rounds, models and their parameters"
    by_chance = noise & set(windows(tmp_path / "run"))  # 6e-4 are expected: small whole numbers are in every file
    assert len(by_chance) <= 3  # four: once in 10^14 runs


def test_a_secure_folder_says_so_and_holds_no_seed_times_or_diagnostics(secure, tmp_path):
    result = rr.run(**secure)
    folder = tmp_path / "run"
    assert result.evaluation is None
    assert {path.name for path in folder.iterdir()} == {
        *("config.yaml", "privacy.json", "ledger.jsonl", "rounds.jsonl", "summary.json", "models.safetensors"),
        *(f"cluster-{cluster}.safetensors" for cluster in range(4)),
    }
    assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] is None
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seed"] is None
    assert "seconds" not in summary
    assert summary["secure"]
    assert all("seconds" not in line for line in lines(folder / "rounds.jsonl"))
    told = json.loads((folder / "privacy.json").read_text())
    assert told["secure"]
    assert "NOT PRIVATE" not in told["artefacts"]
    assert "no seed was used" in told["artefacts"]
    assert any("discrete Gaussian" in note for note in told["notes"])
    assert not any("floating-point Gaussian" in note for note in told["notes"])
    assert any("How long a round took" in gap for gap in told["not_covered"])
    assert from_flat(yaml.safe_load((folder / "config.yaml").read_text())).privacy.secure


def test_a_seeded_folder_is_marked(tiny, tmp_path):
    rr.run(**tiny)
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert told["artefacts"].startswith("NOT PRIVATE")
    assert not told["secure"]


@pytest.mark.parametrize("mechanism", ["joint", "identifier"])
def test_two_secure_runs_differ_in_everything_random(secure, tmp_path, mechanism):
    runs = [rr.run(**(secure | {"out": str(tmp_path / name), "mechanism": mechanism})) for name in ("a", "b")]
    first, second = (run.models.clustered for run in runs)
    assert not np.isclose(first, second).any(axis=None) or np.isclose(first, second).mean() < 0.01
    sizes = [[line["sizes"] for line in lines(tmp_path / name / "rounds.jsonl")] for name in ("a", "b")]
    assert sizes[0] != sizes[1] or mechanism == "identifier"  # whole numbers there, which may be equal by chance


def test_a_secure_run_stopped_by_hand_repeats_nothing(secure, tmp_path):
    running = start(make_experiment(from_flat(secure)))
    rounds = running.rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    result = finish(resume(tmp_path / "run"))
    assert [line["round"] for line in lines(tmp_path / "run" / "ledger.jsonl")] == [0, 1, 2, 3]
    assert result.epsilon == pytest.approx(running.experiment.plan.epsilon())


def lose_the_last_round(secure, tmp_path, monkeypatch):
    """Two rounds, the second of which was charged and released but not checkpointed: what a kill leaves."""
    running = start(make_experiment(from_flat(secure)))
    rounds = running.rounds()
    next(rounds)
    checkpoint = tmp_path / "run" / "checkpoint" / "state.safetensors"
    saved = checkpoint.read_bytes()
    next(rounds)
    lost = running.state
    rounds.close()
    checkpoint.write_bytes(saved)
    return lost


def test_a_repeated_secure_round_is_a_new_release_and_charged_again(secure, tmp_path, monkeypatch):
    lost = lose_the_last_round(secure, tmp_path, monkeypatch)
    running = resume(tmp_path / "run")
    rounds, before = running.rounds(), running.state.models.clustered
    assert next(rounds).round_index == 1
    moves = [(state.models.clustered - before).ravel() for state in (running.state, lost)]
    assert abs(np.corrcoef(*moves)[0, 1]) < 0.1  # nearly all of a move is noise, and that is fresh
    rounds.close()
    result = finish(resume(tmp_path / "run"))
    assert [line["round"] for line in lines(tmp_path / "run" / "ledger.jsonl")] == [0, 1, 1, 2]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds_done"], summary["releases_charged"], summary["ended_by"]) == (3, 4, "budget")
    assert result.epsilon == pytest.approx(json.loads((tmp_path / "run" / "privacy.json").read_text())["epsilon"])
    assert len(lines(tmp_path / "run" / "rounds.jsonl")) == 3


def test_a_reserve_pays_for_the_repeat(secure, tmp_path, monkeypatch):
    lose_the_last_round(secure | {"reserve_rounds": 2}, tmp_path, monkeypatch)
    finish(resume(tmp_path / "run"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds_done"], summary["releases_charged"], summary["ended_by"]) == (4, 5, "rounds")
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert summary["epsilon"] == told["epsilon"]  # one of the two in reserve was not needed; the plan had it
    assert any("covers 6 releases: 4 rounds, and 2" in note for note in told["notes"])


def test_the_reserve_is_calibrated_in():
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.types import Coordinates

    common = {"coordinates": Coordinates(0, 5), "num_clusters": 2, "num_clients": 1000, "sample_rate": 0.1}
    common |= {"update_clip": 1.0, "epsilon": 3.0}
    with_reserve = PrivacyPlan.build(**common, num_rounds=10, reserve_rounds=10, secure=True)
    twice = PrivacyPlan.build(**common, num_rounds=20)
    assert with_reserve.noise_multiplier == twice.noise_multiplier
    assert with_reserve.epsilon() == twice.epsilon() <= 3.0


def test_a_run_whose_budget_was_spent_before_any_round_was_kept_says_so(secure, tmp_path):
    running = start(make_experiment(from_flat(secure)))
    for _ in range(4):
        running._ledger.charge(0, running.experiment.plan.event)
    with pytest.raises(PrivacyError, match="budget of 4 releases is spent and no round was kept"):
        finish(running)


def test_a_ceiling_stops_before_the_round_that_would_pass_it(tiny, tmp_path):
    plan = start(make_experiment(from_flat(tiny | {"out": str(tmp_path / "other")}))).experiment.plan
    ceiling = plan.epsilon(num_rounds=3) * 1.0001
    result = rr.run(**tiny, max_epsilon=ceiling)
    assert result.epsilon == pytest.approx(plan.epsilon(num_rounds=3))
    assert result.epsilon <= ceiling
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds_done"], summary["ended_by"], summary["status"]) == (3, "budget", "finished")
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert told["epsilon"] == summary["epsilon"]
    assert any("covers 3 releases, after which max_epsilon ends the run" in note for note in told["notes"])
    assert [line["round"] for line in lines(tmp_path / "run" / "diagnostics.jsonl")] == [1, 2]


def test_a_ceiling_below_one_round_writes_nothing(tiny, tmp_path):
    with pytest.raises(PrivacyError, match="is less than one round costs"):
        rr.run(**tiny, max_epsilon=1e-3)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_run_by_one_process_at_a_time(tiny, tmp_path):
    running = start(make_experiment(from_flat(tiny)))
    with pytest.raises(RunFolderError, match="in use by another process"):
        resume(tmp_path / "run")
    code = "import sys, pathlib; from rrcluster.runs.run import resume; resume(pathlib.Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, timeout=120)
    assert "in use by another process" in other.stderr
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    with pytest.raises(RunFolderError, match="was stopped; continue it"):
        next(running.rounds())
    finish(resume(tmp_path / "run"))


def test_a_lock_dies_with_its_process(tiny, tmp_path):
    code = (
        "import json, os, sys; from rrcluster.runs.config import from_flat; "
        "from rrcluster.runs.run import start; from rrcluster.runs.experiment import make_experiment; "
        "start(make_experiment(from_flat(json.loads(sys.argv[1])))); os.kill(os.getpid(), 9)"
    )
    settings = json.dumps(tiny | {"sample_rate": 1.0})  # accounted in closed form, in both processes
    died = subprocess.run([sys.executable, "-c", code, settings], timeout=120)
    assert died.returncode == -9
    assert (tmp_path / "run" / "checkpoint" / "lock").exists()
    finish(resume(tmp_path / "run"))


def lost_seeded_round(tiny, monkeypatch, tmp_path):
    running = start(make_experiment(from_flat(tiny)))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    (tmp_path / "run" / "checkpoint" / "state.safetensors").unlink()


def test_a_seeded_round_is_not_repeated_by_another_version(tiny, tmp_path, monkeypatch):
    lost_seeded_round(tiny, monkeypatch, tmp_path)
    monkeypatch.setattr("rrcluster.runs.fingerprint.__version__", "9.9")
    with pytest.raises(PrivacyError, match=r"round 0 was already charged. .*different setup \(rrcluster: "):
        finish(resume(tmp_path / "run"))


def test_another_version_may_go_on_where_nothing_is_repeated(tiny, tmp_path, monkeypatch):
    running = start(make_experiment(from_flat(tiny)))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    monkeypatch.setattr("rrcluster.runs.fingerprint.__version__", "9.9")
    finish(resume(tmp_path / "run"))
    assert [line["made_by"]["rrcluster"] for line in lines(tmp_path / "run" / "ledger.jsonl")][1:] == ["9.9"] * 3


@pytest.mark.parametrize("mode", ["seeded", "secure"])
def test_changed_settings_are_refused(tiny, tmp_path, mode):
    if mode == "secure":
        del tiny["evaluate_every"]
        tiny["secure"] = True
    running = start(make_experiment(from_flat(tiny)))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("local_epochs: 1", "local_epochs: 2"))
    with pytest.raises(PrivacyError, match="settings have changed since round 0 was charged"):
        resume(tmp_path / "run")


REFUSED = {
    "a seed": ({"seed": 3}, "takes no seed"),
    "seeds": ({"seeds": [1, 2]}, "takes no seed"),
    "evaluation": ({"evaluate_every": 2}, "evaluates models on raw client data"),
    "no noise": ({"mechanism": "none", "noise_multiplier": None}, "secure and reserve_rounds do not apply"),
    "a reserve below zero": ({"reserve_rounds": -1}, "reserve_rounds = -1"),
    "a ceiling of zero": ({"max_epsilon": 0}, "max_epsilon = 0"),
}


@pytest.mark.parametrize(("changes", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_secure_cannot_keep_is_refused(secure, tmp_path, changes, text):
    with pytest.raises(ConfigError, match=text):
        rr.run(**(secure | changes))
    assert not (tmp_path / "run").exists()


def test_only_secure_goes_without_a_seed(tiny):
    with pytest.raises(ConfigError, match="only secure = true"):
        from_flat(tiny | {"seed": None})
    with pytest.raises(ConfigError, match="max_epsilon does not apply"):
        from_flat({"mechanism": "none", "max_epsilon": 3.0})


def test_a_killed_process_between_the_models_and_the_end_leaves_no_checkpoint(tiny, tmp_path, monkeypatch):
    from rrcluster.runs.folder import RunFolder

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "drop_checkpoint", lambda self: None)
        rr.run(**tiny)
    assert (tmp_path / "run" / "checkpoint").exists()
    with pytest.raises(RunFolderError, match="this run has finished"):
        resume(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert load_file(tmp_path / "run" / "models.safetensors")


def table_of(clients, rows):
    """Numbers, text and classes of so many clients, each with so many rows."""
    rng, count = np.random.default_rng(clients), clients * rows
    columns = {"who": [f"c{place // rows}" for place in range(count)], "a": rng.normal(size=count).tolist()}
    return columns | {"b": ["1", "x"] * (count // 2), "y": ["no", "yes"] * (count // 2)}


@pytest.mark.parametrize("algorithm", ["mixed-effects", "ifca"])
def test_what_is_public_of_a_secure_run_follows_from_settings_alone(algorithm):
    """Whoever the clients are, and however many rows they have: questions, survey, noise and statement are the same."""
    about = {"client": "who", "target": "y", "classes": ["no", "yes"], "types": {"a": "number"}, "secure": True}
    about |= {"features": ["a", "b"], "num_clients": 5000, "noise_multiplier": 1.0, "device": "cpu"}
    if algorithm == "ifca":
        about |= {"categories": {"b": ["x", *map(str, range(60))]}, "sample_rate": 0.5, "num_rounds": 100}
    made = [
        build_experiment(data=table_of(*shape), algorithm=algorithm, **about) for shape in ((4, 2), (400, 2), (30, 60))
    ]
    first = made[0]
    assert first.server.init == ("survey" if algorithm == "ifca" else "independent")
    for other in made[1:]:
        assert other.statement() == first.statement()
        assert other.server == first.server
        assert other.method.form(other.model) == first.method.form(first.model)
        assert processes_for(other) == processes_for(first)
        assert other.config.flat() == first.config.flat()
        assert fingerprint(other.config, other.engine) == fingerprint(first.config, first.engine)
        assert describe_parts(other) == describe_parts(first)
        assert other.engine.part == first.engine.part


def test_a_secure_run_says_nothing_of_cells_that_no_rule_names():
    """How many there are is counted in raw rows: a rehearsal warns of them."""
    about = {"client": "who", "target": "y", "classes": ["no", "yes"], "types": {"a": "number"}, "delta": 1e-3}
    about |= {"categories": {"b": ["1", "z"]}, "algorithm": "ifca", "noise_multiplier": 1.0, "num_clients": 40}
    with pytest.warns(NotDeclared, match="'b': 50"):
        build_experiment(data=table_of(40, 2), **about)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotDeclared)
        build_experiment(data=table_of(40, 2), secure=True, **about)
