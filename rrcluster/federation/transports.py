"""How messages get to the members: what a transport is opened with, and a note of who answered.

Every kind is a file of its own, found by its name in `registry.TRANSPORTS`.
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
    """What a transport is opened with."""

    folder: FederationFolder
    agreement: Agreement
    seconds: float  # until an answer is late, and refused
    longest: int  # bytes of an answer
    members: Path | None = None  # on this machine: the folder in which the members' folders are
    address: str | None = None  # over a network: where members connect to; None: on the loopback interface


def open_transport(name: str, reach: Reach) -> AbstractContextManager[Transport]:
    """Reach the members; what was started for it is stopped on leaving."""
    opened: AbstractContextManager[Transport] = TRANSPORTS.load(name)(reach)
    return opened


@dataclass(frozen=True)
class Attended:
    """A transport that notes for `rrcluster federation status` which round it is, and who answered.

    Names are noted only where nothing rests on who takes part: cohorts that are sampled are secret.
    """

    inner: Transport
    folder: FederationFolder
    agreement: Agreement
    names: bool  # whether to note them
    run: Path  # the run folder
    expected: float  # clients of a round
    without: frozenset[int] = frozenset()  # members that are not asked anything

    def ask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """As the transport inside."""
        messages = {place: content for place, content in messages.items() if place not in self.without}
        answers = self.inner.ask(messages)
        asked = next(iter(messages.values()), None)
        if asked is not None:
            status = self._status(asked, answers)
            figures = server_figures(self.agreement, self.run, self.expected, status)
            self.folder.save_status(status, metrics_text(figures))
        return answers

    def stayed(self) -> Collection[int]:
        """As the transport inside."""
        return [place for place in self.inner.stayed() if place not in self.without]

    def _status(self, asked: bytes, answers: Mapping[int, bytes]) -> dict[str, Any]:
        letter = decode(asked, longest=len(asked))
        noted = {name: letter.facts[name] for name in ("round", "attempt") if name in letter.facts}
        status: dict[str, Any] = {"stage": letter.name, **noted, "at": round(time.time())}
        if self.names:
            came = [place for place, content in sorted(answers.items()) if not declined(content)]
            status |= {"answered": [self.agreement.members[place].name for place in came]}
        return status
