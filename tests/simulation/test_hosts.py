"""A round is a sum: no bit of it depends on how many hosts compute it, where they are, or which of them dies."""

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import rrcluster as rr
from rrcluster import entropy, processes
from rrcluster.methods import METHODS
from rrcluster.privacy.ledger import Ledger
from rrcluster.simulation.clients import ClientMemory, Faults
from rrcluster.simulation.evaluate import evaluate
from rrcluster.simulation.hosts import Hosts, parts_of
from rrcluster.simulation.personalise import personalised_accuracies
from rrcluster.simulation.simulate import simulate

_DRAWS = np.random.default_rng(2)
NAMES = [f"client {number}" for number in range(60)]
DATA = rr.from_arrays(_DRAWS.normal(size=(60, 5, 4)), _DRAWS.integers(3, size=(60, 5)), num_classes=3, names=NAMES)
SETTINGS = {
    "data": DATA,
    "model": "linear",
    "num_clients": 60,
    "num_clusters": 3,
    "num_rounds": 3,
    "sample_rate": 0.6,  # about 36 clients, in parts of 8
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "accountant": "rdp",
    "device": "cpu",
    "engine": "batched",
    "capacity": 8,
}


def dropout_network():
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3))


def own_network():
    return {"model": dropout_network(), "engine": "reference"}


CASES = {
    "joint with coins and evaluation": {"min_cluster_size": 4, "private_evaluation": 0.25},
    "hostile clients": {"hostile": 0.3, "dropout": 0.1},
    "memory": {"algorithm": "mr-mtl"},
    "slots": {"participation": "schedule", "slots": 2, "sample_rate": 1.0},
    "single reports": {"mechanism": "identifier", "min_cluster_size": 4},
    "no privacy, in floats": {"mechanism": "none", "noise_multiplier": None},
    "no privacy, rebalanced": {"mechanism": "none", "noise_multiplier": None, "min_cluster_size": 4},
    "own network": own_network,
    "secure": {"secure": True, "min_cluster_size": 4},
    "secure slots": {"secure": True, "participation": "schedule", "slots": 2, "sample_rate": 1.0},
    "secure own network": lambda: own_network() | {"secure": True},
}


@contextmanager
def fixed_entropy():
    """The operating system's generator, replaced for our own draws alone: starting processes draws from it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropy, "os", SimpleNamespace(urandom=np.random.default_rng(5).bytes))
        yield


def experiment_of(case, **more):
    changes = CASES[case]
    return rr.experiment(**(SETTINGS | (changes() if callable(changes) else changes) | more))


def arrays_of(*values):
    """The bits of all arrays and numbers in dataclasses."""
    found = []
    for value in values:
        if isinstance(value, np.ndarray):
            found.append((value.dtype.str, value.shape, value.tobytes()))
        elif hasattr(value, "__dataclass_fields__"):
            found += arrays_of(*(getattr(value, field.name) for field in fields(value)))
        elif isinstance(value, dict):
            found += arrays_of(*value.values())
        else:
            found.append(repr(value))
    return found


def run(experiment, ledger, **where):
    """Bits of every round: release, state, what clients remember; and the ledger, written at `ledger`."""
    plan, hosts = experiment.plan, Hosts(experiment.hosts.host, **where)
    with fixed_entropy():
        charged = Ledger(ledger, secure=plan.secure, limit=plan.num_releases, stored=plan.stores_rounds)
        parts = ("data", "model", "method", "plan", "engine", "streams", "local", "server", "faults")
        known = {name: getattr(experiment, name) for name in parts}
        records = list(simulate(**known, ledger=charged, hosts=hosts))
    rounds = [arrays_of(record.release, record.state, record.memory.tensors()) for record in records]
    counts = [(record.collection.num_reports, record.collection.incidents) for record in records]
    return rounds, counts, ledger.read_bytes(), hosts


def check_same(one, other):
    assert len(one[0]) > 0
    assert one[:3] == other[:3]


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_same_bits_on_1_2_and_3_hosts(case, tmp_path):
    experiment = experiment_of(case)
    alone = run(experiment, tmp_path / "1")
    for count in (2, 3):
        several = run(experiment, tmp_path / str(count), processes=count)
        check_same(alone, several)
        assert several[3]._executor is processes.local_executor(count), "they computed it"
    assert alone[3]._executor is None


def deadly(experiment, kills):
    """The same experiment whose clients may end the process of another host that trains them."""
    here, train = os.getpid(), experiment.method.local

    def local(models, clients, clusters, *, tools):
        if os.getpid() != here and kills(clients.cohort.clients):
            os.kill(os.getpid(), signal.SIGKILL)
        return train(models, clients, clusters, tools=tools)

    return replace(experiment, method=replace(experiment.method, local=local))


def once(folder):
    """Kill one host, whichever is first."""
    flag = folder / "killed"

    def kills(clients):
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return kills


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("joint with coins and evaluation", 2),
        ("secure", 3),
        *(pytest.param(case, 2, marks=pytest.mark.slow) for case in ("memory", "secure slots")),
    ],
)
def test_a_host_that_is_killed_in_a_round_changes_no_bit(case, count, tmp_path):
    experiment = experiment_of(case)
    killed = run(deadly(experiment, once(tmp_path)), tmp_path / "killed.jsonl", processes=count)
    assert (tmp_path / "killed").exists()
    check_same(run(experiment, tmp_path / "alone.jsonl"), killed)


class Gone(Faults):
    """Some clients are not there."""

    def __init__(self, clients):
        super().__init__()
        object.__setattr__(self, "clients", clients)

    def remaining(self, clients, *, streams, round_index):
        return clients[~np.isin(clients, self.clients)]


def test_a_client_that_kills_every_host_sends_nothing_and_no_log_names_it(tmp_path, caplog):
    deadly_client = 7
    experiment = experiment_of("joint with coins and evaluation", num_rounds=1, sample_rate=1.0)
    with caplog.at_level(logging.WARNING, "rrcluster"):
        killed = run(deadly(experiment, lambda ids: deadly_client in ids), tmp_path / "killed", processes=2)
    said = {record.getMessage() for record in caplog.records}
    assert said == set()
    gone = run(replace(experiment, faults=Gone([deadly_client])), tmp_path / "gone")
    assert killed[0] == gone[0]
    assert killed[2] == gone[2]
    assert killed[1] != run(experiment, tmp_path / "whole")[1], "it was drawn"


def test_a_process_that_dies_between_rounds_is_replaced(tmp_path):
    experiment = experiment_of("secure")
    run(experiment, tmp_path / "first", processes=2)
    pool = processes.local_executor(2)
    for process in list(pool._processes):
        os.kill(process, signal.SIGKILL)
    pool._executor_manager_thread.join(20)  # it has noticed
    check_same(run(experiment, tmp_path / "alone"), run(experiment, tmp_path / "again", processes=2))
    assert processes.local_executor(2) is not pool


def test_an_error_of_a_host_is_the_runs_own(tmp_path):
    experiment = experiment_of("memory")

    def local(models, clients, clusters, *, tools):
        raise ZeroDivisionError("of the method")

    broken = replace(experiment, method=replace(experiment.method, local=local))
    for count in (1, 2):
        with pytest.raises(ZeroDivisionError, match="of the method"):
            run(broken, tmp_path / str(count), processes=count)


_INSIDE, _MOST = [], []


def crowded(*arguments, **tools):
    """Local training that notes how many threads are in it."""
    _INSIDE.append(None)
    _MOST.append(len(_INSIDE))
    time.sleep(0.02)
    try:
        return METHODS["ifca"].local(*arguments, **tools)
    finally:
        _INSIDE.pop()


def test_threads_of_one_process_take_turns(tmp_path):
    """Networks that draw share the generators of their process: side by side they would draw each other's numbers."""
    experiment = experiment_of("own network")
    watched = replace(experiment, method=replace(experiment.method, local=crowded))
    with ThreadPoolExecutor(4) as executor:
        threads = run(watched, tmp_path / "threads", executor=executor)
        assert threads[3]._executor is executor
    assert max(_MOST) == 1
    check_same(run(experiment, tmp_path / "alone"), threads)


def test_what_cannot_be_sent_is_computed_here(tmp_path, caplog):
    experiment = experiment_of("own network")
    method = METHODS["ifca"]
    lock = threading.Lock()

    def local(*arguments, **tools):
        with lock:
            return method.local(*arguments, **tools)

    kept = replace(experiment, method=replace(method, local=local))
    with caplog.at_level(logging.INFO, "rrcluster"):
        here = run(kept, tmp_path / "here", processes=2)
    assert here[3]._executor is None
    assert "clients are computed in this process: they cannot be sent (TypeError)." in caplog.messages
    check_same(run(experiment, tmp_path / "alone"), here)


def test_parts_depend_on_the_cohort_alone_and_one_part_starts_no_process(tmp_path, monkeypatch):
    ids = np.array([3, 5, 8, 13, 21])
    memory = ClientMemory(1, {5: np.ones(1), 21: np.zeros(1), 2: np.ones(1)})
    parts = parts_of(ids, memory, 2)
    assert [part.ids.tolist() for part in parts] == [[3, 5], [8, 13], [21]]
    assert [sorted(part.memory.rows) for part in parts] == [[5], [], [21]]
    assert [part.ids.tolist() for part in parts_of(ids[:0], memory, 2)] == [[]]
    monkeypatch.setattr("rrcluster.simulation.hosts.local_executor", None)
    whole = replace(experiment_of("memory"))
    object.__setattr__(whole, "engine", rr.experiment(**(SETTINGS | {"capacity": 100, "algorithm": "mr-mtl"})).engine)
    assert run(whole, tmp_path / "whole", processes=3)[3]._executor is None


def test_evaluation_and_personalising_have_the_same_figures_on_several_hosts(tmp_path):
    experiment = rr.experiment(**(SETTINGS | {"data": "fashion-mini", "max_samples": 20, "num_clients": 600}))
    models = experiment.method.init(experiment.model, num_clusters=3, rng=np.random.default_rng(0))
    known = {name: getattr(experiment, name) for name in ("method", "split", "engine", "local")}
    ids, figures = np.arange(600), []
    for count in (1, 3):
        hosts = Hosts(experiment.hosts.host, processes=count)
        judged = evaluate(models, experiment.data, **known, hosts=hosts)
        figures.append([repr(judged), personalised_accuracies(models, ids[:40], hosts).tobytes()])
        assert (hosts._executor is None) == (count == 1)
    assert figures[0] == figures[1]


@pytest.mark.filterwarnings("ignore")  # of Dask's own
@pytest.mark.parametrize(
    "case", ["secure", *(pytest.param(case, marks=pytest.mark.slow) for case in ("memory", "single reports", "slots"))]
)
def test_a_run_has_the_same_bits_under_dask_also_where_a_worker_dies(case, tmp_path):
    distributed = pytest.importorskip("distributed")
    experiment = experiment_of(case)
    alone = run(experiment, tmp_path / "alone")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
    with cluster, distributed.Client(cluster) as client:
        executor = client.get_executor()
        check_same(alone, run(experiment, tmp_path / "dask", executor=executor))
        killed = run(deadly(experiment, once(tmp_path)), tmp_path / "killed.jsonl", executor=executor)
        assert (tmp_path / "killed").exists()
        check_same(alone, killed)


def test_a_process_that_keeps_a_population_is_not_replaced():
    def keep(megabytes):  # as a population that is read there
        import sys

        sys.kept = [*getattr(sys, "kept", []), np.ones(megabytes * 2**17)]
        time.sleep(1.1)  # loky looks once a second
        return os.getpid()

    executor = processes.local_executor(1)
    assert len({processes.submitted(executor, keep, megabytes).result() for megabytes in (1, 400, 1)}) == 1
    processes.end_processes(executor)
