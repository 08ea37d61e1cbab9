"""Run folders that version 0.1 wrote can still be reported and loaded."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import RunFolderError
from rrcluster.report.folders import read_run
from rrcluster.runs.folder import RunFolder

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
    assert run.epsilon == pytest.approx(json.loads((old / "privacy.json").read_text())["epsilon"], rel=1e-9)
    assert main(["report", str(old)]) == 0
    assert "RR-Cluster (IFCA), B=4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "old_text", "new"),
    [
        ("privacy.json", '"epsilon": 3.9999563464085472', '"epsilon": 1.0'),
        ("privacy.json", '"num_rounds": 3', '"num_rounds": 2'),
        (
            "privacy.json",
            '"noise_multiplier": 0.9782032,\n    "sample_rate"',
            '"noise_multiplier": 3.0,\n    "sample_rate"',
        ),
        ("config.yaml", "delta: 0.001", "delta: 0.0001"),
        ("config.yaml", "epsilon: 4.0", "epsilon: 2.0"),
        ("ledger.jsonl", '{"round": 2', '{"round": 1'),
        ("summary.json", '"releases_charged": 3', '"releases_charged": 2'),
    ],
)
def test_it_is_refused_where_it_was_edited(old, file, old_text, new):
    text = (old / file).read_text()
    assert old_text in text
    (old / file).write_text(text.replace(old_text, new))
    with pytest.raises(RunFolderError, match="so the run's cost is unknown"):
        read_run(old)


def test_its_settings_are_read_without_those_that_are_gone(old):
    folder, config = RunFolder.open(old)
    folder.release()
    assert (config.method.min_cluster_size, config.privacy.num_rounds) == (4, 3)
    with pytest.raises(RunFolderError, match="this run has finished"):
        main_resume(old)


def main_resume(folder):
    from rrcluster.runs.run import resume

    return resume(folder)
