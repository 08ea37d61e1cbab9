"""What is written as JSON is JSON, also where a figure is not a number: other languages refuse NaN."""

import json

import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.storage import append_json, json_text

RUN = {
    "algorithm": "ifca",
    "num_clusters": 2,
    "num_rounds": 2,
    "sample_rate": 0.5,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "device": "cpu",
}


def strictly(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def table(tmp_path):
    """Clients in no groups, so that several diagnostics have no value; the last has one row, hence none for testing."""
    rows = [f"c{number // 4},{number % 7},{'yes' if number % 3 else 'no'}" for number in range(121)]
    (tmp_path / "clients.csv").write_text("\n".join(["who,a,label", *rows]) + "\n")
    return tmp_path / "clients.csv"


def test_files_of_a_run(table, tmp_path):
    roles = {"data": str(table), "client": "who", "target": "label", "classes": ["no", "yes"], "test_share": 0.3}
    result = rr.run(**RUN, **roles, personalise=True, out=tmp_path / "run")
    lines = [strictly(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert lines[-1]["clustering_accuracy"] is None
    assert 0 <= lines[-1]["personalised_accuracy"] <= 1
    assert result.evaluation.clustering_accuracy != result.evaluation.clustering_accuracy
    for path in tmp_path.rglob("*.json"):
        strictly(path.read_text())


def test_answers_of_the_command_line(table, tmp_path, capsys):
    roles = ("--data", table, "--client-column", "who", "--target-column", "label", "--classes", "no", "yes")
    plan = (
        "--algorithm",
        "ifca",
        "-k",
        2,
        "--rounds",
        2,
        "--sample-rate",
        0.5,
        "--noise-multiplier",
        1,
        "--delta",
        0.001,
    )
    run = ("run", *roles, *plan, "--test-share", 0.3, "--device", "cpu", "--out", tmp_path / "run", "--json", "-q")
    assert main([str(part) for part in run]) == 0
    (answer,) = strictly(capsys.readouterr().out)
    assert answer["diagnostic_not_private"]["adjusted_rand"] is None


def test_numbers_that_json_does_not_have(tmp_path):
    value = {"a": float("nan"), "b": [1.5, (float("inf"), 2)], "c": {"d": float("-inf")}, "e": "NaN", "f": None}
    append_json(tmp_path / "lines", value)
    plain = {"a": None, "b": [1.5, [None, 2]], "c": {"d": None}, "e": "NaN", "f": None}
    assert strictly((tmp_path / "lines").read_text()) == strictly(json_text(value)) == plain
