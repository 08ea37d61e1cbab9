"""The only module, outside of a federation, that starts processes: executors, here or on a cluster, and a compiler."""

import gc
import logging
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import ExitStack, contextmanager
from typing import Any

from rrcluster.errors import ConfigError, PrivacyError, WorkerError, install_extra

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# Memory that is freed stays with the process: glibc would hand it back, and every step would ask for it again.
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
_IDLE_SECONDS = 60.0  # after which a process without work ends, also if its parent was killed
_SECONDS_TO_COMPILE = 120


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_POOLS: dict[int, Executor] = {}  # by how many processes they have: kept from run to run, since starting takes seconds


def local_executor(processes: int) -> Executor:
    """An executor over processes of this machine, each with one thread, that start with their first task.

    By loky: it does not import the program's main module again, takes functions and classes that a notebook defines,
    and reports a process that was killed. Processes end when they are idle, or with this program.
    """
    if processes not in _POOLS:
        from loky import ProcessPoolExecutor

        env = {**_KEEP_MEMORY, **_ONE_THREAD, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"}  # a population is no leak
        _POOLS[processes] = ProcessPoolExecutor(processes, timeout=_IDLE_SECONDS, env=env, initializer=_begin)
    return _POOLS[processes]


_SECONDS_TO_CONNECT = 60


@contextmanager
def cluster_executor(address: str) -> Iterator[tuple[Executor, str]]:
    """An executor over a Dask cluster, and a line about it: "tcp://host:8786" of its scheduler, or "local:4" processes.

    A task whose worker died is computed by another one, three times at most; workers that join get the tasks that wait.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise ConfigError(f"--cluster needs the package distributed; {install_extra('cluster')}.") from None
    if not re.fullmatch(r"local:[1-9]\d*|\w+://\S+:\d+", address):
        raise ConfigError(f"cluster = {address!r} must be the address of a scheduler, tcp://host:8786, or local:N.")
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}))
        try:
            options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "env": _KEEP_MEMORY | _ONE_THREAD}
            where: Any = address
            if address.startswith("local:"):
                where = LocalCluster(n_workers=int(address[6:]), silence_logs=logging.CRITICAL, **options)
                stack.enter_context(where)
            client = stack.enter_context(Client(where, timeout=_SECONDS_TO_CONNECT))
            client.wait_for_workers(1, timeout=_SECONDS_TO_CONNECT)
        except (OSError, TimeoutError):
            raise ConfigError(
                f"cluster = {address}: no scheduler with a worker answers there within {_SECONDS_TO_CONNECT} s; start "
                "`dask scheduler`, and `dask worker ADDRESS --nthreads 1` on every machine."
            ) from None
        number = len(client.scheduler_info(n_workers=-1)["workers"])
        line = f"Cluster {client.scheduler.address}: {number} workers; dashboard {client.dashboard_link}"
        yield client.get_executor(pure=False), line


def refuse_secure(secure: bool) -> None:
    """PrivacyError for a secure run on a cluster."""
    if secure:
        raise PrivacyError(
            "secure runs do not go on a cluster: its scheduler and its dashboard see who takes part in a round, and "
            "workers write what they compute to disk. Use --processes N on one machine, or a federation."
        )


def submitted(executor: Executor, function: Any, *arguments: Any) -> "Future[Any]":
    """A task of an executor; if that is broken already, because a process died while idle, a future that says so."""
    try:
        return executor.submit(function, *arguments)
    except BrokenExecutor as error:
        future: Future[Any] = Future()
        future.set_exception(error)
        return future


def process_died(error: BaseException) -> bool:
    """Whether a task failed because the process that computed it ended."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"  # of Dask


def lost_cluster(error: BaseException) -> WorkerError | None:
    """What to say of a task that failed because the scheduler of a cluster is gone; None where that is not why."""
    if not isinstance(error, CancelledError):
        return None
    return WorkerError("the cluster's scheduler is gone, and with it what was computed; start it again, then resume.")


def end_processes(executor: Executor) -> None:
    """End the processes of a local executor, whatever they are at."""
    for processes, pool in list(_POOLS.items()):
        if pool is executor:
            del _POOLS[processes]
    executor.shutdown(wait=False, kill_workers=True)  # type: ignore[call-arg]  # of loky


def pickled(value: Any) -> bytes:
    """The value for other processes; nothing where an object of the user's cannot be sent."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # whatever an object of the user's may raise
        kind = type(error).__name__
        logging.getLogger("rrcluster").info("clients are computed in this process: they cannot be sent (%s).", kind)
        return b""


def unpickled(payload: bytes) -> Any:
    """The value that another process of this program sent: nothing that was read from a file or a network."""
    import cloudpickle

    return cloudpickle.loads(payload)


def _begin() -> None:
    """In a new process: one thread, and Ctrl-C is for the parent, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # without psutil loky collects garbage every second, a tenth of the time if it looks through torch


def run_program(command: Sequence[str], *, seconds: float = _SECONDS_TO_COMPILE) -> bytes:
    """What a program writes; `subprocess.SubprocessError` where it fails or takes too long."""
    options = {"stdin": subprocess.DEVNULL, "timeout": seconds}
    done = subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload]
    return bytes(done.stdout)
