"""Stacked engine: runs in lockstep share one batched engine, and their calls are made together as one larger call.

A client's numbers depend only on its own data, start and draws, so a stacked run gives what it gives by itself (to the
last bit where a client's arithmetic does not depend on how many others are computed with it, else within rounding).
"""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import Measured, Question, TrainingCall, Updates
from rrcluster.models.model import Model

Batch = Callable[[Sequence[Any]], list[Any]]


@dataclass(eq=False)
class _Request:
    """Calls of one run, waiting for those of the other runs."""

    method: str
    calls: Sequence[Any]
    results: Sequence[Any] = ()
    error: BaseException | None = None
    done: bool = False


class Stack:
    """Meeting point of `members` runs, each in its own thread: no call is made before every run has one.

    A run that ends or fails must `leave`; otherwise the others wait for ever.
    """

    def __init__(
        self,
        engine: BatchedEngine,
        members: int,
        *,
        turn: AbstractContextManager[Any] | None = None,
        working: threading.Semaphore | None = None,
    ) -> None:
        """All `members` are waited for from the start.

        Stacks that share an engine share its `turn` lock: while one computes, the runs of the other do the host's part
        of their rounds. A run that does so holds `working`, which a call gives back while it waits.
        """
        self.engine = engine
        self._methods: dict[str, Batch] = {"measure": engine.measure, "train": engine.train}
        self._members, self._turn, self._working = members, turn or threading.Lock(), working
        self._waiting: list[_Request] = []
        self._meeting = threading.Condition()

    def leave(self) -> None:
        """One run makes no more calls."""
        with self._meeting:
            self._members -= 1
            self._compute_if_complete()

    def call(self, method: str, calls: Sequence[Any]) -> list[Any]:
        """Wait for the other runs, then for the results. An error is raised in every run that shared the call."""
        request = _Request(method, calls)
        if self._working is not None:
            self._working.release()
        try:
            with self._meeting:
                self._waiting.append(request)
                self._compute_if_complete()
                self._meeting.wait_for(lambda: request.done)
        finally:
            if self._working is not None:
                self._working.acquire()
        if request.error is not None:
            raise request.error
        return list(request.results)

    def _compute_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        waiting, self._waiting = self._waiting, []
        with self._turn:
            for method, batch in self._methods.items():
                _compute([request for request in waiting if request.method == method], batch)
        self._meeting.notify_all()


def _compute(requests: Sequence[_Request], batch: Batch) -> None:
    try:
        results = iter(_in_passes(batch, [call for request in requests for call in request.calls]))
        for request in requests:
            request.results = [next(results) for _ in request.calls]
    except Exception as error:
        for request in requests:
            request.error = error
    for request in requests:
        request.done = True


def _in_passes(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    """All calls at once, or in halves where device memory runs out. Results differ by rounding at most."""
    if not calls:
        return []
    try:
        return batch(calls)
    except torch.OutOfMemoryError:
        if len(calls) < 2:
            raise
    torch.cuda.empty_cache()
    half = len(calls) // 2
    return _in_passes(batch, calls[:half]) + _in_passes(batch, calls[half:])


@dataclass(frozen=True, eq=False)
class StackedEngine:
    """One run's view of a stack."""

    stack: Stack
    isolates: ClassVar[bool] = False
    part: ClassVar[int] = sys.maxsize

    @property
    def model(self) -> Model:
        """Of the shared engine."""
        return self.stack.engine.model

    @property
    def device(self) -> torch.device:
        """Of the shared engine."""
        return self.stack.engine.device

    @property
    def described(self) -> str:
        """As the shared engine: a job's numbers are those that it gets by itself."""
        return self.stack.engine.described

    def train(self, calls: Sequence[TrainingCall]) -> list[Updates]:
        """(n, d) for each call."""
        return self.stack.call("train", calls)

    def measure(self, questions: Sequence[Question]) -> list[Measured]:
        """Loss and accuracy for each question."""
        return self.stack.call("measure", questions)
