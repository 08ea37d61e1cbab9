"""Runs and sweeps beyond one machine: Dask's workers, shards of a sweep, and a lock between machines."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import ConfigError, DataError, PrivacyError, RunFolderError, WorkerError
from rrcluster.processes import cluster_executor
from rrcluster.runs import lock
from rrcluster.runs.experiment import same_population
from rrcluster.runs.job_runner import steps_of
from rrcluster.runs.lock import Lease
from rrcluster.runs.sweep import REFUSED, jobs, read_grid
from rrcluster.simulation import hosts

dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # of Dask's own
SETTINGS = {"data": "synthetic", "num_clients": 60, "num_clusters": 2, "num_rounds": 4, "sample_rate": 0.7}
SETTINGS |= {"epsilon": 8, "delta": 1e-3, "device": "cpu", "capacity": 8}
FILES = ("models.safetensors", "rounds.jsonl", "ledger.jsonl", "privacy.json")


def files(folder):
    return {name: (Path(folder) / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    rr.run(**SETTINGS, processes=1, out=str(folder))
    return files(folder)


@pytest.fixture(scope="module")
def cluster():
    """A worker of this machine; others join and leave in tests."""
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as made:
        yield made


def test_a_run_has_the_same_files_on_one_worker_and_on_two_that_join_and_die(cluster, alone, tmp_path):
    address, killed = cluster.scheduler_address, []
    with cluster_executor(address) as (executor, about):
        assert address in about
        assert "1 workers" in about
        assert "dashboard" in about
        rr.run(**SETTINGS, executor=executor, out=str(tmp_path / "one"))
        cluster.scale(2)

        def kill_one(round_index, figures):
            """The worker that has been there for longest; another one takes its place."""
            if round_index < 2:
                processes = [nanny.process.pid for nanny in cluster.workers.values() if nanny.process]
                os.kill(processes[0], signal.SIGKILL)
                killed.append(processes[0])

        rr.run(**SETTINGS, executor=executor, on_round=kill_one, out=str(tmp_path / "two"))
    assert len(killed) == 2
    assert files(tmp_path / "one") == alone
    assert files(tmp_path / "two") == alone


def test_workers_make_the_population_themselves_and_refuse_another_one(cluster, tmp_path):
    experiment = rr.experiment(**SETTINGS)
    with cluster_executor(cluster.scheduler_address) as (executor, _):
        made = rr.experiment(**SETTINGS)
        object.__setattr__(made, "executor", executor)
        assert made.hosts._elsewhere()
        sent = pickle.loads(made.hosts._payload)
    assert sent[0].data is None
    again = sent[1]()
    assert again.num_clients == 60
    assert (again.sizes == experiment.data.sizes).all()
    with pytest.raises(DataError, match="not the same on a worker"):
        same_population(made.config.with_seed(7, tmp_path), *sent[1].args[1:])


def test_a_table_that_differs_on_a_worker_is_refused(cluster, tmp_path, monkeypatch):
    rows = ["who,x,y"] + [
        f"{client},{client % 7 + row},{(client + row) % 2}" for client in range(60) for row in range(4)
    ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    given = {"client": "who", "target": "y", "classes": ["0", "1"], "features": ["x"], "algorithm": "ifca"}
    settings = {key: value for key, value in SETTINGS.items() if key not in ("num_clients", "data")} | given
    changed = table.read_text().replace("7,7,1", "7,9,1", 1)
    with cluster_executor(cluster.scheduler_address) as (executor, _):
        experiment = rr.experiment(data=str(table), **settings, out=str(tmp_path / "run"))
        table.write_text(changed)
        assert changed != "\n".join(rows) + "\n"
        with pytest.raises(DataError, match="not the same on a worker"):
            rr.run(experiment, executor=executor)


def test_mapped_rows_are_sent_as_their_place_in_a_file(tmp_path):
    draws = np.random.default_rng(0)
    whole, targets = draws.normal(size=(4000, 50)).astype(np.float32), draws.integers(2, size=4000)
    np.save(tmp_path / "inputs.npy", whole)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    data = rr.from_rows(mapped, targets, np.arange(0, 4001, 10), num_classes=2)
    sent = pickle.dumps(data.store)
    assert len(sent) < whole.nbytes / 10
    assert (pickle.loads(sent).client(7)[0] == data.store.client(7)[0]).all()
    part = rr.from_rows(mapped[1000:], targets[1000:], np.arange(0, 3001, 10), num_classes=2)  # no file of its own
    assert (pickle.loads(pickle.dumps(part.store)).client(3)[0] == whole[1030:1040]).all()
    np.save(tmp_path / "inputs.npy", whole + 1)
    with pytest.raises(DataError, match="not the same for a worker"):
        pickle.loads(sent)
    (tmp_path / "inputs.npy").unlink()
    with pytest.raises(DataError, match=r"inputs\.npy cannot be mapped by a worker"):
        pickle.loads(sent)


def test_secure_runs_and_sweeps_do_not_go_on_a_cluster(cluster, tmp_path, capsys):
    secure = ["--secure", "--cluster", "tcp://127.0.0.1:1"]
    assert main(["run", *secure]) == 2
    assert "its scheduler and dashboard see who takes part" in capsys.readouterr().err
    grid = tmp_path / "grid.yaml"
    grid.write_text("data: synthetic\nsecure: true\nepsilon: [2, 4]\n")
    assert main(["sweep", str(grid), "--cluster", "tcp://127.0.0.1:1"]) == 2
    assert "secure runs are not allowed on a cluster" in capsys.readouterr().err
    with cluster_executor(cluster.scheduler_address) as (executor, _):
        with pytest.raises(PrivacyError, match="secure runs are not allowed on a cluster"):
            rr.run(**SETTINGS, secure=True, executor=executor, out=str(tmp_path / "run"))
        with pytest.raises(PrivacyError, match="secure runs are not allowed on a cluster"):
            rr.sweep({**SETTINGS, "secure": True, "out": str(tmp_path / "sweep")}, executor=executor)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["local", "local:0", "local:two", "", "tcp://", "tcp:4"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match="must be the address of a scheduler"), cluster_executor(address):
        pass


def test_a_worker_of_other_versions_is_refused(monkeypatch):
    monkeypatch.setattr(hosts, "_VERSIONS", "rrcluster 0.0, torch 1")
    with pytest.raises(WorkerError, match=r"a worker has rrcluster 0\.0, torch 1, and the run rrcluster 9"):
        hosts._work("rrcluster 9, torch 2; 00", None, None, None)


@pytest.mark.slow
def test_a_scheduler_that_is_killed_ends_the_run_in_a_sentence_and_it_resumes(alone, tmp_path):
    program, env = [sys.executable, "-m", "dask"], {**os.environ, "OMP_NUM_THREADS": "1"}
    found = tmp_path / "scheduler.json"
    quiet = {"stderr": subprocess.DEVNULL, "env": env}
    begin = [
        *program,
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        str(found),
    ]
    scheduler = subprocess.Popen(begin, **quiet)
    try:
        deadline = time.monotonic() + 60
        while not found.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        address = distributed.Client(scheduler_file=str(found), timeout=60)
        where = address.scheduler.address
        address.close()
        worker = subprocess.Popen(
            [*program, "worker", where, "--nthreads", "1", "--no-dashboard", "--death-timeout", "5"], **quiet
        )
        try:
            with distributed.Client(where, timeout=60) as waiting:
                waiting.wait_for_workers(1, timeout=300)  # on a busy machine it takes minutes to start

            def kill(round_index, figures):
                """Between two rounds: the next one waits for a scheduler to come back."""
                scheduler.kill()
                scheduler.wait()

            with (
                dask.config.set({"distributed.comm.timeouts.connect": "5s"}),
                cluster_executor(where) as (executor, _),
                pytest.raises(WorkerError, match=r"scheduler is gone.*start it again, then resume"),
            ):
                rr.run(**SETTINGS, executor=executor, on_round=kill, out=str(tmp_path / "run"))
        finally:
            worker.kill()
            worker.wait()
    finally:
        scheduler.kill()
        scheduler.wait()
    rr.run(resume=str(tmp_path / "run"))
    assert files(tmp_path / "run") == alone


def test_a_sweep_on_a_cluster_and_in_shards_has_the_bits_of_one_process(cluster, tmp_path, capsys):
    varied = {**SETTINGS, "num_rounds": 2, "epsilon": [4, 8], "seeds": [0, 1]}
    rr.sweep({**varied, "out": str(tmp_path / "here")}, processes=1)
    with cluster_executor(cluster.scheduler_address) as (executor, _):
        rr.sweep({**varied, "out": str(tmp_path / "cluster")}, executor=executor)
    grid = tmp_path / "grid.yaml"
    grid.write_text("\n".join(f"{name}: {value}" for name, value in {**varied, "out": tmp_path / "shards"}.items()))
    for shard in ("1/3", "2/3", "3/3"):
        assert main(["sweep", str(grid), "--shard", shard, "-q"]) == 0
        assert not (tmp_path / "shards" / "sweep.json").exists()
        assert not (tmp_path / "shards" / "table.csv").exists()
    assert main(["sweep", str(grid), "-q"]) == 0  # the table; nothing is run again
    assert (tmp_path / "shards" / "table.csv").exists()
    for job in jobs(read_grid({**varied, "out": str(tmp_path / "here")}, source="", out=tmp_path)):
        place = job.folder.relative_to(tmp_path / "here")
        models = [
            (tmp_path / name / place / "models.safetensors").read_bytes() for name in ("here", "cluster", "shards")
        ]
        assert models[0] == models[1] == models[2]
    assert not list(tmp_path.rglob("*.lease"))
    for wrong in ("0/3", "4/3", "3", "a/b"):
        assert main(["sweep", str(grid), "--shard", wrong]) == 2
        assert "must be i/n" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_of_24_runs_has_the_bits_of_one_process_on_1_2_and_4_workers(tmp_path):
    varied = {**SETTINGS, "num_rounds": 2, "num_clusters": [1, 2, 3], "epsilon": [2, 4], "seeds": [0, 1, 2, 3]}
    rr.sweep({**varied, "out": str(tmp_path / "here")}, processes=1)
    places = [path.parent.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("models.safetensors")]
    assert len(places) == 24
    for number in (1, 2, 4):
        with cluster_executor(f"local:{number}") as (executor, _):
            rr.sweep({**varied, "out": str(tmp_path / str(number))}, executor=executor)
        assert all(files(tmp_path / str(number) / place) == files(tmp_path / "here" / place) for place in places)


CNN = {**SETTINGS, "data": "fashion-mini", "model": "cnn", "num_clients": 1000, "sample_rate": 0.3, "num_rounds": 7}
CNN |= {"samples_per_client": 40, "epsilon": 4, "num_clusters": 4}


@pytest.mark.slow
def test_a_cnn_of_1000_clients_has_the_same_bits_on_1_2_and_4_workers_that_are_killed_and_join(tmp_path):
    rr.run(**CNN, processes=1, out=str(tmp_path / "here"))
    for number in (1, 2, 4):
        with cluster_executor(f"local:{number}") as (executor, _):
            rr.run(**CNN, executor=executor, out=str(tmp_path / str(number)))
        assert files(tmp_path / str(number)) == files(tmp_path / "here")
    killed = []
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, **options) as made:

        def kill():
            processes = [nanny.process.pid for nanny in made.workers.values() if nanny.process and nanny.process.pid]
            os.kill(processes[0], signal.SIGKILL)
            killed.append(processes[0])

        def in_the_next_round(round_index, figures):
            """A worker dies while it computes, in five rounds; after the second one more joins."""
            if round_index == 1:
                made.scale(3)
            if round_index < 5:
                threading.Timer(0.3, kill).start()

        with cluster_executor(made.scheduler_address) as (executor, _):
            rr.run(**CNN, executor=executor, on_round=in_the_next_round, out=str(tmp_path / "killed"))
    assert len(killed) == 5
    assert files(tmp_path / "killed") == files(tmp_path / "here")
    charges = (tmp_path / "killed" / "ledger.jsonl").read_text().splitlines()
    assert len(charges) == CNN["num_rounds"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lock, "_RENEWED", 0.05)
    monkeypatch.setattr(lock, "_LAPSED", 0.5)


def test_a_lease_is_its_holders_while_that_lives(tmp_path, quick):
    with Lease(tmp_path / "run") as held:
        for _ in range(3):
            with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()} of"), Lease(tmp_path / "run"):
                pass
        held.check()
    with Lease(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lease_whose_holder_is_gone_is_taken_over_by_one(tmp_path, quick):
    (tmp_path / ".run.lease").write_bytes(b"other 1 00")
    holding, refused, let_go = [], [], threading.Event()

    def take():
        try:
            with Lease(tmp_path / "run") as lease:
                holding.append(lease)
                let_go.wait(10)
        except RunFolderError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(holding) + len(refused) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        assert len(holding) == 1
        assert len(refused) == 3
    finally:
        let_go.set()
        for thread in threads:
            thread.join()


def test_a_run_whose_lease_was_taken_over_stops(tmp_path, quick):
    grid = read_grid({**SETTINGS, "out": str(tmp_path / "sweep")}, source="", out=tmp_path)
    job = jobs(grid)[0]
    object.__setattr__(job, "shared", True)
    steps = steps_of(job)
    next(steps)
    (job.folder.parent / f".{job.folder.name}.lease").write_bytes(b"other 77 00")
    last = list(steps)[-1]
    assert last.status == REFUSED
    assert "taken over by process 77 of other" in last.reason
    assert not (job.folder / "models.safetensors").exists()
