"""Kills servers and daemons of a federation at chosen moments, as real processes, and says what came of it.

    python tests/federation/kill_lab.py FOLDER KILLS [plain]

Every process is a fork of this one (which has imported everything), talks over sockets and dies by SIGKILL; a
supervisor starts it again, and the rounds go on. One kill an attempt: the server waits before each attempt until the
next kill is prepared, and nothing is prepared before it waits. Prints JSON: what was killed, and what the ledgers, the
run folder and the members say.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
from itertools import cycle, islice
from pathlib import Path

from folder_lab import HONEST, REHEARSAL, SECURE, do, signed

from rrcluster.cli import main as rrcluster
from rrcluster.federation import collect, daemon
from rrcluster.federation.messages import decode
from rrcluster.server.server import Charge

MEMBERS = 3
SERVER = {"secure": ("before charge", "after charge", "before reveal", "after reveal")}
SERVER["plain"] = SERVER["secure"][:2]
STAGES = {"secure": ("advertise", "share", "mask", "sign", "reveal"), "plain": ("train",)}


def moments(mode):
    return [f"{stage} {moment}" for stage in STAGES[mode] for moment in ("asked", "answered")]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def note(path, line):
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def put(path, content):
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").replace(path)


class Orders:
    """What the supervisor tells the server: the kill of the next attempt, once everything is prepared."""

    def __init__(self, path):
        self.path, self.used, self.where = path, None, None
        self.supervisor = os.getpid()
        self.done = path.with_name("done.json")  # the order whose attempt is over

    def give(self, number, where):
        put(self.path, [number, where])

    def wait_for(self, number, server):
        """Until the server has nothing to do any more for this order: who is stopped now is missed by no attempt."""
        while not self.done.exists() or json.loads(self.done.read_text()) != number:
            time.sleep(0.005)
            check_running(server)

    def take(self):
        """The next one, however long it takes; after the last there is nothing to wait for."""
        put(self.done, self.used)
        while True:
            number, self.where = json.loads(self.path.read_text())
            if number is None or number != self.used:
                self.used = number
                return
            if os.getppid() != self.supervisor:
                die()
            time.sleep(0.005)


def plant_in_server(orders, revealed):
    """Die at the moment that was ordered; note every attempt whose shares were asked for."""
    write, ask, plain = Charge.__call__, collect.SecureCollect._ask, collect.PlainCollect.__call__

    def charge_or_die(self):
        if orders.where == "before charge":
            die()
        write(self)
        if orders.where == "after charge":
            die()

    def ask_or_die(self, attempt, guidance, stage, messages):
        if stage == "advertise":
            orders.take()
        if stage != "reveal":
            return ask(self, attempt, guidance, stage, messages)
        if orders.where == "before reveal":
            die()
        note(revealed, [attempt.round_index, attempt.number])
        answers = ask(self, attempt, guidance, stage, messages)
        if orders.where == "after reveal":
            die()
        return answers

    def plain_or_die(self, guidance, charge):
        orders.take()
        return plain(self, guidance, charge)

    Charge.__call__, collect.SecureCollect._ask, collect.PlainCollect.__call__ = charge_or_die, ask_or_die, plain_or_die


def plant_in_daemon(where):
    """Die at the first message of a stage, before or after it was dealt with."""
    answer = daemon.Daemon.answer

    def answer_or_die(self, content):
        stage = decode(content, longest=2**31).name
        if where == f"{stage} asked":
            die()
        answered = answer(self, content)
        if where == f"{stage} answered":
            die()
        return answered

    daemon.Daemon.answer = answer_or_die


def start(arguments, plant=None):
    """A process of its own that runs a command."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if plant is not None:
                plant()
            status = rrcluster(["federation", *map(str, arguments)])
    finally:
        os._exit(status)


def start_daemon(folder, plant=None):
    (folder / "daemon.sock").unlink(missing_ok=True)
    child = start(["client", folder, "--engine", "batched", "--log", folder / "log.txt"], plant)
    while not (folder / "daemon.sock").exists():
        time.sleep(0.01)
        if os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError(f"the daemon of {folder} did not start: {(folder / 'log.txt').read_text()}")
    return child


def stop(child):
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def wait_for_kill(child, server):
    """Whether it died by SIGKILL; the other possibility is that it ended. Without the server nobody would kill it."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        if child != server:
            check_running(server)
        time.sleep(0.005)


def check_running(server):
    if os.waitpid(server, os.WNOHANG)[0]:
        raise RuntimeError("the server ended by itself")


def run(base, kills, mode="secure"):
    options = HONEST if mode == "secure" else ["--mode", "plain"]
    settings = {**REHEARSAL, **SECURE, "num_rounds": kills + 1, "reserve_rounds": 2 * kills, "noise_multiplier": 9.0}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trial = signed(base, settings, *options)
    members = [base / f"m{place}" for place in range(MEMBERS)]
    revealed, orders = base / "revealed.jsonl", Orders(base / "orders.json")
    plan = list(islice(cycle((*SERVER[mode], *moments(mode))), kills))
    serve = ["serve", trial, "--transport", "local", "--members", base, "--quiet", "--seconds", "300"]
    killed, running = [], {}
    try:
        running = {place: start_daemon(folder) for place, folder in enumerate(members)}
        orders.give(-1, None)
        orders.used = -1
        server = start(serve, lambda: plant_in_server(orders, revealed))
        for number, where in enumerate(plan):
            place = number % MEMBERS
            if where in SERVER[mode]:
                orders.give(number, where)
                killed += [where] if wait_for_kill(server, server) else ["not killed"]
                orders.used = number
                server = start(serve, lambda: plant_in_server(orders, revealed))
            else:
                orders.wait_for(number - 1, server)
                stop(running[place])
                running[place] = start_daemon(members[place], lambda where=where: plant_in_daemon(where))
                orders.give(number, None)
                killed += [where] if wait_for_kill(running[place], server) else ["not killed"]
                running[place] = start_daemon(members[place])
        orders.give(None, None)
        status = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    finally:
        for child in running.values():
            stop(child)
    return {"planned": plan, "killed": killed, "status": status, **told(trial, members, revealed)}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def told(trial, members, revealed):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        do("status", trial, "--json")
    charges = [charge["round"] for charge in lines(trial / "run" / "ledger.jsonl")]
    return {
        "status of the run": json.loads(out.getvalue()),
        "charges": charges,
        "rounds": [line["round"] for line in lines(trial / "run" / "rounds.jsonl")],
        "revealed": lines(revealed),
        "joined": [
            [[line["round"], line["attempt"]] for line in lines(member / "ledger.jsonl") if "round" in line]
            for member in members
        ],
        "limit": json.loads((trial / "agreement.json").read_text())["guarantee"]["num_releases"],
        "num_rounds": json.loads((trial / "agreement.json").read_text())["guarantee"]["num_rounds"],
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
