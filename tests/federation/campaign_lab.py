"""A plain federation over TLS under a campaign of kills, partitions and a flood, all of it real processes.

    python tests/federation/campaign_lab.py FOLDER KILLS SEED

Every program is the command that an operator starts: four daemons, four nodes, and `serve`. A supervisor starts again
what dies; nodes reach the server through proxies that can be cut. Trainings follow each other
until all kills were made, and the last one goes to its end. Prints JSON: what was done, and what ledgers, exit
statuses, members and the simulator say of it.
"""

import contextlib
import io
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from folder_lab import REHEARSAL, signed
from network_lab import free_port

from rrcluster.cli import main as rrcluster
from rrcluster.federation.collect import PlainCollect
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.load import load
from rrcluster.server.server import Charge
from rrcluster.simulation.clients import Faults

COUNTS, LEAST, ROUNDS, SECONDS = (6, 7, 5, 6), 3, 16, 20
SETTINGS = {**REHEARSAL, "num_rounds": ROUNDS, "participation": "everybody"}
SETTINGS.pop("sample_rate")
KINDS = ("serve", "node", "daemon")
CUTS = {"one member": (0,), "all members": (0, 1, 2, 3), "two members": (1, 3)}
OUTAGE = 45.0


def note(path, line):
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Proxy:
    """A cable between a node and the server."""

    def __init__(self, port):
        self.target, self.cut, self.ends = port, False, set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listening.accept()
            try:
                if self.cut:
                    raise OSError
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                continue
            self.ends |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with contextlib.suppress(OSError):
            while content := one.recv(2**16):
                other.sendall(content)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self.ends.discard(end)

    def pull(self):
        self.cut = True
        for end in list(self.ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def plug(self):
        self.cut = False


def serve_and_note(path, arguments):
    """In a process of its own: `serve`, which notes whose reports each charged round has, and who was connected."""
    reports, connected = PlainCollect._checked, PlainCollect._connected
    whose, there = set(), []

    def checked(self, content, asked):
        report = reports(self, content, asked)
        if report is not None and len(report["clients"]):
            whose.add(int(np.searchsorted(np.cumsum(COUNTS), asked[0], side="right")))
        return report

    def connected_noted(self, answers):
        whose.clear()
        there[:] = sorted(connected(self, answers))
        return set(there)

    def charge_noted(self):
        note(path, [self._round_index, sorted(whose), there])
        charge(self)

    charge = Charge.__call__
    PlainCollect._checked, PlainCollect._connected, Charge.__call__ = checked, connected_noted, charge_noted
    return rrcluster(["federation", "serve", *arguments])


@dataclass
class Training:
    """One training with its processes, each of which is started again when it dies."""

    base: Path
    rng: random.Random
    statuses: list = field(default_factory=list)  # of serve
    running: dict = field(default_factory=dict)
    finished: bool = False
    refused: bool = False  # a seeded round was charged before a kill, so it is not repeated

    def __post_init__(self):
        self.base.mkdir(parents=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            settings = {**SETTINGS, "seed": self.rng.randrange(10**6)}
            self.settings = settings
            self.trial = signed(self.base, settings, "--mode", "plain", "--least-members", str(LEAST), counts=COUNTS)
        self.port = free_port()
        self.members = [self.base / f"m{place}" for place in range(len(COUNTS))]
        self.proxies = [Proxy(self.port) for _ in COUNTS]
        for member in self.members:
            (member / "ca.pem").write_bytes((self.trial / "ca.pem").read_bytes())
        self.charged = self.base / "charged.jsonl"

    def commands(self):
        local = ["--address", f"127.0.0.1:{self.port}", "--seconds", str(SECONDS), "--quiet"]
        yield ("serve", 0), [__file__, "serve", self.charged, self.trial, *local]
        for place, member in enumerate(self.members):
            server = f"127.0.0.1:{self.proxies[place].port}"
            yield ("daemon", place), ["-m", "rrcluster", "federation", "client", member, "--engine", "reference"]
            node = ["-m", "rrcluster", "federation", "node", member, "--server", server]
            yield ("node", place), [*node, "--parent", os.getpid()]

    def supervise(self):
        """Start what does not run; the training is over when serve ends with 0, or refuses to repeat a round."""
        for name, command in self.commands():
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and name[0] == "serve":
                self.statuses.append(process.returncode)
                note(self.base / "statuses.jsonl", process.returncode)
                told = (self.base / "serve-0.log").read_text()
                self.finished = process.returncode == 0
                self.refused = "was charged before a crash" in told
                if self.finished or self.refused:
                    return
            with (self.base / f"{name[0]}-{name[1]}.log").open("a") as log:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-W", "ignore", *map(str, command)],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )

    def victim(self, kind):
        """The number of a process of this kind, if one runs."""
        if kind == "serve":
            return self.running[("serve", 0)].pid
        return self.running[(kind, self.rng.randrange(len(COUNTS)))].pid

    def memory_of_server(self):
        """In MiB; 0 where there is none."""
        with contextlib.suppress(OSError, KeyError):
            return memory_of(self.victim("serve"))
        return 0

    def kill(self, kind):
        with contextlib.suppress(OSError):
            if pid := self.victim(kind):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def stop(self):
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()

    def says(self):
        """What came of it."""
        charged = lines(self.trial / "run" / "ledger.jsonl")
        joined = Counter(
            line["round"] for member in self.members for line in lines_once(member / "ledger.jsonl") if "round" in line
        )
        rounds = [charge["round"] for charge in charged]
        noted = {round_index: (whose, there) for round_index, whose, there in lines(self.charged)}
        have = [(member / "released" / "models.safetensors").exists() for member in self.members]
        return {
            "statuses": self.statuses,
            "finished": self.finished,
            "refused": self.refused,
            "charges": rounds,
            "connected": [len(noted[t][1]) for t in rounds],
            "reports": [len(noted[t][0]) for t in rounds],
            "joined": [joined[t] for t in rounds],  # members whose own ledgers have an attempt at the round
            "members with the models": sum(have),
            "models equal": self._equal(noted) if self.finished else None,
        }

    def _equal(self, noted):
        """Whether the models are those of a simulator in which the same members answer each round."""
        own = load(self.trial / "run").models.clustered.astype(np.float32)  # as they are stored and handed out
        experiment = build_experiment(**self.settings, num_clients=sum(COUNTS), engine="reference")
        *_, last = replace(experiment, faults=Answering({t: whose for t, (whose, _) in noted.items()})).rounds()
        handed = [load(member / "released").models.clustered for member in self.members]
        return {
            "of the server": bool(np.array_equal(own, np.asarray(last.state.average.clustered, dtype=np.float32))),
            "of members": all(bool(np.array_equal(models.astype(np.float32), own)) for models in handed),
        }


def lines_once(path):
    """One line per round: attempts at it count once."""
    return list({line.get("round"): line for line in lines(path)}.values())


class Answering(Faults):
    """A simulator in which certain members answer each round."""

    def __init__(self, whose):
        super().__init__()
        object.__setattr__(self, "whose", whose)

    def remaining(self, clients, *, streams, round_index):
        firsts = np.cumsum([0, *COUNTS])
        hosts = np.searchsorted(firsts, clients, side="right") - 1
        return clients[np.isin(hosts, self.whose[round_index])]


def flood(port, trusted, end):
    """Strangers that send bodies of 700 MiB, for as long as they are let."""
    context = ssl.create_default_context(cafile=str(trusted))
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            for _ in range(700):
                stream.sendall(bytes(2**20))


def memory_of(pid):
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return max((int(line.split()[1]) // 1024 for line in text.splitlines() if line.startswith("VmRSS")), default=0)


def campaign(base, kills, seed):
    rng = random.Random(seed)
    plan = [(kind, None) for kind in (KINDS * (kills // len(KINDS) + 1))[:kills]]
    plan += [("cut", name) for name in list(CUTS)[: max(kills // 20, 1)]] + [("flood", None)]
    rng.shuffle(plan)
    done, trainings, began, most = Counter(), [], time.monotonic(), 0
    while plan or not trainings[-1].finished:
        training = Training(base / str(len(trainings)), rng)
        trainings.append(training)
        following, cuts = time.monotonic() + 30, []
        try:
            while not (training.finished or training.refused):
                training.supervise()
                time.sleep(0.2)
                now = time.monotonic()
                most = max(most, training.memory_of_server())
                for end, proxies in cuts:
                    if now > end:
                        [proxy.plug() for proxy in proxies]
                cuts = [cut for cut in cuts if now <= cut[0]]
                if not plan or now < following or not (training.trial / "run" / "ledger.jsonl").exists():
                    continue
                kind, name = plan[0]
                if kind == "cut":
                    proxies = [training.proxies[place] for place in CUTS[name]]
                    [proxy.pull() for proxy in proxies]
                    cuts.append((now + OUTAGE, proxies))
                elif kind == "flood":
                    arguments = (training.port, training.trial / "ca.pem", now + 20)
                    [threading.Thread(target=flood, args=arguments, daemon=True).start() for _ in range(4)]
                elif not training.kill(kind):
                    continue
                plan.pop(0)
                done[name or kind] += 1
                note(base / "done.jsonl", [round(now - began), len(trainings) - 1, name or kind])
                following = now + rng.uniform(0.5, 9.0) + (OUTAGE if kind == "cut" else 0.0)
        finally:
            training.stop()
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "done": done,
        "server_mib": most,
        "least_members": LEAST,
        "num_rounds": ROUNDS,
        "trainings": [training.says() for training in trainings],
    }


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve_and_note(Path(sys.argv[2]), sys.argv[3:]))
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), indent=1))
