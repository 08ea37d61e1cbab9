"""Runs stacked on one engine give what each gives alone, and one that fails does not stop the others."""

import dataclasses
import json
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rrcluster.data import from_arrays
from rrcluster.engine import calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.stacked import Stack, StackedEngine, _in_passes
from rrcluster.engine.workers import processes as spawned
from rrcluster.engine.workers.processes import spawn
from rrcluster.experiments.early import JOB_MODULE, processes_for, stacks_for
from rrcluster.experiments.executors import _room, in_processes, pick_executor, shared_out, stacked
from rrcluster.experiments.grid import jobs, read_grid
from rrcluster.experiments.load import load
from rrcluster.experiments.setup import load_population
from rrcluster.experiments.side_by_side import side_by_side
from rrcluster.experiments.sweep import (
    FAILED,
    FINISHED,
    REFUSED,
    Going,
    Outcome,
    one_after_another,
    sweep,
)
from rrcluster.models import make_model
from rrcluster.rng import Streams


def grid(tmp_path, name, *, num_rounds=4, **others):
    settings = {
        "data": "synthetic",
        "num_clients": 60,
        "num_rounds": num_rounds,
        "num_clusters": 2,
        "delta": 0.01,
        "noise_multiplier": 1.0,
        "algorithm": ["ifca", "fedavg"],
        "min_cluster_size": [0, 2],
        "device": "cpu",
        "seeds": [0, 1],
        "out": str(tmp_path / name),
        **others,
    }
    return read_grid(settings, source="test", out=tmp_path / name)


def outcomes(executor, found):
    return {step.job.name: step for step in executor(jobs(found)) if isinstance(step, Outcome)}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stack")
    return [
        (found := grid(folder, name), outcomes(executor, found))
        for name, executor in {"alone": one_after_another, "stacked": stacked}.items()
    ]


def test_a_stacked_run_gives_what_it_gives_alone(both):
    (_, alone), (_, together) = both
    assert alone.keys() == together.keys()
    assert len(alone) == 8
    for name, expected in alone.items():
        assert together[name].status == expected.status
        if expected.status != FINISHED:
            continue
        ours, theirs = (load(step.job.folder).models for step in (together[name], expected))
        assert np.abs(ours.clustered - theirs.clustered).max(initial=0) < 1e-5
        assert np.abs(ours.shared - theirs.shared).max(initial=0) < 1e-5


def test_a_run_that_is_refused_leaves_the_stack(both):
    (_, alone), (_, together) = both
    refused = {name for name, step in together.items() if step.status == REFUSED}
    assert refused == {name for name, step in alone.items() if step.status == REFUSED}
    assert refused, "fedavg with B = 2 does not apply"


def test_on_a_cpu_a_small_sweep_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster.experiments.job_process.spawn", None)
    found = outcomes(pick_executor(jobs(grid(tmp_path, "cpu"))), grid(tmp_path, "cpu", num_rounds=1))
    assert {step.status for step in found.values()} == {FINISHED, REFUSED}


def test_side_by_side_runs_give_what_they_give_alone(both, tmp_path):
    """To the last bit: nothing is stacked. A process that is free takes the next job."""
    (_, alone), _ = both
    order, threads, found = [], torch.get_num_threads(), grid(tmp_path, "side by side")
    for step in sweep(found, executor=lambda todo: side_by_side(todo, processes=2)):
        order += [step] if isinstance(step, Outcome) else []
    assert torch.get_num_threads() == threads
    assert len(order) == len(alone)
    for step in order:
        expected = alone[step.job.name]
        assert step.status == expected.status
        if step.status == FINISHED:
            ours, theirs = (load(one.job.folder).models for one in (step, expected))
            assert np.array_equal(ours.clustered, theirs.clustered)
            assert np.array_equal(ours.shared, theirs.shared)
    listed = json.loads((found.out / "sweep.json").read_text())["runs"]
    assert [run["folder"] for run in listed] == [str(job.folder.relative_to(found.out)) for job in jobs(found)]


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [
        (4, {}, 1),  # 8 runs x 4 rounds x 6 clients
        (4, {"num_rounds": 500}, 2),
        (4, {"num_rounds": 5000}, 4),
        (1, {"num_rounds": 5000}, 1),
        (4, {"num_rounds": 5000, "engine": "workers"}, 1),  # a run has a process per core already
        (4, {"num_rounds": 5000, "data": "fashion-mini", "model": "cnn"}, 1),
        (4, {"num_rounds": 5000, "secure": True, "seeds": []}, 1),  # ending its process could cost a round
    ],
)
def test_a_sweep_starts_as_many_processes_as_its_clients_repay(cores, others, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster.experiments.early.cores", lambda: cores)
    assert processes_for(jobs(grid(tmp_path, "unused", **others))) == expected


@pytest.mark.parametrize("num_early", [0, 1, 3])
def test_in_two_processes_runs_give_what_they_give_in_one(num_early, both, tmp_path, monkeypatch):
    """Also in those that were started before; one that is not needed ends."""
    monkeypatch.setattr("rrcluster.experiments.executors._room", lambda devices: 2)
    monkeypatch.setattr("rrcluster.experiments.executors.stacks_for", len)
    _, (_, together) = both
    early = [spawn(JOB_MODULE) for _ in range(num_early)]
    found = outcomes(partial(stacked, early=early), grid(tmp_path, "shared out"))
    assert all(process.wait(20) is not None for _, process in early)
    assert {name: step.status for name, step in found.items()} == {name: step.status for name, step in together.items()}
    for name, step in found.items():
        if step.status == FINISHED:
            ours, theirs = (load(one.job.folder).models for one in (step, together[name]))
            assert np.abs(ours.clustered - theirs.clustered).max(initial=0) < 1e-5


def test_shares_have_equally_many_jobs_of_every_kind_and_few_populations(tmp_path):
    todo = jobs(grid(tmp_path, "unused"))
    shares = shared_out(todo, 2)
    assert sorted(job.name for share in shares for job in share) == sorted(job.name for job in todo)
    assert [len(share) for share in shares] == [4, 4]
    assert [{job.settings["seed"] for job in share} for share in shares] == [{0}, {1}]
    assert shared_out(todo[:1], 5) == [[todo[0]]]


def test_jobs_of_a_process_that_dies_have_failed_and_the_others_go_on(tmp_path, monkeypatch):
    shares = shared_out(jobs(grid(tmp_path, "killed", num_rounds=40)), 2)
    spawned = []

    def recorded(module):
        spawned.append(spawn(module))
        return spawned[-1]

    monkeypatch.setattr("rrcluster.experiments.job_process.spawn", recorded)
    status, killed = {}, False
    for step in in_processes(shares):
        if isinstance(step, Going) and step.job.settings["seed"] == 0 and not killed:
            spawned[0][1].kill()
            killed = True
        elif isinstance(step, Outcome):
            status.setdefault(step.job.settings["seed"], []).append(step.status)
    assert killed
    assert len(status[0]) == len(status[1]) == 4
    assert FAILED in status[0]
    assert set(status[1]) == {FINISHED, REFUSED}
    assert all(process.poll() is not None for _, process in spawned)


@pytest.mark.parametrize(
    ("ours", "runs", "expected"), [(64, 630, 8), (4, 630, 2), (64, 24, 4), (64, 6, 1), (1, 630, 1)]
)
def test_a_sweep_starts_no_more_processes_than_it_may_use_cores_for(ours, runs, expected, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(ours)))
    assert stacks_for([SimpleNamespace(settings={})] * runs) == expected


def test_every_process_has_room_on_every_device(monkeypatch):
    total = {"cuda:0": 140 * 2**30, "cuda:1": 24 * 2**30}
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda it: SimpleNamespace(total_memory=total[str(it)]))
    assert _room([torch.device("cuda:0")]) == 11
    assert _room([torch.device("cuda:0"), torch.device("cuda:1")]) == 2
    assert _room([torch.device("cpu")]) == 0


def test_a_process_that_fails_says_so_before_it_is_ended(tmp_path, monkeypatch, capfd):
    """The connection closes before Python prints the error: whoever ended the process then would hide it."""
    slowly = "\ntry:\n    main({descriptors})\nfinally:\n    import time; time.sleep(0.5)"
    monkeypatch.setattr(spawned, "_PROGRAM", spawned._PROGRAM.replace("; main({descriptors})", slowly))
    (only, *_) = jobs(grid(tmp_path, "failed"))
    shares = [[dataclasses.replace(only, settings={**only.settings, "data_folder": _Unreadable()})]]
    (step,) = in_processes(shares)
    assert step.status == FAILED
    assert "exit code 1" in step.reason
    assert "no such thing here" in capfd.readouterr().err


class _Unreadable:
    def __reduce__(self):
        return exec, ("raise ValueError('no such thing here')",)


def test_two_jobs_in_one_folder_both_have_an_outcome(tmp_path):
    (first, *_) = jobs(grid(tmp_path, "twice"))
    second = dataclasses.replace(first, name="the same again")
    steps = [step for step in in_processes([[first, second]]) if isinstance(step, Outcome)]
    assert sorted(step.job.name for step in steps) == sorted([first.name, second.name])
    assert FINISHED in {step.status for step in steps}


def test_a_run_that_nobody_foresaw_to_fail_is_reported_too(tmp_path, monkeypatch):
    def full(config):
        if config.seed:
            raise OSError(28, "No space left on device")
        return load_population(config)

    monkeypatch.setattr("rrcluster.experiments.executors.load_population", full)
    found = outcomes(stacked, grid(tmp_path, "full"))
    by_seed = {seed: {s.status for s in found.values() if s.job.settings["seed"] == seed} for seed in (0, 1)}
    assert by_seed == {0: {FINISHED, REFUSED}, 1: {FAILED}}
    assert all(step.reason == "OSError; run it alone to see more." for step in found.values() if step.status == FAILED)


def test_calls_of_many_runs_are_one_call(rng):
    """Different seeds, rates and models; the engine is asked once, and every run gets its own clients back."""
    model = make_model("linear", input_shape=(6,), num_classes=3)
    data = from_arrays([rng.normal(size=(5, 6)) for _ in range(9)], [rng.integers(3, size=5) for _ in range(9)])
    asked = []

    class Counting(BatchedEngine):
        def train(self, calls):
            asked.append(len(calls))
            return super().train(calls)

    stack = Stack(Counting(model), members=3)
    vectors = [np.stack([model.init(rng=rng) for _ in range(2)]) for _ in range(3)]
    requests = [
        (vectors[run], np.arange(2 + run) % 2, data.cohort(np.arange(run, 2 + 2 * run)),
         LocalSettings(0.1 * (run + 1), 2, 3), Streams(run).client_key("batches", 0))
        for run in range(3)
    ]  # fmt: skip
    answers = [None] * 3

    def run(place):
        start, clusters, cohort, local, key = requests[place]
        answers[place] = calls.changes(StackedEngine(stack), start, clusters, cohort, local=local, key=key)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert asked == [3]
    for answer, (start, clusters, cohort, local, key) in zip(answers, requests, strict=True):
        alone = calls.changes(BatchedEngine(model), start, clusters, cohort, local=local, key=key)
        assert np.abs(answer - alone).max() < 1e-6


def test_what_does_not_fit_in_memory_at_once_is_done_in_in_passes():
    asked = []

    def two_at_most(calls):
        asked.append(len(calls))
        if len(calls) > 2:
            raise torch.OutOfMemoryError("too large")
        return [10 * call for call in calls]

    assert _in_passes(two_at_most, range(7)) == [0, 10, 20, 30, 40, 50, 60]
    assert asked == [7, 3, 1, 2, 4, 2, 2]

    def never(calls):
        raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError):
        _in_passes(never, [1, 2])


def test_an_error_reaches_everybody_who_shared_the_call(rng):
    class Broken(BatchedEngine):
        def measure(self, questions):
            raise MemoryError("too large")

    stack = Stack(Broken(make_model("linear", input_shape=(2,), num_classes=2)), members=1)
    with pytest.raises(MemoryError, match="too large"):
        calls.losses(StackedEngine(stack), np.zeros((1, 6)), None)
