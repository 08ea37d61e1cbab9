"""The figures that compare methods: which runs make a series, what is drawn at which place, and in which files."""

import json
import math
import re

import pytest

from rrcluster.report.cluster_figures import matched
from rrcluster.report.drawing import FAINT, GRID, INK, PALETTE, TONES
from rrcluster.report.figures import FIGURES, draw_figures, save_figures
from rrcluster.report.folders import find_runs
from rrcluster.report.series import arenas, changing, epsilon_series, nth_look, shown_epsilon, size_series

RR = {"rebalance": "coin", "min_cluster_size": 15}
OKABE_ITO = {"#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#f0e442", "#000000"}


def seeds(folder, run_folder, *accuracies, **settings):
    for seed, accuracy in enumerate(accuracies):
        run_folder(folder / f"seed-{seed}", seed=seed, accuracy=accuracy, num_rounds=4, **settings)


def shown(groups, name):
    (drawing,) = FIGURES[name](groups)
    return drawing


@pytest.fixture(scope="module")
def several(tmp_path_factory, run_folder):
    """Two methods at epsilon 2 and 8 over two seeds, one of them also without privacy."""
    tmp_path = tmp_path_factory.mktemp("several")
    for epsilon, low, high in ((8.0, 0.70, 0.80), (2.0, 0.60, 0.65)):
        seeds(tmp_path / f"ifca-{epsilon:g}", run_folder, low, low + 0.02, epsilon=epsilon)
        seeds(
            tmp_path / f"rr-{epsilon:g}", run_folder, high, high + 0.02, epsilon=epsilon, update_clip=epsilon / 10, **RR
        )
    seeds(tmp_path / "none", run_folder, 0.84, 0.86, mechanism="none", epsilon=None)
    return find_runs([tmp_path])


@pytest.fixture(scope="module")
def drawn(several):
    return {drawing.name: drawing for drawing in draw_figures(several)}


def test_a_method_at_several_epsilons_is_one_series(several):
    plain, rebalanced = epsilon_series(several)
    assert (plain.label, rebalanced.label) == ("DP-IFCA", "RR-Cluster (IFCA), B=15")
    places, values = plain.points("accuracy")
    assert places == [2.0, 8.0, math.inf]
    assert [value.mean for value in values] == pytest.approx([0.61, 0.71, 0.85])
    assert all(value.half_width == pytest.approx(0.01 * 12.7062, rel=1e-3) for value in values)
    assert rebalanced.places == (2.0, 8.0)


def test_what_else_changes_along_a_series_is_said(several, drawn):
    assert changing(epsilon_series(several)) == "update clip"
    assert "Along a line these settings differ too: update clip." in drawn["privacy-utility"].caption


def test_two_runs_at_one_epsilon_are_two_series(tmp_path, run_folder):
    for clip in (0.1, 0.3):
        for epsilon in (2.0, 4.0):
            run_folder(tmp_path / f"{clip}-{epsilon}", update_clip=clip, epsilon=epsilon)
    found = epsilon_series(find_runs([tmp_path]))
    assert [(entry.label, entry.places) for entry in found] == [
        ("DP-IFCA [update_clip=0.1]", (2.0, 4.0)),
        ("DP-IFCA [update_clip=0.3]", (2.0, 4.0)),
    ]


def test_mechanisms_and_numbers_of_clusters_are_not_mixed(tmp_path, run_folder):
    run_folder(tmp_path / "a", epsilon=2.0)
    run_folder(tmp_path / "b", epsilon=4.0, mechanism="identifier")
    run_folder(tmp_path / "c", epsilon=8.0, num_clusters=2)
    assert [len(entry.places) for entry in epsilon_series(find_runs([tmp_path]))] == [1, 1, 1]
    assert FIGURES["privacy-utility"](find_runs([tmp_path])) == []


def test_a_run_is_shown_at_the_epsilon_it_was_calibrated_to_or_at_what_it_costs(tmp_path, run_folder):
    run_folder(tmp_path / "whole", cost=3.97)
    run_folder(tmp_path / "limited", status="stopped", cost=1.5, max_epsilon=1.5)
    found = [shown_epsilon(find_runs([tmp_path / name])[0]) for name in ("whole", "limited")]
    assert found == [4.0, pytest.approx(1.5, rel=1e-3)]


def test_a_sweep_of_the_least_size_starts_with_the_base_method(tmp_path, run_folder):
    run_folder(tmp_path / "base", accuracy=0.7)
    for size, accuracy in ((4, 0.72), (12, 0.74), (8, 0.71)):
        run_folder(tmp_path / f"B{size}", accuracy=accuracy, rebalance="coin", min_cluster_size=size)
    run_folder(tmp_path / "other", accuracy=0.9, rebalance="coin", min_cluster_size=8, epsilon=8.0)
    groups = find_runs([tmp_path])
    sweep = next(entry for entry in size_series(groups) if len(entry.places) > 1)
    assert (sweep.label, sweep.places) == ("IFCA, epsilon 4", (0.0, 4.0, 8.0, 12.0))
    assert [value.mean for value in sweep.points("accuracy")[1]] == pytest.approx([0.70, 0.72, 0.71, 0.74])
    alt = shown(groups, "min-cluster-size").alt
    assert "70.0% at B 0, 72.0% at B 4, 71.0% at B 8, 74.0% at B 12" in alt
    assert "90.0%" not in alt


def test_two_values_of_the_least_size_are_no_sweep(demo):
    assert FIGURES["min-cluster-size"](find_runs([demo])) == []


def test_data_and_partition_get_axes_of_their_own(tmp_path, run_folder):
    for partition in ("rotation", "rotation-imbalanced"):
        for epsilon in (2.0, 8.0):
            run_folder(tmp_path / f"{partition}-{epsilon}", partition=partition, epsilon=epsilon)
    groups = find_runs([tmp_path])
    assert list(arenas(groups)) == ["rotation", "rotation-imbalanced"]
    assert "DP-IFCA, epsilon 8 (rotation-imbalanced) ends" in shown(groups, "accuracy").alt
    assert shown(groups, "privacy-utility").alt.count("at epsilon 8") == 2


def test_the_privacy_utility_figure_tells_its_values(drawn):
    drawing = drawn["privacy-utility"]
    assert "DP-IFCA 61.0% at epsilon 2, 71.0% at epsilon 8, 85.0% at epsilon ∞" in drawing.alt
    assert "diagnostic, not private" in drawing.caption
    assert "Bands: 95% t-interval" in drawing.caption


def test_several_epsilons_change_the_other_figures(drawn):
    assert set(drawn) == {
        *("accuracy", "privacy-utility", "worst-decile", "clustering", "confusion"),
        "sizes",
    }
    assert "Each method at its largest epsilon." in drawn["sizes"].caption
    assert "51.0% at epsilon 2" in drawn["worst-decile"].alt
    assert "DP-IFCA, epsilon 8 ends at 71.0%" in drawn["accuracy"].alt


def test_the_worst_decile_stands_beside_the_mean_at_one_epsilon(demo):
    assert "RR-Cluster (IFCA), B=15: 65.0% of 75.0%" in shown(find_runs([demo]), "worst-decile").alt


def test_rebalancing_before_and_after_by_the_released_values(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", num_rounds=1, **RR)
    line = {"round": 0, "sizes": [40.0, 30.0, 28.0, 2.0], "denominators": [33.0, 27.0, 25.0, 15.0], "epsilon": 1.0}
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    assert "the smallest 2 before, 15 after rebalancing" in shown(find_runs([folder]), "sizes").alt
    assert "rebalancing" not in shown(find_runs([run_folder(tmp_path / "b")]), "sizes").alt


def test_clusters_are_matched_to_groups_by_hand():
    assert matched(((0, 250, 0), (250, 0, 0), (0, 5, 100))) == {0: 1, 1: 0, 2: 2}
    assert matched(((9, 0), (0, 0), (1, 8))) == {0: 0, 1: 2}
    assert matched(((5, 4), (4, 0))) == {0: 1, 1: 0}  # 8 clients; the largest count first would leave 5


def test_the_share_on_the_diagonal_with_fewer_clusters_than_groups(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", num_clusters=2)
    line = {"round": 3, "accuracy": 0.5, "confusion": [[0, 10, 70], [10, 10, 0]]}
    (folder / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    assert "80% of clients" in shown(find_runs([folder]), "confusion").alt  # 70 + 10 of 100


def test_the_confusion_tells_the_share_on_the_diagonal(demo):
    alt = shown(find_runs([demo]), "confusion").alt
    assert "DP-IFCA: 90% of clients" in alt
    assert "DP-FedAvg" not in alt  # one cluster confuses nothing


@pytest.mark.parametrize("damage", [[[1, 2], [3]], [[1, -2]], "x", [[]], [["a"]], None])
def test_a_damaged_confusion_is_not_drawn(tmp_path, run_folder, damage):
    folder = run_folder(tmp_path / "a")
    (folder / "diagnostics.jsonl").write_text(json.dumps({"round": 3, "accuracy": 0.5, "confusion": damage}) + "\n")
    assert FIGURES["confusion"](find_runs([folder])) == []


def test_colours_are_safe_for_the_colour_blind(drawn):
    assert set(PALETTE) <= OKABE_ITO
    allowed = {*PALETTE, *TONES, INK, GRID, FAINT, "#ffffff"}
    for drawing in drawn.values():
        assert set(re.findall(r"#[0-9a-f]{6}\b", drawing.svg)) <= allowed, drawing.name


def test_files_are_fit_for_print(demo, tmp_path):
    from PIL import Image

    files = save_figures(draw_figures(find_runs([demo / "rr-cluster"])), tmp_path / "out")
    assert {path.suffix for path in files} == {".png", ".pdf"}
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF")
            assert b"/FontFile2" in content or b"/CIDFontType2" in content  # text stays text, with its font
        else:
            with Image.open(path) as image:
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
                assert image.width == 1020  # one column of 3.4 inches


def test_a_dozen_series_can_be_told_apart_by_colour_and_marker():
    styles = [nth_look(place).style() for place in range(12)]
    assert len({(style["color"], style["marker"]) for style in styles}) == 12
