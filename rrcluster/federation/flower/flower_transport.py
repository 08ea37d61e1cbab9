"""Messages to members over a SuperLink."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message

from rrcluster.errors import ProtocolError
from rrcluster.federation.flower.flower_envelope import unwrap, wrap
from rrcluster.federation.flower.superlink import SuperLink
from rrcluster.federation.wire import LONGEST_LETTER

_KIND = "query"


@dataclass
class FlowerTransport:
    """Members that a SuperLink reaches; see `Transport`.

    A SuperLink that dies is started again. What it held is lost, so members whose answers had not been fetched have
    dropped out of the round; the next question waits until nodes are connected again.
    """

    link: SuperLink
    seconds: float  # until a round's deadline; a message lives no longer, and a late answer is refused
    poll_seconds: float = 0.2
    answered: set[int] = field(default_factory=set)  # members that answered the last question

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers that came in time."""
        answers: dict[int, bytes] = {}
        if not messages:
            return answers
        try:
            asked = self._push(messages)
        except httpx.HTTPError:
            self._recover()
            asked = self._push(messages)  # a daemon that had the first one takes this for a replay: a drop-out
        deadline = time.monotonic() + self.seconds
        try:
            while asked and time.monotonic() < deadline:
                answers |= self._pull(asked)
                time.sleep(self.poll_seconds if asked else 0.0)
        except httpx.HTTPError:
            self._recover()
        self.answered = set(answers) or self.answered
        return answers

    def wait_for_nodes(self, places: Collection[int], seconds: float) -> set[int]:
        """Those of these members whose nodes are connected: all of them, or what there is after this time."""
        deadline = time.monotonic() + seconds
        while True:
            nodes = set(self.link.grid.get_node_ids())
            online = {place for place in places if self.link.node_ids[place] in nodes}
            if online == set(places) or time.monotonic() > deadline:
                return online
            time.sleep(self.poll_seconds)

    def _recover(self) -> None:
        """Start the SuperLink again, and give nodes that were there the time of a round to come back."""
        self.link.restart()
        self.wait_for_nodes(self.answered, self.seconds)

    def _push(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Places by the number of the message that was sent; a node that was never there takes none."""
        sent = [
            Message(wrap(content), self.link.node_ids[place], _KIND, ttl=self.seconds)
            for place, content in messages.items()
        ]
        numbers = self.link.grid.push_messages(sent)
        return {number: place for number, place in zip(numbers, messages, strict=True) if number}

    def _pull(self, asked: dict[str, int]) -> dict[int, bytes]:
        """Answers that have come since; `asked` loses them."""
        answers: dict[int, bytes] = {}
        for reply in self.link.grid.pull_messages(list(asked)):
            place = asked.pop(reply.metadata.reply_to_message_id)
            content = self._content(place, reply)
            if content is not None:
                answers[place] = content
        return answers

    def _content(self, place: int, reply: Any) -> bytes | None:
        """A reply's bytes; None for an error of Flower's, or a reply in somebody else's name."""
        if reply.metadata.src_node_id != self.link.node_ids[place]:
            return None
        try:
            return unwrap(reply, longest=LONGEST_LETTER)
        except ProtocolError:
            return None
