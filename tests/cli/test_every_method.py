"""The paper's six methods under every mechanism, from the command line with nothing else set."""

import json

import pytest
from test_cli import rrcluster

SIX = ("ifca", "fesem", "fedcam", "fedavg", "fedprox", "fedper")
SMALL = ("--data", "fashion-mini", "--clients", "20", "--max-samples", "4", "--rounds", "1", "--device", "cpu")


@pytest.mark.parametrize("mechanism", ["joint", "identifier", "none"])
@pytest.mark.parametrize("method", SIX)
def test_six_methods_run_under_three_mechanisms_with_nothing_else_set(method, mechanism, tmp_path):
    budget = () if mechanism == "none" else ("--noise-multiplier", "1")  # calibrating takes seconds
    chosen = ("--algorithm", method, "--mechanism", mechanism, *budget)
    answer = rrcluster("run", *chosen, *SMALL, "--out", "run", "--quiet", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    memoryless = mechanism == "identifier" and method in ("fesem", "fedper")
    assert summary["algorithm"] == (f"{method}-memoryless" if memoryless else method)
    assert ("those of this form remember nothing" in answer.stderr) == memoryless
    assert summary["model"] == ("edges-mlp" if method == "fedper" else "edges")
