"""Child processes of a federation, which end with their parent."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rrcluster.storage import open_plain

Process = subprocess.Popen[bytes]
_LONGEST_LOG = 2**24  # bytes; a longer log is rotated at the next start, and one old log is kept
_PATIENCE = 5.0  # seconds between asking a process to stop and killing it


def start_module(module: str, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> Process:
    """Start `python -m module arguments` with its output appended to `log`, which only its owner may read."""
    if log.exists() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_suffix(".log.1"))
    handle = open_plain(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C goes to the parent, which stops its children in order
        )
    finally:
        os.close(handle)


def stop_processes(processes: Sequence[Process]) -> None:
    """Ask all processes to stop, and kill those that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stop_signals(parent: int | None) -> Iterator[threading.Event]:
    """An event set by SIGTERM, SIGINT, or the end of the parent process. Call it from a main thread."""
    stop = threading.Event()

    def asked(_: int, __: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    watch_parent(parent, stop.set)
    yield stop


def watch_parent(parent: int | None, act: Callable[[], object]) -> None:
    """Call `act` when the process that started this one has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(0.5)
        act()

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()


def allow_open_files(number: int) -> None:
    """Raise this process's limit so that it can open so many files beside the usual ones, where that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, number + 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
