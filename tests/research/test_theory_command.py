import json

import pytest
from rrcluster_research.convergence import ROUND_TERMS

from rrcluster.cli import main


def answer(capsys, *flags):
    assert main(["theory", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_term_is_there_in_both_forms(capsys):
    first, second = answer(capsys, "-B", "300", "100")
    assert (first["min_cluster_size"], second["min_cluster_size"]) == (100, 300)
    assert first["failed"] == []
    names = [(term["part"], term["name"]) for term in first["terms"]]
    assert names[:4] == [("lemma", name) for name in ("choice", "identifier", "rebalance", "total")]
    assert [name for part, name in names if part == "round"] == list(ROUND_TERMS)
    assert [name for part, name in names if part == "run"] == [
        "rate",
        "num_rounds",
        "final_error",
        "failure_probability",
    ]
    privacy = next(term for term in first["terms"] if term["name"] == "privacy_noise")
    assert privacy["printed"] == privacy["corrected"] > 0


def test_a_failed_assumption_is_named_and_no_value_is_null(capsys):
    (nobody,) = answer(capsys, "-B", "0")
    assert [failure["assumption"] for failure in nobody["failed"]] == ["cluster size"]
    assert next(term for term in nobody["terms"] if term["name"] == "floor")["corrected"] is None


def test_the_table_names_both_forms_and_the_failure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["theory", "-B", "200", "--server-lr", "5"]) == 0
    out = capsys.readouterr().out
    for text in ("printed", "corrected", "B = 200", "privacy noise", "step size: server_lr = 5"):
        assert text in out


@pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<svg")])
def test_the_figure_is_written(tmp_path, capsys, suffix, start):
    target = tmp_path / f"bounds.{suffix}"
    assert main(["theory", "-B", "100", "200", "490", "--plot", str(target), "--json"]) == 0
    assert target.read_bytes().startswith(start)
    assert str(target) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--plot", "bounds.gif"], "plot"),
        (["--plot", "/no/such/folder/bounds.png"], "cannot be written"),
        (["-B", "-3"], "min_cluster_size"),
        (["--margin", "0.7"], "margin"),
        (["--failure-probability", "0"], "failure_probability"),
        (["--smoothness", "0"], "smoothness"),
    ],
)
def test_mistakes_are_one_line(capsys, flags, word):
    assert main(["theory", *flags]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert err.count("\n") == 1
