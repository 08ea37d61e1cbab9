"""Runs stacked on one engine give what each gives alone, and one that fails does not stop the others."""

import dataclasses
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.models import make_model
from rrcluster.processes import local_executor
from rrcluster.rng import Streams
from rrcluster.runs import job_runner
from rrcluster.runs import sweep as module
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import load_population
from rrcluster.runs.job_runner import Stack, StackedEngine, _in_passes, in_turn, stacked
from rrcluster.runs.load import load
from rrcluster.runs.sweep import (
    FAILED,
    FINISHED,
    REFUSED,
    Going,
    Outcome,
    jobs,
    processes_for,
    read_grid,
    run_jobs,
    shared_out,
    sweep_steps,
)


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
        for name, executor in {"alone": in_turn, "stacked": stacked}.items()
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
    monkeypatch.setattr(module, "local_executor", None)
    monkeypatch.setattr("rrcluster.simulation.hosts.local_executor", None)
    found = outcomes(run_jobs, grid(tmp_path, "cpu", num_rounds=1))
    assert {step.status for step in found.values()} == {FINISHED, REFUSED}


def check_same_bits(steps, alone):
    assert sorted(step.job.name for step in steps) == sorted(alone)
    for step in steps:
        expected = alone[step.job.name]
        assert step.status == expected.status
        if step.status == FINISHED:
            ours, theirs = (load(one.job.folder).models for one in (step, expected))
            assert np.array_equal(ours.clustered, theirs.clustered)
            assert np.array_equal(ours.shared, theirs.shared)


def test_side_by_side_runs_give_what_they_give_alone(both, tmp_path):
    """To the last bit: nothing is stacked. A process that is free takes the next job."""
    (_, alone), _ = both
    threads, found = torch.get_num_threads(), grid(tmp_path, "side by side")
    check_same_bits([step for step in sweep_steps(found, processes=2) if isinstance(step, Outcome)], alone)
    assert torch.get_num_threads() == threads
    listed = json.loads((found.out / "sweep.json").read_text())["runs"]
    assert [run["folder"] for run in listed] == [str(job.folder.relative_to(found.out)) for job in jobs(found)]


def test_shares_of_a_sweep_give_what_its_runs_give_alone(both, tmp_path):
    (_, alone), _ = both
    shares = shared_out(jobs(grid(tmp_path, "shared out")), 2)
    steps = list(module._on_executor(shares, None, processes=2))
    check_same_bits([step for step in steps if isinstance(step, Outcome)], alone)


@pytest.mark.parametrize(
    ("cores", "others", "expected"),
    [
        (4, {}, 1),  # 8 runs x 4 rounds x 6 clients
        (4, {"num_rounds": 500}, 2),
        (4, {"num_rounds": 5000}, 4),
        (1, {"num_rounds": 5000}, 1),
        (4, {"num_rounds": 5000, "processes": 2}, 1),  # a run has processes of its own
        (4, {"num_rounds": 5000, "secure": True, "seeds": []}, 1),  # ending its process could cost a round
    ],
)
def test_a_sweep_starts_as_many_processes_as_its_clients_repay(cores, others, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: cores)
    assert processes_for(jobs(grid(tmp_path, "unused", **others)), on_gpu=False) == expected


def test_shares_have_equally_many_jobs_of_every_kind_and_few_populations(tmp_path):
    todo = jobs(grid(tmp_path, "unused"))
    shares = shared_out(todo, 2)
    assert sorted(job.name for share in shares for job in share) == sorted(job.name for job in todo)
    assert [len(share) for share in shares] == [4, 4]
    assert [{job.settings["seed"] for job in share} for share in shares] == [{0}, {1}]
    assert shared_out(todo[:1], 5) == [[todo[0]]]


@pytest.mark.parametrize(("kinds", "of_each", "shares"), [(2, 2, 4), (3, 1, 2), (5, 3, 4), (1, 7, 8), (4, 6, 4)])
def test_shares_are_equal_however_few_jobs_of_a_kind_there_are(kinds, of_each, shares):
    todo = [
        SimpleNamespace(name=f"{kind} {seed}", settings={"model": kind, "seed": seed})
        for kind in range(kinds)
        for seed in range(of_each)
    ]
    dealt = shared_out(todo, shares)
    sizes = [len(share) for share in dealt] + [0] * (shares - len(dealt))
    assert sum(sizes) == len(todo)
    assert max(sizes) - min(sizes) <= 1
    for kind in range(kinds):
        counts = [sum(job.settings["model"] == kind for job in share) for share in dealt]
        assert max(counts) - min([*counts, *[0] * (shares - len(dealt))]) <= 1


class Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self):
        return exec, ("import os; os._exit(1)",)


class Unreadable:
    """Cannot be read where it is sent."""

    def __reduce__(self):
        return exec, ("raise ValueError('no such thing here')",)


@pytest.mark.parametrize("broken", [Deadly, pytest.param(Unreadable, marks=pytest.mark.slow)])
def test_a_job_that_ends_its_process_fails_alone(broken, tmp_path):
    first, *others = jobs(grid(tmp_path, "killed", algorithm="ifca", min_cluster_size=0, seeds=[0, 1, 2]))
    doomed = dataclasses.replace(first, settings={**first.settings, "data_folder": broken()})
    steps = module._on_executor([[job] for job in (doomed, *others)], None, processes=2)
    ended = {step.job.name: step for step in steps if isinstance(step, Outcome)}
    assert {name: step.status for name, step in ended.items()} == {
        job.name: FAILED if job is first else FINISHED for job in (first, *others)
    }
    assert "run it alone to see more" in ended[first.name].reason


def test_jobs_of_a_process_that_is_killed_once_are_run_again(tmp_path):
    """Started again, they continue from their folders, to the models that they would have had."""
    options = {"algorithm": "ifca", "min_cluster_size": 0, "num_rounds": 60}
    found, killed = grid(tmp_path, "killed", **options), False
    steps = module._on_executor([[job] for job in jobs(found)], None, processes=2)
    ended = []
    for step in steps:
        if isinstance(step, Going) and not killed:
            os.kill(next(iter(local_executor(2)._processes)), signal.SIGKILL)
            killed = True
        elif isinstance(step, Outcome):
            ended.append(step)
    assert killed
    check_same_bits(ended, outcomes(in_turn, grid(tmp_path, "alone", **options)))


def test_an_error_that_nobody_foresaw_fails_its_job_and_no_other(tmp_path):
    def run(todo, *arguments):
        if todo[0].settings["seed"] == 0:
            raise OSError(28, "No space left on device")
        return job_runner.run_task(todo, *arguments)

    class Full(ThreadPoolExecutor):
        def submit(self, function, *arguments):
            return super().submit(run, *arguments)

    found = grid(tmp_path, "full", algorithm="ifca", min_cluster_size=0)
    with Full(1) as executor:
        ended = [step for step in run_jobs(jobs(found), executor=executor) if isinstance(step, Outcome)]
    assert [(step.status, step.reason) for step in ended] == [
        (FAILED, "OSError; run it alone to see more."),
        (FINISHED, None),
    ]


def test_what_waits_on_an_executor_is_given_up_with_the_sweep(tmp_path):
    done = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(done.wait, 20)
        waiting = []

        class Noted:
            def submit(self, *task):
                waiting.append(executor.submit(*task))
                return waiting[-1]

        found = jobs(grid(tmp_path, "stopped"))
        found[0].folder.mkdir(parents=True)
        (found[0].folder / "rounds.jsonl").write_text("{}\n")  # so that there is progress to see
        steps = run_jobs(found, executor=Noted())
        next(steps)
        steps.close()
        done.set()
        assert len(waiting) == 8
        assert all(future.cancelled() for future in waiting)


@pytest.mark.parametrize(
    ("ours", "runs", "expected"), [(64, 630, 8), (4, 630, 2), (64, 24, 4), (64, 6, 1), (1, 630, 1)]
)
def test_a_sweep_starts_no_more_processes_than_it_may_use_cores_for(ours, runs, expected, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(ours)))
    todo = [SimpleNamespace(config=from_flat({"noise_multiplier": 1.0}))] * runs
    assert processes_for(todo, on_gpu=True) == expected


def test_two_jobs_in_one_folder_both_have_an_outcome(tmp_path):
    (first, *_) = jobs(grid(tmp_path, "twice"))
    second = dataclasses.replace(first, name="the same again")
    steps = [step for step in in_turn([first, second]) if isinstance(step, Outcome)]
    assert sorted(step.job.name for step in steps) == sorted([first.name, second.name])
    assert [step.status for step in steps] == [FINISHED] * 2


def test_a_run_that_nobody_foresaw_to_fail_is_reported_too(tmp_path, monkeypatch):
    def full(config):
        if config.seed:
            raise OSError(28, "No space left on device")
        return load_population(config)

    monkeypatch.setattr(job_runner, "load_population", full)
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
