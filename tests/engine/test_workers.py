"""Worker processes: the same numbers as the plain loop, whoever computes them, and nothing left behind."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rrcluster.data import from_arrays
from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine import calls
from rrcluster.engine import pick_engine as select
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.batched.sample_order import batch_orders
from rrcluster.engine.fast_cnn import native_build as build
from rrcluster.engine.fast_cnn.layout import num_parameters, packed_order
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.engine.protocol import CPU, LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.workers.pool import _split_rows
from rrcluster.engine.workers.torch_client import TorchClientTrainer
from rrcluster.engine.workers.worker import ClientCall, Steps
from rrcluster.engine.workers.workers_engine import WorkersEngine
from rrcluster.errors import ConfigError, WorkerError
from rrcluster.models import from_module, make_model
from rrcluster.models.networks import additive

KEY = (3, 4)
LOCAL = LocalSettings(local_lr=0.1, local_epochs=2, batch_size=5)
compiled_only = pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="no C compiler")


def cnn(classes=10):
    return make_model("cnn", input_shape=(1, 28, 28), num_classes=classes)


def population(rng, sizes, classes=10):
    inputs = [rng.normal(size=(size, 1, 28, 28)) for size in sizes]
    return from_arrays(inputs, [rng.integers(classes, size=size) for size in sizes], num_classes=classes)


def starts(model, count, rng):
    return np.stack([model.init(rng=rng) for _ in range(count)])


@pytest.fixture(scope="module")
def engine():
    with WorkersEngine(cnn(), num_workers=2) as shared:
        yield shared


def gone(process_id):
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # ended, but not yet collected by its new parent


@compiled_only
@pytest.mark.parametrize("seed", range(4))
def test_workers_equal_the_reference_on_random_cohorts(engine, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 24, size=rng.integers(1, 6))
    local = LocalSettings(0.1, int(rng.integers(1, 4)), int(rng.integers(1, 25)))
    data = population(rng, np.maximum(sizes, 1))
    cohort = data.cohort(rng.permutation(len(sizes)))
    start, slow = starts(engine.model, len(sizes), rng), ReferenceEngine(engine.model)
    expected = calls.train(slow, start, cohort, local=local, key=KEY)
    assert np.abs(calls.train(engine, start, cohort, local=local, key=KEY) - expected).max() < 1e-5
    assert np.abs(expected - start).max() > 1e-3
    vectors = starts(engine.model, int(rng.integers(1, 4)), rng)
    for ours, theirs in zip(calls.measure(engine, vectors, cohort), calls.measure(slow, vectors, cohort), strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)
    tests = TestSet(cohort.targets[0], lambda: cohort.inputs[0])
    for ours, theirs in zip(calls.test(engine, vectors, tests), calls.test(slow, vectors, tests), strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)


@compiled_only
@pytest.mark.parametrize("proximal", [0.0, 0.5])
@pytest.mark.parametrize("masked", [None, "half", "last layer", "last bias"])
def test_anchors_and_masks(engine, proximal, masked, rng):
    """Where the last layer alone moves, what it reads is computed once."""
    cohort, start = population(rng, [7, 12]).cohort(np.arange(2)), starts(engine.model, 2, rng)
    local = LocalSettings(0.1, 2, 5, proximal)
    given = {"local": local, "key": KEY, "anchor": start + 0.1 * rng.normal(size=start.shape)}
    place = np.arange(start.shape[1])
    masks = {
        "half": rng.random(len(place)) < 0.5,
        "last layer": place >= len(place) - 330,
        "last bias": place >= 26_000,
    }
    given["trainable"] = masks.get(masked)
    expected = calls.train(ReferenceEngine(engine.model), start, cohort, **given)
    trained = calls.train(engine, start, cohort, **given)
    assert np.abs(trained - expected).max() < 1e-5
    if masked:
        assert (trained[:, ~given["trainable"]] == start[:, ~given["trainable"]]).all()


@compiled_only
def test_rows_without_ink_and_empty_images(engine, rng):
    """They are not computed, which must not show."""
    cohort, start = population(rng, [9, 7]).cohort(np.arange(2)), starts(engine.model, 2, rng)
    cohort.inputs[0, :, :, :9], cohort.inputs[0, 1:4, :, 20:], cohort.inputs[1, ::2] = 0, 0, 0
    expected = calls.train(ReferenceEngine(engine.model), start, cohort, local=LOCAL, key=KEY)
    assert np.abs(calls.train(engine, start, cohort, local=LOCAL, key=KEY) - expected).max() < 1e-5
    losses = calls.losses(ReferenceEngine(engine.model), start, cohort)
    assert np.abs(calls.losses(engine, start, cohort) - losses).max() < 1e-5


@compiled_only
@pytest.mark.parametrize("classes", [2, 16, 17])
def test_any_number_of_classes(classes, rng):
    model = cnn(classes)
    cohort, start = population(rng, [9], classes).cohort(np.zeros(1, dtype=int)), starts(model, 1, rng)
    expected = calls.train(ReferenceEngine(model), start, cohort, local=LOCAL, key=KEY)
    with WorkersEngine(model, num_workers=1) as workers:
        assert np.abs(calls.train(workers, start, cohort, local=LOCAL, key=KEY) - expected).max() < 1e-5


@compiled_only
def test_not_a_bit_depends_on_the_number_of_workers_or_on_the_rest_of_the_cohort(engine, rng):
    data, start = population(rng, [3, 11, 8, 5, 20]), starts(engine.model, 5, rng)
    cohort = data.cohort(np.arange(5))
    together = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    alone = calls.train(engine, start[1:2], data.cohort([1]), local=LOCAL, key=KEY)
    assert (alone[0] == together[1]).all()
    for count, capacity in ((1, 1024), (3, 2)):
        with WorkersEngine(engine.model, num_workers=count, capacity=capacity) as other:
            assert (calls.train(other, start, cohort, local=LOCAL, key=KEY) == together).all()
            assert (calls.losses(other, start[:2], cohort) == calls.losses(engine, start[:2], cohort)).all()


@compiled_only
def test_clients_without_samples_and_cohorts_without_clients(engine, rng):
    data, start = population(rng, [4, 6]), starts(engine.model, 2, rng)
    cohort = data.cohort(np.arange(2))
    cohort = Cohort.of_arrays(cohort.clients, cohort.inputs, cohort.targets, np.array([0, 6]))
    trained = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    assert (trained[0] == start[0]).all()
    assert (trained[1] != start[1]).any()
    loss, accuracy = calls.measure(engine, start, cohort)
    assert loss[0].tolist() == accuracy[0].tolist() == [0, 0]
    nobody = data.cohort(np.zeros(0, dtype=int))
    assert calls.train(engine, start[:0], nobody, local=LOCAL, key=KEY).shape == (0, start.shape[1])
    assert calls.losses(engine, start, nobody).shape == (0, 2)


@compiled_only
def test_what_is_not_a_number_stays_so_and_spoils_only_its_client(engine, rng):
    data, start = population(rng, [5, 5, 5]), starts(engine.model, 3, rng)
    cohort = data.cohort(np.arange(3))
    clean = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    cohort.inputs[0, 2, 0, 13, 13], cohort.inputs[1] = np.nan, 1e30
    trained = calls.train(engine, start, cohort, local=LOCAL, key=KEY)
    expected = calls.train(ReferenceEngine(engine.model), start, cohort, local=LOCAL, key=KEY)
    assert not np.isfinite(expected[:2]).all(axis=1).any()
    assert not np.isfinite(trained[:2]).all(axis=1).any()
    assert (trained[2] == clean[2]).all()
    assert not np.isfinite(calls.losses(engine, start, cohort)[0]).any()


def test_the_packed_layout_holds_every_parameter_once():
    places = packed_order(10, lanes=16)
    assert sorted(places[places < 26_010].tolist()) == list(range(26_010))
    assert (places == 26_010).sum() == 33 * 6
    assert num_parameters(10) == 26_010
    assert num_parameters(62) == cnn(62).num_parameters


@pytest.mark.parametrize("name", ["cnn", "edges-cnn", "cifar-cnn", "lstm", "trigram"])
def test_pytorch_one_client_at_a_time_equals_the_reference(name, rng):
    shape = {"cifar-cnn": (3, 32, 32), "lstm": (6,), "trigram": (6,)}.get(name, (1, 28, 28))
    model = make_model(name, input_shape=shape, num_classes=12)
    inputs = rng.integers(12, size=(7, *shape)) if model.takes_ids else rng.normal(size=(7, *shape))
    data = from_arrays([inputs], [rng.integers(12, size=7)], num_classes=12, ids=model.takes_ids)
    cohort, start = data.cohort([0]), starts(model, 1, rng)
    local, anchor, moving = LocalSettings(0.1, 2, 3, 0.3), start + 0.01, rng.random(start.shape[1]) < 0.7
    slow = ReferenceEngine(model)
    expected = calls.train(slow, start, cohort, local=local, key=KEY, anchor=anchor, trainable=moving)
    orders = batch_orders(KEY, cohort.clients, cohort.sizes, epochs=2)[0]
    trainer, steps = TorchClientTrainer(model.module, model.task, samples_at_once=4), Steps(0.1, 2, 3, 0.3)
    trained = trainer.train(
        ClientCall(start[0], cohort.inputs[0], cohort.targets[0], orders, steps, anchor[0], trainable=moving)
    )
    assert np.abs(trained - expected[0]).max() < 1e-4
    loss, right = trainer.evaluator(start)(cohort.inputs[0], cohort.targets[0])[0] / 7
    theirs = calls.measure(slow, start, cohort)
    assert (loss, right) == (pytest.approx(theirs[0][0, 0], abs=1e-5), pytest.approx(theirs[1][0, 0]))


def test_modules_travel_to_the_workers(rng):
    model = from_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    targets = [rng.normal(size=size).astype(np.float32) for size in (5, 8)]
    data = from_arrays([rng.normal(size=(len(t), 4)) for t in targets], targets, num_classes=0)
    cohort, start = data.cohort(np.arange(2)), starts(model, 2, rng)
    slow = ReferenceEngine(model)
    with WorkersEngine(model, num_workers=1) as workers:
        trained = calls.train(workers, start, cohort, local=LOCAL, key=KEY)
        assert np.abs(trained - calls.train(slow, start, cohort, local=LOCAL, key=KEY)).max() < 1e-5
        loss, accuracy = calls.measure(workers, start, cohort)
    assert np.allclose(loss, calls.losses(slow, start, cohort), atol=1e-5)
    assert np.isnan(accuracy).all()


def test_a_module_that_cannot_travel_is_refused():
    module = nn.Linear(2, 2)
    module.extra = lambda: None
    with pytest.raises(ConfigError, match=r"cannot be sent to worker processes.*engine = batched"):
        WorkersEngine(from_module(module)).spec  # noqa: B018


@compiled_only
def test_a_dead_worker_is_named_and_the_next_call_starts_anew(rng):
    model = cnn()
    cohort, start = population(rng, [6, 6]).cohort(np.arange(2)), starts(model, 2, rng)
    with WorkersEngine(model, num_workers=2) as workers:
        expected = calls.train(workers, start, cohort, local=LOCAL, key=KEY)
        first, second = workers.process_ids
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"worker process {first} died with exit code -9"):
            calls.train(workers, start, cohort, local=LOCAL, key=KEY)
        assert gone(first)
        assert gone(second)
        assert (calls.train(workers, start, cohort, local=LOCAL, key=KEY) == expected).all()


@compiled_only
def test_what_fails_in_a_worker_is_told(rng):
    model = cnn()
    cohort = population(rng, [6]).cohort([0])
    cohort.targets[0, 3] = 10
    with (
        closing(WorkersEngine(model, num_workers=1)) as workers,
        pytest.raises(WorkerError, match=r"failed \(ValueError at native_client.py"),
    ):
        calls.losses(workers, starts(model, 1, rng), cohort)
    assert workers.process_ids == ()


@compiled_only
def test_nothing_is_left_running_after_close_or_without_the_engine(rng):
    model = cnn()
    cohort = population(rng, [2]).cohort([0])
    workers = WorkersEngine(model, num_workers=1)
    calls.losses(workers, starts(model, 1, rng), cohort)
    (closed,) = workers.process_ids
    workers.close()
    workers.close()
    assert gone(closed)
    calls.losses(workers, starts(model, 1, rng), cohort)
    (dropped,) = workers.process_ids
    del workers
    assert gone(dropped)


PARENT = """
import numpy as np
from rrcluster.engine import calls
from rrcluster.engine.protocol import LocalSettings
from rrcluster.data import from_arrays
from rrcluster.engine.workers.workers_engine import WorkersEngine
from rrcluster.models import make_model

model = make_model("cnn", input_shape=(1, 28, 28), num_classes=10)
cohort = from_arrays([np.zeros((40, 1, 28, 28))], [np.zeros(40, dtype=int)], num_classes=10).cohort([0, 0, 0, 0])
start, engine = np.zeros((4, model.num_parameters)), WorkersEngine(model, num_workers=2)
calls.losses(engine, start, cohort)
print(*engine.process_ids, flush=True)
calls.train(engine, start, cohort, local=LocalSettings(local_epochs=100_000), key=(0, 0))
"""


@compiled_only
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent_whatever_ends_it(how):
    """Ctrl-C at once; a killed parent cannot say anything, and its workers notice after the client they are at."""
    program = PARENT if how == signal.SIGINT else PARENT.replace("100_000", "200")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.2)  # into the training
        parent.send_signal(how)
        parent.wait(10)
    deadline = time.monotonic() + 20
    while not all(map(gone, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, workers))


def test_without_a_compiler_one_line_says_so_and_pytorch_trains(monkeypatch, caplog):
    build.native_library.cache_clear()
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    try:
        with caplog.at_level(logging.WARNING):
            assert WorkersEngine(cnn()).spec.library is None
            assert WorkersEngine(cnn()).spec.module
    finally:
        build.native_library.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "no C compiler (cc, gcc, clang) found: PyTorch trains the cnn instead, more slowly."
    ]


def test_a_compiler_that_fails_is_no_compiler(monkeypatch, tmp_path):
    build.native_library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_FLAGS", ("--no-such-flag",))
    try:
        assert build.native_library() is None
    finally:
        build.native_library.cache_clear()
    assert not list(tmp_path.rglob("*.so"))


@compiled_only
def test_only_our_cnn_is_trained_by_the_compiled_code():
    assert [WorkersEngine(cnn(classes)).spec.outputs for classes in (10, 62)] == [10, 62]
    mlp = make_model("mlp", input_shape=(1, 28, 28), num_classes=10)
    others = [additive(cnn()), cnn(0), mlp, from_module(cnn().module, name="cnn")]  # 0 classes: regression
    assert all(WorkersEngine(other).spec.library is None for other in others)


def test_heavy_rows_go_first_in_small_parts():
    parts = _split_rows(np.array([1, 5, 3, 5]), 2)
    assert parts == [[1], [3], [2], [0]]
    assert sorted(row for part in _split_rows(np.ones(100), 2) for row in part) == list(range(100))
    assert max(map(len, _split_rows(np.ones(500), 2))) == 3


def test_auto_takes_workers_where_there_is_enough_to_do(monkeypatch):
    shape = {"input_shape": (1, 28, 28), "num_classes": 10}
    assert isinstance(pick_engine("auto", model=cnn(), device=CPU, samples=20_000), WorkersEngine)
    assert isinstance(pick_engine("auto", model=cnn(), device=CPU, samples=100), ReferenceEngine)
    assert isinstance(pick_engine("workers", model=cnn(), device=CPU, samples=0), WorkersEngine)
    assert isinstance(pick_engine("auto", model=make_model("mlp", **shape), device=CPU), BatchedEngine)
    lstm = make_model("lstm", input_shape=(8,), num_classes=80)
    assert isinstance(pick_engine("auto", model=lstm, device=CPU, samples=100), ReferenceEngine)
    monkeypatch.setattr(select, "cores", lambda: 2)
    assert isinstance(pick_engine("auto", model=lstm, device=CPU, samples=1e9), WorkersEngine)
    monkeypatch.setattr(select, "cores", lambda: 1)
    assert isinstance(pick_engine("auto", model=lstm, device=CPU, samples=1e9), ReferenceEngine)
    with pytest.raises(ConfigError, match="engine = workers runs on the processor"):
        pick_engine("workers", model=cnn(), device=torch.device("cuda"))
