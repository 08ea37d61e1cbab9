"""`rrcluster advise` and the outlook of `run --dry-run`."""

import json
import subprocess
import sys

import pytest

from rrcluster.cli import main

QUICK = ["--noise-multiplier", "1", "--delta", "1e-3"]  # nothing to calibrate


def test_the_answer_as_json(capsys):
    assert main(["advise", *QUICK, "--clients", "500", "-k", "2", "-d", "900", "--ratio", "3", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["init"], answer["min_cluster_size"]) == ("survey", 0)  # one group is far larger
    assert answer["outlook"]["sizes"] == pytest.approx([37.5, 12.5])


def test_the_answer_in_words(capsys):
    assert main(["advise", *QUICK, "--parameters", "100000000"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "clients of a cohort" in text
    assert "B = 0" in text
    assert "Warning: hopeless" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--ratio", "1", "2"], "expected_ratio"),
        (["--mechanism", "none"], "nothing to weigh"),
        (["--parameters", "0"], "num_coordinates"),
        (["--delta", "0.5"], "1/num_clients"),
    ],
)
def test_mistakes_end_with_status_2(arguments, reason, capsys):
    assert main(["advise", *QUICK[:2], *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_it_needs_no_torch():
    code = "import sys; from rrcluster.cli import main; main(['advise', '--noise-multiplier', '1', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("noise", "warned"), [("0.5", False), ("60", True)])
def test_a_dry_run_prints_the_signal_and_warns(noise, warned, capsys):
    flags = ["--clients", "40", "--sample-rate", "0.5", "--rounds", "4", "--delta", "1e-3", "--model", "pooled-linear"]
    assert main(["run", *flags, "--noise-multiplier", noise, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["signal_to_noise_over_run"] == pytest.approx(2**0.5 * answer["signal_to_noise_per_round"])
    assert any("hopeless" in line for line in answer["warnings"]) == warned


def test_what_pays_on_a_table(capsys):
    asked = ["advise", "--clients", "1500", "--columns", "9", "--epsilon", "4", "--json", "--rows"]
    told = []
    for rows in ("4", "10", "64", "1000"):
        assert main([*asked, rows]) == 0
        told.append(json.loads(capsys.readouterr().out)["what_pays"])
    assert "0.2, 0.1 and 3.4 points" in told[0][0]
    assert "1.4, 6.0 and 17.6 points" in told[2][0]
    assert told[3][0] == told[2][0].replace("64", "1000")
    assert "should show" in told[1][1]
    assert main(["advise", "--clients", "200", "--columns", "9", "--epsilon", "1", "--rows", "10"]) == 0
    assert "stay hidden" in " ".join(capsys.readouterr().out.split())
    assert main(["advise", "--rows", "0"]) == 2
