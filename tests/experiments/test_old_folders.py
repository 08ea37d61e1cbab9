"""Run folders that version 0.1 wrote can still be reported and loaded."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import RunFolderError
from rrcluster.experiments.folder import RunFolder
from rrcluster.report.folders import read_run

OLD = Path(__file__).parent / "run-0.1"


@pytest.fixture
def old(tmp_path):
    return shutil.copytree(OLD, tmp_path / "run")


def test_its_models_are_loaded(old):
    models = rr.load(old)
    assert models.num_clusters == 2
    assert models.predict(np.zeros((3, models.models.clustered.shape[1] - 1)), cluster=1).shape == (3, 1)


def test_it_is_reported_with_its_label_and_the_epsilon_of_its_plan(old, capsys):
    run = read_run(old)
    assert run.label == "RR-Cluster (IFCA), B=4 + exploration"
    assert run.epsilon == json.loads((old / "privacy.json").read_text())["epsilon"]
    assert main(["report", str(old)]) == 0
    assert "RR-Cluster (IFCA), B=4" in capsys.readouterr().out


def test_its_settings_are_read_without_those_that_are_gone(old):
    folder, config = RunFolder.open(old)
    folder.release()
    assert (config.method.min_cluster_size, config.privacy.num_rounds) == (4, 3)
    with pytest.raises(RunFolderError, match="this run has finished"):
        main_resume(old)


def main_resume(folder):
    from rrcluster.experiments.run import resume

    return resume(folder)
