"""Messages to members over a SuperLink."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from rrcluster.errors import ConfigError, RoundError
from rrcluster.federation.flower.children import Process, start_module, stop_processes
from rrcluster.federation.flower.fleet_node import fetch, unwrap, wrap
from rrcluster.federation.flower.superlink import SuperLink
from rrcluster.federation.messages import LONGEST_LETTER
from rrcluster.federation.transports import Reach

USUAL_ADDRESS = "127.0.0.1:9092"
_KIND = "query"
_ARRIVAL = 60.0  # seconds that nodes have to connect before the first message


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
            asked = self._push_again(messages)
        arriving: dict[int, Any] = {}  # replies whose parts are still being sent
        deadline = time.monotonic() + self.seconds
        try:
            while (asked or arriving) and time.monotonic() < deadline:
                arriving |= self._pull(asked)
                answers |= self._fetch(arriving)
                time.sleep(self.poll_seconds if asked or arriving else 0.0)
        except httpx.HTTPError:
            self._recover()
        self.answered = set(answers) or self.answered
        return answers

    def _push_again(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """At a fresh SuperLink. A daemon that had the first message takes this one for a replay: a drop-out."""
        self._recover()
        try:
            return self._push(messages)
        except httpx.HTTPError:
            raise RoundError("the SuperLink does not answer; see superlink.log, then serve again.") from None

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

    def _pull(self, asked: dict[str, int]) -> dict[int, Any]:
        """Replies that have come since, by place: where their parts are. `asked` loses them."""
        if not asked:
            return {}
        pulled = self.link.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(asked)))
        arrived = {}
        for reply, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            place = asked.pop(reply.metadata.reply_to_message_id)
            if reply.metadata.src_node_id == self.link.node_ids[place]:  # else it is in somebody else's name
                arrived[place] = tree
        return arrived

    def _fetch(self, arriving: dict[int, Any]) -> dict[int, bytes]:
        """Replies that are whole by now; `arriving` loses them. Nothing that one member sent can hold up the others."""
        grid, answers = self.link.grid, {}
        for place, tree in list(arriving.items()):
            try:
                message = fetch(grid._runtime_client, grid.node, grid.run.run_id, tree, tries=1)
                answers[place] = unwrap(message, longest=LONGEST_LETTER)
            except ObjectPullError:
                continue
            except httpx.TransportError:
                raise
            except Exception:  # whatever it was: the member has dropped out
                pass
            del arriving[place]
        return answers


@contextmanager
def open_flower(reach: Reach) -> Iterator[FlowerTransport]:
    """SuperLink and gate of a federation, and the transport over them; both stop on leaving.

    Members without a node key cannot be reached. The gate listens on `reach.address`; unless that says otherwise, on
    this machine's loopback interface alone.
    """
    keys = {place: member.node_key for place, member in enumerate(reach.agreement.members) if member.node_key}
    with SuperLink(keys, reach.folder.private) as link:
        gate = start_gate(link, reach.address or USUAL_ADDRESS, reach.folder.private)
        try:
            transport = FlowerTransport(link, reach.seconds)
            transport.wait_for_nodes(keys, min(_ARRIVAL, reach.seconds))
            if gate.poll() is not None:
                raise ConfigError(
                    f"the gate did not start at {reach.address or USUAL_ADDRESS}; see {reach.folder.private}/gate.log, "
                    "or choose another --address."
                )
            yield transport
        finally:
            stop_processes([gate])


def start_gate(link: SuperLink, address: str, folder: Path) -> Process:
    """A gate in front of a SuperLink, with the certificate server.pem and its key in this folder."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"address = {address!r} must be host:port, as {USUAL_ADDRESS}.")
    return start_module(
        "rrcluster.federation.flower.gate",
        *("--host", host, "--port", port, "--link", link.address, "--trusted", str(link.trusted)),
        *("--certificate", str(folder / "server.pem"), "--key", str(folder / "server.key")),
        *("--parent", str(os.getpid())),
        log=folder / "gate.log",
    )
