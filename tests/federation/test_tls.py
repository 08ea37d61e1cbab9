"""Rounds over TLS, with real processes, are the simulator's; strangers and members get no further than they may."""

import asyncio
import contextlib
import os
import re
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from federation_lab import COUNTS, ROUNDS, deployed_rounds, experiment_of
from network_lab import Gone, KillsBefore, Loopback, folder, free_port, members, same, search  # noqa: F401  fixtures
from nginx_lab import STREAM, Nginx
from test_plain_rounds import CHANGES
from test_secure_rounds import STAGES

from rrcluster.errors import ConfigError
from rrcluster.federation import certificates, tls_transport
from rrcluster.federation.certificates import make_authority, new_node_key, node_certificate, read_node_key
from rrcluster.federation.messages import Letter, decode
from rrcluster.federation.tls_transport import TlsNode, TlsTransport


def test_plain_rounds_are_those_of_the_simulator_with_a_daemon_killed_on_the_way(folder, members):  # noqa: F811
    """Poisson cohorts, coins, private evaluation; member 1 drops out of the last round."""
    sockets, agreed = members(CHANGES)
    with Loopback(sockets, folder, seconds=60) as transport:
        transport = KillsBefore(transport, ROUNDS - 1, members.processes[1].kill)
        over_tls = list(deployed_rounds(agreed, transport))
    hosted = agreed.agreement.first_client(1) + np.arange(COUNTS[1])
    simulated = list(replace(experiment_of(**CHANGES), faults=Gone(hosted, ROUNDS - 1)).rounds())
    assert len(over_tls) == len(simulated) == ROUNDS
    for one, other in zip(over_tls, simulated, strict=True):
        same(one, other)


@pytest.mark.slow
@pytest.mark.skipif(not STREAM, reason="needs nginx: apt-get install nginx-light libnginx-mod-stream")
def test_rounds_pass_nginx_which_writes_nothing_down(folder, members):  # noqa: F811
    sockets, agreed = members(CHANGES)
    nginx = Nginx(folder, "nginx.conf")
    with Loopback(sockets, folder, seconds=60, front=nginx) as transport:
        over_nginx = list(deployed_rounds(agreed, transport))
        nginx.stop()
    for one, other in zip(over_nginx, experiment_of(**CHANGES).rounds(), strict=True):
        same(one, other)
    assert nginx.written() == []


def test_the_sum_of_a_secure_round_is_exactly_that_of_messages_and_shares(folder, members, monkeypatch):  # noqa: F811
    """Member 1 dies in the second round, when the others have its keys: its message and share are in no sum."""
    sockets, agreed = members({**CHANGES, "mode": "secure"})
    totals = []
    mechanism = type(agreed.plan.mechanism)
    release_sum = mechanism.release_sum
    monkeypatch.setattr(
        mechanism, "release_sum", lambda self, total: totals.append(total.total) or release_sum(self, total)
    )
    with Loopback(sockets, folder, seconds=60) as transport:
        transport = KillsBefore(transport, len(STAGES) + STAGES.index("mask"), members.processes[1].kill)
        assert len(list(deployed_rounds(agreed, transport))) == 2
        in_memory = [search(folder / f"message-0-{t}.npy", os.getpid()) for t in range(2)]
        np.save(folder / "total.npy", totals[1])
        assert search(folder / "total.npy", os.getpid()) > 0  # what is there is found
    assert in_memory == [0, 0]
    for t, survivors in enumerate([(0, 1, 2), (0, 2)]):
        added = [np.load(folder / f"{what}-{place}-{t}.npy") for what in ("message", "share") for place in survivors]
        np.testing.assert_array_equal(totals[t], np.sum(added, axis=0))


def new_key(path):
    private, public = new_node_key()
    path.write_bytes(private)
    return read_node_key(path), public


@pytest.fixture
def two(tmp_path):
    """A server that knows two nodes; their keys, its address and folder. Everything is quick."""

    class Two:
        keys = tuple(new_key(tmp_path / f"{place}.key") for place in range(2))
        stranger, _ = new_key(tmp_path / "stranger.key")
        folder, ca = tmp_path, tmp_path / "ca.pem"

        def __init__(self):
            make_authority(tmp_path, tmp_path, name="two", hosts=["127.0.0.1"])
            self.address = f"127.0.0.1:{free_port()}"
            public = {place: key for place, (_, key) in enumerate(self.keys)}
            self.transport = TlsTransport(public, tmp_path, self.address, 3.0, longest=1000)

        def connect(self, certificate, *, name="127.0.0.1", trusted=None):
            """A TLS connection that shows this certificate and its key; None: none."""
            context = ssl.create_default_context(cafile=str(trusted or self.ca))
            if certificate is not None:
                (tmp_path / "shown.pem").write_bytes(certificate)
                context.load_cert_chain(tmp_path / "shown.pem")
            host, port = self.address.split(":")
            plain = socket.create_connection((host, int(port)), timeout=5)
            return context.wrap_socket(plain, server_hostname=name)

        def member(self, place):
            return self.connect(node_certificate(self.keys[place][0]))

    made = Two()
    with made.transport:
        yield made


def ended(connection):
    """Whether the server has ended a connection: nothing more comes over it."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def frame(number, content=b"", *, length=None):
    return tls_transport._HEAD.pack(number, 0.0, len(content) if length is None else length) + content


def question(connection):
    """Number and content of the next question."""
    with (
        connection.dup() if not isinstance(connection, ssl.SSLSocket) else contextlib.nullcontext(connection) as stream
    ):
        while True:
            number, _, length = tls_transport._HEAD.unpack(exactly(stream, tls_transport._HEAD.size))
            content = exactly(stream, length)
            if number:
                return number, content


def exactly(stream, count):
    content = b""
    while len(content) < count:
        part = stream.recv(count - len(content))
        assert part
        content += part
    return content


def asking(transport, messages):
    """A question under way, and where its answers will be."""
    answers = {}
    thread = threading.Thread(target=lambda: answers.update(transport.ask(messages)))
    thread.start()
    return thread, answers


def another(key, **changes):
    """A certificate like a node's, with changes of what it says."""
    passing = ec.generate_private_key(ec.SECP256R1())
    issuer = changes.get("issuer", certificates._key_name(key.public_key()))
    built = certificates._builder(
        certificates._named("node"), certificates._named(issuer), passing.public_key(), changes.get("days", 1)
    )
    signed = built.sign(changes.get("signer", key), hashes.SHA384())
    pem = certificates._PEM
    return certificates._private(passing) + signed.public_bytes(pem) + changes.get("chain", b"")


def through_an_authority_of_its_own(two):
    """Member 0 signs an authority with the name of member 1, and that one a certificate."""
    name = certificates._key_name(two.keys[1][0].public_key())
    middle = ec.generate_private_key(ec.SECP256R1())
    signer = certificates._named(certificates._key_name(two.keys[0][0].public_key()))
    authority = (
        certificates._builder(certificates._named(name), signer, middle.public_key(), 1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(certificates._usage(signs_certificates=True), critical=True)
        .sign(two.keys[0][0], hashes.SHA384())
    )
    return another(middle, issuer=name, chain=authority.public_bytes(certificates._PEM))


def of_the_server(two):
    """The server's own certificate and key: no member's."""
    return (two.folder / "server.key").read_bytes() + (two.folder / "server.pem").read_bytes()


STRANGERS = {
    "nothing": lambda two: None,
    "a key of its own": lambda two: node_certificate(two.stranger),
    "a key of its own under a member's name": lambda two: another(
        two.stranger, issuer=certificates._key_name(two.keys[0][0].public_key())
    ),
    "a member's key under another member's name": lambda two: another(
        two.keys[0][0], issuer=certificates._key_name(two.keys[1][0].public_key())
    ),
    "a member's authority under another member's name": through_an_authority_of_its_own,
    "a certificate that has ended": lambda two: another(two.keys[0][0], days=-1 / 1440),
    "the server's own": of_the_server,
}


@pytest.mark.parametrize("name", STRANGERS)
def test_no_byte_of_a_stranger_is_read(two, name):
    certificate = STRANGERS[name](two)
    with contextlib.suppress(OSError), two.connect(certificate) as connection:
        connection.sendall(frame(two.transport._number + 1, b"an answer"))
        assert ended(connection)
    assert two.transport.wait_for_nodes({0, 1}, 0.3) == set()
    with two.member(0):
        assert two.transport.wait_for_nodes({0}, 5.0) == {0}


def test_a_member_whose_certificate_writes_its_name_otherwise_is_ended(two, caplog):
    """To OpenSSL names in capitals are the same names."""
    key = two.keys[0][0]
    with two.connect(another(key, issuer=certificates._key_name(key.public_key()).upper())) as connection:
        assert ended(connection)
    assert two.transport.wait_for_nodes({0}, 0.3) == set()
    assert not caplog.records


def test_one_key_of_two_members_is_refused(two):
    public = two.keys[0][1]
    with pytest.raises(ConfigError, match="two members have the same node key"):
        TlsTransport({0: public, 1: f"{public} east"}, two.folder, f"127.0.0.1:{free_port()}", 1.0, 100)


def test_a_node_takes_no_server_that_the_federation_has_not_certified(two, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    make_authority(other, other, name="two", hosts=["127.0.0.1"])
    certificate = node_certificate(two.keys[0][0])
    with pytest.raises(ssl.SSLCertVerificationError):
        two.connect(certificate, trusted=other / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        two.connect(certificate, name="federation.example.org")


def test_answers_belong_to_the_question_and_to_who_was_asked(two):
    with two.member(0) as first, two.member(1) as second:
        assert two.transport.wait_for_nodes({0, 1}, 5.0) == {0, 1}
        second.sendall(frame(two.transport._number + 1, b"before it is asked"))
        thread, answers = asking(two.transport, {0: b"for the first"})
        number, content = question(first)
        assert content == b"for the first"
        second.sendall(frame(number, b"in another's name"))
        first.sendall(frame(number - 1, b"late") + frame(number, b"mine") + frame(number, b"again"))
        thread.join()
        assert answers == {0: b"mine"}
        first.sendall(frame(number, b"late"))
        thread, answers = asking(two.transport, {0: b"1", 1: b"2"})
        for connection, content in ((first, b"one"), (second, b"two")):
            connection.sendall(frame(question(connection)[0], content))
        thread.join()
        assert answers == {0: b"one", 1: b"two"}


def test_who_says_too_much_is_out_and_a_late_answer_is_none(two, monkeypatch):
    monkeypatch.setattr(tls_transport, "HEARTBEAT", 0.2)
    with two.member(0) as first, two.member(1) as second:
        assert two.transport.wait_for_nodes({0, 1}, 5.0) == {0, 1}
        thread, answers = asking(two.transport, {0: b"a", 1: b"b"})
        number, _ = question(first)
        first.sendall(frame(number, length=1001))
        assert ended(first)
        time.sleep(3.2)  # the deadline
        second.sendall(frame(number, b"too late"))
        thread.join()
        assert answers == {}
        assert two.transport.stayed() == {1}
        with two.member(0) as first:  # a question that it missed costs it nothing
            assert two.transport.wait_for_nodes({0}, 5.0) == {0}


def test_a_member_that_is_away_holds_nobody_up_for_long(two, monkeypatch):
    monkeypatch.setattr(tls_transport, "_AWAY", 0.5)
    two.transport.seconds = 60.0
    with two.member(0) as first:
        two.transport.wait_for_nodes({0}, 5.0)
        thread, answers = asking(two.transport, {0: b"a", 1: b"b"})
        first.sendall(frame(question(first)[0], b"here"))
        thread.join(10)
        assert answers == {0: b"here"}
        assert two.transport.stayed() == set()


def test_a_lost_connection_loses_no_answer_and_the_daemon_is_asked_once(two, monkeypatch):
    """The server drops the connection while the daemon computes; its answer comes over the next one."""
    asked, free = [], asyncio.Event()

    class Node(TlsNode):
        async def _ask_daemon(self, content, seconds):
            asked.append(content)
            await free.wait()
            return b"computed"

    node = Node(two.address, two.ca, two.keys[0][0], Path(), retry_seconds=0.1)

    async def main():
        running = asyncio.create_task(node.stay_connected())
        while not two.transport._connections:
            await asyncio.sleep(0.01)
        before = two.transport._connections[0]
        thread, answers = asking(two.transport, {0: b"train"})
        while not asked:
            await asyncio.sleep(0.01)
        two.transport._loop.call_soon_threadsafe(before.close)
        while two.transport._connections.get(0) in (None, before):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        free.set()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        running.cancel()
        return answers

    assert asyncio.run(main()) == {0: b"computed"}
    assert asked == [b"train"]


def test_a_node_asks_its_daemon_one_question_at_a_time(two):
    """The server goes on, or never meant to wait: nothing of an earlier question is held any more."""
    held = []

    class Node(TlsNode):
        async def _ask_daemon(self, content, seconds):
            held.append(content)
            try:
                return await super()._ask_daemon(content, seconds)
            finally:
                held.remove(content)

    path = two.folder / "d.sock"
    node = Node(two.address, two.ca, two.keys[0][0], path)
    questions = [bytes([number]) * 2**20 for number in range(4)]

    async def main():
        running = asyncio.create_task(node.stay_connected())
        while not two.transport._connections:
            await asyncio.sleep(0.01)
        line = two.transport._connections[0]
        for number, content in enumerate(questions):
            two.transport._loop.call_soon_threadsafe(line.write, number + 1, 1e9, content)
            while content not in held:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        running.cancel()
        return list(held)

    with socket.socket(socket.AF_UNIX) as daemon:  # it is busy
        daemon.bind(str(path))
        daemon.listen()
        assert asyncio.run(main()) == [questions[-1]]


def test_a_daemon_that_computes_for_too_long_declines_nothing(two, monkeypatch):
    """By the node's clock the deadline is over before it is by the server's; how long clients train is private."""
    monkeypatch.setattr(tls_transport, "HEARTBEAT", 0.2)

    class Node(TlsNode):
        async def _ask_daemon(self, content, seconds):
            return await super()._ask_daemon(content, 0.5 * seconds)

    path = two.folder / "d.sock"
    node = Node(two.address, two.ca, two.keys[0][0], path)

    async def main():
        running = asyncio.create_task(node.stay_connected())
        while not two.transport._connections:
            await asyncio.sleep(0.01)
        answers = await asyncio.to_thread(two.transport.ask, {0: b"train"})
        running.cancel()
        return answers

    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
        daemon.listen()
        assert asyncio.run(main()) == {}
    assert two.transport.stayed() == {0}


def test_the_newest_connection_of_a_member_is_its_connection(two):
    with two.member(0) as older:
        two.transport.wait_for_nodes({0}, 5.0)
        with two.member(0) as newer:
            assert ended(older)
            thread, answers = asking(two.transport, {0: b"a"})
            newer.sendall(frame(question(newer)[0], b"new"))
            thread.join()
    assert answers == {0: b"new"}


def memory():
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


@pytest.mark.parametrize("kind", ["no TLS", "TLS"])
def test_a_flood_of_strangers_costs_little_and_members_get_through(two, kind):
    stop, most, through, before = threading.Event(), 0.0, 0, memory()

    def flood():
        held, (host, port) = [], two.address.split(":")
        context = ssl.create_default_context(cafile=str(two.ca))
        while not stop.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((host, int(port)), timeout=1.0))
                if kind == "TLS":
                    held[-1] = context.wrap_socket(held[-1], server_hostname="127.0.0.1")
                    held[-1].sendall(bytes(2**20))
            while len(held) > 200:
                held.pop(0).close()
        for connection in held:
            connection.close()

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with contextlib.suppress(OSError), two.member(0):
            through += two.transport.wait_for_nodes({0}, 1.0) == {0}
        most = max(most, memory())
    stop.set()
    for thread in threads:
        thread.join()
    assert most - before < 150
    assert through >= 5  # who is not taken tries again
    assert len(two.transport._strangers) <= two.transport._most_strangers
    with two.member(1):
        assert two.transport.wait_for_nodes({1}, 15.0) == {1}


def test_in_a_flood_room_is_made_by_lot_so_that_who_is_slow_gets_through_too(two):
    """If the oldest made room, a member whose handshake takes longer than a flood never would."""
    two.transport._most_strangers, (host, port) = 40, two.address.split(":")
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(80):
            connections.append(opened.enter_context(socket.create_connection((host, int(port)), timeout=1)))
            time.sleep(0.01)
        held = []
        for connection in connections:
            connection.settimeout(0.05)
            held.append(not ended(connection))
        assert sum(held) == 40
        assert any(held[:40])  # all of them end with probability 1e-8


def test_a_connection_that_says_nothing_is_ended(two, monkeypatch):
    monkeypatch.setattr(tls_transport, "_HANDSHAKE", 0.5)
    host, port = two.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as silent:
        assert ended(silent)
    monkeypatch.setattr(tls_transport, "_SILENCE", 0.5)
    with two.member(0) as member:
        assert two.transport.wait_for_nodes({0}, 5.0) == {0}
        member.settimeout(10)
        assert ended(member)


def test_a_node_says_once_that_it_cannot_connect_and_away_where_its_daemon_is(two, tmp_path, caplog):
    node = TlsNode("127.0.0.1:9", two.ca, two.stranger, tmp_path / "no.sock", retry_seconds=0.01)

    async def main():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.stay_connected(), 1.0)
        return await node._ask_daemon(b"hello", 1.0)

    assert decode(asyncio.run(main()), longest=1000) == Letter("away")
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("no connection to 127.0.0.1:9, trying every 0.01 s: ")
    assert messages[1].startswith("the daemon did not answer: ")


def test_a_node_does_not_write_its_key_and_leaves_no_file(two, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    written = []
    shown = tls_transport.node_certificate
    monkeypatch.setattr(tls_transport, "node_certificate", lambda key: written.append(shown(key)) or written[-1])
    key = two.keys[0][0]
    TlsNode(two.address, two.ca, key, Path())._context()
    secret = key.private_numbers().private_value
    (content,) = written
    passing = certificates.serialization.load_pem_private_key(content, password=None)
    assert passing.private_numbers().private_value != secret
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("address", ["9092", "127.0.0.1:", "somewhere:http", "127.0.0.1:65536", "127.0.0.1:²"])
def test_an_address_that_is_none_is_refused(two, address):
    with pytest.raises(ConfigError, match="must be host:port"):
        TlsTransport({}, two.folder, address, 1.0, 100)
    with pytest.raises(ConfigError, match="cannot be used"):
        TlsTransport({}, two.folder, two.address, 1.0, 100)
