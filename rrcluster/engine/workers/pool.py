"""Worker processes with one thread each, their shared memory, and who does which rows of a job."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import numpy as np

from rrcluster.engine.workers.arena import Arena, Slot, unnamed_file
from rrcluster.engine.workers.spawn import ended, started
from rrcluster.engine.workers.worker import Job, Recipe
from rrcluster.errors import WorkerError
from rrcluster.types import Array

_IN_HAND = 2  # parts a worker has at a time: one to do, and one so that it never waits for the next
_PARTS = 64  # per worker: small ones even out clients of different sizes
_SECONDS_TO_DIE = 5.0


class Pool:
    """Processes that are there from the first job to `close`. They end with this process, however it ends."""

    def __init__(self, recipe: Recipe, num_workers: int) -> None:
        """Start the workers; they get ready while the first job is laid out."""
        self._memory = unnamed_file()
        self.arena = Arena(self._memory)
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}
        try:
            for _ in range(num_workers):
                connection, process = started("rrcluster.engine.workers.worker", (self._memory,))
                self._workers[connection] = process
            for connection in self._workers:
                connection.send(recipe)
        except OSError as error:
            self.close()
            raise WorkerError(f"{num_workers} worker processes could not be started ({error}).") from error

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the workers."""
        return tuple(process.pid for process in self._workers.values())

    def lay(self, arrays: Mapping[str, Array], result: tuple[tuple[int, ...], str]) -> dict[str, Slot]:
        """Copy arrays to shared memory, with room for a result beside them."""
        kinds = {name: (values.shape, values.dtype.str) for name, values in arrays.items()}
        slots = self.arena.lay(kinds | {"result": result})
        for name, values in arrays.items():
            self.arena.view(slots[name])[...] = values
        return slots

    def run(self, job: Job, weights: Array) -> None:
        """Do all rows of a job, the heaviest first. A worker that dies or fails is a `WorkerError`: all end."""
        parts = _shared_out(weights, len(self._workers))
        try:
            self._run(job, parts)
        except BaseException:
            self.close()
            raise

    def _run(self, job: Job, parts: list[list[int]]) -> None:
        waiting, at_work = parts[::-1], dict.fromkeys(self._workers, 0)
        for connection in self._workers:
            self._say(connection, job)
        for _ in range(_IN_HAND):
            for connection in self._workers:
                if waiting:
                    self._say(connection, waiting.pop())
                    at_work[connection] += 1
        while busy := [connection for connection, count in at_work.items() if count]:
            ready = wait(busy)
            for connection in (one for one in busy if one in ready):
                self._hear(connection)
                if waiting:
                    self._say(connection, waiting.pop())
                else:
                    at_work[connection] -= 1

    def _say(self, connection: Connection, message: Job | list[int]) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._death(connection) from error

    def _hear(self, connection: Connection) -> None:
        try:
            failure = connection.recv()
        except (EOFError, OSError) as error:
            raise self._death(connection) from error
        if failure is not None:
            raise WorkerError(f"a worker process failed ({failure}); engine = reference does without them.")

    def _death(self, connection: Connection) -> WorkerError:
        process = self._workers[connection]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_DIE)
        return WorkerError(
            f"worker process {process.pid} died with exit code {process.returncode} (-9: killed, often for want of "
            "memory); see its own messages. `rrcluster run --resume` goes on; engine = reference does without workers."
        )

    def close(self) -> None:
        """End the workers and free the memory. Closing twice does nothing."""
        for connection in self._workers:
            connection.close()
        for process in self._workers.values():
            ended(process)
        self._workers = {}
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def _shared_out(weights: Array, num_workers: int) -> list[list[int]]:
    """Rows in small parts, the heaviest rows first, so that the last parts are light."""
    order: Sequence[int] = np.argsort(-weights, kind="stable").tolist()
    at_once = max(1, len(order) // (_PARTS * num_workers))
    return [list(order[first : first + at_once]) for first in range(0, len(order), at_once)]
