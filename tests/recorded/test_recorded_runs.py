"""Runs give the bits that were recorded; changed on purpose, they are recorded again and the change says why."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("recorded_runs.py")


@pytest.mark.slow
def test_runs_give_the_bits_that_were_recorded():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=600, check=False)
    if "nothing is compared" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert not [line for line in done.stdout.splitlines() if not line.startswith("same")], done.stdout
    assert done.returncode == 0, done.stderr[-2000:]
