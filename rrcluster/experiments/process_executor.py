"""Jobs in several processes: each runs a share of them, and tells its steps to the one that asked.

For jobs on a GPU that wait for their host: Python runs one thread of a process at a time, so one process cannot prepare
and finish rounds as fast as a GPU trains them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait

from rrcluster.engine.workers.spawn import spawn, terminate
from rrcluster.experiments.sweep import FAILED, Job, Outcome, Step

_SECONDS_TO_SAY_WHY = 5.0  # an error is printed, and becomes the exit code, after the connection has closed
_SHARED_OUT = 0.95  # of a device's memory; the rest is for what processes need before they compute


class _Share:
    """A process and its jobs. Leaving the block ends it, whatever it does: its runs can be resumed."""

    def __init__(self, jobs: Sequence[Job], part: float) -> None:
        self.left = list(jobs)  # not over
        self.connection, self._process = spawn(__name__)
        with suppress(OSError):  # one that died at once is noticed by its silence
            self.connection.send((list(jobs), part))

    def steps(self) -> Iterator[Step]:
        """What it says next. If it is gone, all its jobs that were not over have failed."""
        try:
            step: Step = self.connection.recv()
        except (EOFError, OSError):
            lost, self.left, code = self.left, [], terminate(self._process, patience=_SECONDS_TO_SAY_WHY)
            for job in lost:
                yield Outcome(job, FAILED, f"its process ended with exit code {code}; the same command goes on.")
            return
        if isinstance(step, Outcome):
            places = [job.folder for job in self.left]
            del self.left[places.index(step.job.folder)]
        yield step

    def __enter__(self) -> "_Share":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        terminate(self._process)


def in_processes(shares: Sequence[Sequence[Job]]) -> Iterator[Step]:
    """Run every share in a process of its own, with an equal part of a device's memory; steps come as they happen."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_Share(share, _SHARED_OUT / len(shares))) for share in shares]
        while working := {process.connection: process for process in processes if process.left}:
            for ready in wait(list(working)):
                yield from next(process for connection, process in working.items() if connection is ready).steps()


def main(socket: int) -> None:
    """The process: run what is sent, until it is done or nobody listens."""
    import torch

    from rrcluster.experiments.stacked_executor import devices_of, in_this_process

    with Connection(socket) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        jobs, part = connection.recv()
        for device in devices_of(jobs):
            if device.type == "cuda":
                with torch.cuda.device(device):  # which may have no number
                    torch.cuda.set_per_process_memory_fraction(part)  # it frees what it has cached before it fails
        for step in in_this_process(jobs):
            connection.send(step)
