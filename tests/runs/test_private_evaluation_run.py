import json

import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.report.folders import find_runs
from rrcluster.report.tables import results_table
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.outcome import average, read_evaluation
from rrcluster.runs.run import finish, resume, start


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def judged(tiny):
    return tiny | {"private_evaluation": 0.25, "noise_multiplier": 0.5}


def test_released_evaluations_are_written_as_such(judged, tmp_path):
    running = start(make_experiment(from_flat(judged)))
    watched = [progress.private_evaluation for progress in running.rounds()]
    rounds = lines(tmp_path / "run" / "rounds.jsonl")
    told = [read_evaluation(line["private_evaluation"]) for line in rounds]
    assert [one.accuracy for one in watched] == [one.accuracy for one in told]  # a quarter of 4 rounds is one round
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["private_evaluation"]
    assert summary["accuracy"] == pytest.approx(average(told, num_rounds=4).accuracy)
    assert summary["accuracy_noise_std"] > 0
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert "noisy mean accuracy and clipped loss" in str(privacy["released"])
    assert privacy["noise"]["evaluation_weight"] == pytest.approx(0.25 * 0.4)


def test_it_costs_noise_not_epsilon(judged, tmp_path):
    plain = start(make_experiment(from_flat(judged | {"private_evaluation": 0.0, "out": str(tmp_path / "plain")})))
    with_it = start(make_experiment(from_flat(judged)))
    assert with_it.experiment.plan.epsilon() == plain.experiment.plan.epsilon()
    assert with_it.experiment.plan.mechanism.noise_std > plain.experiment.plan.mechanism.noise_std


def test_off_writes_nothing_about_it(tiny, tmp_path):
    rr.run(**tiny)
    assert "private_evaluation" not in (tmp_path / "run" / "rounds.jsonl").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["private_evaluation"] is None


def test_a_resumed_run_averages_over_what_was_released_before(judged, tmp_path):
    whole = tmp_path / "run"
    rr.run(**judged)
    running = start(make_experiment(from_flat(judged | {"out": str(tmp_path / "stopped")})))
    rounds = running.rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    finish(resume(tmp_path / "stopped"))
    both = [json.loads((folder / "summary.json").read_text()) for folder in (whole, tmp_path / "stopped")]
    assert both[0]["private_evaluation"] == both[1]["private_evaluation"]


def test_the_average_takes_the_last_quarter(judged):
    running = start(make_experiment(from_flat(judged | {"num_rounds": 8})))
    told = [progress.private_evaluation for progress in running.rounds()]
    released = running.folder.private_evaluations()
    assert told[-1].clients == pytest.approx(released[-1].clients + released[-2].clients)
    assert told[0].clients == released[0].clients
    assert average([], num_rounds=8) is None


def test_what_has_no_accuracy_or_no_room_is_refused(judged, tmp_path):
    with pytest.raises(ConfigError, match="regression, which has none"):
        rr.run(**(judged | {"data": "synthetic"}))
    with pytest.raises(ConfigError, match="gives every client its own model"):
        rr.run(**(judged | {"algorithm": "fedper"}))
    with pytest.raises(PrivacyError, match="use mechanism = joint"):
        rr.run(**(judged | {"mechanism": "identifier"}))
    assert not (tmp_path / "run").exists()


ROWS = {
    "who": [f"c{place // 6}" for place in range(240)],
    "a": [((7 * place) % 11) / 11 for place in range(240)],
    "label": ["yes" if (5 * place) % 7 > 3 else "no" for place in range(240)],
}
TABLE = {"client": "who", "target": "label", "classes": ["no", "yes"], "algorithm": "ifca", "num_clusters": 4}
TABLE |= {"num_rounds": 6, "delta": 1e-3, "noise_multiplier": 0.5, "sample_rate": 0.5, "private_evaluation": 0.25}


@pytest.mark.parametrize(("share", "rows"), [(0.3, "test"), (0.0, "training")])
def test_the_rows_that_an_accuracy_is_about_are_named(share, rows, tmp_path):
    pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
    run = rr.run(data=ROWS, **TABLE, test_share=share, references=False, out=tmp_path / "run")
    assert json.loads((run.folder / "summary.json").read_text())["private_evaluation"].get("rows", "training") == rows
    table = results_table(find_runs([run.folder]))
    assert ("Private accuracy on training rows (%)" in table.columns) == (rows == "training")
    assert ("which flatters them" in table.note) == (rows == "training")


def test_a_secure_run_uses_the_rows_it_holds_out_or_refuses_them(tmp_path):
    pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
    secure = TABLE | {"secure": True, "num_clients": 40, "types": {"a": "number"}, "test_share": 0.3, "num_rounds": 2}
    run = rr.run(data=ROWS, **secure, out=tmp_path / "run")
    assert json.loads((run.folder / "summary.json").read_text())["private_evaluation"]["rows"] == "test"
    with pytest.raises(ConfigError, match="never looks at"):
        rr.run(data=ROWS, **secure | {"private_evaluation": 0.0}, out=tmp_path / "other")
