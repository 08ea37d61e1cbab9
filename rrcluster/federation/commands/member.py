"""`rrcluster federation client`: a member's daemon, and the use of the models afterwards.

And `rrcluster federation node`, which connects that daemon to the server.
"""

import logging
import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rrcluster.cli.terminal import log_to, say
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.federation.federation_folder import parse_with_folder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.settings import ColumnSettings

if TYPE_CHECKING:
    from rrcluster.data.federated import FederatedData
    from rrcluster.federation.children import Process
    from rrcluster.types import Models


Flag = tyro.conf.arg
_KEPT = ("data", "client_column", "test_share", "engine", "device", "server")  # options remembered for the next start


@dataclass(frozen=True)
class ClientCommand:
    """A member's daemon on its own data, behind a Unix socket that only the operator may open.

    usage: rrcluster federation client MEMBER [OPTIONS]. It answers what the operator signed and nothing else, until it
    is stopped (Ctrl-C, SIGTERM). With --client-column the daemon hosts many clients, such as a hospital's patients:
    each of them is protected. Data, engine and device are remembered for the next start. Examples:

    rrcluster federation client north --data patients.csv --client-column patient

    rrcluster federation client north --data patients.npz (arrays inputs, targets and clients of one length)

    rrcluster federation client north --data our_package.data:patients (a function that returns rr.from_arrays(...))

    rrcluster federation client north --withdraw p-0815 (from the next round on)

    rrcluster federation client north --fetch --out clusters.csv (the released models; nothing is sent)
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """The member's folder."""
    data: Annotated[str | None, Flag(metavar="FILE|MODULE:FUNCTION")] = None
    """The member's own data; leave it out in a rehearsal, where every member gets a part of the dataset."""
    client_column: str | None = None
    """Column that names the client of a row."""
    test_share: float = 0.0
    """Share of every client's rows to leave out of training."""
    types: Annotated[tuple[str, ...], Flag(metavar="COLUMN=KIND ...")] = ()
    """Parquet: the kind of every column that is not text, where it was not agreed on (number, boolean, date, list)."""
    engine: Literal["auto", "batched", "reference"] = "auto"
    """How clients are computed: auto is reference, one client at a time. In a rehearsal they may also run batched:
    together, which is faster, and lets their last bits depend on each other, so that no guarantee covers it."""
    device: str = "auto"
    """auto, cpu or cuda."""
    socket: Path | None = None
    """Socket to listen on; default: daemon.sock in the member's folder."""
    server: str = ""
    """Also connect the daemon to the server at host:port, as `rrcluster federation node` does, in a separate process;
    remembered for the next start."""
    log: Path | None = None
    """Log file of refusals and their reasons; default: the terminal."""
    withdraw: tuple[str, ...] = ()
    """Names of clients that no longer take part; the daemon may be running."""
    fetch: bool = False
    """Assign the member's clients to the released models, locally: a table in --out."""
    models: Path | None = None
    """--fetch: a run folder with the models; default: the models sent by the server."""
    out: Path | None = None
    """--fetch: the table to write, readable by you alone. Without --fetch: written when the server sends the models."""
    personalise: Path | None = None
    """--fetch: also fit every client's model to its own rows, and write the weights to this file."""

    @property
    def columns(self) -> ColumnSettings:
        """The member's own options for its table."""
        return ColumnSettings(client=self.client_column, test_share=self.test_share, types=self.types)


def client(arguments: list[str]) -> int:
    """Run the command."""
    command = parse_with_folder(ClientCommand(), arguments, "client")
    folder = MemberFolder(command.folder)
    agreement = folder.agreement()
    if command.withdraw:
        folder.withdraw(command.withdraw)
        say(f"{len(command.withdraw)} clients take no part from the next round on; earlier releases stay released.")
        return 0
    if command.fetch:
        return _fetch(folder, command)
    from rrcluster.runs.lock import FolderLock

    lock = FolderLock(folder.path / "daemon.lock")
    say(f"{agreement.name}: digest {agreement.digest.hex()[:16]}, mode {agreement.mode}")
    try:
        _listen(folder, command)
    finally:
        lock.release()
    return 0


def _listen(folder: MemberFolder, command: ClientCommand) -> None:
    from rrcluster.federation.children import stop_processes
    from rrcluster.federation.member_daemon import LONGEST_TASK, open_daemon
    from rrcluster.federation.unix_socket import SOCKET, serve
    from rrcluster.runs.config import check_outside_runs

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log_to(command.log)
    command = _options(folder, command)
    daemon = open_daemon(folder, command.data, command.columns, engine=command.engine, device=command.device)
    joined, most = daemon.ledger.joined(daemon.agreement.digest), daemon.agreed.num_releases
    path = command.socket or folder.path / SOCKET
    say(f"{daemon.data.num_clients} clients; {joined} of {most} attempts joined. Listening at {path}.")
    if command.out is not None:
        check_outside_runs(command.out)
        keep = daemon.keep

        def keep_and_assign(models: "Models") -> None:
            keep(models)
            try:
                _assign(folder, command, daemon.data)
            except Exception as error:  # the models arrived; the server need not know that the table failed
                logging.getLogger("rrcluster").warning("no table was written, use --fetch: %s", error)

        daemon.keep = keep_and_assign
    nodes = [_start_node(folder, command.server, path)] if command.server else []
    try:
        serve(path, daemon.answer, longest=LONGEST_TASK, stop=stop, figures=daemon.figures)
    finally:
        stop_processes(nodes)
    logging.getLogger("rrcluster").info("stopped")


def _start_node(folder: MemberFolder, server: str, path: Path) -> "Process":
    """A node that passes the server's messages to the daemon."""
    from rrcluster.federation.children import start_module

    options = ["--server", server, "--socket", str(path), "--parent", str(os.getpid())]
    log = folder.path / "node.log"
    say(f"Connecting to {server}; see {log}. Stop with Ctrl-C.")
    return start_module("rrcluster", "federation", "node", str(folder.path), *options, log=log)


def _options(folder: MemberFolder, command: ClientCommand) -> ClientCommand:
    """The command with options remembered from earlier starts; given options replace them and are remembered."""
    remembered = folder.settings().get("daemon", {})
    new = {name: getattr(command, name) for name in _KEPT if getattr(command, name) != getattr(ClientCommand(), name)}
    if new:
        folder.change_settings(daemon={**remembered, **new})
    return replace(command, **{name: value for name, value in {**remembered, **new}.items() if name in _KEPT})


def _fetch(folder: MemberFolder, command: ClientCommand) -> int:
    """Assign and personalise on this machine: nothing is sent."""
    from rrcluster.runs.config import check_outside_runs

    if command.out is None:
        raise ConfigError("--fetch needs --out, the CSV file to write (--out clusters.csv).")
    check_outside_runs(command.out)
    _assign(folder, command, None)
    return 0


def _assign(folder: MemberFolder, command: ClientCommand, data: "FederatedData | None") -> None:
    """Write each client's cluster and, with --personalise, each client's own model."""
    from rrcluster.runs.load import assign, load

    assert command.out is not None
    source = command.models or folder.path / "released"
    if not (source / "models.safetensors").exists():
        raise RunFolderError(
            f"{source}: no models yet; the server sends them when the training has ended, or give --models RUN."
        )
    models, data = load(source), data or _population(folder, command)
    table = assign(models, data)
    table.write_csv(command.out)
    say(f"{len(table)} clients: {command.out} (private: it says who is in which cluster)")
    if command.personalise is not None:
        from rrcluster.federation.member_daemon import write_personal
        from rrcluster.runs.load import personalise

        local = folder.agreement().settings
        personal = personalise(models, data, local_lr=local["local_lr"], batch_size=local["batch_size"])
        write_personal(command.personalise, personal)
        say(f"{command.personalise}: weights of every client's own model, in the order of the table")


def _population(folder: MemberFolder, command: ClientCommand) -> "FederatedData":
    from rrcluster.federation.agreed_run import AgreedRun
    from rrcluster.federation.member_daemon import load_member

    agreement = folder.agreement()
    place = agreement.place_of(folder.identity().public_key().public_bytes_raw())
    command = _options(folder, command)
    return load_member(AgreedRun.build(agreement, trains=False), place, command.data, command.columns)


@dataclass(frozen=True)
class NodeCommand:
    """Connect a member's daemon to the server, beside `rrcluster federation client`.

    It fetches messages, passes them to the daemon and returns its answers, until it is stopped (Ctrl-C, SIGTERM). It
    reads no data, opens no port, runs no code from the server, and reconnects after failures of the network or the
    server. Example:

    rrcluster federation node north --server trial.example.org:9092
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """The member's folder: node.key, ca.pem and daemon.sock."""
    server: str = ""
    """Address of the server, host:port."""
    ca: Path | None = None
    """Certificate of the federation's authority; default: ca.pem in the member's folder."""
    socket: Path | None = None
    """The daemon's socket; default: daemon.sock in the member's folder."""
    transport: Literal["tls", "flower"] = "tls"
    """As of the server's `serve`."""
    parent: int | None = None
    """Also stop when this process, which started the node, ends."""


def node(arguments: list[str]) -> int:
    """Run the command."""
    command = parse_with_folder(NodeCommand(), arguments, "node")
    if not command.server.rpartition(":")[2].isdigit():
        raise ConfigError("node needs the member's folder and --server host:port.")
    from rrcluster.federation.certificates import read_node_key
    from rrcluster.federation.children import stop_signals
    from rrcluster.federation.tls_transport import TlsNode

    ca = command.ca or command.folder / "ca.pem"
    if not ca.exists():
        raise ConfigError(f"{ca} is missing; sign the agreement, which writes it, or give --ca.")
    MemberFolder(command.folder).check_authority(ca)
    socket, key = command.socket or command.folder / "daemon.sock", read_node_key(command.folder / "node.key")
    kind = TlsNode
    if command.transport == "flower":
        from rrcluster.federation.flower_transport import FleetNode as kind
    with stop_signals(command.parent) as stop:
        log_to(None)
        say(f"Connecting to {command.server}; stop with Ctrl-C.")
        kind(command.server, ca, key, socket).run(stop)
    return 0
