"""Runs killed at random instants, and by a full disk, resume to what they promised. `crash_lab.py` does the killing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).with_name("crash_lab.py")


MODES = ["seeded", "secure", "seeded-slots", "secure-slots"]


def interrupted(tmp_path, modes, interruptions, *more):
    """What happened, for each of the modes."""
    answer = subprocess.run(
        [sys.executable, LAB, tmp_path / "lab", "--mode", *modes, "--interruptions", str(interruptions), *more],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_three_kills(tmp_path):
    for told in interrupted(tmp_path, MODES, 3, "--sample-rate", "1"):  # every child accounts for itself: quickly
        assert told["interruptions"] == 3
        assert told["runs"] >= 1
        assert told["epsilons_compared"] >= 4
        assert told["least_margin"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_hundred_kills(tmp_path, mode):
    (told,) = interrupted(tmp_path, [mode], 100)
    assert told["interruptions"] == 100
    assert all(told[kind] > 0 for kind in ("line", "time", "sync", "write", "disk"))
    assert told["charges"] >= told["runs"] * 25
