"""Rounds over Flower, with a SuperLink, nodes and TLS, are the simulator's; and what must not travel does not."""

import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from federation_lab import COUNTS, ROUNDS, deployed_rounds, experiment_of
from network_lab import Gone, KillsBefore, Loopback, folder, members, same  # noqa: F401  fixtures
from nginx_lab import NGINX, Nginx
from test_plain_rounds import CHANGES

pytest.importorskip("flwr", reason="needs the extra flower, which has an environment of its own: make test-flower")

import threading

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.task_identity import TaskIdentity

from rrcluster.errors import ConfigError, RoundError
from rrcluster.federation import flower_transport
from rrcluster.federation.flower_transport import FleetNode, FlowerTransport, open_flower, wrap


def refuse_strangers(network, *, nginx):
    """A node whose key is not in the roster cannot connect, and nobody reaches what starts runs through nginx."""
    stranger = FleetNode(network.address, network.ca, ec.generate_private_key(ec.SECP384R1()), Path())
    with stranger.client() as client:
        assert not client._client.follow_redirects
        with pytest.raises(httpx.HTTPStatusError, match=r"401|412"):
            stranger.activate(client)
    context = ssl.create_default_context(cafile=str(network.ca))
    if nginx:
        with httpx.Client(verify=context) as client:
            for path in ("/v1/control/start-run", "/v1/control/list-nodes", "/v1/fleet/register-node", "/docs"):
                assert client.post(f"https://{network.address}{path}", content=b"").status_code == 403
        host, port = network.address.split(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            stream.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 134217728\r\n\r\n")
            assert b" 413 " in stream.recv(100)
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


def test_plain_rounds_are_those_of_the_simulator_with_a_daemon_killed_on_the_way(folder, members):  # noqa: F811
    """Poisson cohorts, coins, private evaluation; member 1 drops out of the last round."""
    experiment = experiment_of(**CHANGES)
    sockets, agreed = members(CHANGES)
    network = Loopback(sockets, folder, seconds=60, kind="flower")
    with network as transport:
        transport = KillsBefore(transport, ROUNDS - 1, members.processes[1].kill)
        over_flower = list(deployed_rounds(agreed, transport))
        refuse_strangers(network, nginx=False)
        check_settings(network.link.process.pid)
    hosted = agreed.agreement.first_client(1) + np.arange(COUNTS[1])
    simulated = list(replace(experiment, faults=Gone(hosted, ROUNDS - 1)).rounds())
    assert len(over_flower) == len(simulated) == ROUNDS
    for one, other in zip(over_flower, simulated, strict=True):
        same(one, other)


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
def test_rounds_pass_nginx_which_writes_nothing_down(folder, members):  # noqa: F811
    sockets, agreed = members(CHANGES)
    nginx = Nginx(folder, "nginx-flower.conf")
    network = Loopback(sockets, folder, seconds=60, kind="flower", front=nginx)
    with network as transport:
        over_nginx = list(deployed_rounds(agreed, transport))
        refuse_strangers(network, nginx=True)
        nginx.stop()
    for one, other in zip(over_nginx, experiment_of(**CHANGES).rounds(), strict=True):
        same(one, other)
    assert nginx.written() == []


def test_a_superlink_does_not_face_the_network():
    for address in ("0.0.0.0:9092", "federation.example.org:9092", "127.0.0.1:x"):
        reach = SimpleNamespace(agreement=SimpleNamespace(members=()), address=address)
        with pytest.raises(ConfigError, match="strangers start runs"), open_flower(reach):
            pass


def test_a_node_without_a_server_tries_again_and_says_so_once(tmp_path, monkeypatch, caplog):
    tries, stop = [], threading.Event()
    node = FleetNode("127.0.0.1:9", tmp_path / "ca.pem", ec.generate_private_key(ec.SECP384R1()), Path(), 0.01)

    def fail(*_):
        tries.append(None)
        if len(tries) >= 5:
            stop.set()
        raise httpx.ConnectError("Connection refused")

    monkeypatch.setattr(FleetNode, "client", fail)
    node.run(stop)
    assert len(tries) >= 5
    assert [record.message for record in caplog.records] == [
        "no connection to 127.0.0.1:9, trying every 0.01 s: Connection refused"
    ]


class Reply:
    """What a SuperLink has to pull: who sent it, in reply to what, and a message that may be nonsense."""

    def __init__(self, number, *, node, content=b"answer"):
        self.metadata = SimpleNamespace(reply_to_message_id=number, src_node_id=node)
        self.message = content if isinstance(content, Exception) else Message(wrap(content), 1, "query")


class FakeLink:
    """Three nodes, 10 to 12; `replies` says what is there to pull, one list after the other."""

    def __init__(self, replies):
        self.node_ids, self.replies, self.sent = {0: 10, 1: 11, 2: 12}, replies, []
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


def test_a_superlink_that_dies_ends_the_round(identity):
    link = FakeLink([[Reply("m0", node=10)], httpx.ConnectError("gone")])
    transport = FlowerTransport(link, seconds=5, poll_seconds=0.01)
    with pytest.raises(RoundError, match="the SuperLink does not answer"):
        transport.ask(ASKED)
    assert transport.stayed() == set()
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
