"""Many runs on one engine: calls of runs that go in step are made together, as one larger call.

A client's numbers depend on its own data, start and draws alone, so a run's are what it gets alone (to the last bit
where one client's arithmetic does not depend on how many are beside it, within float32 rounding elsewhere).
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rrcluster.data.federated import Cohort, TestSet
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.batched.training import TrainingCall
from rrcluster.engine.protocol import LocalSettings, Updates
from rrcluster.types import Array


@dataclass(eq=False)
class _Ticket:
    """A call that waits for the others."""

    kind: str
    call: Any
    answer: Any = None
    error: BaseException | None = None
    done: bool = field(default=False)


class Stack:
    """The meeting point of `members` runs, each in a thread of its own: nobody's call is made before everybody has one.

    A run that ends, or fails, must `leave`, or the others wait for ever.
    """

    def __init__(self, engine: BatchedEngine, members: int, *, turn: AbstractContextManager[Any] | None = None) -> None:
        """For this many runs; all of them are waited for from the start.

        Stacks that share an engine share its `turn`: while one's calls run there, the other's runs do what the host has
        to do in a round.
        """
        self._engine, self._members, self._turn = engine, members, turn or threading.Lock()
        self._waiting: list[_Ticket] = []
        self._meeting = threading.Condition()

    def leave(self) -> None:
        """One run makes no more calls."""
        with self._meeting:
            self._members -= 1
            self._answer_if_complete()

    def ask(self, kind: str, call: Any) -> Any:
        """Wait for the others, then for the answer. An error of a shared call is everybody's who shared it."""
        ticket = _Ticket(kind, call)
        with self._meeting:
            self._waiting.append(ticket)
            self._answer_if_complete()
            self._meeting.wait_for(lambda: ticket.done)
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def _answer_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        waiting, self._waiting = self._waiting, []
        with self._turn:
            for kind, many in self._answers().items():
                tickets = [ticket for ticket in waiting if ticket.kind == kind]
                if tickets:
                    _answer(tickets, many)
        self._meeting.notify_all()

    def _answers(self) -> dict[str, Callable[[Sequence[Any]], Sequence[Any]]]:
        return {
            "measure": self._engine.measure_many,
            "train": self._engine.train_many,
            "test": lambda calls: [self._engine.test(*call) for call in calls],
        }


def _answer(tickets: Sequence[_Ticket], many: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    try:
        for ticket, answer in zip(tickets, _several_passes(many, [ticket.call for ticket in tickets]), strict=True):
            ticket.answer = answer
    except Exception as error:
        for ticket in tickets:
            ticket.error = error
    for ticket in tickets:
        ticket.done = True


def _several_passes(many: Callable[[Sequence[Any]], Sequence[Any]], calls: Sequence[Any]) -> list[Any]:
    """All calls at once; in halves where the device has no memory for that. Answers differ by rounding at most."""
    try:
        return list(many(calls))
    except torch.OutOfMemoryError:
        if len(calls) < 2:
            raise
    torch.cuda.empty_cache()
    half = len(calls) // 2
    return _several_passes(many, calls[:half]) + _several_passes(many, calls[half:])


@dataclass(frozen=True, eq=False)
class StackedEngine:
    """One run's view of a stack: an engine like any other."""

    stack: Stack

    def losses(self, vectors: Array, cohort: Cohort) -> Array:
        """(k, d) -> (G, k)."""
        return self.measure(vectors, cohort)[0]

    def measure(self, vectors: Array, cohort: Cohort) -> tuple[Array, Array]:
        """(k, d) -> loss (G, k), accuracy (G, k)."""
        figures = self.stack.ask("measure", (vectors, cohort))
        return figures[..., 0], figures[..., 1]

    def train(
        self,
        start: Array,
        cohort: Cohort,
        *,
        local: LocalSettings,
        key: tuple[int, int],
        anchor: Array | None = None,
        trainable: Array | None = None,
    ) -> Array:
        """(G, d) -> (G, d)."""
        start = np.asarray(start, dtype=np.float32)
        call = TrainingCall(start, np.arange(len(start)), cohort, local, key, anchor, trainable)
        return np.asarray(self.stack.ask("train", call).cpu().numpy() + start)

    def changes(
        self, vectors: Array, clusters: Array, cohort: Cohort, *, local: LocalSettings, key: tuple[int, int]
    ) -> Updates:
        """(k, d), (G,) -> (G, d)."""
        changed = self.stack.ask("train", TrainingCall(vectors, clusters, cohort, local, key))
        return changed.numpy() if changed.device.type == "cpu" else changed

    def test(self, vectors: Array, tests: TestSet) -> tuple[Array, Array]:
        """(k, d) -> loss (k,), accuracy (k,)."""
        answer: tuple[Array, Array] = self.stack.ask("test", (vectors, tests))
        return answer
