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
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from torch import nn

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.in_turn import InTurnEngine
from rrcluster.engine.protocol import Engine, Measured, Question, TrainingCall, Updates
from rrcluster.engine.recording import Form, resized
from rrcluster.engine.reference import one_thread
from rrcluster.engine.workers.processes import spawn, terminate
from rrcluster.engine.workers.shared_arrays import SharedConnection, open_unnamed_file
from rrcluster.engine.workers.worker import type_and_line
from rrcluster.errors import WorkerError
from rrcluster.models.model import Model
from rrcluster.types import Array

_SECONDS_TO_START = 3.0  # that importing torch takes, on one core
_SECONDS_TO_SAY_WHY = 5.0  # to a process that has closed its connection
_STACKED, _CONVOLVED, _IN_TURN = 25, 8, 13  # most clients of a part: stacked, with convolutions, one at a time
_MOST_RECORDED = 16  # forms of steps
_MOST_SENT = 2**24  # numbers that a process sends at once, of clients one at a time
_MOST_PARAMETERS = 2**16  # of a stacked network without convolutions (benchmarks/README.md)
_MOST_RECURRENT = 20_000  # of one with recurrent layers


class SpreadEngine:
    """Every part by `engine_of(model)`; `processes` of them at once, where that is more than one."""

    def __init__(self, model: Model, *, processes: int, capacity: int = 1024) -> None:
        """Nothing is started before the first calls have shown that it pays. A part is at most `capacity` clients.

        More than one process needs a model that can be pickled.
        """
        self.engine, self.part = engine_of(model), min(capacity, _part(model))
        self.model, self._processes = model, processes
        self._pickled = pickle.dumps(replace(model)) if processes > 1 else b""  # before it is computed for any client
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
        slices = _slices(len(call.model_of), self.part)
        result = np.empty((len(call.model_of), self.model.num_parameters), np.float32)
        for place, updates in self._answers([_TrainingPart.of(call, rows) for rows in slices]):
            result[slices[place]] = updates
        return result

    def _measure(self, question: Question) -> Measured:
        samples = question.samples
        if isinstance(samples, TestSet) or not len(samples.clients):
            return self.engine.measure([question])[0]
        slices = _slices(len(samples.clients), self.part)
        loss, accuracy = np.empty((2, len(samples.clients), len(question.models)))
        for place, answer in self._answers([_MeasuredPart(question.models, _arrays(samples, rows)) for rows in slices]):
            loss[slices[place]], accuracy[slices[place]] = answer
        return Measured(loss, accuracy)

    def _answers(self, parts: "Sequence[_TrainingPart | _MeasuredPart]") -> Iterator[tuple[int, Any]]:
        """The place of a part and its answer, which has to be copied before the next one."""
        pool = self._ready_pool() if self._processes > 1 and len(parts) > 1 else None
        if pool is not None:
            yield from self._in_processes(pool, parts)
            return
        began = time.perf_counter()
        with one_thread():
            for place, part in enumerate(parts):
                yield place, part.answer(self.engine)
        self._spent += time.perf_counter() - began if len(parts) > 1 else 0.0

    def _ready_pool(self) -> "_Pool | None":
        """The processes, started when it is time, once all are ready; without them where one cannot start."""
        if self._pool is None and self._spent > _SECONDS_TO_START:
            self._pool = _Pool(self._pickled, self._forms(), self._processes)
            weakref.finalize(self, self._pool.close)
        if self._pool is None:
            return None
        if self._pool.failed():
            self.close()
            self._processes = 1
            return None
        return self._pool if self._pool.ready else None

    def _forms(self) -> list[Form]:
        """Of steps to record: those that came most often, and those of other numbers of clients that parts may have."""
        forms = self.engine.forms
        if isinstance(self.engine, BatchedEngine):
            forms += [resized(form, count) for form in forms[:1] for count in range(self.part, self.part // 2, -1)]
        return list(dict.fromkeys(forms))[:_MOST_RECORDED]

    def _in_processes(
        self, pool: "_Pool", parts: "Sequence[_TrainingPart | _MeasuredPart]"
    ) -> Iterator[tuple[int, Any]]:
        try:
            yield from pool.run(parts)
        except BaseException:  # answers of this call may still arrive: the next one needs new processes
            self.close()
            raise


def engine_of(model: Model) -> BatchedEngine | InTurnEngine:
    """What computes a part: stacked clients, or one at a time where a network cannot be stacked or is large."""
    return BatchedEngine(model) if stacks(model) else InTurnEngine(model)


def _part(model: Model) -> int:
    """How many clients are a part: images between convolutions should stay in a core's cache."""
    if not stacks(model):
        return min(_IN_TURN, max(1, _MOST_SENT // model.num_parameters))
    return _CONVOLVED if _has(model, nn.modules.conv._ConvNd) else _STACKED


def stacks(model: Model) -> bool:
    """Whether clients of a network are stacked on a CPU.

    Weights of many clients leave a core's cache, so large networks without convolutions are faster one at a time.
    """
    most = _MOST_RECURRENT if _has(model, nn.RNNBase) else _MOST_PARAMETERS
    small = model.num_parameters <= most or _has(model, nn.modules.conv._ConvNd)
    return small and (not model.not_batched or model.dropout_only)


def _has(model: Model, kind: type[nn.Module]) -> bool:
    return any(isinstance(layer, kind) for layer in model.module.modules())


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

    def __init__(self, model: bytes, forms: Sequence[Form], processes: int) -> None:
        self._processes: dict[Connection, Any] = {}
        self._shared: dict[Connection, SharedConnection] = {}
        self._files: list[int] = []
        self._starting: list[Connection] = []
        try:
            for _ in range(processes):
                files = [open_unnamed_file() for _ in range(4)]
                self._files += files
                connection, process = spawn(__name__, files)
                self._processes[connection] = process
                self._shared[connection] = SharedConnection(connection, files[:2], files[2:])
                self._starting.append(connection)
                connection.send_bytes(model)
                connection.send(forms)
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

    def run(self, parts: "Sequence[_TrainingPart | _MeasuredPart]") -> Iterator[tuple[int, Any]]:
        """The places and answers of all parts, as they come; an answer is there until the next is asked for.

        A process has the next part at hand, but for the last ones: all shall end together.
        """
        waiting, held = list(range(len(parts)))[::-1], {connection: deque[int]() for connection in self._processes}
        while waiting or any(held.values()):
            for ahead in (0, 1):
                for connection, having in held.items():
                    if len(having) <= ahead and len(waiting) > ahead * len(held):
                        having.append(waiting.pop())
                        self._send(connection, parts[having[-1]])
            for ready in wait([connection for connection, having in held.items() if having]):
                if isinstance(ready, Connection):
                    yield held[ready].popleft(), self._received(ready)

    def _send(self, connection: Connection, part: "_TrainingPart | _MeasuredPart") -> None:
        try:
            self._shared[connection].send(part)
        except OSError as error:
            raise self._died(connection) from error

    def _received(self, connection: Connection) -> Any:
        try:
            failure, answer = self._shared[connection].receive()
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
        self._processes, self._shared, self._files = {}, {}, []  # what was shared is unmapped


def main(socket: int, *files: int) -> None:
    """Entry point of a process: compute parts until the connection closes, which it does with the parent.

    Errors are reported by type and line only: a message may hold raw values.
    """
    torch.set_num_threads(1)
    with Connection(socket) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            engine = engine_of(pickle.loads(connection.recv_bytes()))
            engine.record(connection.recv())  # this process has seen no client yet
        except Exception:  # whatever the network's own code raises: the parent then computes by itself
            connection.send(False)
            return
        connection.send(True)
        shared = SharedConnection(connection, files[2:], files[:2])
        while True:
            part = shared.receive()
            try:
                answer, failure = part.answer(engine), None
            except Exception as error:  # reported to the parent, which raises it
                answer, failure = None, type_and_line(error)
            shared.send((failure, answer))
