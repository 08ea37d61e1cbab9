"""SuperLink, gate and nodes on one machine, in front of daemons that are there already: for rehearsals and tests."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rrcluster.federation.certificates import make_authority, new_node_key, write_secret
from rrcluster.federation.children import Process, free_port, start_module, stop_processes
from rrcluster.federation.flower.flower_transport import FlowerTransport, GateProcess
from rrcluster.federation.flower.superlink import SuperLink
from rrcluster.storage import make_subfolder

_ARRIVAL = 180.0  # seconds, on a machine that is busy with other tests


@dataclass
class Loopback:
    """The network of a federation, all of it on the loopback interface and gone at the end."""

    sockets: Mapping[int, Path]  # place of a member -> its daemon's socket
    folder: Path
    seconds: float  # until a round's deadline
    poll_seconds: float = 0.2
    longest: int = 2**24  # bytes of a request
    front: Callable[[str], str] = lambda gate: gate  # where nodes connect to, given the gate's address

    def __post_init__(self) -> None:
        self._running = contextlib.ExitStack()
        self.nodes: dict[int, Process] = {}

    def __enter__(self) -> FlowerTransport:
        """The transport, once every node is connected."""
        with contextlib.ExitStack() as starting:
            keys = {place: self._node_key(place) for place in self.sockets}
            link = starting.enter_context(SuperLink(keys, self.folder))
            gate = f"127.0.0.1:{free_port()}"
            make_authority(self.folder, self.folder, name="loopback", hosts=["127.0.0.1", "federation.example.org"])
            self.link, self.gate = link, GateProcess(link, gate, self.folder, longest=self.longest)
            starting.callback(self.gate.stop)
            starting.callback(lambda: stop_processes([*self.nodes.values()]))
            self.address = self.front(gate)
            for place in self.sockets:
                self.start_node(place)
            transport = FlowerTransport(link, self.seconds, self.poll_seconds, self.gate)
            online = transport.wait_for_nodes(set(self.sockets), _ARRIVAL)
            assert online == set(self.sockets), f"members {sorted(set(self.sockets) - online)} did not connect"
            self._running = starting.pop_all()
        return transport

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_node(self, place: int) -> None:
        """Start a member's node."""
        self.nodes[place] = start_module(
            *("rrcluster", "federation", "node", str(self._node_folder(place)), "--server", self.address),
            *("--ca", str(self.folder / "ca.pem"), "--socket", str(self.sockets[place])),
            *("--poll-seconds", str(self.poll_seconds), "--parent", str(os.getpid())),
            log=self.folder / f"node-{place}.log",
        )

    def kill_node(self, place: int) -> None:
        """Kill a member's node, and start it again as a supervisor would."""
        self.nodes[place].kill()
        self.nodes[place].wait()
        self.start_node(place)

    def _node_folder(self, place: int) -> Path:
        return make_subfolder(self.folder / f"node-{place}", private=True)

    def _node_key(self, place: int) -> str:
        """The public half of a new key."""
        private, public = new_node_key()
        write_secret(self._node_folder(place) / "node.key", private)
        return public
