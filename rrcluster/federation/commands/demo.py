"""`rrcluster federation demo`: a whole federation on this machine, one process per member."""

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rrcluster.cli.terminal import parse, say
from rrcluster.errors import ConfigError, WorkerError
from rrcluster.federation.children import Process, start_module, stop_processes
from rrcluster.federation.federation_command import main as federation
from rrcluster.storage import write_file

_SETTINGS = """\
data: fashion-mini
num_clusters: 4
num_rounds: {rounds}
epsilon: {epsilon}
delta: 0.0001
participation: everybody
reserve_rounds: 2
secure: true
"""


@dataclass(frozen=True)
class DemoCommand:
    """A federation of several members on this machine: folders, keys, consents, daemons, rounds, models.

    Each member is a process with its part of the images of `fashion-mini`; messages pass over Unix sockets.

    rrcluster federation demo

    rrcluster federation demo --mode plain --members 4 --out trial
    """

    members: int = 5
    """Members, one process each."""
    clients: int = 200
    """Clients per member."""
    rounds: int = 5
    """Rounds."""
    epsilon: float = 4.0
    """Target epsilon."""
    mode: Literal["plain", "secure"] = "secure"
    """As of `init`."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Keep everything in this folder; default: a temporary one, removed at the end."""


def demo(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(DemoCommand(), arguments, prog="rrcluster federation demo")
    if command.members < 4 and command.mode == "secure":
        raise ConfigError(
            f"members = {command.members}: a secure demo needs 4, one of which may collude with the server."
        )
    with contextlib.ExitStack() as stack:
        base = command.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rr-demo-")))
        return _demo(command, base)


def _demo(command: DemoCommand, base: Path) -> int:
    trial, names = base / "trial", [f"member-{number + 1}" for number in range(command.members)]
    write_file(base / "settings.yaml", _SETTINGS.format(rounds=command.rounds, epsilon=command.epsilon))
    honest = ["--least-honest", str(command.members - 2), "--most-colluders", "1"] if command.mode == "secure" else []
    federation(["init", str(trial), str(base / "settings.yaml"), "--mode", command.mode, *honest])
    for name in names:
        federation(["join", str(base / name), "--name", name, "--clients", str(command.clients)])
    federation(["accept", str(trial), *(str(base / name / "request.json") for name in names), "--close"])
    with contextlib.redirect_stdout(io.StringIO()):  # every member would print the agreement again
        for name in names:
            federation(["sign", str(base / name), str(trial / "agreement.json"), "--yes"])
    with running_daemons([base / name for name in names]):
        status = federation(["serve", str(trial), "--transport", "local", "--members", str(base)])
    federation(["status", str(trial)])
    federation(["client", str(base / names[0]), "--fetch", "--out", str(base / "clusters.csv")])
    return status


@contextlib.contextmanager
def running_daemons(folders: list[Path], *, seconds: float = 120.0) -> Iterator[list[Process]]:
    """The daemons of these members, each in its own process; stopped on leaving."""
    program = ("rrcluster", "federation", "client")
    processes = [start_module(*program, str(folder), log=folder / "daemon.log") for folder in folders]
    try:
        deadline = time.monotonic() + seconds
        for folder, process in zip(folders, processes, strict=True):
            while not (folder / "daemon.sock").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise WorkerError(
                        f"the daemon of {folder} did not start; run `rrcluster federation client {folder}`."
                    )
                time.sleep(0.05)
        say(f"{len(processes)} daemons are listening.")
        yield processes
    finally:
        stop_processes(processes)
