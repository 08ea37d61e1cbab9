"""Spawn a single-threaded Python subprocess that shares this process's `sys.path` and a connection."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

_SECONDS_TO_END = 5.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main({descriptors})"


def spawn(module: str, files: Sequence[int] = ()) -> tuple[Connection, subprocess.Popen[bytes]]:
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
            env=os.environ | _ONE_THREAD,
            start_new_session=True,
        )
    return ours, process


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
