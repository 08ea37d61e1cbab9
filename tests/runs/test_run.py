import json
import stat

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import rrcluster as rr
from rrcluster.data.arrays import at_most
from rrcluster.data.build import load_federated
from rrcluster.errors import ConfigError, DataError, PrivacyError, RunFolderError
from rrcluster.report.folders import read_run
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start
from rrcluster.storage import append_json


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_the_folder_it_promises(tiny, tmp_path):
    result = rr.run(**tiny)
    folder = tmp_path / "run"
    assert result.folder == folder
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml",
        "privacy.json",
        "ledger.jsonl",
        "rounds.jsonl",
        "diagnostics.jsonl",
        "summary.json",
        "models.safetensors",
        *(f"cluster-{cluster}.safetensors" for cluster in range(4)),
    }
    assert from_flat(yaml.safe_load((folder / "config.yaml").read_text())) == from_flat(tiny)
    assert [line["round"] for line in lines(folder / "rounds.jsonl")] == [0, 1, 2, 3]
    assert [line["round"] for line in lines(folder / "ledger.jsonl")] == [0, 1, 2, 3]
    assert [line["round"] for line in lines(folder / "diagnostics.jsonl")] == [1, 3]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["rounds_done"] == 4
    assert summary["epsilon"] == pytest.approx(result.epsilon)
    assert json.loads((folder / "privacy.json").read_text())["epsilon"] == pytest.approx(result.epsilon)


def test_public_files_hold_released_values_only(tiny, tmp_path):
    rr.run(**tiny)
    for name in ("rounds.jsonl", "summary.json", "privacy.json", "ledger.jsonl"):
        text = (tmp_path / "run" / name).read_text()
        for word in ("accuracy", "loss", "choice_sizes", "clustering", "norm"):
            assert f'"{word}' not in text, f"{name} holds {word}"


def test_without_privacy_nothing_claims_an_epsilon(tiny, tmp_path):
    del tiny["noise_multiplier"]
    result = rr.run(**tiny, mechanism="none")
    assert result.epsilon is None
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epsilon"] is None
    assert not json.loads((tmp_path / "run" / "privacy.json").read_text())["private"]


def test_a_stopped_run_resumes_to_the_same_models(tiny, tmp_path):
    whole = rr.run(**tiny)
    config = from_flat(tiny | {"out": str(tmp_path / "stopped")})
    running = start(make_experiment(config))
    rounds = running.rounds()
    next(rounds)
    next(rounds)
    with pytest.raises(KeyboardInterrupt):
        rounds.throw(KeyboardInterrupt())
    folder = tmp_path / "stopped"
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    assert stat.S_IMODE((folder / "checkpoint").stat().st_mode) == 0o700
    assert not (folder / "models.safetensors").exists()
    resumed = finish(resume(folder))
    assert (resumed.models.clustered == whole.models.clustered).all()
    assert len(lines(folder / "ledger.jsonl")) == 4
    assert [line["round"] for line in lines(folder / "rounds.jsonl")] == [0, 1, 2, 3]
    assert not (folder / "checkpoint").exists()


def test_a_round_lost_after_its_charge_is_run_again_and_charged_once(tiny, tmp_path):
    """A crash between checkpoints: the ledger and rounds.jsonl are ahead of the checkpoint."""
    whole = rr.run(**tiny)
    config = from_flat(tiny | {"out": str(tmp_path / "crashed")})
    running = start(make_experiment(config))
    rounds = running.rounds()
    next(rounds)
    running.folder.save_state(running.state, running._memory)
    next(rounds)
    next(rounds)
    state_after_crash = (tmp_path / "crashed" / "checkpoint" / "state.safetensors").read_bytes()
    rounds.close()  # GeneratorExit also checkpoints, so put the old checkpoint back, as after a kill
    (tmp_path / "crashed" / "checkpoint" / "state.safetensors").write_bytes(state_after_crash)
    resumed = finish(resume(tmp_path / "crashed"))
    assert (resumed.models.clustered == whole.models.clustered).all()
    assert len(lines(tmp_path / "crashed" / "ledger.jsonl")) == 4
    assert [line["round"] for line in lines(tmp_path / "crashed" / "rounds.jsonl")] == [0, 1, 2, 3]


def test_a_disk_that_fills_within_a_line_is_named_and_the_run_resumes_to_the_same_models(tiny, tmp_path, monkeypatch):
    whole, torn = (from_flat(tiny | {"out": str(tmp_path / name)}) for name in ("whole", "torn"))
    finish(start(make_experiment(whole)))

    def full(path, value):
        if path.name == "rounds.jsonl" and value["round"] == 1:
            with path.open("a") as file:
                file.write(json.dumps(value)[:30])
            raise RunFolderError(f"{path}: cannot be written (No space left on device); free the disk and resume.")
        append_json(path, value)

    with monkeypatch.context() as patch:
        patch.setattr("rrcluster.runs.folder.append_json", full)
        with pytest.raises(RunFolderError, match="free the disk"):
            finish(start(make_experiment(torn)))
    assert json.loads((tmp_path / "torn" / "summary.json").read_text())["status"] == "stopped"
    finish(resume(tmp_path / "torn"))
    for name in ("rounds.jsonl", "ledger.jsonl"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    models = [load_file(tmp_path / name / "models.safetensors") for name in ("whole", "torn")]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_a_run_killed_after_its_last_round_ends_with_the_diagnostics_of_a_whole_one(tiny, tmp_path, monkeypatch):
    whole, killed = (from_flat(tiny | {"out": str(tmp_path / name)}) for name in ("whole", "killed"))
    finish(start(make_experiment(whole)))
    with monkeypatch.context() as patch:
        patch.setattr("rrcluster.runs.run.Running._end", lambda running: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finish(start(make_experiment(killed)))
    finish(resume(tmp_path / "killed"))
    told = [
        [{**line, "seconds": 0} for line in lines(tmp_path / name / "diagnostics.jsonl")]
        for name in ("whole", "killed")
    ]
    assert told[1] == told[0]
    assert "signal_to_noise" in told[1][-1]


def test_a_stopped_run_states_the_epsilon_of_its_whole_plan(tiny, tmp_path):
    running = start(make_experiment(from_flat(tiny)))
    rounds = running.rounds()
    next(rounds)
    running._ledger.charge(1, running.experiment.plan.event)  # charged, then stopped before the release
    rounds.close()
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["releases_charged"] == 2
    assert told["epsilon"] == pytest.approx(running.experiment.plan.epsilon())
    assert read_run(tmp_path / "run").epsilon == told["epsilon"]


def test_a_finished_run_is_neither_overwritten_nor_resumed(tiny, tmp_path):
    rr.run(**tiny)
    before = (tmp_path / "run" / "models.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match="already holds a run; `rrcluster report"):
        rr.run(**tiny)
    with pytest.raises(RunFolderError, match="this run has finished"):
        resume(tmp_path / "run")
    assert (tmp_path / "run" / "models.safetensors").read_bytes() == before


NOTHING_WRITTEN = {
    "impossible B": ({"min_cluster_size": 20}, ConfigError),
    "delta above 1/M": ({"delta": 0.5}, PrivacyError),
    "B without sizes": ({"count_weight": 0.0, "min_cluster_size": 2}, ConfigError),
    "memory under identifier": ({"algorithm": "mr-mtl", "mechanism": "identifier"}, PrivacyError),
    "a setting that is gone": ({"rebalance": "exact", "min_cluster_size": 2}, ConfigError),
    "missing data": ({"data": "fashion-mnist", "data_folder": "/nowhere"}, DataError),
    "more clients than images": ({"num_clients": 10**9}, ConfigError),
}


@pytest.mark.parametrize(("changes", "kind"), NOTHING_WRITTEN.values(), ids=NOTHING_WRITTEN.keys())
def test_a_refused_run_writes_nothing(tiny, tmp_path, changes, kind):
    with pytest.raises(kind):
        rr.run(**(tiny | changes))
    assert not (tmp_path / "run").exists()


def test_damaged_folders_are_named(tiny, tmp_path):
    running = start(make_experiment(from_flat(tiny)))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    (tmp_path / "run" / "checkpoint" / "state.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunFolderError, match="checkpoint is damaged"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("{unclosed")
    with pytest.raises(RunFolderError, match="damaged"):
        resume(tmp_path / "run")
    with pytest.raises(RunFolderError, match="no run here"):
        resume(tmp_path / "nothing")


def test_a_poisoned_calibration_is_found_out(tiny, monkeypatch):
    from rrcluster.privacy import calibrate

    del tiny["noise_multiplier"]
    monkeypatch.setattr(calibrate, "calibrate", lambda *args, **kwargs: 0.5)
    with pytest.raises(PrivacyError, match="more than the target 2"):
        rr.run(**tiny, epsilon=2.0)


def test_models_are_shared_and_clustered_coordinates_alone(tiny, tmp_path):
    result = rr.run(**tiny)
    saved = load_file(tmp_path / "run" / "models.safetensors")
    assert set(saved) == {"shared", "clustered"}
    assert saved["clustered"].shape == (4, 4420)
    assert np.allclose(saved["clustered"], result.models.clustered, atol=1e-6)


def test_load_and_assign_agree_with_the_evaluation(tiny):
    result = rr.run(**tiny)
    models = rr.load(result.folder)
    data = at_most(load_federated("fashion-mini", num_clients=60, seed=0), tiny["max_samples"])
    everybody = rr.assign(models, data)
    assert tuple(np.bincount(everybody, minlength=4)) == result.evaluation.choice_sizes
    client = data.cohort(np.array([5]))
    assert rr.assign(models, (client.inputs[0], client.targets[0])) == everybody[5]
    assert models.predict(client.inputs[0], cluster=0).shape == (len(client.inputs[0]), 10)


def test_load_refuses_what_is_not_a_finished_run(tmp_path):
    with pytest.raises(RunFolderError, match=r"no models\.safetensors"):
        rr.load(tmp_path)
    (tmp_path / "models.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(RunFolderError, match="damaged"):
        rr.load(tmp_path)


def test_run_takes_a_config_or_settings(tiny):
    with pytest.raises(ConfigError, match="not both"):
        rr.run(from_flat(tiny), epsilon=3)
    with pytest.raises(ConfigError, match="once per seed"):
        rr.run(**tiny, seeds=[0, 1])


def test_tensorboard_tags_diagnostics_as_such(tmp_path):
    pytest.importorskip("tensorboard")
    from rrcluster.runs.outcome import Progress
    from rrcluster.runs.progress import EventWriter
    from rrcluster.simulation.evaluate import Evaluation

    with EventWriter(tmp_path) as events:
        judged = Evaluation(0.5, 1.0, 0.9, 0.4, (0.5,), (3, 4))
        events(0, Progress(0, 1, np.array([3.0, 4.0]), 0.5, judged).figures)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    assert "released/size_0" in tags or any(tag.startswith("released/") for tag in tags)
    assert "diagnostic_not_private/accuracy" in tags
    assert all(tag.startswith(("released/", "diagnostic_not_private/")) for tag in tags)


def test_a_run_in_several_processes_resumes_to_the_same_models_and_says_what_computed(tiny, tmp_path):
    del tiny["noise_multiplier"]  # nothing to account, to be quick
    tiny |= {"mechanism": "none", "algorithm": "fedavg", "model": "cnn", "processes": 2}
    tiny |= {"num_clients": 300, "sample_rate": 0.04, "num_rounds": 2}  # two parts a round
    whole = rr.run(**tiny)
    rounds = start(make_experiment(from_flat(tiny | {"out": str(tmp_path / "stopped")}))).rounds()
    next(rounds)
    with pytest.raises(KeyboardInterrupt):
        rounds.throw(KeyboardInterrupt())
    resumed = finish(resume(tmp_path / "stopped"))
    assert (resumed.models.shared == whole.models.shared).all()
    assert resumed.evaluation == whole.evaluation
    engines = {line["made_by"]["engine"] for line in lines(tmp_path / "run" / "ledger.jsonl")}
    assert len(engines) == 1
    assert engines.pop().startswith(("compiled, cnn-", "reference, cpu"))
    here = rr.run(**(tiny | {"processes": 1, "out": str(tmp_path / "here")}))
    assert (here.models.shared == whole.models.shared).all()
    assert here.evaluation == whole.evaluation
    for name in ("ledger.jsonl", "rounds.jsonl", "privacy.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
