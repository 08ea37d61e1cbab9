"""`rrcluster federation node`: connects a member's daemon to the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rrcluster.cli.terminal import log_to, parse, say
from rrcluster.errors import ConfigError
from rrcluster.federation.member_folder import MemberFolder


@dataclass(frozen=True)
class NodeCommand:
    """Connect a member's daemon to the server over Flower, beside `rrcluster federation client`.

    It fetches messages, hands them to the daemon and returns its answers, until it is stopped (Ctrl-C, SIGTERM). It
    reads no data, opens no port, runs no code that the server sends, and comes back by itself after a failure of the
    network or of the server. Example:

    rrcluster federation node north --server trial.example.org:9092
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """The member's folder: node.key, ca.pem and daemon.sock."""
    server: str = ""
    """Address of the server, host:port."""
    ca: Path | None = None
    """Certificate of the federation's authority; default: ca.pem in the member's folder."""
    socket: Path | None = None
    """Where the daemon listens; default: daemon.sock in the member's folder."""
    poll_seconds: float = 1.0
    """Seconds between two questions for messages."""
    parent: int | None = None
    """Also stop when this process, which started the node, ends."""


def node(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(NodeCommand(), arguments, prog="rrcluster federation node")
    if command.folder == Path() or not command.server:
        raise ConfigError("node needs the member's folder and --server host:port.")
    from rrcluster.federation.flower.children import stop_signals
    from rrcluster.federation.flower.fleet_node import FleetNode, load_node_key

    ca = command.ca or command.folder / "ca.pem"
    if not ca.exists():
        raise ConfigError(f"{ca} is not there; copy the server's ca.pem into the member's folder, or give --ca.")
    MemberFolder(command.folder).check_authority(ca)
    with stop_signals(command.parent) as stop:
        pipe = FleetNode(
            command.server,
            ca,
            load_node_key(command.folder / "node.key"),
            command.socket or command.folder / "daemon.sock",
            command.poll_seconds,
        )
        log_to(None)
        say(f"Connecting to {command.server}; stop with Ctrl-C.")
        pipe.run(stop)
    return 0
