"""Networks that people bring: parts of a cohort give the same bits here and in processes of their own."""

import time

import numpy as np
import pytest
import torch
from torch import nn

import rrcluster as rr
from rrcluster.engine import calls
from rrcluster.engine.pick_engine import describe, pick_engine
from rrcluster.engine.protocol import CPU, LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.spread import SpreadEngine, _slices
from rrcluster.errors import WorkerError
from rrcluster.models import fitted

CLIENTS = 8
LOCAL = LocalSettings(local_lr=0.1, local_epochs=2, batch_size=2, proximal=0.1)
NETWORKS = {
    "stacked": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "one at a time": lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    sizes = [1, 4, 2, 3, 5, 1, 2, 4]
    inputs = [rng.normal(size=(size, 4)) for size in sizes]
    return rr.from_arrays(inputs, [rng.integers(3, size=size) for size in sizes], num_classes=3)


def model_of(name, data):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fitted(rr.from_module(NETWORKS[name]()), data)


def answers(engine, model, data):
    """Trained from two models, and the losses of both."""
    models, cohort = np.stack([model.given, model.given + 0.1]), data.cohort(np.arange(CLIENTS))
    moved = calls.changes(engine, models, np.arange(CLIENTS) % 2, cohort, local=LOCAL, key=(1, 2))
    return moved, calls.losses(engine, models, cohort)


def in_processes(engine, seconds=600):
    """Let the engine start its processes now, and wait until they are ready."""
    engine._spent = 1e9
    until = time.monotonic() + seconds
    while engine._ready_pool() is None and engine._processes > 1:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_parts_give_the_same_bits_here_and_in_other_processes(name, data, monkeypatch):
    monkeypatch.setattr("rrcluster.engine.spread._STACKED", 3)
    monkeypatch.setattr("rrcluster.engine.spread._IN_TURN", 3)
    model = model_of(name, data)
    engine = SpreadEngine(model, processes=2)
    here = answers(engine, model, data)
    assert engine._pool is None, "nothing is started before it pays"
    in_processes(engine)
    there = answers(engine, model, data)
    assert engine._pool is not None
    for ours, theirs in zip(here, there, strict=True):
        assert np.array_equal(ours, theirs)
    expected = answers(ReferenceEngine(model), model, data)
    assert all(np.allclose(ours, theirs, atol=1e-5) for ours, theirs in zip(here, expected, strict=True))
    assert not np.allclose(here[0], 0)
    if name == "stacked":
        killed = next(iter(engine._pool._processes.values()))
        killed.kill()
        killed.wait()
        with pytest.raises(WorkerError, match="exit code -9"):
            answers(engine, model, data)
        assert engine._pool is None
    engine.close()


def test_a_network_that_other_processes_cannot_load_stays_here(data, capfd):
    model = model_of("stacked", data)
    expected = answers(SpreadEngine(model, processes=1), model, data)
    object.__setattr__(model, "name", _Unreadable())
    engine = SpreadEngine(model, processes=2)
    object.__setattr__(model, "name", "Sequential")
    in_processes(engine)
    assert engine._processes == 1
    assert engine._pool is None
    assert "a secret" not in capfd.readouterr().err
    for ours, theirs in zip(answers(engine, model, data), expected, strict=True):
        assert np.array_equal(ours, theirs)


class _Unreadable:
    def __reduce__(self):
        return exec, ("raise ValueError('a secret')",)


def test_auto_computes_a_users_network_in_parts_of_fixed_size(data, monkeypatch):
    monkeypatch.setattr("rrcluster.engine.pick_engine.cores", lambda: 64)
    engine = pick_engine("auto", model=model_of("stacked", data), device=CPU)
    assert isinstance(engine, SpreadEngine)
    assert describe(engine) == "batched, cpu, float32, in equal parts of up to 25, larger ones first"
    few = pick_engine("auto", model=model_of("stacked", data), device=CPU, capacity=7)
    assert describe(few).endswith("in equal parts of up to 7, larger ones first")


@pytest.mark.parametrize("most", [1, 4, 13])
def test_parts_are_equal_and_as_many_for_either_of_two_processes(most):
    for count in range(60):
        slices = _slices(count, most)
        sizes = [part.stop - part.start for part in slices]
        assert [client for part in slices for client in range(part.start, part.stop)] == list(range(count))
        assert max(sizes, default=0) <= most
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert 0 not in sizes
        assert len(slices) in (0, 1, count) or len(slices) % 2 == 0


def test_large_networks_without_convolutions_are_computed_one_at_a_time(data, monkeypatch):
    monkeypatch.setattr("rrcluster.engine.spread._MOST_PARAMETERS", 42)
    engine = pick_engine("auto", model=model_of("stacked", data), device=CPU)
    assert describe(engine) == "InTurnEngine, in equal parts of up to 13, larger ones first"


def test_nobody_in_a_cohort(data):
    model = model_of("stacked", data)
    engine, nobody = SpreadEngine(model, processes=1), data.cohort([])
    assert calls.changes(engine, model.given[None], np.zeros(0, int), nobody, local=LOCAL, key=(1, 2)).shape == (
        0,
        model.num_parameters,
    )
    assert calls.losses(engine, model.given[None], nobody).shape == (0, 1)
