"""The only module outside federations that starts processes: executors, here or on a cluster, and a compiler."""

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
# glibc would return freed memory, and every step would request it again: keep it
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
_IDLE_SECONDS = 60.0  # an idle process ends after this time, also if its parent was killed
_SECONDS_TO_COMPILE = 120


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_POOLS: dict[int, Executor] = {}  # number of processes -> executor, reused between runs, since starting takes seconds


def local_executor(processes: int) -> Executor:
    """An executor over processes of this machine, each with one thread, that start with their first task.

    By loky: it does not import the program's main module again, can send functions and classes defined in a notebook,
    and reports killed processes. Processes end when they are idle, or with this program.
    """
    if processes not in _POOLS:
        from loky import ProcessPoolExecutor

        # a large population must not count as a memory leak
        env = {**_KEEP_MEMORY, **_ONE_THREAD, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"}
        _POOLS[processes] = ProcessPoolExecutor(processes, timeout=_IDLE_SECONDS, env=env, initializer=_begin)
    return _POOLS[processes]


_SECONDS_TO_CONNECT = 60


@contextmanager
def cluster_executor(address: str) -> Iterator[tuple[Executor, str]]:
    """An executor over a Dask cluster, and a line about it: "tcp://host:8786" of its scheduler, or "local:4" processes.

    A task whose worker died is retried elsewhere, three times at most; new workers take waiting tasks.
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
                f"cluster = {address}: no scheduler with workers answers there within {_SECONDS_TO_CONNECT} s; start "
                "`dask scheduler`, and `dask worker ADDRESS --nthreads 1` on every machine."
            ) from None
        number = len(client.scheduler_info(n_workers=-1)["workers"])
        line = f"Cluster {client.scheduler.address}: {number} workers; dashboard {client.dashboard_link}"
        yield client.get_executor(pure=False), line


def refuse_secure(secure: bool) -> None:
    """PrivacyError for a secure run on a cluster."""
    if secure:
        raise PrivacyError(
            "secure runs are not allowed on a cluster: its scheduler and dashboard see who takes part in a "
            "round, and workers write results to disk. Use --processes N on one machine, or a federation."
        )


def submitted(executor: Executor, function: Any, *arguments: Any) -> "Future[Any]":
    """Submit a task; a failed future if the executor is already broken, because a process died while idle."""
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
    """The message for a task that failed because a cluster's scheduler is gone; None for other failures."""
    if not isinstance(error, CancelledError):
        return None
    return WorkerError("the cluster's scheduler is gone, with all unsaved results; start it again, then resume.")


def end_processes(executor: Executor) -> None:
    """End the processes of a local executor, in the middle of any task."""
    for processes, pool in list(_POOLS.items()):
        if pool is executor:
            del _POOLS[processes]
    executor.shutdown(wait=False, kill_workers=True)  # type: ignore[call-arg]  # of loky


def pickled(value: Any) -> bytes:
    """The value for other processes; None where a user's object cannot be pickled."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # a user's object may raise any error
        kind = type(error).__name__
        logging.getLogger("rrcluster").info("clients are computed in this process: they cannot be sent (%s).", kind)
        return b""


def unpickled(payload: bytes) -> Any:
    """A value from another process of this program, never from a file or a network."""
    import cloudpickle

    return cloudpickle.loads(payload)


def _begin() -> None:
    """Start a new process: one thread; Ctrl-C goes to the parent, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # loky collects garbage every second, which takes a tenth of the time if it includes torch


def run_program(command: Sequence[str], *, seconds: float = _SECONDS_TO_COMPILE) -> bytes:
    """A program's output; `subprocess.SubprocessError` where it fails or takes too long."""
    options = {"stdin": subprocess.DEVNULL, "timeout": seconds}
    result = subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload]
    return bytes(result.stdout)
