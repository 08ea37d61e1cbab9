"""Messages over a Unix socket: whole, in time, and only for the operator's own user."""

import os
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rrcluster.errors import ConfigError, ProtocolError
from rrcluster.federation.unix_socket import SocketTransport, ask_socket, serve


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="rr") as name:  # a short path, as sockets need
        yield Path(name)


@pytest.fixture
def listening(folder):
    stop, threads = threading.Event(), []

    def start(name, answer, longest=10**7):
        path = folder / name
        thread = threading.Thread(target=serve, args=(path, answer), kwargs={"longest": longest, "stop": stop})
        thread.start()
        threads.append(thread)
        began = time.monotonic()
        while not path.exists() and time.monotonic() - began < 20:
            time.sleep(0.01)
        return path

    yield start
    stop.set()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


def soon():
    return time.monotonic() + 20


def test_long_and_empty_messages_come_back(listening):
    path = listening("a", lambda content: content[::-1])
    for content in (b"", b"abc", os.urandom(3_000_000)):
        assert ask_socket(path, content, deadline=soon(), longest=10**7) == content[::-1]


def test_the_socket_is_the_operators_alone_and_goes_with_the_daemon(folder):
    stop, path = threading.Event(), folder / "a"
    thread = threading.Thread(target=serve, args=(path, bytes), kwargs={"longest": 10, "stop": stop})
    thread.start()
    while not path.exists():
        time.sleep(0.01)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stop.set()
    thread.join(timeout=20)
    assert not path.exists()


def test_a_late_answer_is_refused_and_the_others_are_kept(listening):
    paths = {0: listening("a", lambda _: b"in time"), 1: listening("b", lambda _: time.sleep(2) or b"late")}
    transport = SocketTransport(paths, seconds=1.0, longest=100)
    began = time.monotonic()
    assert transport.ask({0: b"", 1: b""}) == {0: b"in time"}
    assert time.monotonic() - began < 10


def test_nobody_there_is_no_answer(folder):
    assert SocketTransport({0: folder / "nothing"}, seconds=1.0, longest=100).ask({0: b""}) == {}
    assert SocketTransport({}, seconds=1.0, longest=100).ask({}) == {}


def test_what_is_too_long_is_dropped_on_either_side(listening):
    path = listening("a", lambda _: bytes(1000), longest=100)
    with pytest.raises((ProtocolError, OSError)):
        ask_socket(path, bytes(101), deadline=soon(), longest=10_000)
    with pytest.raises(ProtocolError, match="1000 bytes is longer than the 999"):
        ask_socket(path, b"", deadline=soon(), longest=999)
    assert len(ask_socket(path, b"", deadline=soon(), longest=1000)) == 1000  # and it goes on answering


def test_a_connection_that_breaks_off_stops_nobody(listening):
    path = listening("a", lambda content: content)
    with socket.socket(socket.AF_UNIX) as broken:
        broken.connect(os.fspath(path))
        broken.sendall(b"\x05\x00")
    assert ask_socket(path, b"still here", deadline=soon(), longest=100) == b"still here"


def test_a_path_that_is_too_long_is_refused(folder):
    with pytest.raises(ConfigError, match="longer than 100 bytes"):
        serve(folder / ("x" * 100), bytes, longest=1, stop=threading.Event())
