"""An engine for networks that people bring: parts of a cohort, computed here or in processes of their own.

Nobody knows beforehand how long a round of such a network takes. So the first ones are computed here, and processes are
started once the time that they might have saved is what starting them takes. A part is computed alike in both places,
by one thread, so no bit of a result depends on the time, on where a part was computed, or on how many processes there
are; what a part is depends on the cohort alone.
"""

import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import cycle, pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import nn

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import Engine, Measured, Question, TrainingCall, Updates
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.workers.processes import spawn, terminate
from rrcluster.engine.workers.shared_arrays import SharedArena, open_unnamed_file, receive_shared, send_shared
from rrcluster.engine.workers.worker import type_and_line
from rrcluster.errors import WorkerError
from rrcluster.models.model import Model
from rrcluster.types import Array

_SECONDS_TO_START = 3.0  # that importing torch takes, on one core
_SECONDS_TO_SAY_WHY = 5.0  # to a process that has closed its connection
_STACKED, _CONVOLVED, _IN_TURN = 25, 8, 4  # most clients of a part: stacked, with convolutions, one at a time
_MOST_PARAMETERS = 2**16  # of a stacked network without convolutions (benchmarks/README.md)


class SpreadEngine:
    """Every part by `engine_of(model)`; `processes` of them at once, where that is more than one."""

    def __init__(self, model: Model, *, processes: int, capacity: int = 1024) -> None:
        """Nothing is started before the first calls have shown that it pays. A part is at most `capacity` clients.

        More than one process needs a model that can be pickled.
        """
        self.engine, self.part = engine_of(model), min(capacity, _part(model))
        self.model, self._processes = model, processes
        self._spent = 0.0  # seconds here, on what could have been shared
        self._pool: _Pool | None = None

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return [self._train(call) for call in calls]

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question; those about a test set are answered here."""
        return [self._measure(question) for question in questions]

    def close(self) -> None:
        """End the processes, if there are any."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _train(self, call: TrainingCall) -> Array:
        parts = [_TrainingPart.of(call, rows) for rows in _slices(len(call.model_of), self.part)]
        return np.concatenate([np.zeros((0, self.model.num_parameters), np.float32), *self._answers(parts)])

    def _measure(self, question: Question) -> Measured:
        samples = question.samples
        if isinstance(samples, TestSet) or not len(samples.clients):
            return self.engine.measure([question])[0]
        slices = _slices(len(samples.clients), self.part)
        answers = self._answers([_MeasuredPart(question.models, _arrays(samples, rows)) for rows in slices])
        loss, accuracy = (np.concatenate(figures) for figures in zip(*answers, strict=True))
        return Measured(loss, accuracy)

    def _answers(self, parts: "Sequence[_TrainingPart | _MeasuredPart]") -> list[Any]:
        pool = self._ready_pool() if self._processes > 1 and len(parts) > 1 else None
        if pool is not None:
            return self._in_processes(pool, parts)
        began = time.perf_counter()
        with one_thread():
            answers = [part.answer(self.engine) for part in parts]
        self._spent += time.perf_counter() - began if len(parts) > 1 else 0.0
        return answers

    def _ready_pool(self) -> "_Pool | None":
        """The processes, started when it is time, once all are ready; without them where one cannot start."""
        if self._pool is None and self._spent > _SECONDS_TO_START:
            self._pool = _Pool(pickle.dumps(replace(self.model)), self._processes)  # without what was computed from it
            weakref.finalize(self, self._pool.close)
        if self._pool is None:
            return None
        if self._pool.failed():
            self.close()
            self._processes = 1
            return None
        return self._pool if self._pool.ready else None

    def _in_processes(self, pool: "_Pool", parts: "Sequence[_TrainingPart | _MeasuredPart]") -> list[Any]:
        try:
            return pool.run(parts)
        except BaseException:  # answers of this call may still arrive: the next one needs new processes
            self.close()
            raise


def engine_of(model: Model) -> Engine:
    """What computes a part: stacked clients, or one at a time where a network cannot be stacked or is large."""
    return BatchedEngine(model) if stacks(model) else ReferenceEngine(model)


def _part(model: Model) -> int:
    """How many clients are a part: images between convolutions should stay in a core's cache."""
    if not stacks(model):
        return _IN_TURN
    return _CONVOLVED if _convolves(model) else _STACKED


def stacks(model: Model) -> bool:
    """Whether clients of a network are stacked on a CPU.

    Weights of many clients leave a core's cache, so large networks without convolutions are faster one at a time.
    """
    small = model.num_parameters <= _MOST_PARAMETERS or _convolves(model)
    return small and (not model.not_batched or model.dropout_only)


def _convolves(model: Model) -> bool:
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.module.modules())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: how many there are can change the last bits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _slices(count: int, most: int) -> list[slice]:
    """Parts of equal size, or one client more in the first; at most `most` clients.

    One part or, if possible, an even number of them: two processes end together.
    """
    if count <= most:
        return [slice(0, count)] if count else []
    parts = min(2 * -(-count // (2 * most)), count)
    size, larger = divmod(count, parts)
    ends = [size * part + min(part, larger) for part in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _arrays(cohort: Cohort, rows: slice) -> tuple[Array, ...]:
    """Ids, inputs, targets and sizes of some clients of a cohort, padded to the largest of them."""
    sizes = cohort.sizes[rows]
    width = int(sizes.max(initial=0))
    return cohort.clients[rows], cohort.inputs[rows, :width], cohort.targets[rows, :width], sizes


@dataclass(frozen=True, eq=False)
class _TrainingPart:
    """A training call for a few clients, in a form that can be sent."""

    settings: dict[str, Any]  # the call's, but for its cohort
    cohort: tuple[Array, ...]

    @classmethod
    def of(cls, call: TrainingCall, rows: slice) -> "_TrainingPart":
        arrays = _arrays(call.cohort, rows)
        part = call.select(rows, Cohort.of_arrays(*arrays))
        return cls({field.name: getattr(part, field.name) for field in fields(part) if field.name != "cohort"}, arrays)

    def answer(self, engine: Engine) -> Array:
        """(n, d)."""
        return np.asarray(engine.train([TrainingCall(cohort=Cohort.of_arrays(*self.cohort), **self.settings)])[0])


@dataclass(frozen=True, eq=False)
class _MeasuredPart:
    """A question about a few clients, in a form that can be sent."""

    models: Array
    cohort: tuple[Array, ...]

    def answer(self, engine: Engine) -> Measured:
        """Loss and accuracy, (n, k) each."""
        return engine.measure([Question(self.models, Cohort.of_arrays(*self.cohort))])[0]


class _Pool:
    """Processes with one thread each, which get ready while the parent goes on. They end with it, however it ends."""

    def __init__(self, model: bytes, processes: int) -> None:
        self._processes: dict[Connection, Any] = {}
        self._next: dict[Connection, Iterator[SharedArena]] = {}  # where the next part for a process is written
        self._files: list[int] = []
        self._starting: list[Connection] = []
        try:
            for _ in range(processes):
                files = [open_unnamed_file() for _ in range(2)]
                self._files += files
                connection, process = spawn(__name__, files)
                self._processes[connection], self._next[connection] = process, cycle(map(SharedArena, files))
                self._starting.append(connection)
                connection.send_bytes(model)
        except OSError as error:
            self.close()
            raise WorkerError(f"{processes} worker processes could not be started ({error}).") from error

    @property
    def ready(self) -> bool:
        """Whether all have said that they can begin, as far as `failed` has asked."""
        return not self._starting

    def failed(self) -> bool:
        """Whether one of those that have answered cannot begin: it cannot import the network, say."""
        for connection in [connection for connection in self._starting if connection.poll()]:
            try:
                if not connection.recv():
                    return True
            except (EOFError, OSError):
                return True
            self._starting.remove(connection)
        return False

    def run(self, parts: "Sequence[_TrainingPart | _MeasuredPart]") -> list[Any]:
        """The answers to all parts. A process has the next one at hand, but for the last: all shall end together."""
        answers: list[Any] = [None] * len(parts)
        waiting, held = list(range(len(parts)))[::-1], {connection: deque[int]() for connection in self._processes}
        while waiting or any(held.values()):
            for ahead in (0, 1):
                for connection, having in held.items():
                    if len(having) <= ahead and len(waiting) > ahead * len(held):
                        having.append(waiting.pop())
                        self._send(connection, parts[having[-1]])
            for ready in wait([connection for connection, having in held.items() if having]):
                if isinstance(ready, Connection):
                    answers[held[ready].popleft()] = self._received(ready)
        return answers

    def _send(self, connection: Connection, part: "_TrainingPart | _MeasuredPart") -> None:
        try:
            send_shared(connection, next(self._next[connection]), part)
        except OSError as error:
            raise self._died(connection) from error

    def _received(self, connection: Connection) -> Any:
        try:
            failure, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died(connection) from error
        if failure is not None:
            raise WorkerError(f"a worker process failed ({failure}); engine = reference runs without workers.")
        return answer

    def _died(self, connection: Connection) -> WorkerError:
        code = terminate(self._processes[connection], patience=_SECONDS_TO_SAY_WHY)
        return WorkerError(
            f"a worker process died with exit code {code} (-9: killed, usually out of memory); see its stderr. "
            "Continue with `rrcluster run --resume`; engine = reference runs without workers."
        )

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        for connection, process in self._processes.items():
            connection.close()
            terminate(process)
        for file in self._files:
            os.close(file)
        self._processes, self._files = {}, []


def main(socket: int, *files: int) -> None:
    """Entry point of a process: compute parts until the connection closes, which it does with the parent.

    Errors are reported by type and line only: a message may hold raw values.
    """
    torch.set_num_threads(1)
    arenas = cycle(map(SharedArena, files))
    with Connection(socket) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            engine = engine_of(pickle.loads(connection.recv_bytes()))
        except Exception:  # whatever the network's own code raises: the parent then computes by itself
            connection.send(False)
            return
        connection.send(True)
        while True:
            part = receive_shared(connection, next(arenas))
            try:
                answer, failure = part.answer(engine), None
            except Exception as error:  # reported to the parent, which raises it
                answer, failure = None, type_and_line(error)
            connection.send((failure, answer))
