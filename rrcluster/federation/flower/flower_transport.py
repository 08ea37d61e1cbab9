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
from rrcluster.federation.children import start_module, stop_processes
from rrcluster.federation.federation_folder import METRICS
from rrcluster.federation.flower.fleet_node import HEARTBEAT, fetch, unwrap, wrap
from rrcluster.federation.flower.superlink import SuperLink
from rrcluster.federation.messages import LONGEST_LETTER
from rrcluster.federation.transports import Reach

USUAL_ADDRESS = "127.0.0.1:9092"
_KIND = "query"
_NO_LINK = "the SuperLink does not answer; see superlink.log, then serve again."
_FEW_SECONDS = 5.0  # a gate that dies sooner is not restarted
_ARRIVAL = 60.0  # seconds for nodes to connect before the first message


@dataclass
class FlowerTransport:
    """Members that are reached over a SuperLink; see `Transport`.

    A SuperLink that dies is restarted, and so is the gate. The SuperLink's messages are lost, so members whose answers
    had not been fetched have dropped out of the round; the next question waits until nodes are connected again.
    """

    link: SuperLink
    seconds: float  # until a round's deadline; messages expire with it, and late answers are refused
    poll_seconds: float = 0.2
    gate: "GateProcess | None" = None  # None: managed elsewhere
    answered: set[int] = field(default_factory=set)  # members that answered the last question
    _stayed: set[int] = field(default_factory=set, init=False)

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers that came in time."""
        answers: dict[int, bytes] = {}
        self._stayed = set()
        if not messages:
            return answers
        self._watch_gate()
        began = time.time()
        try:
            pending = self._push(messages)
        except httpx.HTTPError:
            pending = self._push_again(messages)
        arriving: dict[int, Any] = {}  # replies whose parts are still arriving
        deadline = time.monotonic() + self.seconds
        try:
            while (pending or arriving) and time.monotonic() < deadline:
                self._watch_gate()
                arriving |= self._pull(pending)
                answers |= self._fetch(arriving)
                time.sleep(self.poll_seconds if pending or arriving else 0.0)
            if silent := set(pending.values()) | set(arriving):
                self._stayed = self._connected_since(began) & silent
        except httpx.HTTPError:
            self._recover()
        self.answered = set(answers) or self.answered
        return answers

    def stayed(self) -> set[int]:
        """Members whose nodes have stayed connected since the last question, by their heartbeats."""
        return self._stayed

    def _connected_since(self, began: float) -> set[int]:
        """Nodes activated before this time and heard from since now; waits for their heartbeats."""
        now = time.time()
        time.sleep(HEARTBEAT + 1.0)
        times = self.link.node_times()
        return {place for place, (activated, heard) in times.items() if activated < began and heard >= now}

    def _watch_gate(self) -> None:
        if self.gate is not None:
            self.gate.keep_running()

    def _push_again(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Resend at a fresh SuperLink. A daemon that had the first message treats this one as a replay: a drop-out."""
        self._recover()
        try:
            return self._push(messages)
        except httpx.HTTPError:
            raise RoundError(_NO_LINK) from None

    def wait_for_nodes(self, places: Collection[int], seconds: float) -> set[int]:
        """Wait until the nodes of these members are connected; those that are after `seconds`.

        RoundError where the SuperLink is gone.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                nodes = set(self.link.grid.get_node_ids())
            except httpx.HTTPError:
                raise RoundError(_NO_LINK) from None
            online = {place for place in places if self.link.node_ids[place] in nodes}
            if online == set(places) or time.monotonic() > deadline:
                return online
            time.sleep(self.poll_seconds)

    def _recover(self) -> None:
        """Restart the SuperLink, and give connected nodes the time of a round to reconnect."""
        self.link.restart()
        self.wait_for_nodes(self.answered, self.seconds)

    def _push(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Places by message number; a node that never connected gets no message."""
        sent = [
            Message(wrap(content), self.link.node_ids[place], _KIND, ttl=self.seconds)
            for place, content in messages.items()
        ]
        numbers = self.link.grid.push_messages(sent)
        return {number: place for number, place in zip(numbers, messages, strict=True) if number}

    def _pull(self, pending: dict[str, int]) -> dict[int, Any]:
        """The parts of replies that have arrived, by place; removes them from `asked`."""
        if not pending:
            return {}
        pulled = self.link.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(pending)))
        arrived = {}
        for reply, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            place = pending.pop(reply.metadata.reply_to_message_id)
            if reply.metadata.src_node_id == self.link.node_ids[place]:  # otherwise it is in another member's name
                arrived[place] = tree
        return arrived

    def _fetch(self, arriving: dict[int, Any]) -> dict[int, bytes]:
        """Replies that are complete; removes them from `arriving`. No member's reply can delay the others."""
        grid, answers = self.link.grid, {}
        for place, tree in list(arriving.items()):
            try:
                message = fetch(grid._runtime_client, grid.node, grid.run.run_id, tree, tries=1)
                answers[place] = unwrap(message, longest=LONGEST_LETTER)
            except ObjectPullError:
                continue
            except httpx.TransportError:
                raise
            except Exception:  # any failure: the member has dropped out
                pass
            del arriving[place]
        return answers


@contextmanager
def open_flower(reach: Reach) -> Iterator[FlowerTransport]:
    """Open the SuperLink and gate of a federation and the transport over them; both stop on leaving.

    Members without a node key cannot be reached. The gate listens on `reach.address`, by default on this machine's
    loopback interface.
    """
    keys = {place: member.node_key for place, member in enumerate(reach.agreement.members) if member.node_key}
    with SuperLink(keys, reach.folder.private) as link:
        gate = GateProcess(link, reach.address or USUAL_ADDRESS, reach.folder.private, longest=reach.longest)
        try:
            transport = FlowerTransport(link, reach.seconds, gate=gate)
            transport.wait_for_nodes(keys, min(_ARRIVAL, reach.seconds))
            gate.keep_running()
            yield transport
        finally:
            gate.stop()


class GateProcess:
    """A gate in front of a SuperLink, with the certificate server.pem and its key in this folder."""

    def __init__(self, link: SuperLink, address: str, folder: Path, *, longest: int) -> None:
        """Start the gate; bodies of more than `longest` bytes are refused."""
        self.host, _, self.port = address.rpartition(":")
        if not self.host or not self.port.isdigit():
            raise ConfigError(f"address = {address!r} must be host:port, as {USUAL_ADDRESS}.")
        self.link, self.folder, self.longest = link, folder, longest
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self.process = start_module(
            "rrcluster.federation.flower.gate",
            *("--host", self.host, "--port", self.port, "--link", self.link.address),
            *("--trusted", str(self.link.trusted), "--nodes", str(self.link.nodes), "--longest", str(self.longest)),
            *("--certificate", str(self.folder / "server.pem"), "--key", str(self.folder / "server.key")),
            *("--parent", str(os.getpid()), "--metrics", str(self.folder / METRICS)),
            log=self.folder / "gate.log",
        )

    def keep_running(self) -> None:
        """Restart the gate if it has died; RoundError if it does not stay alive."""
        if self.process.poll() is None:
            return
        if time.monotonic() - self._started < _FEW_SECONDS:
            raise RoundError(
                f"the gate does not stay at {self.host}:{self.port}; see {self.folder / 'gate.log'}, or choose another "
                "--address."
            )
        self._start()

    def stop(self) -> None:
        """Stop the gate."""
        stop_processes([self.process])
