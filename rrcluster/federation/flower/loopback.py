"""SuperLink, gate and nodes on one machine, in front of daemons that are there already: for rehearsals and tests."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rrcluster.federation.flower.children import Process, free_port, start_module, stop_processes
from rrcluster.federation.flower.flower_transport import FlowerTransport
from rrcluster.federation.flower.superlink import SuperLink, write_loopback_certificate
from rrcluster.storage import replace_file


@dataclass
class Loopback:
    """The network of a federation, all of it on the loopback interface and gone at the end."""

    sockets: Mapping[int, Path]  # place of a member -> its daemon's socket
    folder: Path
    seconds: float  # until a round's deadline
    poll_seconds: float = 0.2

    def __post_init__(self) -> None:
        self._running = contextlib.ExitStack()
        self.nodes: dict[int, Process] = {}

    def __enter__(self) -> FlowerTransport:
        """The transport, once every node is connected or a round's time has passed."""
        with contextlib.ExitStack() as starting:
            keys = {place: self._node_key(place) for place in self.sockets}
            link = starting.enter_context(SuperLink(keys, self.folder))
            self.link, self.port = link, free_port()
            write_loopback_certificate(self._gate_certificate)
            starting.callback(lambda: stop_processes([self.gate, *self.nodes.values()]))
            self.gate = self._start_gate()
            for place in self.sockets:
                self.start_node(place)
            transport = FlowerTransport(link, self.seconds, self.poll_seconds)
            transport.wait_for_nodes(set(self.sockets), self.seconds)
            self._running = starting.pop_all()
        return transport

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def address(self) -> str:
        """Where nodes connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def _gate_certificate(self) -> Path:
        return self.folder / "gate.pem"

    def _start_gate(self) -> Process:
        return start_module(
            "rrcluster.federation.flower.gate",
            *("--host", "127.0.0.1", "--port", str(self.port), "--link", self.link.address),
            *("--certificate", str(self._gate_certificate), "--key", str(self._gate_certificate)),
            *("--trusted", str(self.link.certificate), "--parent", str(os.getpid())),
            log=self.folder / "gate.log",
        )

    def start_node(self, place: int) -> None:
        """Start a member's node, also after it was killed."""
        self.nodes[place] = start_module(
            "rrcluster.federation.flower.fleet_node",
            *("--server", self.address, "--ca", str(self._gate_certificate)),
            *("--key", str(self._key_file(place)), "--socket", str(self.sockets[place])),
            *("--poll-seconds", str(self.poll_seconds), "--parent", str(os.getpid())),
            log=self.folder / f"node-{place}.log",
        )

    def _key_file(self, place: int) -> Path:
        return self.folder / f"node-{place}.key"

    def _node_key(self, place: int) -> str:
        """The public half of a new key."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        replace_file(self._key_file(place), private, mode=0o600)
        return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
