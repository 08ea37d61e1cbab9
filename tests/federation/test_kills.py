"""Servers and daemons die in every stage, as real processes: nothing is released uncharged, and the run goes on."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from folder_lab import short_folder

HERE = Path(__file__).parent


def lab(program, *arguments):
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    with short_folder() as folder:
        done = subprocess.run(
            [sys.executable, HERE / program, folder, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=1800,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kills", "mode"),
    [
        (2, "secure"),
        pytest.param(42, "secure", marks=pytest.mark.slow),
        pytest.param(8, "plain", marks=pytest.mark.slow),
    ],
)
def test_kills_cost_budget_and_hide_nothing(kills, mode):
    told = lab("kill_lab.py", kills, mode)
    assert told["killed"] == told["planned"]
    assert told["status"] == 0  # the run went on to its end
    assert told["rounds"] == list(range(told["num_rounds"]))
    charges, revealed = Counter(told["charges"]), Counter(round_index for round_index, _ in told["revealed"])
    assert set(charges) == set(told["rounds"])
    assert all(revealed[t] <= charges[t] for t in revealed)  # no sum was uncovered without a charge of its own
    assert sum(charges.values()) <= told["limit"]
    for joined in told["joined"]:
        attempts = [tuple(attempt) for attempt in joined]
        assert len(set(attempts)) == len(attempts)  # nobody is charged twice for one attempt
        assert attempts == sorted(attempts)
        assert len(attempts) <= told["limit"]
    if mode == "secure":
        assert len(revealed) == told["num_rounds"]
        assert len({attempt for _, attempt in told["revealed"]}) == len(told["revealed"])


@pytest.mark.slow
def test_a_servers_memory_never_holds_a_members_message_in_secure_mode():
    told = lab("marker_lab.py", "secure")
    assert told["status"] == 0
    assert set(told["memory"]) == {"charge", "reveal of round 0", "advertise of round 1", "reveal of round 1"}
    assert told["memory"]["charge"].pop("masked words") > 0  # the search works
    for found in told["memory"].values():
        found.pop("masked words", None)
        assert set(found.values()) == {0}
        assert len(found) == 5
    assert told["files"] == []
    assert told["logs"] == []


@pytest.mark.slow
def test_a_plain_server_has_updates_in_memory_alone():
    told = lab("marker_lab.py", "plain")
    assert told["status"] == 0
    assert told["memory"]["charge"]["update"] > 0  # the search works
    assert told["files"] == []
    assert told["logs"] == []
