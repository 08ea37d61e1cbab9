"""Spawns single-threaded worker processes, and distributes a job's rows among them in shared memory."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait

import numpy as np

from rrcluster.engine.workers.processes import spawn, terminate
from rrcluster.engine.workers.shared_arrays import ArraySpec, SharedArena, open_unnamed_file
from rrcluster.engine.workers.worker import TrainerSpec, WorkerJob
from rrcluster.errors import WorkerError
from rrcluster.types import Array

_QUEUED = 2  # parts sent to a worker at a time: one to compute, and one so that it never waits for the next
_PARTS = 64  # per worker: small ones even out clients of different sizes
_SECONDS_TO_EXIT = 5.0


class WorkerPool:
    """Processes that live from the first job to `close`. They end with this process, however it ends."""

    def __init__(self, spec: TrainerSpec, num_workers: int) -> None:
        """Start the workers; they get ready while the first job is laid out."""
        self._memory = open_unnamed_file()
        self.arena = SharedArena(self._memory)
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}
        try:
            for _ in range(num_workers):
                connection, process = spawn("rrcluster.engine.workers.worker", (self._memory,))
                self._workers[connection] = process
            for connection in self._workers:
                connection.send(spec)
        except OSError as error:
            self.close()
            raise WorkerError(f"{num_workers} worker processes could not be started ({error}).") from error

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(process.pid for process in self._workers.values())

    def share(self, arrays: Mapping[str, Array], result: tuple[tuple[int, ...], str]) -> dict[str, ArraySpec]:
        """Copy arrays to shared memory, with room for a `result` of this shape and type."""
        sizes = {name: (values.shape, values.dtype.str) for name, values in arrays.items()}
        specs = self.arena.allocate(sizes | {"result": result})
        for name, values in arrays.items():
            self.arena.view(specs[name])[...] = values
        return specs

    def run(self, job: WorkerJob, weights: Array) -> None:
        """Compute all rows of a job, the heaviest first. `WorkerError` if a worker dies or fails; then all end."""
        parts = _split_rows(weights, len(self._workers))
        try:
            self._run(job, parts)
        except BaseException:
            self.close()
            raise

    def _run(self, job: WorkerJob, parts: list[list[int]]) -> None:
        waiting, pending = parts[::-1], dict.fromkeys(self._workers, 0)
        for connection in self._workers:
            self._send(connection, job)
        for _ in range(_QUEUED):
            for connection in self._workers:
                if waiting:
                    self._send(connection, waiting.pop())
                    pending[connection] += 1
        while busy := [connection for connection, count in pending.items() if count]:
            ready = wait(busy)
            for connection in (candidate for candidate in busy if candidate in ready):
                self._receive(connection)
                if waiting:
                    self._send(connection, waiting.pop())
                else:
                    pending[connection] -= 1

    def _send(self, connection: Connection, message: WorkerJob | list[int]) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._exited(connection) from error

    def _receive(self, connection: Connection) -> None:
        try:
            failure = connection.recv()
        except (EOFError, OSError) as error:
            raise self._exited(connection) from error
        if failure is not None:
            raise WorkerError(f"a worker process failed ({failure}); engine = reference runs without workers.")

    def _exited(self, connection: Connection) -> WorkerError:
        process = self._workers[connection]
        code = terminate(process, patience=_SECONDS_TO_EXIT)
        return WorkerError(
            f"worker process {process.pid} died with exit code {code} (-9: killed, usually out of memory); see its "
            "stderr. Continue with `rrcluster run --resume`; engine = reference runs without workers."
        )

    def close(self) -> None:
        """End the workers and free the memory. Closing twice does nothing."""
        for connection in self._workers:
            connection.close()
        for process in self._workers.values():
            terminate(process)
        self._workers = {}
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def _split_rows(weights: Array, num_workers: int) -> list[list[int]]:
    """Rows in small parts, the heaviest rows first, so that the last parts are light."""
    order: Sequence[int] = np.argsort(-weights, kind="stable").tolist()
    part_size = max(1, len(order) // (_PARTS * num_workers))
    return [list(order[first : first + part_size]) for first in range(0, len(order), part_size)]
