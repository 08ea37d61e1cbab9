"""Nodes are killed, connections lost: the run goes on, nothing is charged twice, and no report is on a disk."""

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from federation_lab import agree, daemons_of, deployed_rounds, experiment_of
from network_lab import Loopback, folder, listening, search  # noqa: F401  a fixture
from test_secure_rounds import STAGES

from rrcluster.errors import RoundError
from rrcluster.federation.messages import Letter, decode
from rrcluster.privacy.ledger import Ledger

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROUNDS = 2


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
@pytest.mark.parametrize("victim", ["connections", "node"])
def test_a_secure_training_survives_a_kill_in_every_stage(folder, stage, victim):  # noqa: F811
    agreed, daemons = daemons_of(
        agree(mode="secure", reserve_rounds=8), experiment_of().data, folder / "members", engine="batched"
    )
    ledger = Ledger(secure=True, limit=agreed.num_releases)
    with listening({place: daemon.answer for place, daemon in daemons.items()}, folder) as sockets:
        network = Loopback(sockets, folder, seconds=40)

        def kill():
            if victim == "connections":
                for line in list(transport._connections.values()):
                    transport._loop.call_soon_threadsafe(line.end)
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


def test_a_killed_node_is_back_within_a_minute(folder):  # noqa: F811
    answers = {place: lambda _, place=place: Letter("here", {"place": place}).encode() for place in range(2)}
    with listening(answers, folder) as sockets, (network := Loopback(sockets, folder, seconds=30)) as transport:
        asked = {place: Letter("hello").encode() for place in answers}
        assert set(transport.ask(asked)) == {0, 1}
        network.kill_node(0)
        began = time.monotonic()
        while set(transport.ask(asked)) != {0, 1}:
            assert time.monotonic() - began < 60
        print(f"back after {time.monotonic() - began:.1f} s")


def test_a_report_is_on_no_disk_of_the_server(folder):  # noqa: F811
    """A marker in answers of plain mode is in no file of the server's folder, nor in one that its processes hold."""
    marker = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    np.save(folder / "marker.npy", marker)
    answers = {place: lambda _: Letter("report", {}, {"updates": marker}).encode() for place in range(2)}
    server = folder / "server"
    server.mkdir()
    with listening(answers, folder) as sockets, Loopback(sockets, server, seconds=30) as transport:
        for _ in range(3):
            transport.ask({place: Letter("train").encode() for place in answers})
        open_files = {path.resolve() for path in Path("/proc/self/fd").iterdir()}
        files = {path for path in (*open_files, *server.rglob("*")) if path.is_file()}
        assert len(files) > 5
        assert [path for path in files if marker[:8].tobytes() in path.read_bytes()] == []
        assert search(folder / "marker.npy", os.getpid()) > 0  # plain mode: the server is trusted with reports
