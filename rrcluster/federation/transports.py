"""Transports to the members: how to open one, and a record of who answered.

Every kind is a separate file, found by its name in `registry.TRANSPORTS`.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.federation.agreement import Agreement
from rrcluster.federation.collect import Transport
from rrcluster.federation.federation_folder import FederationFolder
from rrcluster.federation.messages import declined, decode
from rrcluster.federation.metrics import metrics_text, server_figures
from rrcluster.registry import TRANSPORTS


@dataclass(frozen=True)
class Reach:
    """The arguments that open a transport."""

    folder: FederationFolder
    agreement: Agreement
    seconds: float  # later answers are refused
    longest: int  # bytes of an answer
    members: Path | None = None  # on this machine: the folder of the members' folders
    address: str | None = None  # over a network: where members connect; None: the loopback interface


def open_transport(name: str, reach: Reach) -> AbstractContextManager[Transport]:
    """Open a transport to the members; its processes stop on leaving."""
    opened: AbstractContextManager[Transport] = TRANSPORTS.load(name)(reach)
    return opened


@dataclass(frozen=True)
class Attended:
    """A transport that records the round and who answered, for `rrcluster federation status`.

    Names are recorded only where participation is public: sampled cohorts are secret.
    """

    inner: Transport
    folder: FederationFolder
    agreement: Agreement
    names: bool  # whether to record names
    run: Path  # the run folder
    expected: float  # clients of a round
    without: frozenset[int] = frozenset()  # members to skip

    def ask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Ask through the inner transport."""
        messages = {place: content for place, content in messages.items() if place not in self.without}
        answers = self.inner.ask(messages)
        question = next(iter(messages.values()), None)
        if question is not None:
            status = self._status(question, answers)
            figures = server_figures(self.agreement, self.run, self.expected, status)
            self.folder.save_status(status, metrics_text(figures))
        return answers

    def stayed(self) -> Collection[int]:
        """As the inner transport."""
        return [place for place in self.inner.stayed() if place not in self.without]

    def _status(self, question: bytes, answers: Mapping[int, bytes]) -> dict[str, Any]:
        letter = decode(question, longest=len(question))
        noted = {name: letter.facts[name] for name in ("round", "attempt") if name in letter.facts}
        status: dict[str, Any] = {"stage": letter.name, **noted, "at": round(time.time())}
        if self.names:
            came = [place for place, content in sorted(answers.items()) if not declined(content)]
            status |= {"answered": [self.agreement.members[place].name for place in came]}
        return status
