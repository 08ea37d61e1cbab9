"""Rounds over Flower, with real processes and TLS, are the simulator's; and what must not travel does not."""

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from federation_lab import COUNTS, ROUNDS, agree, deployed_rounds, experiment_of
from test_plain_rounds import CHANGES
from test_secure_rounds import STAGES

from rrcluster.federation.agreed_run import AgreedRun

pytest.importorskip("flwr", reason="needs the extra flower, which has an environment of its own: make test-flower")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from loopback import Loopback
from nginx_lab import NGINX, Nginx

from rrcluster.errors import RoundError
from rrcluster.federation.certificates import make_authority
from rrcluster.federation.children import free_port, stop_processes
from rrcluster.federation.flower import flower_transport
from rrcluster.federation.flower.fleet_node import FleetNode, wrap
from rrcluster.federation.flower.flower_transport import FlowerTransport, GateProcess
from rrcluster.federation.flower.gate import Gate
from rrcluster.simulation.clients import Faults

HERE = Path(__file__).parent


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="rr") as name:  # a short path, as sockets need
        yield Path(name)


@pytest.fixture
def members(folder):
    """Starts daemons, each a process of its own, on what they agreed."""
    processes = {}

    def start(settings):
        for place in range(len(COUNTS)):
            command = [HERE / "member_process.py", json.dumps(settings), str(place), folder / f"{place}.socket"]
            processes[place] = subprocess.Popen(
                [sys.executable, "-W", "ignore", *map(str, command), str(os.getpid())], cwd=HERE, text=False
            )
        sockets = {place: folder / f"{place}.socket" for place in range(len(COUNTS))}
        deadline = time.monotonic() + 180
        while not all(path.exists() for path in sockets.values()) and time.monotonic() < deadline:
            assert all(process.poll() is None for process in processes.values())
            time.sleep(0.05)
        return sockets, AgreedRun.build(agree(**settings), trains=False)

    start.processes = processes
    yield start
    stop_processes(list(processes.values()))


class Gone(Faults):
    """Clients of one member drop out from a round on."""

    def __init__(self, clients, first_round):
        super().__init__()
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "first_round", first_round)

    def remaining(self, clients, *, streams, round_index):
        return clients if round_index < self.first_round else np.setdiff1d(clients, self.clients)


def same(one, other):
    np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
    np.testing.assert_array_equal(one.release.sizes, other.release.sizes)
    np.testing.assert_array_equal(one.release.evaluation.sums, other.release.evaluation.sums)
    np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)


def search(array, *processes):
    """How often a stretch of an array occurs in the memory of processes."""
    command = [sys.executable, HERE / "search_memory.py", array, *processes]
    return int(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)


class KillsBefore:
    """A transport that does something before the question of one round."""

    def __init__(self, inner, number, act):
        self.inner, self.left, self.act = inner, number, act

    def ask(self, messages):
        if self.left == 0:
            self.act()
        self.left -= 1
        return self.inner.ask(messages)

    def stayed(self):
        return self.inner.stayed()


def refuse_strangers(network):
    """A node whose key is not in the roster cannot connect, and nobody reaches what starts runs."""
    stranger = FleetNode(network.address, network.folder / "ca.pem", ec.generate_private_key(ec.SECP384R1()), Path())
    with stranger.client() as client:
        assert not client._client.follow_redirects
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            stranger.activate(client)
    context = ssl.create_default_context(cafile=str(network.folder / "ca.pem"))
    with httpx.Client(verify=context) as client:
        for path in ("/v1/control/start-run", "/v1/control/list-nodes", "/v1/fleet/register-node", "/docs"):
            assert client.post(f"https://{network.address}{path}", content=b"").status_code == 403
    with pytest.raises(httpx.ConnectError), httpx.Client() as client:  # who does not know the authority
        client.post(f"https://{network.address}/v1/fleet/pull-messages")


def check_settings(superlink):
    """Of the SuperLink that runs: on loopback, in memory, with node keys, calling nobody and installing nothing."""
    words = Path(f"/proc/{superlink}/cmdline").read_bytes().decode().split("\0")
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(words)
    assert not {"--database", "--insecure", "--log-file"} & set(words)
    environment = Path(f"/proc/{superlink}/environ").read_bytes().decode().split("\0")
    assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "FLWR_LOG_LEVEL=ERROR"} <= set(environment)


def test_plain_rounds_are_those_of_the_simulator_with_a_daemon_killed_on_the_way(folder, members):
    """Poisson cohorts, coins, private evaluation; member 1 drops out of the last round."""
    experiment = experiment_of(**CHANGES)
    sockets, agreed = members(CHANGES)
    network = Loopback(sockets, folder, seconds=60)
    with network as transport:
        transport = KillsBefore(transport, ROUNDS - 1, members.processes[1].kill)
        over_flower = list(deployed_rounds(agreed, transport))
        refuse_strangers(network)
        check_settings(network.link.process.pid)
    hosted = agreed.agreement.first_client(1) + np.arange(COUNTS[1])
    simulated = list(replace(experiment, faults=Gone(hosted, ROUNDS - 1)).rounds())
    assert len(over_flower) == len(simulated) == ROUNDS
    for one, other in zip(over_flower, simulated, strict=True):
        same(one, other)


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
def test_rounds_pass_nginx_which_writes_nothing_down(folder, members):
    sockets, agreed = members(CHANGES)
    nginx = Nginx(folder)
    network = Loopback(sockets, folder, seconds=60, front=nginx)
    with network as transport:
        over_nginx = list(deployed_rounds(agreed, transport))
        refuse_strangers(network)
        nginx.stop()
    for one, other in zip(over_nginx, experiment_of(**CHANGES).rounds(), strict=True):
        same(one, other)
    assert nginx.written() == []


def test_the_sum_of_a_secure_round_is_exactly_that_of_messages_and_shares(folder, members, monkeypatch):
    """Member 1 dies in the second round, when the others have its keys: its message and share are in no sum."""
    sockets, agreed = members({**CHANGES, "mode": "secure"})
    totals = []
    mechanism = type(agreed.plan.mechanism)
    own = mechanism.release_sum
    monkeypatch.setattr(mechanism, "release_sum", lambda self, total: totals.append(total.total) or own(self, total))
    network = Loopback(sockets, folder, seconds=60)
    with network as transport:
        transport = KillsBefore(transport, len(STAGES) + STAGES.index("mask"), members.processes[1].kill)
        assert len(list(deployed_rounds(agreed, transport))) == 2
        server = [os.getpid(), network.link.process.pid, network.gate.process.pid]
        in_memory = [search(folder / f"message-0-{t}.npy", *server) for t in range(2)]
        np.save(folder / "total.npy", totals[1])
        assert search(folder / "total.npy", os.getpid()) > 0  # what is there is found
    assert in_memory == [0, 0]
    for t, survivors in enumerate([(0, 1, 2), (0, 2)]):
        added = [np.load(folder / f"{what}-{place}-{t}.npy") for what in ("message", "share") for place in survivors]
        np.testing.assert_array_equal(totals[t], np.sum(added, axis=0))


NODE = ec.generate_private_key(ec.SECP384R1())


def signed(key=NODE, *, seconds_ago=0.0, shown=None):
    """The headers by which a node says who it is, as Flower's own client makes them."""
    request = httpx.Request("POST", "https://gate")
    context = SimpleNamespace(request=request)
    clock = f"{node_auth_http_interceptor.__name__}.now"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, lambda: now() - timedelta(seconds=seconds_ago))
        NodeAuthHttpInterceptor(key, (shown or key).public_key()).intercept(context, lambda _: None)
    return {name: value for name, value in request.headers.items() if name.startswith("flwr-")}


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """A gate in front of nothing: what it lets through gets 503, since nobody is there."""
    folder = tmp_path_factory.mktemp("gate")
    make_authority(folder, folder, name="link", hosts=["127.0.0.1"])
    (folder / "nodes.pem").write_bytes(public_key_to_bytes(NODE.public_key()))
    return Gate("127.0.0.1:9", folder / "ca.pem", folder / "nodes.pem", longest=100)


def test_a_node_without_a_server_tries_again_and_says_so_once(tmp_path, monkeypatch, caplog):
    tries, stop = [], threading.Event()
    node = FleetNode("127.0.0.1:9", tmp_path / "ca.pem", ec.generate_private_key(ec.SECP384R1()), Path(), 0.01, 0.01)

    def fail(*_):
        tries.append(None)
        if len(tries) == 5:
            stop.set()
        raise httpx.ConnectError("Connection refused")

    monkeypatch.setattr(FleetNode, "client", fail)
    node.run(stop)
    assert len(tries) == 5
    assert [record.message for record in caplog.records] == [
        "no connection to 127.0.0.1:9, trying every 0.01 s: Connection refused"
    ]


def status(gate, method, path, content=b"", headers=None):
    async def call():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://gate") as client:
            headers_of = signed() if headers is None else headers
            return (await client.request(method, path, content=content, headers=headers_of)).status_code

    return asyncio.run(call())


def test_the_gate_passes_what_nodes_call_and_nothing_else(gate):
    assert status(gate, "POST", "/v1/fleet/pull-messages") == 503
    assert status(gate, "POST", "/v1/fleet/pull-messages", bytes(101)) == 413
    for method, path in (
        ("GET", "/v1/fleet/pull-messages"),
        ("GET", "/docs"),
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/list-nodes"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/register-node"),
        ("POST", "/v1/fleet/get-fab"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "//v1/fleet/pull-messages"),
        ("POST", "/v1/fleet/pull-messages/"),
        ("POST", "/v1/fleet/"),
    ):
        assert status(gate, method, path) == 403, path


def test_the_gate_shows_figures_to_its_own_machine_alone_and_whether_it_is_there_to_all(tmp_path):
    make_authority(tmp_path, tmp_path, name="link", hosts=["127.0.0.1"])
    (tmp_path / "nodes.pem").write_bytes(public_key_to_bytes(NODE.public_key()))
    figures = tmp_path / "metrics.prom"
    gate = Gate("127.0.0.1:9", tmp_path / "ca.pem", tmp_path / "nodes.pem", longest=100, metrics=figures)

    async def get(path, client):
        transport = httpx.ASGITransport(gate, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://gate") as asking:
            answer = await asking.get(path)
            return answer.status_code, answer.text

    def shown(path, client):
        return asyncio.run(get(path, client))

    assert shown("/metrics", "127.0.0.1") == (503, "")  # serve has written none yet
    figures.write_text("rrcluster_up 1.0\n")
    assert shown("/metrics", "127.0.0.1") == (200, "rrcluster_up 1.0\n")
    assert shown("/metrics", "10.0.0.1") == (403, "")
    assert shown("/health", "10.0.0.1") == (200, "ok\n")  # and the SuperLink is not asked for a stranger
    assert shown("/health", "127.0.0.1") == (503, "")  # it does not answer
    assert status(gate, "POST", "/metrics") == status(gate, "POST", "/health") == 403


STRANGER = ec.generate_private_key(ec.SECP384R1())
STRANGERS = {
    "nothing": dict,
    "a key of its own": lambda: signed(STRANGER),
    "the key of a node, which the agreement shows": lambda: signed(STRANGER, shown=NODE),
    "a signature of yesterday": lambda: signed(seconds_ago=86400),
    "a signature of tomorrow": lambda: signed(seconds_ago=-86400),
    "half of it": lambda: dict(list(signed().items())[:2]),
    "no time": lambda: {**signed(), "flwr-timestamp": "soon"},
    "a time without zone": lambda: {**signed(), "flwr-timestamp": "2026-01-01T00:00:00"},
    "no base64": lambda: {**signed(), "flwr-signature": "%"},
}


@pytest.mark.parametrize("name", STRANGERS)
def test_the_gate_reads_no_byte_of_a_strangers_body(gate, name):
    headers = [(key.encode(), value.encode()) for key, value in STRANGERS[name]().items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "headers": headers}
    sent = []

    async def read():
        raise AssertionError("the body was read")

    async def send(part):
        sent.append(part)

    asyncio.run(gate(scope, read, send))
    assert sent[0]["status"] == 401
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_node_holds_two_bodies_at_the_gate_and_no_more(gate):
    """Three requests of 90 bytes at the same time, where a body has at most 100."""

    async def call():
        enough = asyncio.Event()

        async def slow():
            yield bytes(90)
            await enough.wait()

        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://gate") as client:
            requests = [
                asyncio.create_task(client.post("/v1/fleet/push-object", content=slow(), headers=signed()))
                for _ in range(3)
            ]
            done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
            enough.set()
            first = {task.result().status_code for task in done}
            return first, sorted(task.result().status_code for task in (await asyncio.wait(requests))[0])

    assert asyncio.run(call()) == ({413}, [413, 503, 503])
    assert status(gate, "POST", "/v1/fleet/pull-messages") == 503  # and lets go of them afterwards


@pytest.fixture
def listening_gate(tmp_path):
    """A gate as `serve` starts it, in front of nothing; its address and process."""
    make_authority(tmp_path, tmp_path, name="gate", hosts=["127.0.0.1"])
    nodes = tmp_path / "nodes.pem"
    nodes.write_bytes(public_key_to_bytes(NODE.public_key()))
    link = SimpleNamespace(address="127.0.0.1:9", trusted=tmp_path / "ca.pem", nodes=nodes)
    gate = GateProcess(link, f"127.0.0.1:{free_port()}", tmp_path, longest=2**20)
    client = httpx.Client(verify=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")), timeout=5.0)
    with client:
        deadline = time.monotonic() + 60
        while asks(client, gate) != 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield gate, client
    gate.stop()


def asks(client, gate):
    """The status of a node's call, as another connection; 0 where nobody answers."""
    headers = {**signed(), "connection": "close"}
    try:
        return client.post(f"https://{gate.host}:{gate.port}/v1/fleet/pull-messages", headers=headers).status_code
    except httpx.TransportError:
        return 0


def memory(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def flood(gate, trusted, stop, kind):
    """A stranger that opens connections and sends what costs most."""
    context = ssl.create_default_context(cafile=str(trusted))
    request = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 734003200\r\n\r\n"
    held = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            plain = socket.create_connection((gate.host, int(gate.port)), timeout=1.0)
            held.append(plain)
            if kind != "no TLS":
                held[-1] = context.wrap_socket(plain, server_hostname="127.0.0.1")
            if kind == "bodies":
                held[-1].sendall(request)
                for _ in range(700):
                    held[-1].sendall(bytes(2**20))
            elif kind == "headers":
                held[-1].sendall(request[:40])
        del held[:-400]
    for connection in held:
        connection.close()


@pytest.mark.parametrize("kind", ["bodies", "headers", "no TLS"])
def test_a_flood_of_strangers_costs_little_memory_and_nodes_get_through(listening_gate, kind, tmp_path):
    gate, client = listening_gate
    before, stop, most, answered = memory(gate.process.pid), threading.Event(), 0.0, []
    threads = [threading.Thread(target=flood, args=(gate, tmp_path / "ca.pem", stop, kind)) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 15
    while time.monotonic() < end:
        answered.append(asks(client, gate))
        most = max(most, memory(gate.process.pid))
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    print(kind, f"{before:.0f} to {most:.0f} MiB, answered {answered.count(503)} of {len(answered)}")
    assert most - before < 400  # at most 320 connections, with buffers of TLS
    assert kind == "no TLS" or answered.count(503) > len(answered) / 4  # a node that is not answered asks again
    deadline = time.monotonic() + 20
    while asks(client, gate) != 503:
        assert time.monotonic() < deadline


def test_a_connection_that_says_nothing_is_ended(listening_gate, tmp_path):
    gate, _ = listening_gate
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    began = time.monotonic()
    with (
        socket.create_connection((gate.host, int(gate.port))) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as silent,
    ):
        silent.settimeout(30)
        with contextlib.suppress(OSError):
            assert silent.recv(1) == b""
    assert 5 < time.monotonic() - began < 25


def test_a_gate_that_dies_is_started_again_and_one_that_cannot_live_is_an_error(listening_gate, monkeypatch):
    gate, client = listening_gate
    gate.process.kill()
    gate.process.wait()
    monkeypatch.setattr(gate, "_started", time.monotonic() - 60)
    gate.keep_running()
    deadline = time.monotonic() + 60
    while asks(client, gate) != 503:
        assert time.monotonic() < deadline
    gate.process.kill()
    gate.process.wait()
    monkeypatch.setattr(gate, "_started", time.monotonic())
    with pytest.raises(RoundError, match="the gate does not stay at"):
        gate.keep_running()


class Reply:
    """What a SuperLink has to pull: who sent it, in reply to what, and a message that may be nonsense."""

    def __init__(self, number, *, node, content=b"answer"):
        self.metadata = SimpleNamespace(reply_to_message_id=number, src_node_id=node)
        self.message = content if isinstance(content, Exception) else Message(wrap(content), 1, "query")


class FakeLink:
    """Three nodes, 10 to 12; `replies` says what is there to pull, one list after the other."""

    def __init__(self, replies):
        self.node_ids, self.replies, self.restarts, self.sent = {0: 10, 1: 11, 2: 12}, replies, 0, []
        self.grid = self._runtime_client = self.run = self
        self.run_id = self.node = None

    def push_messages(self, messages):
        self.sent.append(list(messages))
        return ["m0", "m1", None][: len(self.sent[-1])]

    def PullMessages(self, request):
        step = self.replies.pop(0) if self.replies else []
        if isinstance(step, Exception):
            raise step
        replies = [reply for reply in step if reply.metadata.reply_to_message_id in request.message_ids]
        return SimpleNamespace(messages_list=replies, message_object_trees=[reply.message for reply in replies])

    def get_node_ids(self):
        return [10, 11, 99]

    def node_times(self):
        return {}

    def restart(self):
        self.restarts += 1


@pytest.fixture
def identity(monkeypatch):
    """Of the run that messages belong to, as a SuperLink would give it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(flower_transport, "fetch", fake_fetch)
    monkeypatch.setattr(flower_transport, "HEARTBEAT", -1.0)


def fake_fetch(_client, _node, _run_id, message, *, tries):
    assert tries == 1  # nobody waits for one member's parts
    if isinstance(message, Exception):
        raise message
    return message


ASKED = {0: b"a", 1: b"b", 2: b"c"}


def test_late_replies_nonsense_and_replies_in_other_names_are_no_answers(identity):
    nonsense = ValueError("cannot be read")
    link = FakeLink([[Reply("m0", node=11)], [Reply("m1", node=11, content=nonsense)]])
    assert FlowerTransport(link, seconds=5, poll_seconds=0.01).ask(ASKED) == {}
    for held_up in (nonsense, httpx.HTTPStatusError("500", request=None, response=None)):
        link = FakeLink([[Reply("m0", node=10, content=held_up), Reply("m1", node=11)]])
        assert FlowerTransport(link, seconds=5, poll_seconds=0.01).ask(ASKED) == {1: b"answer"}
        assert link.restarts == 0  # what one member sends is no reason to start the SuperLink again
    unfinished = ObjectPullError("part", "not there yet")
    link = FakeLink([[Reply("m0", node=10, content=unfinished), Reply("m1", node=11)]])
    assert FlowerTransport(link, seconds=0.3, poll_seconds=0.01).ask(ASKED) == {1: b"answer"}
    link = FakeLink([[Reply("m0", node=10)], *[[]] * 1000])
    began = time.monotonic()
    assert FlowerTransport(link, seconds=0.5, poll_seconds=0.01).ask(ASKED) == {0: b"answer"}
    assert 0.5 <= time.monotonic() - began < 5
    assert {message.metadata.ttl for message in link.sent[0]} == {0.5}


def test_a_silent_node_stayed_if_it_was_activated_before_and_is_heard_of_after(identity):
    link = FakeLink([[Reply("m0", node=10)]])
    cases = {(-9, 9): {1}, (9, 9): set(), (-9, -9): set()}  # seconds from now of activation and last heartbeat
    for (activated, heard), stayed in cases.items():
        times = (time.time() + activated, time.time() + heard)
        link.node_times = lambda times=times: {0: times, 1: times}
        link.replies = [[Reply("m0", node=10)]]
        transport = FlowerTransport(link, seconds=0.3, poll_seconds=0.01)
        assert transport.ask(ASKED) == {0: b"answer"}
        assert transport.stayed() == stayed
    link.replies = [httpx.ConnectError("gone")]
    assert transport.ask(ASKED) == {}
    assert transport.stayed() == set()


def test_a_superlink_that_dies_is_started_again_and_the_answers_it_held_are_lost(identity):
    link = FakeLink([[Reply("m0", node=10)], httpx.ConnectError("gone")])
    transport = FlowerTransport(link, seconds=5, poll_seconds=0.01)
    assert transport.ask(ASKED) == {0: b"answer"}
    assert link.restarts == 1
    link.replies = [[Reply("m0", node=10), Reply("m1", node=11)]]
    assert transport.ask(ASKED) == {0: b"answer", 1: b"answer"}
    assert transport.wait_for_nodes({0, 1, 2}, 0.1) == {0, 1}


def test_a_superlink_that_is_gone_while_nodes_are_awaited_is_an_error_in_a_sentence(identity, monkeypatch):
    """As when it is killed while `serve` starts."""
    link = FakeLink([])
    monkeypatch.setattr(link, "get_node_ids", lambda: (_ for _ in ()).throw(httpx.ConnectError("gone")), raising=False)
    with pytest.raises(RoundError, match="the SuperLink does not answer"):
        FlowerTransport(link, seconds=5, poll_seconds=0.01).wait_for_nodes({0}, 1.0)


def test_two_messages_with_the_same_bytes_have_different_names(identity):
    first, second = (Message(wrap(b"same"), 10, "query", ttl=5.0) for _ in range(2))
    first.metadata.created_at = second.metadata.created_at
    assert first.object_id != second.object_id
