"""Starts and ends processes. Imports nothing heavy: a command starts some before anything else."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

_SECONDS_TO_END = 5.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# Memory that is freed stays with the process: glibc would hand it back, and every step would ask for it again.
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main({descriptors})"


Spawned = tuple[Connection, subprocess.Popen[bytes]]  # our end of the connection to it


def spawn(module: str, files: Sequence[int] = (), *, threads: Mapping[str, str] = _ONE_THREAD) -> Spawned:
    """Run `main` of a module in a new process, given descriptors of its end of the connection and of `files`.

    The process has its own session: Ctrl-C reaches only this process, which then terminates the other.
    """
    ours, theirs = Pipe()
    with theirs:
        descriptors = (theirs.fileno(), *files)
        program = _PROGRAM.format(path=sys.path, module=module, descriptors=", ".join(map(str, descriptors)))
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**_KEEP_MEMORY, **os.environ, **threads},
            start_new_session=True,
        )
    return ours, process


def cores() -> int:
    """The cores this process may use, shared equally among the ranks that torchrun starts on one machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def terminate(process: subprocess.Popen[bytes], *, patience: float = 0.0) -> int:
    """Exit code of the process; it is terminated if still running after `patience` seconds, and killed if need be."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(patience)
    process.terminate()
    try:
        return process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
