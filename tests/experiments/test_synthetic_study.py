import math

import pytest
from scipy.stats import binomtest

from rrcluster.errors import ConfigError
from rrcluster.paper import synthetic_study
from rrcluster.paper.scenarios import Panel, scenario_figure
from rrcluster.paper.synthetic_study import METHODS, Outcome, compare, fitted_lines, mcnemar, study, wilson

IFCA, RR = METHODS


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setitem(synthetic_study.SETTINGS, "num_rounds", 3)
    monkeypatch.setitem(synthetic_study.SETTINGS, "num_clients", 120)
    monkeypatch.setitem(synthetic_study.SETTINGS, "local_epochs", 1)


def test_a_tiny_study_has_every_pair_and_repeats(short):
    def found():
        return list(study(range(1), scenarios=["synthetic-imbalanced-hard"], starts=["far"]))

    outcomes = found()
    assert outcomes == found()
    assert len(outcomes) == 3 * 2
    rows = compare(outcomes)
    assert [row.noise for row in rows] == list(synthetic_study.NOISES)
    for row in rows:
        assert row.ifca.runs == row.rr.runs == 1
        assert row.ifca.count - row.ifca_only == row.rr.count - row.rr_only  # those where both collapsed
        assert 0 < row.p_value <= 1
    assert rows[0].rr_untrained.count == 0  # exact rebalancing fills every cluster in every round


def test_rows_are_paired_by_seed():
    def runs(method, dead):
        return [Outcome("s", "far", "n", method, seed, 0, d, 1.0) for seed, d in enumerate(dead)]

    (row,) = compare([*runs(IFCA, [1, 1, 1, 0, 0]), *runs(RR, [0, 0, 2, 1, 0])])
    assert (row.ifca.count, row.rr.count, row.ifca_only, row.rr_only) == (3, 2, 2, 1)
    assert row.p_value == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="different seeds"):
        compare([*runs(IFCA, [1, 1]), *runs(RR, [0])])


def test_never_trained_is_collapsed_too():
    assert Outcome("s", "far", "n", IFCA, 0, 1, 0, 1.0).collapsed
    assert not Outcome("s", "far", "n", IFCA, 0, 0, 0, 1.0).collapsed


@pytest.mark.parametrize(("count", "trials"), [(0, 100), (3, 100), (50, 100), (100, 100), (1, 7)])
def test_wilson_is_scipys(count, trials):
    ours, theirs = wilson(count, trials), binomtest(count, trials).proportion_ci(method="wilson")
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_mcnemar_by_hand_and_as_scipys_binomial_test():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 0) == 0.125
    assert mcnemar(5, 1) == pytest.approx((6 + 1) / 64)
    assert mcnemar(30, 12) == pytest.approx(binomtest(30, 42, 0.5, alternative="greater").pvalue)
    assert math.isclose(mcnemar(1, 3), binomtest(1, 4, 0.5, alternative="greater").pvalue)


def test_the_figure_has_a_row_per_scenario_and_a_column_per_method(short):
    pytest.importorskip("matplotlib")
    lines = fitted_lines(0, scenarios=["synthetic-balanced-hard"])
    for by_method in lines.values():
        assert list(by_method) == ["FedAvg", IFCA, RR]
        assert [found.shape for found in by_method.values()] == [(1, 2), (4, 2), (4, 2)]
    points = [([0.0, 0.5], [1.0, 2.0])] * 4
    panels = {
        scenario: {name: Panel(points, [tuple(line) for line in found.tolist()]) for name, found in by_method.items()}
        for scenario, by_method in lines.items()
    }
    drawing = scenario_figure(panels, caption="A test.")
    assert drawing.pdf.startswith(b"%PDF")
    assert drawing.png.startswith(b"\x89PNG")
    assert all(name in drawing.alt for name in ("FedAvg", IFCA, "synthetic-balanced-hard"))
