"""A whole training by the units of deploy/, and by its containers' commands, in sandboxes made as they say."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folder_lab import short_folder

HERE = Path(__file__).parent
UNSHARE = ["unshare", "--mount", "--net"]


def may_unshare():
    programs = all(map(shutil.which, ("unshare", "setpriv", "findmnt", "mount")))
    return programs and os.geteuid() == 0 and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_unshare(), reason="needs root, and name spaces of its own for mounts and network")
@pytest.mark.parametrize("kind", ["units", "compose"])
def test_a_training_runs_as_the_templates_say(kind):
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    with short_folder() as folder:
        done = subprocess.run(
            [*UNSHARE, sys.executable, HERE / "deploy_lab.py", folder, kind],
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | {"PYTHONPATH": paths},
        )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["serve"] == 0, told["said"]
    assert {name: status for name, status in told["ended"].items() if name != "serve"} == {
        f"{program} {name}": None for program in ("client", "node") for name in ("m0", "m1")
    }, told["said"]
    assert told["models"] == [True, True]
