"""Programs as people write them compute on several processes: no main guard, classes and lambdas of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
print("started", flush=True)
import hashlib, os
import numpy as np
import torch
from torch import nn
import rrcluster as rr

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        self.scale = lambda inputs: 0.5 * inputs

    def forward(self, inputs):
        who.add(os.getpid())
        return self.layers(self.scale(inputs))

who = set()
torch.manual_seed(0)
rng = np.random.default_rng(0)
data = rr.from_arrays(rng.normal(size=(40, 5, 4)), rng.integers(3, size=(40, 5)), num_classes=3)
loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")
model = rr.from_module(Net(), loss=loss)
ifca = rr.METHODS["ifca"]
method = rr.Method("mine", scores=lambda models, clients, *, tools: ifca.scores(models, clients, tools=tools))
settings = dict(num_clusters=2, num_rounds=2, sample_rate=0.8, noise_multiplier=1.0, delta=1e-2, device="cpu")
for processes in (1, 2):
    experiment = rr.experiment(data=data, model=model, algorithm=method, engine="reference", processes=processes,
                               out=f"run-{processes}", **settings)
    models = rr.run(experiment, progress=False).models
    print(hashlib.sha256(models.clustered.tobytes()).hexdigest(), experiment.hosts._executor is not None)
"""


@pytest.mark.parametrize("kind", ["a script", pytest.param("a notebook", marks=pytest.mark.slow)])
def test_a_program_without_a_main_guard_runs_once_and_gives_the_same_models(kind, tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "mine.py").write_text(PROGRAM)
    command = [sys.executable, "mine.py"] if kind == "a script" else [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    started, alone, several = done.stdout.splitlines()
    assert started == "started"
    assert (alone.split()[1], several.split()[1]) == ("False", "True"), "two processes computed the second run"
    assert alone.split()[0] == several.split()[0]
