"""The synthetic study of research/benchmarks/synthetic.py, in small."""

import importlib.util
import sys
from pathlib import Path

import pytest
from rrcluster_research.paper_figures import draw_learnt_lines

SCRIPT = Path(__file__).parents[2] / "research/benchmarks" / "synthetic.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("synthetic_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    module.SETTINGS.update(num_rounds=3, num_clients=120, local_epochs=1)
    return module


def test_a_tiny_study_has_every_pair_and_repeats(script):
    def runs():
        return list(script.study(range(1), scenarios=["synthetic-imbalanced-hard"], starts=["far"]))

    first = runs()
    assert first == runs()
    assert [run.method for run in first] == ["IFCA", script.RR] * 3
    assert [run.noise for run in first[::2]] == list(script.NOISES)
    assert first[1].untrained == 0  # exact rebalancing fills every cluster in every round
    assert script.markdown(first).count("imbalanced-hard") == 3


def test_rows_are_paired_by_seed(script):
    def runs(method, dead):
        return [script.Collapse("s", "far", "n", method, seed, 0, d, 1.0) for seed, d in enumerate(dead)]

    *_, row = script.markdown([*runs("IFCA", [1, 1, 1, 0, 0]), *runs(script.RR, [0, 0, 2, 1, 0])]).splitlines()
    assert row == "| s | far | n | 60% (23 to 88) | 40% (12 to 77) | 2 / 1 | 0.5 | 0% / 0% | 100.0 / 100.0 |"


def test_never_trained_is_collapsed_too(script):
    assert script.Collapse("s", "far", "n", "IFCA", 0, 1, 0, 1.0).collapsed
    assert not script.Collapse("s", "far", "n", "IFCA", 0, 0, 0, 1.0).collapsed


def test_mcnemar_by_hand(script):
    assert script.mcnemar(0, 0) == 1.0
    assert script.mcnemar(3, 0) == pytest.approx(0.125)
    assert script.mcnemar(5, 1) == pytest.approx((6 + 1) / 64)


def test_the_figure_has_a_row_per_scenario_and_a_column_per_method(script):
    pytest.importorskip("matplotlib")
    lines = script.learnt_lines("synthetic-balanced-hard")
    assert {method: len(models) for method, models in lines.items()} == {"FedAvg": 1, "IFCA": 4, script.RR: 4}
    drawing = draw_learnt_lines({"synthetic-balanced-hard": lines}, which="A test.")
    assert drawing.pdf.startswith(b"%PDF")
    assert all(name in drawing.alt for name in ("FedAvg", "IFCA", "balanced, hard"))
