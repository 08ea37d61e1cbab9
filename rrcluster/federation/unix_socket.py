"""Messages over Unix sockets of one machine: to a daemon, from the server or from the node of a network transport.

A message is its length in eight bytes, then its content. The socket has mode 0600: only the operator's user may
connect. Messages are answered one at a time, in order of arrival.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rrcluster.errors import ConfigError, ProtocolError

if TYPE_CHECKING:  # a member's node imports this module without the rounds
    from rrcluster.federation.transports import Reach

Answer = Callable[[bytes], bytes]
Figures = Callable[[], str]
SOCKET = "daemon.sock"  # in a member's folder
_LONGEST_PATH = 100  # bytes that every system allows
_CHUNK = 2**20
_LONGEST_REQUEST = 2**13


def serve(path: Path, answer: Answer, *, longest: int, stop: threading.Event, figures: Figures = str) -> None:
    """Answer messages until `stop` is set. A connection that breaks, stalls or sends too much is dropped.

    HTTP requests (`curl --unix-socket PATH http://member/metrics`) get `figures`, or a word at /health.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(f"the socket's path {path} is longer than {_LONGEST_PATH} bytes; choose a shorter folder.")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        mask = os.umask(0o177)
        try:
            listening.bind(os.fspath(path))
        finally:
            os.umask(mask)
        listening.listen()
        listening.settimeout(0.1)
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                _answer_one(connection, answer, longest, figures)
    path.unlink(missing_ok=True)


def _answer_one(connection: socket.socket, answer: Answer, longest: int, figures: Figures) -> None:
    connection.settimeout(30.0)
    try:
        if (begins := _exactly(connection, 8, None)).startswith(b"GET /"):
            _answer_http(connection, begins, figures)
        else:
            _send(connection, answer(_receive(connection, longest, begins)))
    except (OSError, ProtocolError):
        return


def _answer_http(connection: socket.socket, request: bytes, figures: Figures) -> None:
    while b"\r\n\r\n" not in request and len(request) < _LONGEST_REQUEST and (part := connection.recv(_CHUNK)):
        request += part
    path = request.split(b" ")[1]
    body = {b"/metrics": figures() if path == b"/metrics" else "", b"/health": "ok\n"}.get(path, "").encode()
    head = f"HTTP/1.0 {'200 OK' if body else '404 Not Found'}\r\nContent-Type: text/plain; version=0.0.4\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def ask_socket(path: Path, content: bytes, *, deadline: float, longest: int) -> bytes:
    """The answer of a daemon; OSError or ProtocolError if none came by `deadline`, a monotonic time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.connect(os.fspath(path))
        _send(connection, content)
        return _receive(connection, longest, _exactly(connection, 8, deadline), deadline=deadline)


@dataclass(frozen=True)
class SocketTransport:
    """Daemons on this machine, all asked at the same time."""

    paths: Mapping[int, Path]
    seconds: float  # until a round's deadline
    longest: int  # bytes of an answer
    _late: set[int] = field(default_factory=set, init=False)

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers that came in time; a late one is refused."""
        deadline = time.monotonic() + self.seconds
        with ThreadPoolExecutor(max(len(messages), 1)) as pool:
            futures = {
                place: pool.submit(ask_socket, self.paths[place], content, deadline=deadline, longest=self.longest)
                for place, content in messages.items()
            }
            wait(futures.values())
        self._late.clear()
        self._late.update(place for place, answer in futures.items() if isinstance(answer.exception(), TimeoutError))
        return {place: answer.result() for place, answer in futures.items() if answer.exception() is None}

    def stayed(self) -> set[int]:
        """Members whose connection was still open at the deadline; a daemon that dies closes its own."""
        return self._late


@contextmanager
def open_local(reach: "Reach") -> Iterator[SocketTransport]:
    """Members whose folders are on this machine."""
    if reach.members is None:
        raise ConfigError("transport = local needs --members, the folder in which the members' folders are.")
    folders = [reach.members / member.name for member in reach.agreement.members]
    paths = {place: folder / SOCKET for place, folder in enumerate(folders)}
    yield SocketTransport(paths, reach.seconds, reach.longest)


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(len(content).to_bytes(8, "little") + content)


def _receive(connection: socket.socket, longest: int, begins: bytes, *, deadline: float | None = None) -> bytes:
    length = int.from_bytes(begins, "little")
    if length > longest:
        raise ProtocolError(f"a message of {length} bytes is longer than the {longest} that it may have.")
    return _exactly(connection, length, deadline)


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(min(_CHUNK, count - len(parts)))
        if not part:
            raise ProtocolError("the connection ended before the message did.")
        parts += part
    return bytes(parts)
