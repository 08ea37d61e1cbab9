"""Rounds over Flower, with real processes and TLS, are the simulator's; and what must not travel does not."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_plain_rounds import COUNTS, ROUNDS, experiment_of
from test_plain_rounds import federation as plain_federation
from test_plain_rounds import rounds_over as plain_rounds_over

pytest.importorskip("flwr", reason="needs the extra flower, which has an environment of its own: make test-flower")

from rrcluster.federation.flower.children import stop_processes
from rrcluster.federation.flower.loopback import Loopback
from rrcluster.simulation.clients import Faults

HERE = Path(__file__).parent
SETTINGS = {"min_cluster_size": 3, "private_evaluation": 0.2}


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="rr") as name:  # a short path, as sockets need
        yield Path(name)


@pytest.fixture
def members(folder):
    """Starts daemons, each a process of its own."""
    processes = {}

    def start(settings, places=range(len(COUNTS))):
        for place in places:
            command = [HERE / "member_process.py", json.dumps(settings), str(place), folder / f"{place}.socket"]
            processes[place] = subprocess.Popen(
                [sys.executable, "-W", "ignore", *map(str, command), str(os.getpid())], cwd=HERE, text=False
            )
        sockets = {place: folder / f"{place}.socket" for place in range(len(COUNTS))}
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in sockets.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sockets

    start.processes = processes
    yield start
    stop_processes(list(processes.values()))


class Gone(Faults):
    """Clients of one member drop out from a round on."""

    def __init__(self, clients, first_round):
        super().__init__()
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "first_round", first_round)

    def remaining(self, clients, *, streams, round_index):
        return clients if round_index < self.first_round else np.setdiff1d(clients, self.clients)


def same(one, other):
    np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
    np.testing.assert_array_equal(one.release.sizes, other.release.sizes)
    np.testing.assert_array_equal(one.release.evaluation.sums, other.release.evaluation.sums)
    np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)


class KillsBefore:
    """A transport that does something before the question of one round."""

    def __init__(self, inner, number, act):
        self.inner, self.left, self.act = inner, number, act

    def ask(self, messages):
        if self.left == 0:
            self.act()
        self.left -= 1
        return self.inner.ask(messages)


def test_plain_rounds_are_those_of_the_simulator_with_a_daemon_killed_on_the_way(folder, members):
    experiment = experiment_of(**SETTINGS)
    sockets = members({**SETTINGS, "sums": False})
    agreement, _ = plain_federation(experiment, folder / "unused")
    with Loopback(sockets, folder, seconds=60) as transport:
        transport = KillsBefore(transport, ROUNDS - 1, members.processes[1].kill)
        over_flower = plain_rounds_over(transport, agreement, experiment)
    hosted = agreement.first_client(1) + np.arange(COUNTS[1])
    simulated = list(replace(experiment, faults=Gone(hosted, ROUNDS - 1)).rounds())
    assert len(over_flower) == len(simulated) == ROUNDS
    for one, other in zip(over_flower, simulated, strict=True):
        same(one, other)
