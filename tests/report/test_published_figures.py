"""The figures under docs/results: drawn from the tables beside them, at most seven lines a panel, no text cut."""

import csv
import json
import re
import runpy
from pathlib import Path

import pytest

from rrcluster.report.values import estimate
from tests.report.test_report_looks import _outside, _texts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FAST = ("fashion", "intro")
FOLDERS = [
    pytest.param(path.parent.name, marks=[] if path.parent.name in FAST else pytest.mark.slow)
    for path in sorted(RESULTS.glob("*/reproduction.json"))
    if path.parent.name != "map"  # whose figures need its runs
]


@pytest.fixture(scope="module")
def drawn_by():
    return runpy.run_path(str(ROOT / "research/benchmarks" / "results_figures.py"))["drawn_by"]


@pytest.mark.parametrize("name", FOLDERS)
def test_figures_are_those_of_the_tables_and_can_be_read(name, drawn_by, figures):
    drawings = drawn_by(RESULTS / name)
    stored = {path.stem for path in (RESULTS / name).glob("figures/*")}
    assert stored == {drawing.name for drawing in drawings}
    for drawing, figure in zip(drawings, figures, strict=True):
        assert [text.get_text() for text in _texts(figure) if _outside(text, figure)] == [], drawing.name
        for axes in figure.axes:
            named = {line.get_label() for line in axes.lines if not line.get_label().startswith("_")}
            assert len(named - {"other methods", "constant predictor"}) <= 7, drawing.name


def test_the_figure_of_the_main_table_has_its_numbers(drawn_by, figures):
    drawing = next(drawing for drawing in drawn_by(RESULTS / "fashion") if drawing.name == "epsilon-1-balanced")
    assert "DP-FedAvg 74.5%" in drawing.alt
    assert "DP-IFCA + exploration 83.9%" in drawing.alt
    lines = {line.get_label(): line for line in figures[0].axes[-1].lines}
    assert list(lines["DP-FedAvg"].get_ydata()) == pytest.approx([73.2, 74.2, 74.5])


def test_the_table_of_the_readme_has_the_numbers_of_the_results():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| test accuracy in %") :]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 3  # published, its mechanism soundly accounted, ours
    shown = {name: values for name, *values in rows}
    first, _, _ = (RESULTS / "fashion" / "table.csv").read_text().partition("\n\n")
    stored = {row["Method"]: row for row in csv.DictReader(first.splitlines())}

    def cells(method, column):
        names = [f"epsilon {epsilon}, {column} [diagnostic, not private]" for epsilon in (2, 4, 8)]
        return [f"{stored[method][name]} ± {stored[method][f'{name} 95% half width']}" for name in names]

    published = [f"{float(stored['RR-Cluster (IFCA)'][f'epsilon {epsilon}, published']):.1f}" for epsilon in (2, 4, 8)]
    assert shown["RR-Cluster (IFCA), as published"] == published
    assert shown["the paper's mechanism, soundly accounted"] == cells("RR-Cluster (IFCA)", "identifier")
    assert shown["**rrcluster, its defaults**"] == cells("Default: DP-IFCA + survey", "joint (ours)")


def test_the_distances_of_the_page_on_choosing_are_those_of_the_results():
    page = " ".join((ROOT / "docs" / "choosing.md").read_text().split())
    claim = r"within ([\d.]+) points of knowing the groups for one.*within ([\d.]+) points of the best method"
    with_groups, without = map(float, re.search(claim, page).groups())
    for k in (4, 8):
        assert _largest_distance("groups", f", k = {k}", ", true groups given") <= with_groups
    for table in ("emnist", "shakespeare", "cifar"):
        assert _behind_the_best_other(table) <= without


def _behind_the_best_other(table):
    """Most points of mean accuracy that the default is behind a method of one model, or of clusters by itself."""
    blocks = (RESULTS / table / "table.csv").read_text().split("\n\n")
    behind = []
    for block in blocks:
        rows = {row[next(iter(row))]: row for row in csv.DictReader(block.splitlines())}
        heads = [head for head in next(iter(rows.values())) if head.endswith("joint (ours) [diagnostic, not private]")]
        if not any(head.endswith("published") for head in next(iter(rows.values()))) or "DP-FedAvg" not in rows:
            continue  # accuracies alone have published numbers beside them
        for head in heads:
            others = [rows[name][head] for name in ("DP-FedAvg", "DP-IFCA", "DP-FeSEM", "DP-FedCAM")]
            if rows["DP-FedAvg"][head] != "(1)":  # a population that was not measured
                behind.append(max(map(float, others)) - float(rows["Default: DP-IFCA + survey"][head]))
    assert len(behind) >= 2
    return round(max(behind), 2)


def _arms(name):
    return json.loads((RESULTS / "groups" / f"{name}.json").read_text())


def _largest_distance(name, ours, reference):
    """By how many points the mean over seeds is below that of the reference, where most."""
    means = {(arm["arm"], arm["epsilon"]): estimate(arm["accuracies"]).mean for arm in _arms(name)}
    pairs = [(key, (key[0].removesuffix(ours) + reference, key[1])) for key in means if key[0].endswith(ours)]
    assert len(pairs) >= 6
    return max(means[other] - means[key] for key, other in pairs)
