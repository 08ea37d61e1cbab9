"""Nodes and SuperLinks that are killed: the run goes on, nothing is charged twice, nothing raw is left on a disk."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from federation_lab import agree, daemons_of, deployed_rounds, experiment_of
from test_secure_rounds import STAGES

pytest.importorskip("flwr", reason="needs the extra flower, which has an environment of its own: make test-flower")

from loopback import Loopback

from rrcluster.errors import RoundError
from rrcluster.federation.messages import LONGEST_LETTER, Letter, decode
from rrcluster.federation.unix_socket import serve
from rrcluster.privacy.ledger import Ledger

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROUNDS = 2


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="rr") as name:  # a short path, as sockets need
        yield Path(name)


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


class Killing:
    """A transport that does something before its question of a stage, `times` times."""

    def __init__(self, inner, stage, act, times):
        self.inner, self.stage, self.act, self.times, self.passed = inner, stage, act, times, []

    def ask(self, messages):
        letter = decode(next(iter(messages.values())), longest=10**9)
        self.passed.append((letter.name, letter.facts["round"], letter.facts["attempt"]))
        if letter.name == self.stage and self.times:
            self.times -= 1
            self.act()
        return self.inner.ask(messages)


def finished(agreed, transport, ledger):
    """Rounds to the end; where one fails it is resumed, as `serve` would be started again."""
    numbers, done, state = iter(range(1000)), [], None
    while len(done) < ROUNDS:
        try:
            for record in deployed_rounds(
                agreed, transport, next_attempt=lambda: next(numbers), ledger=ledger, state=state
            ):
                done.append(record)
                state = record.state
        except RoundError:
            continue
    return done


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("victim", ["superlink", "node"])
def test_a_secure_training_survives_a_kill_in_every_stage(folder, stage, victim):
    agreed, daemons = daemons_of(
        agree(mode="secure", reserve_rounds=8), experiment_of().data, folder / "members", engine="batched"
    )
    ledger = Ledger(secure=True, limit=agreed.num_releases)
    with listening({place: daemon.answer for place, daemon in daemons.items()}, folder) as sockets:
        network = Loopback(sockets, folder, seconds=40)

        def kill():
            if victim == "superlink":
                network.link.process.kill()
            else:
                network.kill_node(1)

        with network as transport:
            killing = Killing(transport, stage, kill, times=2)
            done = finished(agreed, killing, ledger)
    assert [record.round_index for record in done] == list(range(ROUNDS))
    assert killing.times == 0
    charges = ledger.num_charged
    revealed = len({(round_index, attempt) for name, round_index, attempt in killing.passed if name == "reveal"})
    assert ROUNDS <= revealed <= charges <= agreed.num_releases  # nothing is revealed before it is charged
    for place, daemon in daemons.items():
        path = folder / "members" / f"member-{place}.jsonl"
        entries = path.read_text() if path.exists() else ""  # a member that was away each time has joined nothing
        joined = re.findall(r'"round": (\d+), "attempt": (\d+)', entries)
        assert len(joined) == len(set(joined)) == daemon.ledger.joined(agreed.agreement.digest)


def test_a_killed_node_is_back_within_a_minute(folder):
    answers = {place: lambda _, place=place: Letter("here", {"place": place}).encode() for place in range(2)}
    with listening(answers, folder) as sockets, (network := Loopback(sockets, folder, seconds=30)) as transport:
        asked = {place: Letter("hello").encode() for place in answers}
        assert set(transport.ask(asked)) == {0, 1}
        network.kill_node(0)
        began = time.monotonic()
        while set(transport.ask(asked)) != {0, 1}:
            assert time.monotonic() - began < 60
        print(f"back after {time.monotonic() - began:.1f} s")


def test_a_report_is_on_no_disk_of_the_server(folder):
    """A marker in answers of plain mode is in no file of the server's folder, nor in one that its processes hold."""
    marker = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    np.save(folder / "marker.npy", marker)
    answers = {place: lambda _: Letter("report", {}, {"updates": marker}).encode() for place in range(2)}
    server = folder / "server"
    server.mkdir()
    with listening(answers, folder) as sockets, (network := Loopback(sockets, server, seconds=30)) as transport:
        for _ in range(3):
            transport.ask({place: Letter("train").encode() for place in answers})
        processes = [network.link.process.pid, network.gate.process.pid]
        open_files = {path.resolve() for pid in processes for path in Path(f"/proc/{pid}/fd").iterdir()}
        files = {path for path in (*open_files, *server.rglob("*")) if path.is_file()}
        assert len(files) > 5
        assert [path for path in files if marker[:8].tobytes() in path.read_bytes()] == []
        logs = "".join(path.read_text() for path in server.glob("*.log"))
        assert "node_id" not in logs
        command = [sys.executable, HERE / "search_memory.py", folder / "marker.npy", *processes]
        count = int(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)
        print(f"in the memory of SuperLink and gate: {count} times (plain mode: the server is trusted with reports)")
        own = [sys.executable, HERE / "search_memory.py", folder / "marker.npy", os.getpid()]
        assert int(subprocess.run(list(map(str, own)), capture_output=True, check=True).stdout) > 0
