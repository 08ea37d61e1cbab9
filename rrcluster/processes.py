"""The only module, outside of a federation, that starts processes: executors on this machine, and a compiler."""

import gc
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

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
