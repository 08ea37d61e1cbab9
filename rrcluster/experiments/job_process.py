"""A process that runs jobs of a sweep, and sends their steps to the one that started it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from rrcluster.engine.workers.processes import Spawned, spawn, terminate
from rrcluster.experiments.early import JOB_MODULE
from rrcluster.experiments.grid import Job
from rrcluster.experiments.sweep import FAILED, Outcome, Step
from rrcluster.privacy.account_cache import cached_values

_SECONDS_TO_SAY_WHY = 20.0  # an error is printed, and becomes the exit code, after the connection has closed


class JobProcess:
    """A process and its jobs. Leaving the block ends the process; its runs can be resumed."""

    def __init__(self, jobs: Sequence[Job], part: float, *, spawned: Spawned | None = None) -> None:
        """Give it these jobs, and start it unless it was `spawned`; `part`: of the memory of the device they run on."""
        self.left: list[Job] = []  # jobs that are not over
        self.alive = True
        self.connection, self._process = spawned or spawn(JOB_MODULE)
        self.give(jobs, part)

    def give(self, jobs: Sequence[Job], part: float) -> None:
        """Have it run these jobs too, after those it has."""
        self.left += jobs
        with suppress(OSError):  # `steps` reports a process that has died
            self.connection.send((list(jobs), part, cached_values()))

    def steps(self) -> Iterator[Step]:
        """The next steps it reports; if the process is gone, its unfinished jobs have failed."""
        try:
            step: Step = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            lost, self.left, code = self.left, [], terminate(self._process, patience=_SECONDS_TO_SAY_WHY)
            for job in lost:
                yield Outcome(job, FAILED, f"its process ended with exit code {code}; the same command goes on.")
            return
        if isinstance(step, Outcome):
            places = [job.folder for job in self.left]
            del self.left[places.index(step.job.folder)]
        yield step

    def __enter__(self) -> "JobProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        terminate(self._process)
