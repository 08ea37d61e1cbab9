import csv
import io
import json
import re

import pytest

from rrcluster.cli.terminal import print_results
from rrcluster.data.build import load_federated
from rrcluster.privacy.cost import epsilon_text
from rrcluster.registry import DATASETS
from rrcluster.report.folders import find_runs
from rrcluster.report.tables import (
    UNCOVERED_TUNING,
    TextTable,
    console_table,
    results_table,
    to_csv,
    to_dict,
    to_html,
    to_latex,
    to_markdown,
)
from rrcluster.report.values import Estimate, clear_best, delta_text, estimate, seconds_text, value_text

ODD = TextTable(
    title="A & B",
    columns=("Method", "x_1 (%)"),
    rows=(("50% <b>&_{#}$~^\\ [a|b]*", "1.0 ± 0.1"), ("=cmd()", "–")),
    note="diagnostic, not private",
    bold=frozenset({(0, 1)}),
    diagnostic=frozenset({1}),
)


def seeds(folder, run_folder, accuracies, **settings):
    for seed, accuracy in enumerate(accuracies):
        run_folder(folder / f"seed-{seed}", seed=seed, accuracy=accuracy, **settings)


def test_interval_by_hand():
    """Values 70, 72, 74: mean 72, s = 2, t(0.975, 2) = 4.30265, half width 4.30265 * 2 / sqrt(3) = 4.96827."""
    found = estimate([70.0, 72.0, 74.0])
    assert found is not None
    assert (found.mean, found.count) == (72.0, 3)
    assert found.half_width == pytest.approx(4.96827, abs=1e-4)


def test_interval_of_two_by_hand():
    """Values 1, 3: mean 2, s = sqrt(2), t(0.975, 1) = 12.7062, half width 12.7062."""
    found = estimate([1.0, None, 3.0])
    assert found is not None
    assert found.half_width == pytest.approx(12.7062, abs=1e-3)


def test_no_interval_for_one_seed_and_nothing_for_none():
    assert estimate([0.5, None]) == Estimate(0.5, None, 1)
    assert estimate([None]) is None


def test_best_only_where_intervals_allow():
    assert clear_best([Estimate(70, 1, 3), Estimate(75, 1, 3)]) == 1
    assert clear_best([Estimate(70, 3, 3), Estimate(75, 3, 3)]) is None
    assert clear_best([Estimate(70, None, 1), Estimate(75, None, 1)]) is None
    assert clear_best([Estimate(75, 1, 3)]) is None


def test_epsilon_is_never_rounded_down():
    assert [epsilon_text(value) for value in (4.0, 1.1, 3.9901, 4.0001)] == ["4.00", "1.10", "4.00", "4.01"]
    assert (epsilon_text(0.00123), epsilon_text(0.0)) == ("0.0013", "0.00")
    assert (epsilon_text(None), epsilon_text(4.0, private=False)) == ("no finite bound", "none (no privacy)")


def test_other_numbers():
    assert [delta_text(value) for value in (1e-4, 2.5e-5, 0.001, None)] == ["1e-4", "2.5e-5", "1e-3", "–"]
    assert [seconds_text(value) for value in (3.14, 123.4, None)] == ["3.1", "123", "–"]
    assert value_text({"noise_std": 0.5, "seeds": [1, 2], "on": True}) == "noise std: 0.5; seeds: 1, 2; on: yes"


def test_demo_table(demo):
    table = results_table(find_runs([demo]))
    assert table.title == "fashion-mini, rotation, 1000 clients, 12 rounds"
    assert table.columns == (
        "Method",
        "epsilon",
        "Accuracy (%)",
        "Clustering accuracy (%)",
        "Worst decile (%)",
        "Seconds",
    )
    assert table.rows == (
        ("DP-FedAvg", "4.00", "58.0", "–", "48.0", "41.2"),
        ("DP-IFCA", "4.00", "70.0", "90.0", "60.0", "41.2"),
        ("RR-Cluster (IFCA), B=15", "4.00", "75.0", "90.0", "65.0", "41.2"),
    )
    assert table.bold == frozenset()
    for words in ("diagnostic, not private", "delta = 1e-4", "One seed each"):
        assert words in table.note


def test_seeds_make_intervals_and_bold(tmp_path, run_folder):
    seeds(tmp_path / "a", run_folder, [0.70, 0.72, 0.74])
    seeds(tmp_path / "b", run_folder, [0.90, 0.91, 0.92], rebalance="coin", min_cluster_size=15)
    seeds(tmp_path / "c", run_folder, [0.97, 0.98, 0.99], mechanism="none", epsilon=None)
    table = results_table(find_runs([tmp_path]))
    assert [row[2] for row in table.rows] == ["72.0 ± 5.0", "91.0 ± 2.5", "98.0 ± 2.5"]
    assert table.rows[2][1] == "none (no privacy)"
    assert (1, 2) in table.bold  # the best at epsilon 4; the run without privacy is no competitor
    assert not {(0, 2), (2, 2)} & table.bold
    assert "over 3 seeds" in table.note
    assert "Bold" in table.note


def test_columns_for_what_is_mixed(tmp_path, run_folder):
    seeds(tmp_path / "a", run_folder, [0.7, 0.8], model="cnn")
    run_folder(tmp_path / "b", delta=1e-3)
    table = results_table(find_runs([tmp_path]))
    assert table.columns[:5] == ("Method", "Model", "epsilon", "delta", "Seeds")
    assert [row[1:5] for row in table.rows] == [("cnn", "4.00", "1e-4", "2"), ("linear", "4.00", "1e-3", "1")]


def test_new_diagnostics_are_shown_beside_folders_that_lack_them(tmp_path, run_folder):
    run_folder(tmp_path / "older", accuracy=0.7)
    folder = run_folder(tmp_path / "newer", accuracy=0.8, rebalance="coin", min_cluster_size=15)
    told = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[-1])
    line = told | {"adjusted_rand": 0.876, "clusters_alive": 3, "signal_to_noise": [1.0, 2.0], "bytes_up": 99}
    (folder / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    table = results_table(find_runs([tmp_path]))
    assert table.columns[-3:] == ("ARI", "Clusters alive", "Seconds")
    assert {row[-3:-1] for row in table.rows} == {("–", "–"), ("0.88", "3")}
    assert {len(table.columns) - 3, len(table.columns) - 2} <= table.diagnostic
    assert "adjusted Rand index" in table.note


def test_missing_diagnostics(tmp_path, run_folder):
    run_folder(tmp_path / "a", accuracy=None)
    table = results_table(find_runs([tmp_path]))
    assert table.columns == ("Method", "epsilon")
    assert "No diagnostics" in table.note


def test_some_seeds_without_diagnostics(tmp_path, run_folder):
    seeds(tmp_path / "a", run_folder, [0.7, None, 0.7])
    run_folder(tmp_path / "b", num_clusters=8)
    assert [row[2] for row in results_table(find_runs([tmp_path])).rows] == ["2 of 3", "1"]


def test_regression_shows_its_loss(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", data="synthetic")
    (folder / "diagnostics.jsonl").write_text('{"round": 3, "accuracy": NaN, "loss": 0.25}\n')
    table = results_table(find_runs([folder]))
    assert table.columns[2] == "Loss"
    assert table.rows[0][2] == "0.25"
    assert "diagnostic, not private" in table.note
    assert "Chance" not in table.note


def test_the_number_of_classes_is_that_of_the_data():
    data = load_federated("fashion-mini", num_clients=8, seed=0)
    assert DATASETS.fact("fashion-mini", "num_classes") == data.num_classes


def test_unfinished_runs_are_counted(tmp_path, run_folder):
    run_folder(tmp_path / "a", status="stopped")
    assert "Not finished: 1 of 1 runs." in results_table(find_runs([tmp_path])).note


def test_csv_parses_back(tmp_path, run_folder):
    seeds(tmp_path / "a", run_folder, [0.70, 0.72, 0.74], rebalance="coin", min_cluster_size=15)
    (row,) = csv.DictReader(io.StringIO(to_csv(results_table(find_runs([tmp_path])))))
    assert row["Method"] == "RR-Cluster (IFCA), B=15"
    assert float(row["Accuracy (%) [diagnostic, not private]"]) == 72.0
    assert float(row["Accuracy (%) [diagnostic, not private] 95% half width"]) == 5.0


def test_csv_has_empty_cells_and_no_formulas():
    rows = list(csv.reader(io.StringIO(to_csv(ODD))))
    assert rows[1] == [ODD.rows[0][0], "1.0", "0.1"]
    assert rows[2] == ["'=cmd()", "", ""]


def test_latex_is_escaped():
    text = to_latex(ODD)
    assert r"50\% \textless{}b\textgreater{}\&\_\{\#\}\$\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"\textbf{1.0 $\pm$ 0.1}" in text
    assert r"A \& B" in text
    assert r"\toprule" in text
    assert "diagnostic, not private" in text
    assert re.sub(r"\\[{}]", "", text).count("{") == re.sub(r"\\[{}]", "", text).count("}")


def test_markdown_is_escaped():
    text = to_markdown(ODD)
    assert r"\[a\|b\]\*" in text
    assert r"\<b\>&amp;\_" in text
    assert "| **1.0 ± 0.1** |" in text


def test_html_is_escaped_and_labelled():
    text = to_html(ODD)
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;_" in text
    assert "<strong>1.0 ± 0.1</strong>" in text
    assert "<small>diagnostic, not private</small>" in text


def test_console_shows_markup_as_text():
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(console_table(ODD, width=120))
    text = console.export_text()
    assert "[a|b]*" in text


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_no_terminal_is_so_narrow_that_a_word_is_cut(demo, columns, monkeypatch, capsys):
    table = results_table(find_runs([demo]))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    print_results(table)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    found = shown.split()
    for text in (*table.columns, *(cell for row in table.rows for cell in row), table.note):
        assert set(text.split()) <= set(found), text
    assert max(map(len, shown.splitlines())) <= max(columns, 90)


def test_a_table_of_many_columns_fits_a_terminal_of_80_in_parts(tmp_path, run_folder, monkeypatch, capsys):
    for seed in (0, 1):
        folder = run_folder(tmp_path / "a" / f"seed-{seed}", seed=seed, delta=1e-5)
        line = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[-1])
        more = {"adjusted_rand": 0.5 + seed / 9, "clusters_alive": 4, "personalised_accuracy": 0.8 + seed / 9}
        (folder / "diagnostics.jsonl").write_text(json.dumps({**line, **more}) + "\n")
    run_folder(tmp_path / "b", accuracy=0.7, partition="rotation-imbalanced", model="mlp")
    table = results_table(find_runs([tmp_path]))
    monkeypatch.setenv("COLUMNS", "80")
    print_results(table)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for text in (*table.columns, *(cell for row in table.rows for cell in row)):
        assert set(text.split()) <= set(shown.split())


def test_in_a_file_a_row_is_a_line(demo, capsys):
    table = results_table(find_runs([demo]))
    print_results(table)
    lines = capsys.readouterr().out.splitlines()
    assert all(any(all(cell in line for cell in row) for line in lines) for row in table.rows)


def test_dict_is_json(demo):
    data = json.loads(json.dumps(to_dict(results_table(find_runs([demo])))))
    assert data["rows"][1][0] == "DP-IFCA"
    assert data["diagnostic"] == ["Accuracy (%)", "Clustering accuracy (%)", "Worst decile (%)"]


def test_an_accuracy_that_was_released_is_in_the_table_and_is_no_diagnostic(run_folder, tmp_path):
    plain, judged = run_folder(tmp_path / "plain"), run_folder(tmp_path / "judged", update_clip=0.1)
    summary = json.loads((judged / "summary.json").read_text())
    (judged / "summary.json").write_text(json.dumps(summary | {"private_evaluation": {"accuracy": 0.8132}}))
    (judged / "diagnostics.jsonl").unlink()
    table = results_table(find_runs([plain, judged]))
    place = table.columns.index("Private accuracy on training rows (%)")
    assert [row[place] for row in table.rows] == ["–", "81.3"]
    twice = run_folder(tmp_path / "twice" / "seed-1", update_clip=0.1, seed=1)
    (twice / "summary.json").write_text((judged / "summary.json").read_text())
    both = results_table(find_runs([judged, twice]))  # their mean would cost the sum of their epsilons
    assert not any("Private" in name for name in both.columns)
    assert "released within" not in both.note
    assert place not in table.diagnostic
    assert "released within the epsilon of its run" in table.note
    alone = results_table(find_runs([judged]))
    assert "released within the epsilon of its run" in alone.note
    assert "no accuracy" not in alone.note
    assert not any("Private" in name for name in results_table(find_runs([plain])).columns)


def note(folders):
    return results_table(find_runs(folders)).note


def test_a_table_of_several_private_methods_says_that_choosing_among_them_is_not_covered(run_folder, tmp_path):
    one = run_folder(tmp_path / "one", update_clip=0.1)
    two = run_folder(tmp_path / "two", update_clip=0.2)
    plain = run_folder(tmp_path / "plain", mechanism="none")
    assert UNCOVERED_TUNING in note([one, two])
    assert UNCOVERED_TUNING not in note([one])
    assert UNCOVERED_TUNING not in note([one, plain])


def test_a_selected_run_says_that_its_epsilon_covers_the_selection(run_folder, tmp_path):
    chosen = run_folder(tmp_path / "chosen", privacy={"selection": {"what": "the best of several"}})
    other = run_folder(tmp_path / "other", update_clip=0.3)
    assert "includes the selection of its settings" in note([chosen])
    assert UNCOVERED_TUNING in note([chosen, other])


def test_a_sample_of_clients_is_stated(tmp_path, run_folder):
    folder = run_folder(tmp_path / "run", num_clients=1_000_000)
    assert "clients, the same" not in results_table(find_runs([folder])).note
    lines = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    told = "".join(json.dumps(line | {"evaluated_clients": 2000}) + "\n" for line in lines)
    (folder / "diagnostics.jsonl").write_text(told)
    assert "over 2,000 of 1,000,000 clients, the same in every run." in results_table(find_runs([folder])).note


@pytest.mark.parametrize(
    ("settings", "ending", "cohort"),
    [
        ({}, "", 100),
        ({"participation": "poisson", "slots": None}, "", 100),
        ({"participation": "everybody", "slots": None}, ", everybody", 1000),
        ({"participation": "schedule", "slots": 10}, ", schedule of 10 slots", 100),
        ({"participation": "within-slot", "slots": 4, "sample_rate": 0.4}, ", within-slot of 4 slots", 100),
    ],
)
def test_labels_say_who_takes_part_where_it_is_not_a_secret_sample(settings, ending, cohort):
    from rrcluster.report.values import expected_cohort, method_label

    config = {"algorithm": "ifca", "mechanism": "joint", "sample_rate": 0.1, "num_clients": 1000} | settings
    assert method_label(config) == f"DP-IFCA{ending}"
    assert expected_cohort(config) == cohort


def test_of_a_secure_run_no_seed_is_mentioned(run_folder, tmp_path):
    secure = run_folder(tmp_path / "secure", accuracy=None, privacy={"secure": True}, seed=None)
    assert "seed" not in note([secure])
    one, two = run_folder(tmp_path / "one"), run_folder(tmp_path / "two", update_clip=0.2)
    assert "One seed, so no intervals." in note([one])
    assert "One seed each, so no intervals." in note([one, two])
