"""The network of a federation on one machine, over TLS or Flower, in front of daemons that are there already."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from federation_lab import COUNTS, agree

from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.certificates import make_authority, new_node_key, write_secret
from rrcluster.federation.children import Process, start_module, stop_processes
from rrcluster.federation.messages import LONGEST_LETTER
from rrcluster.federation.tls_transport import TlsTransport
from rrcluster.federation.unix_socket import serve
from rrcluster.simulation.clients import Faults
from rrcluster.storage import make_subfolder

HERE = Path(__file__).parent
_ARRIVAL = 180.0  # seconds, on a machine that is busy with other tests


def free_port():
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@dataclass
class Loopback:
    """The network, all of it on the loopback interface and gone at the end."""

    sockets: Mapping[int, Path]  # place of a member -> its daemon's socket
    folder: Path
    seconds: float  # until a round's deadline
    kind: str = "tls"
    longest: int = 2**24  # bytes of an answer
    front: Callable[[str], str] = lambda server: server  # where nodes connect to, given the server's address

    def __post_init__(self) -> None:
        self._running = contextlib.ExitStack()
        self.nodes: dict[int, Process] = {}

    def __enter__(self):
        """The transport, once every node is connected."""
        with contextlib.ExitStack() as starting:
            keys = {place: self._node_key(place) for place in self.sockets}
            server = f"127.0.0.1:{free_port()}"
            make_authority(self.folder, self.folder, name="loopback", hosts=["127.0.0.1", "federation.example.org"])
            self.ca = self.folder / "ca.pem"
            if self.kind == "flower":
                from rrcluster.federation.flower_transport import FlowerTransport, SuperLink

                self.link = starting.enter_context(SuperLink(keys, self.folder, int(server.split(":")[1])))
                transport = FlowerTransport(self.link, self.seconds)
                self.ca = self.link.trusted
            else:
                transport = TlsTransport(keys, self.folder, server, self.seconds, self.longest)
                starting.enter_context(transport)
            starting.callback(lambda: stop_processes([*self.nodes.values()]))
            self.address = self.front(server)
            if self.address != server:
                self.ca = self.folder / "ca.pem"
            for place in self.sockets:
                self.start_node(place)
            online = transport.wait_for_nodes(set(self.sockets), _ARRIVAL)
            assert online == set(self.sockets), f"members {sorted(set(self.sockets) - online)} did not connect"
            self._running = starting.pop_all()
        return transport

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_node(self, place: int) -> None:
        """Start a member's node."""
        self.nodes[place] = start_module(
            *("rrcluster", "federation", "node", str(self.node_folder(place)), "--server", self.address),
            *("--ca", str(self.ca), "--socket", str(self.sockets[place]), "--transport", self.kind),
            *("--parent", str(os.getpid())),
            log=self.folder / f"node-{place}.log",
        )

    def kill_node(self, place: int) -> None:
        """Kill a member's node, and start it again as a supervisor would."""
        self.nodes[place].kill()
        self.nodes[place].wait()
        self.start_node(place)

    def node_folder(self, place: int) -> Path:
        return make_subfolder(self.folder / f"node-{place}", private=True)

    def _node_key(self, place: int) -> str:
        """The public half of a new key."""
        private, public = new_node_key()
        write_secret(self.node_folder(place) / "node.key", private)
        return public


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


@contextlib.contextmanager
def listening(answers, folder):
    """Sockets in front of these functions, in threads of this process."""
    stop = threading.Event()
    paths = {place: folder / f"{place}.socket" for place in answers}
    threads = [
        threading.Thread(target=serve, args=(paths[place], answer), kwargs={"longest": LONGEST_LETTER, "stop": stop})
        for place, answer in answers.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield paths
    finally:
        stop.set()
        for thread in threads:
            thread.join()


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
