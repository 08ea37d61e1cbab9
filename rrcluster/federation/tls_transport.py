"""Messages to members over TLS: connections that members open and keep, without any service in between.

Both sides authenticate before a byte of a message is read: the server by the federation's certificate, the node by a
short-lived certificate that it signs itself, with the key in the agreement. Strangers fail in the handshake; their
connections are few, live for seconds, and make room for newer ones.

A frame is the number of a question, the seconds allowed for its answer, its length, and its content. An answer has the
number of its question. The number 0 is a heartbeat. No answer is lost with a connection: the question is sent again
over the next one, and the node, which asks its daemon only once, sends the stored answer.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from rrcluster.errors import ConfigError, ProtocolError
from rrcluster.federation.certificates import node_authority, node_certificate
from rrcluster.federation.children import allow_open_files
from rrcluster.federation.messages import LONGEST_LETTER, Letter

if TYPE_CHECKING:  # a member's node imports this module without the rounds
    from rrcluster.federation.transports import Reach

USUAL_ADDRESS = "127.0.0.1:9092"
HEARTBEAT = 10.0  # seconds
_SILENCE = 25.0  # seconds without a byte after which a connection counts as lost
_AWAY = 20.0  # seconds a member has to reconnect before a question proceeds without it
ARRIVAL = 60.0  # seconds for nodes to connect before the first message
_HANDSHAKE = 10.0  # seconds
_MOST_STRANGERS = 256  # connections in their handshake, beside one for each node, since all may come at once
_CHUNK = 2**18
_HEAD = struct.Struct("<QdQ")
_LOG = logging.getLogger("rrcluster")


class _Connection:
    """One connection, the same for both sides."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.since = self.heard = time.monotonic()

    async def read(self, longest: int) -> tuple[int, float, bytes]:
        """Read a frame; EOFError, TimeoutError or ProtocolError if no valid one arrives."""
        number, seconds, length = _HEAD.unpack(await self._exactly(_HEAD.size))
        if length > longest:
            raise ProtocolError(f"a message of {length} bytes is longer than the {longest} that it may have.")
        return number, seconds, await self._exactly(length)

    async def _exactly(self, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            async with asyncio.timeout(_SILENCE):
                part = await self.reader.read(min(_CHUNK, count - len(content)))
            if not part:
                raise EOFError("the connection ended.")
            content += part
            self.heard = time.monotonic()
        return bytes(content)

    @property
    def stuck(self) -> bool:
        """Whether the other side has stopped reading."""
        return self.writer.transport.get_write_buffer_size() > 0

    def write(self, number: int = 0, seconds: float = 0.0, content: bytes = b"") -> None:
        """Send a frame, by default a heartbeat."""
        self.writer.write(_HEAD.pack(number, seconds, len(content)))
        if content:
            self.writer.write(content)

    def close(self) -> None:
        """Close the connection at once, without sending what is left."""
        self.writer.transport.abort()


@dataclass
class TlsTransport:
    """The server's side, a thread of this process; see `Transport`. It stores at most one answer per member.

    A member's newest connection replaces its earlier one.
    """

    node_keys: Mapping[int, str]  # place in the roster -> public key of the member's node, in OpenSSH format
    folder: Path  # with server.pem and server.key
    address: str
    seconds: float  # until a round's deadline; late answers are refused
    longest: int  # bytes of an answer
    _connections: dict[int, _Connection] = field(default_factory=dict, init=False)
    _asked: Mapping[int, bytes] = field(default_factory=dict, init=False)
    _answers: dict[int, bytes] = field(default_factory=dict, init=False)
    _stayed: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 2**16):
            raise ConfigError(f"address = {self.address!r} must be host:port, as {USUAL_ADDRESS}.")
        named = {place: node_authority(key) for place, key in self.node_keys.items()}
        self._places = {name: place for place, (name, _) in named.items()}
        if len(self._places) < len(named):
            raise ConfigError("two members have the same node key; every member needs its own, so enrol again.")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0  # no session is resumed: every connection presents its key
        self._context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if named:
            self._context.load_verify_locations(cadata="".join(authority for _, authority in named.values()))
        self._number = int.from_bytes(os.urandom(7), "little")  # unknown to nodes from an earlier server
        self._strangers: list[asyncio.Task[None]] = []
        self._whole = asyncio.Event()
        self._listening = _listen(host.strip("[]"), int(port))
        self._left = dict.fromkeys(self.node_keys, time.monotonic())  # when a place lost its connection
        self._most_strangers = _MOST_STRANGERS + len(named)
        allow_open_files(self._most_strangers + 2 * len(named))

    def __enter__(self) -> "TlsTransport":
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._accept(started)), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers that came in time."""
        return asyncio.run_coroutine_threadsafe(self._ask(messages), self._loop).result()

    def stayed(self) -> Collection[int]:
        """Members whose connection lasted from the last question on, and was heard from after its deadline."""
        return self._stayed

    def wait_for_nodes(self, places: Collection[int], seconds: float) -> set[int]:
        """Wait until these members are connected; those that are after `seconds`."""
        deadline = time.monotonic() + seconds
        while (here := {*self._connections} & {*places}) != {*places} and time.monotonic() < deadline:
            time.sleep(0.05)
        return here

    async def _ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        self._number += 1
        self._asked, self._answers, self._stayed = messages, {}, set()
        self._whole.clear()
        began = time.monotonic()
        self._deadline = began + self.seconds
        for place in messages:
            self._send(place)
        while (now := time.monotonic()) < self._deadline and self._awaited(now):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._whole.wait(), min(1.0, self._deadline - now))
        answers, self._asked = self._answers, {}
        await self._note_stayed(messages.keys() - answers.keys(), began)
        return answers

    def _awaited(self, now: float) -> bool:
        """Whether an answer may still come: from a connected member, or one that left seconds ago."""
        silent = self._asked.keys() - self._answers.keys()
        return any(place in self._connections or now - self._left.get(place, -_AWAY) < _AWAY for place in silent)

    async def _note_stayed(self, silent: Collection[int], began: float) -> None:
        """Record which members without an answer stayed connected all the time; waits for heartbeats."""
        there = {
            place: line for place in silent if (line := self._connections.get(place)) is not None and line.since < began
        }
        now = time.monotonic()
        if there:
            await asyncio.sleep(HEARTBEAT + 1.0)
        self._stayed = {
            place for place, line in there.items() if self._connections.get(place) is line and line.heard >= now
        }

    def _send(self, place: int) -> None:
        """Send a member's question over its connection, if both exist."""
        if place not in self._asked or place in self._answers or (line := self._connections.get(place)) is None:
            return
        if line.stuck:  # with an earlier question, so that memory is bounded
            line.close()
        else:
            line.write(self._number, self._deadline - time.monotonic(), self._asked[place])

    async def _accept(self, started: threading.Event) -> None:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._accepting = task
        self._beating = self._loop.create_task(self._beat())
        started.set()
        with self._listening, contextlib.suppress(asyncio.CancelledError):
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(self._listening)
                except OSError:  # no more files may be open
                    await asyncio.sleep(0.1)
                    continue
                self._strangers.append(self._loop.create_task(self._welcome(connection)))
                if len(self._strangers) > self._most_strangers:
                    self._strangers.pop(random.randrange(self._most_strangers)).cancel()  # none that is new
                await asyncio.sleep(0)  # lets it begin, and others continue

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            for line in self._connections.values():
                if not line.stuck:
                    line.write()

    async def _welcome(self, connection: socket.socket) -> None:
        """One connection, from its handshake to its end. Nothing is logged, since that would reveal who takes part."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            with contextlib.suppress(OSError, EOFError, ProtocolError, KeyError):  # KeyError: a name in capitals
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE
                )
                self._forget_stranger()
                issuer = dict(name[0] for name in transport.get_extra_info("peercert")["issuer"])
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                with contextlib.closing(_Connection(reader, writer)) as line:
                    await self._stay(self._places[issuer["commonName"]], line)
        finally:
            self._forget_stranger()

    def _forget_stranger(self) -> None:
        self._strangers = [task for task in self._strangers if task is not asyncio.current_task()]

    async def _stay(self, place: int, line: _Connection) -> None:
        if (older := self._connections.get(place)) is not None:
            older.close()
        self._connections[place] = line
        try:
            self._send(place)
            while True:
                number, _, content = await line.read(self.longest)
                if number == self._number and place in self._asked and place not in self._answers:
                    self._answers[place] = content
                    if len(self._answers) == len(self._asked):
                        self._whole.set()
        finally:
            if self._connections.get(place) is line:
                del self._connections[place]
                self._left[place] = time.monotonic()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"address = {host}:{port} cannot be used ({error.strerror}); choose another.") from None
    listening.setblocking(False)
    return listening


@contextmanager
def open_tls(reach: "Reach") -> Iterator[TlsTransport]:
    """The transport of a federation; nodes connect to `reach.address`, by default on the loopback interface.

    Members without a node key cannot be reached.
    """
    keys = {place: member.node_key for place, member in enumerate(reach.agreement.members) if member.node_key}
    address = reach.address or USUAL_ADDRESS
    with TlsTransport(keys, reach.folder.private, address, reach.seconds, reach.longest) as transport:
        transport.wait_for_nodes(keys, min(ARRIVAL, reach.seconds))
        yield transport


@dataclass
class TlsNode:
    """A member's side: the connection between the server and one daemon."""

    server: str  # host:port
    ca: Path  # certificates that may sign the server's
    key: EllipticCurvePrivateKey
    socket: Path  # the daemon's
    retry_seconds: float = 3.0
    _number: int = field(default=0, init=False)  # of the last question
    _answer: bytes = field(default=b"", init=False)  # the answer to it, once there is one
    _connection: _Connection | None = field(default=None, init=False)
    _asking: asyncio.Task[None] | None = field(default=None, init=False)  # the last question to the daemon

    def run(self, stop: threading.Event) -> None:
        """Stay connected until `stop` is set; every failure is retried."""
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        staying = asyncio.create_task(self.stay_connected())
        while not stop.is_set():
            await asyncio.sleep(0.2)
        staying.cancel()

    async def stay_connected(self) -> None:
        """Stay connected until cancelled."""
        said = None
        while True:
            try:
                await self._stay()
            except Exception as error:
                if (reason := str(error) or "no answer") != said:  # once, not at every retry
                    said = reason
                    _LOG.warning("no connection to %s, trying every %g s: %s", self.server, self.retry_seconds, said)
            # so that members do not reconnect all at once
            await asyncio.sleep(random.uniform(0.5, 1.5) * self.retry_seconds)

    async def _stay(self) -> None:
        """Keep one connection."""
        host, _, port = self.server.rpartition(":")
        context = self._context()
        async with asyncio.timeout(2 * _HANDSHAKE):
            streams = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        line = self._connection = _Connection(*streams)
        beating = asyncio.create_task(self._beat(line))
        try:
            while True:
                number, seconds, content = await line.read(LONGEST_LETTER)
                if number and number == self._number and self._answer:
                    line.write(number, content=self._answer)
                elif number not in (0, self._number):
                    self._number, self._answer = number, b""
                    if self._asking is not None:  # the server has gone on
                        self._asking.cancel()
                    self._asking = asyncio.create_task(self._reply(number, seconds, content))
        finally:
            self._connection = None
            beating.cancel()
            line.close()

    def _context(self) -> ssl.SSLContext:
        """A TLS context with a key for this connection alone, signed by the node's key."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile() as file:
            file.write(node_certificate(self.key))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    async def _beat(self, line: _Connection) -> None:
        """Send heartbeats, also while the daemon computes."""
        _LOG.info("connected to %s", self.server)
        while True:
            await asyncio.sleep(HEARTBEAT)
            line.write()

    async def _reply(self, number: int, seconds: float, content: bytes) -> None:
        self._answer = await self._ask_daemon(content, seconds)
        if self._answer and self._connection is not None:
            self._connection.write(number, content=self._answer)

    async def _ask_daemon(self, content: bytes, seconds: float) -> bytes:
        """The daemon's answer; nothing if none arrives in time, "away" if the daemon cannot be asked."""
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(self.socket)
                with contextlib.closing(_Connection(reader, writer)):
                    writer.writelines([len(content).to_bytes(8, "little"), content])
                    length = int.from_bytes(await reader.readexactly(8), "little")
                    if length > LONGEST_LETTER:
                        raise ProtocolError(f"it says {length} bytes.")
                    return await reader.readexactly(length)
        except TimeoutError:  # training time depends on data, so it must not count as absence
            return b""
        except (OSError, EOFError, ProtocolError) as error:
            _LOG.warning("the daemon did not answer: %s", error)
            return Letter("away").encode()
