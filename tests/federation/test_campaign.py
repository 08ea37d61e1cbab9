"""A plain federation over TLS whose programs are killed, whose cables are cut, and which strangers flood."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from folder_lab import short_folder

HERE = Path(__file__).parent


@pytest.mark.slow
def test_a_campaign_charges_no_round_without_enough_members():
    """Ten kills, a cut and a flood; `make campaign` makes 60, three and one."""
    kills = 10
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    with short_folder() as folder:
        done = subprocess.run(
            [sys.executable, HERE / "campaign_lab.py", folder / "c", str(kills), "1"],
            capture_output=True,
            text=True,
            timeout=1800,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert sum(told["done"].values()) == kills + 2
    for training in told["trainings"]:
        check(training, told["least_members"], told["num_rounds"])


def check(training, least, rounds):
    assert all(count >= least for name in ("connected", "joined") for count in training[name])
    assert len(set(training["charges"])) == len(training["charges"])
    *earlier, last = training["statuses"]
    assert set(earlier) <= {2, -9}  # a sentence, or a kill
    assert last == (0 if training["finished"] else 2)
    if training["finished"]:
        assert training["charges"] == list(range(rounds))
        assert training["members with the models"] == 4
        assert training["models equal"] == {"of the server": True, "of members": True}
