"""`make federation`: eight members over TLS on this machine, plain and secure, with failures on the way.

    python research/benchmarks/federation.py [MEMBERS CLIENTS ROUNDS]

Every member is two processes: a daemon with its data, and a node that connects it to the server over TLS. Plain rounds
(Poisson cohorts, coins, seeded) are compared with the simulator's, bit by bit. In the secure training a node is killed
in the middle of a round and started again, and then all connections are lost. Seconds, and bytes between each member
and the server, are measured. Everything is on the loopback interface, in a temporary folder, and stops at the end.
"""

import contextlib
import io
import json
import os
import platform
import socket
import socketserver
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.children import start_module, stop_processes
from rrcluster.federation.federation_command import main as federation
from rrcluster.federation.federation_folder import FederationFolder
from rrcluster.federation.messages import decode
from rrcluster.federation.tls_transport import TlsTransport
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.load import load

MEMBERS, CLIENTS, ROUNDS = map(int, sys.argv[1:] or (8, 125, 6))
DEADLINE = 200
COMMON = {"data": "fashion-mini", "num_clusters": 4, "delta": 1e-4, "local_epochs": 1}
PLAIN = {**COMMON, "num_rounds": ROUNDS, "sample_rate": 0.1, "noise_multiplier": 1.0, "min_cluster_size": 5}
SECURE = {
    **COMMON,
    "num_rounds": ROUNDS,
    "reserve_rounds": 6,
    "participation": "everybody",
    "secure": True,
    "epsilon": 4.0,
}
HONEST = ["--least-honest", str(MEMBERS - 3), "--most-colluders", "1"]  # two members may be missing


@dataclass
class Traffic:
    """Bytes between nodes and the server, as they pass a socket: TLS and heartbeats included."""

    server: str
    up: int = 0
    down: int = 0

    def __enter__(self):
        traffic = self

        class Both(socketserver.BaseRequestHandler):
            def handle(self):
                host, _, port = traffic.server.rpartition(":")
                with (
                    contextlib.suppress(OSError),
                    contextlib.closing(socket.create_connection((host, int(port)))) as server,
                ):
                    back = threading.Thread(target=traffic._pass, args=(server, self.request, "down"), daemon=True)
                    back.start()
                    traffic._pass(self.request, server, "up")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Both)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _pass(self, source, target, direction):
        with contextlib.suppress(OSError):
            while part := source.recv(2**16):
                setattr(self, direction, getattr(self, direction) + len(part))
                target.sendall(part)
            target.shutdown(1)


def free_port():
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def processor_seconds():
    """Of this process and of all that it started."""
    spent, ticks = sum(os.times()[:4]), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # an ended process is counted with its parent's children
            words = path.read_text().rpartition(")")[2].split()
            ticks += (int(words[11]) + int(words[12])) * (int(words[1]) == os.getpid())
    return spent + ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Asked:
    """One question to the members."""

    stage: str
    round_index: int
    seconds: float
    processor: float  # seconds of all programs
    down: int  # bytes of all messages
    up: int  # bytes of all answers
    answered: int


@dataclass
class Watched:
    """A transport that records every question of the server, and causes failures at some of them."""

    accidents: dict = field(default_factory=dict)  # (round, stage) -> action on the transport just before
    asked: list = field(default_factory=list)

    def __enter__(self):
        self._own = TlsTransport.ask
        own, watched = TlsTransport.ask, self

        def ask(transport, messages):
            letter = decode(next(iter(messages.values())), longest=2**31)
            at = (letter.facts.get("round", -1), letter.name)
            if at in watched.accidents:
                watched.accidents.pop(at)(transport)
            began, before = time.perf_counter(), processor_seconds()
            answers = own(transport, messages)
            seconds = time.perf_counter() - began, processor_seconds() - before
            given = {place for place, content in answers.items() if decode(content, longest=2**31).name != "refused"}
            sizes = (sum(map(len, messages.values())), sum(map(len, answers.values())))
            watched.asked.append(Asked(at[1], at[0], *seconds, *sizes, len(given)))
            return answers

        TlsTransport.ask = ask
        return self

    def __exit__(self, *_):
        TlsTransport.ask = self._own

    def rounds(self):
        """Questions by round, without the greeting and the farewell."""
        numbers = sorted({asked.round_index for asked in self.asked if asked.round_index >= 0})
        return [[asked for asked in self.asked if asked.round_index == number] for number in numbers]


def enrol(base, settings, mode):
    """Create folders, certificates, keys and signatures of a federation and its members, with its own commands."""
    trial, names = base / "trial", [f"member-{number + 1}" for number in range(MEMBERS)]
    (base / "settings.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        honest = HONEST if mode == "secure" else []
        federation(["init", str(trial), str(base / "settings.yaml"), "--mode", mode, *honest])
        for name in names:
            federation(["enrol", str(base / name), "--name", name, "--clients", str(CLIENTS)])
        federation(["enrol", str(trial), "--accept", *(str(base / name / "request.json") for name in names)])
        federation(["init", str(trial), "--close"])
        for name in names:
            federation(["enrol", str(base / name), "--agree", str(trial / "agreement.json"), "--yes"])
        federation(["enrol", str(trial), "--consent", *(str(base / name / "consent.json") for name in names)])
    return trial, [base / name for name in names]


class Processes:
    """Daemons and nodes of all members."""

    def __init__(self, folders, ca, engine):
        self.folders, self.ca, self.engine = folders, ca, engine
        self.daemons, self.nodes = {}, {}

    def __enter__(self):
        for folder in self.folders:
            command = ("rrcluster", "federation", "client", str(folder), "--engine", self.engine)
            self.daemons[folder] = start_module(*command, log=folder / "daemon.log")
        deadline = time.monotonic() + 180
        while not all((folder / "daemon.sock").exists() for folder in self.folders):
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons.values()):
                self.__exit__()
                raise ConfigError(f"a daemon did not start; see daemon.log in {self.folders[0].parent}.")
            time.sleep(0.1)
        return self

    def connect(self, address):
        self.address = address
        for folder in self.folders:
            self.start_node(folder)

    def start_node(self, folder):
        command = ("rrcluster", "federation", "node", str(folder), "--server", self.address, "--ca", str(self.ca))
        more = ("--parent", str(os.getpid()))
        self.nodes[folder] = start_module(*command, *more, log=folder / "node.log")

    def kill_node(self, number):
        folder = self.folders[number]
        self.nodes[folder].kill()
        self.nodes[folder].wait()
        self.start_node(folder)

    def __exit__(self, *_):
        self.left = [*self.nodes.values(), *self.daemons.values()]
        stop_processes(self.left)


def train(base, settings, mode, accidents):
    """One training by `rrcluster federation serve`; its recorded questions, and the traffic."""
    trial, folders = enrol(base, settings, mode)
    server = f"127.0.0.1:{free_port()}"
    engine = "batched" if mode == "secure" else "reference"
    with Traffic(server) as traffic, Processes(folders, trial / "ca.pem", engine) as processes:
        processes.connect(traffic.address)
        wanted = {at: (lambda transport, act=act: act(processes, transport)) for at, act in accidents.items()}
        with Watched(wanted) as watched, contextlib.redirect_stderr(io.StringIO()):
            status = federation(["serve", str(trial), "--address", server, "--seconds", str(DEADLINE), "--quiet"])
    assert status == 0
    assert all(process.poll() is not None for process in processes.left)
    return FederationFolder(trial), watched, traffic


def same_as_simulator(folder):
    """Whether released sizes (float64) and models (float32) equal those of a simulation, bit by bit."""
    settings = {name: value for name, value in folder.agreement().settings.items() if value is not None}
    records = list(build_experiment(**settings, engine="reference").rounds())
    released = [json.loads(text)["sizes"] for text in (folder.run / "rounds.jsonl").read_text().splitlines()]
    models, last = load(folder.run).models, records[-1].state.average
    return released == [record.release.sizes.tolist() for record in records] and all(
        np.array_equal(getattr(models, part), getattr(last, part).astype(np.float32))
        for part in ("shared", "clustered")
    )


def lose_connections(transport):
    """All of them at once."""
    for connection in list(transport._connections.values()):
        transport._loop.call_soon_threadsafe(connection.end)


def line(name, watched, traffic):
    rounds = watched.rounds()
    seconds = [sum(asked.seconds for asked in questions) for questions in rounds]
    down, up = (
        statistics.median(sum(getattr(asked, part) for asked in questions) for questions in rounds) / MEMBERS / 1024
        for part in ("down", "up")
    )
    processor = statistics.median(sum(asked.processor for asked in questions) for questions in rounds)
    wire = [getattr(traffic, part) / MEMBERS / len(rounds) / 1024 for part in ("down", "up")]
    stages = len({asked.stage for asked in rounds[0]})
    return (
        f"| {name} | {len(rounds)} | {stages} | {statistics.median(seconds):.1f} ({min(seconds):.1f} to "
        f"{max(seconds):.1f}) | {processor:.1f} | {down:.0f} | {up:.0f} | {wire[0]:.0f} | {wire[1]:.0f} |"
    )


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main():
    began = time.perf_counter()
    say(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores")
    say(f"{MEMBERS} members with {CLIENTS} clients each, {COMMON['data']}, k = {COMMON['num_clusters']}")
    with tempfile.TemporaryDirectory(prefix="rr") as name:
        base = Path(name) / "p"
        base.mkdir()
        folder, plain, plain_traffic = train(base, PLAIN, "plain", {})
        equal = same_as_simulator(folder)
        width = AgreedRun.build(folder.agreement(), trains=False).plan.mechanism.coordinates.width
        say(f"{width} coordinates a model")
        say(f"plain: {len(plain.rounds())} rounds; sizes and models equal to the simulator's to the last bit: {equal}")
        base = Path(name) / "s"
        base.mkdir()
        accidents = {
            (1, "mask"): lambda processes, _: processes.kill_node(2),
            (3, "share"): lambda _, transport: lose_connections(transport),
        }
        folder, secure, secure_traffic = train(base, SECURE, "secure", accidents)
        answered = [max(asked.answered for asked in asks if asked.stage == "mask") for asks in secure.rounds()]
        say(
            f"secure: {len(answered)} rounds, sums of {', '.join(map(str, answered))} members; the node of member-3 was"
        )
        say("killed in round 1, and all connections were lost in round 3")
    say(
        "| | rounds | messages a round | seconds a round | of processors | KiB down | KiB up | on the wire, down | up |"
    )
    say("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    say(line("plain", plain, plain_traffic))
    say(line("secure", secure, secure_traffic))
    say(
        "Seconds of processors: all programs of members and server. KiB per member and round; those on the wire include"
    )
    say("TLS and heartbeats.")
    say(f"Everything has stopped. {time.perf_counter() - began:.0f} s in all.")
    return 0 if equal and max(answered) == MEMBERS and min(answered) >= MEMBERS - 2 else 1


if __name__ == "__main__":
    sys.exit(main())
