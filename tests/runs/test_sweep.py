import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from immediate import Immediate

import rrcluster as rr
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import start, start_or_resume
from rrcluster.runs.sweep import Going, Outcome, jobs, read_grid, sweep_steps


@pytest.fixture
def settings(tiny, tmp_path):
    return {**tiny, "num_rounds": 2, "num_clients": 40, "delta": 1e-2, "out": str(tmp_path / "sweep")}


def grid(settings, **lists):
    return read_grid(settings | lists, source="grid.yaml", out="unused")


def outcomes(steps):
    return {step.job.name: step for step in steps if isinstance(step, Outcome)}


def test_a_refused_combination_is_reported_and_the_others_go_on(settings, tmp_path):
    found = grid(settings, min_cluster_size=[0, 20])
    steps = list(sweep_steps(found))
    assert [step.status for step in outcomes(steps).values()] == ["finished", "refused"]
    assert sum(isinstance(step, Going) for step in steps) == 2
    told = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert told["varied"] == {"min_cluster_size": [0, 20]}
    assert [run["status"] for run in told["runs"]] == ["finished", "refused"]
    assert "needs 80 clients" in told["runs"][1]["reason"]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["1-min_cluster_size=0", "sweep.json"]


def test_runs_may_be_named_instead_of_combined(settings, tmp_path):
    runs = {"plain": {"algorithm": "fedavg"}, "clipped": {"update_clip": 0.1}}
    planned = jobs(grid(settings, runs=runs))
    assert [(job.folder.relative_to(tmp_path), job.values) for job in planned] == [
        (Path("sweep/plain"), {"algorithm": "fedavg"}),
        (Path("sweep/clipped"), {"update_clip": 0.1}),
    ]
    assert [job.config.method.algorithm for job in planned] == ["fedavg", "ifca"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runs": {"a": {"update_clip": 0.1}}, "local_lr": [0.1, 0.2]}, "named runs and a list of values for local_lr"),
        ({"runs": {"a/b": {"update_clip": 0.1}}}, "'a/b' must be letters"),
        ({"runs": {"a": {"clip": 0.1}}}, "'clip' is not known"),
        ({"runs": {"a": {"seed": 1}}}, "seed takes one value for the whole sweep"),
        ({"runs": {"a": {"device": "cpu"}}}, "device takes one value for the whole sweep"),
        ({"runs": ["a"]}, "one `name: {setting: value, ...}` per line"),
    ],
)
def test_named_runs_that_make_no_sense_are_refused(settings, given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        grid(settings, **given)


def test_a_run_of_a_sweep_is_the_run_it_would_be_alone(settings, tmp_path):
    list(sweep_steps(grid(settings, update_clip=[0.3])))
    alone = rr.run(**(settings | {"update_clip": 0.3, "out": str(tmp_path / "alone")}))
    swept = rr.load(tmp_path / "sweep" / "1-update_clip=0.3").models
    assert np.allclose(swept.clustered, alone.models.clustered, atol=1e-6)


def test_a_sweep_goes_on_where_it_was_stopped(settings, tmp_path):
    found = grid(settings, update_clip=[0.2, 0.3])
    steps = sweep_steps(found)
    next(steps)
    steps.close()
    first = tmp_path / "sweep" / "1-update_clip=0.2"
    assert not (first / "models.safetensors").exists()
    again = list(sweep_steps(found))
    assert [step.status for step in outcomes(again).values()] == ["finished", "finished"]
    assert sum(isinstance(step, Going) for step in again) == 3  # one round was done before
    assert sum(isinstance(step, Going) for step in sweep_steps(found)) == 0  # all is there


def test_a_folder_with_another_run_is_left_alone(settings):
    config = from_flat(settings)
    start(make_experiment(config))
    with pytest.raises(RunFolderError, match="other settings"):
        start_or_resume(replace(config, local=replace(config.local, local_lr=0.5)))


def test_failures_and_divergence_are_told_apart(settings, monkeypatch, tmp_path):
    found = grid(settings, update_clip=[0.2, 0.3])

    class Doomed:
        def __init__(self, config, *, make):
            self.config = config

        def rounds(self):
            if self.config.privacy.update_clip == 0.3:
                raise RuntimeError("out of memory")
            return iter(())

        def result(self):
            models = rr.types.Models(np.zeros(0), np.full((2, 3), np.nan))
            return type("Result", (), {"models": models, "evaluation": type("E", (), {"loss": 1.0})})

    import rrcluster.types  # noqa: F401

    monkeypatch.setattr("rrcluster.runs.job_runner.start_or_resume", Doomed)
    found_outcomes = list(outcomes(sweep_steps(found)).values())
    assert [one.status for one in found_outcomes] == ["diverged", "failed"]
    assert "not finite; lower local_lr" in found_outcomes[0].reason
    assert found_outcomes[1].reason == "RuntimeError; run it alone to see more."


def test_an_executor_is_given_every_job_by_itself_and_changes_no_bit(settings, tmp_path):
    executor = Immediate()
    found = grid(settings, update_clip=[0.2, 0.3], seeds=[0, 1])
    statuses = [step.status for step in outcomes(sweep_steps(found, executor=executor)).values()]
    assert statuses == ["finished"] * 4
    assert tuple(executor.jobs) == jobs(found)
    alone = grid(settings | {"out": str(tmp_path / "alone")}, update_clip=[0.2, 0.3], seeds=[0, 1])
    list(sweep_steps(alone))
    for one, other in zip(jobs(found), jobs(alone), strict=True):
        for name in ("models.safetensors", "rounds.jsonl", "ledger.jsonl"):
            assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_a_sweep_from_python_gives_the_same_runs_wherever_they_are_computed(tmp_path):
    settings = {"data": "synthetic", "num_clients": 40, "num_clusters": 2, "num_rounds": 2, "device": "cpu"}
    settings |= {"noise_multiplier": 1.0, "delta": 1e-3, "algorithm": ["fedavg", "ifca"]}
    models = []
    for name, where in {"here": {"processes": 1}, "there": {"processes": 2}}.items():
        outcomes = rr.sweep(settings | {"out": str(tmp_path / name)}, **where)
        assert [outcome.status for outcome in outcomes] == ["finished"] * 2
        models.append([rr.load(outcome.job.folder).models.clustered for outcome in outcomes])
        assert (tmp_path / name / "sweep.json").exists()
    for one, other in zip(*models, strict=True):
        np.testing.assert_array_equal(one, other)
