"""A package of somebody else's adds names by entry points: each kind is one file, and nothing in ours changes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

METHOD = """
import rrcluster as rr
from rrcluster.registry import Entry

def scores(models, clients, *, tools):
    return -rr.METHODS["ifca"].scores(models, clients, tools=tools)

ENTRY = Entry("worst-fit", rr.Method("worst-fit", scores=scores), "Worst fit")
"""
MODEL = """
from rrcluster.registry import Entry

def narrow(input_shape, outputs):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.Linear(2, outputs))

ENTRY = Entry("narrow", narrow, "narrow")
"""
DATASET = """
import numpy as np
from rrcluster.registry import Entry

def stripes(folder):
    from rrcluster.data.images import ImageDataset
    labels = np.arange(400) % 4
    images = np.zeros((400, 1, 8, 8), dtype=np.uint8)
    images[np.arange(400), 0, 2 * labels] = 200
    return ImageDataset(images[:300], labels[:300], images[300:], labels[300:], 4, 0.1, 0.3)

ENTRY = Entry("stripes", stripes, "Stripes", {"num_classes": 4, "usual_model": "linear"})
"""
MECHANISM = """
from dataclasses import fields
from rrcluster.privacy.joint import JOINT, JointMechanism
from rrcluster.privacy.mechanism import MechanismKind
from rrcluster.registry import Entry

class Louder(JointMechanism):
    name = "louder"

    @property
    def noise_std(self):
        return 2 * super().noise_std

def maker(given):
    make = JOINT.maker(given)
    return lambda noise: Louder(**{part.name: getattr(make(noise), part.name) for part in fields(make(noise))})

ENTRY = Entry("louder", MechanismKind("louder", maker, rebalancing="coin"), "louder")
"""
COMMAND = """
import sys
from rrcluster.registry import Entry

def greet(arguments):
    sys.stdout.write(f"hello {' '.join(arguments)}\\n")
    return 3

ENTRY = Entry("greet", greet, "say hello")
"""
TRANSPORT = """
from contextlib import contextmanager
from rrcluster.registry import Entry

@contextmanager
def open_pigeons(reach):
    yield reach.seconds

ENTRY = Entry("pigeons", open_pigeons, "pigeons")
"""
FILES = {"methods": METHOD, "models": MODEL, "datasets": DATASET, "mechanisms": MECHANISM, "commands": COMMAND}
FILES |= {"transports": TRANSPORT}
NAMES = {"algorithm": "worst-fit", "model": "narrow", "data": "stripes", "mechanism": "louder"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment in which such a package is installed, as pip would have left it there."""
    site = tmp_path_factory.mktemp("site")
    info = site / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = [f"[rrcluster.{kind}]\nit = outside_{kind}:ENTRY\n" for kind in FILES]
    (info / "entry_points.txt").write_text("\n".join(points))
    for kind, text in FILES.items():
        (site / f"outside_{kind}.py").write_text(text)
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(installed, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "rrcluster", *map(str, arguments)], env=installed, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command(installed):
    assert command(installed, "greet", "you") == (3, "hello you\n", "")
    assert "greet" in command(installed, "--help")[1]


def test_a_method_a_model_a_dataset_and_a_mechanism_in_one_run(installed, tmp_path):
    names = [part for name, value in NAMES.items() for part in (f"--{name}", value)]
    options = ("--clients", 40, "--max-samples", 10, "--rounds", 2, "--noise-multiplier", 1, "--delta", 0.001)
    status, _, stderr = command(installed, "run", *names, *options, "--device", "cpu", "--out", tmp_path / "run")
    assert status == 0, stderr
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["mechanism"] == "louder"
    status, stdout, stderr = command(installed, "report", tmp_path / "run", "--json")
    assert status == 0, stderr
    assert "Worst fit" in stdout


def test_a_transport(installed):
    program = """
from rrcluster.federation.transports import Reach, open_transport
from rrcluster.registry import TRANSPORTS
with open_transport("pigeons", Reach(None, None, 2.5, 10)) as transport:
    print(list(TRANSPORTS), transport)
"""
    done = subprocess.run([sys.executable, "-c", program], env=installed, capture_output=True, text=True)
    assert done.stdout == "['local', 'tls', 'flower', 'pigeons'] 2.5\n", done.stderr
