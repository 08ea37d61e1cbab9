"""`rrcluster sweep` as a person meets it; in this process, because starting another costs seconds."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console

from rrcluster.cli import main
from rrcluster.report.tables import UNCOVERED_TUNING
from rrcluster.runs import private_selection as module
from rrcluster.runs.outcome import Progress, accuracy_text
from rrcluster.runs.progress import SweepView
from rrcluster.runs.sweep import Going, Outcome
from rrcluster.types import NoisyEvaluation

SETTINGS = {
    "num_clients": 40,
    "max_samples": 20,
    "num_rounds": 2,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "epsilon": 8,
    "delta": 0.01,
    "evaluate_every": 2,
    "device": "cpu",
    "private_evaluation": 0.25,
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a grid and go where it is."""
    monkeypatch.chdir(tmp_path)

    def write(**changes):
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SETTINGS | changes))
        return "grid.yaml"

    return write


def test_a_sweep_leaves_folders_a_table_and_the_warning(file, tmp_path, capsys):
    assert main(["sweep", file(min_cluster_size=[0, 20])]) == 1, "one of them was refused"
    out, err = capsys.readouterr()
    assert " ".join(UNCOVERED_TUNING.split()[:6]) in " ".join(out.split())
    assert "2-min_cluster_size=20: refused: min_cluster_size (B) = 20 needs 80 clients" in err
    assert "1-min_cluster_size=0  finished  2/2" in err
    assert "1 of 2 runs were refused or failed." in err
    assert "left" in err
    folder = tmp_path / "runs" / "grid"
    names = {path.name for path in folder.iterdir()}
    assert names == {"1-min_cluster_size=0", "sweep.json", "table.csv", "table.md", "table.tex"}
    assert UNCOVERED_TUNING.split("`")[0].strip() in (folder / "table.md").read_text()


def test_json_is_the_answer_and_nothing_else(file, capsys):
    assert main(["sweep", file(update_clip=[0.2]), "--out", "here", "--json"]) == 0
    out, _ = capsys.readouterr()
    told = json.loads(out)
    assert told["folder"] == "here"
    assert told["runs"][0]["status"] == "finished"
    assert UNCOVERED_TUNING in told["table"]["note"]


def test_when_nothing_could_be_run_the_status_says_so(file, capsys):
    assert main(["sweep", file(min_cluster_size=[20, 30])]) == 1
    assert "refused" in capsys.readouterr().err


def test_a_selection_shows_the_winner_and_never_how_many_runs_there_were(file, monkeypatch, capsys):
    told = []
    for runs in (1, 3):
        monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng, runs=runs: runs)
        out = f"best-{runs}"
        assert main(["sweep", file(server_lr=[0.5, 1.0]), "--private-select", "--out", out]) == 0
        told.append(capsys.readouterr())
    lines = [one.err.splitlines() for one in told]
    assert lines[0][:2] == lines[1][:2]
    assert [len(one) for one in lines] == [len(lines[0])] * 2
    assert "Selecting among 2 combinations: epsilon" in lines[0][0]
    assert "covers the selection and the run" in lines[0][-2]
    assert "includes the selection of its settings" in " ".join(told[0].out.split())


def test_a_selection_as_json(file, monkeypatch, capsys):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 1)
    arguments = ["--private-select", "--mean-repetitions", "3", "--law", "logarithmic", "--out", "best", "--json"]
    assert main(["sweep", file(server_lr=[0.5, 1.0]), *arguments]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["selected"]["server_lr"] in (0.5, 1.0)
    assert told["epsilon"] <= 8
    assert err == ""
    assert main(["sweep", "grid.yaml", *arguments]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_sweep_and_a_selection_of_one_file_keep_out_of_each_other_s_folder(file, monkeypatch, capsys):
    monkeypatch.setattr(module, "draw_repetitions", lambda event, *, rng: 1)
    grid = file(server_lr=[0.5, 1.0])
    assert main(["sweep", grid]) == 0
    assert main(["sweep", grid, "--private-select"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["grid", "grid-selected"]
    assert not (Path("runs") / "grid" / "config.yaml").exists()
    capsys.readouterr()
    (Path("runs") / "grid" / "sweep.json").unlink()  # as of a sweep that was stopped
    assert main(["sweep", grid, "--private-select", "--out", "runs/grid"]) == 2
    assert "runs/grid already contains a sweep" in capsys.readouterr().err
    assert main(["sweep", grid, "--out", "runs/grid-selected"]) == 2
    assert "runs/grid-selected is the folder of a single run" in capsys.readouterr().err


BAD = {
    "no file": ([], {}, "sweep needs a YAML file"),
    "missing file": (["nothing.yaml"], {}, "nothing.yaml: no such file"),
    "selection flag alone": (["grid.yaml", "--law", "logarithmic"], {}, "--law only applies with --private-select"),
    "setting that is gone": (["grid.yaml", "--public-score"], {}, "'public_score' is gone: a selection scores runs by"),
    "unknown setting": (["grid.yaml"], {"epsilonn": 1}, "did you mean 'epsilon'"),
    "no score": (
        ["grid.yaml", "--private-select"],
        {"private_evaluation": 0.0, "server_lr": [1, 2]},
        "no private score",
    ),
    "nothing to select": (["grid.yaml", "--private-select"], {}, "nothing to select among"),
}


@pytest.mark.parametrize(("arguments", "settings", "text"), BAD.values(), ids=BAD.keys())
def test_bad_usage_is_one_line_with_the_way_out(arguments, settings, text, file, tmp_path, capsys):
    file(**settings)
    assert main(["sweep", *arguments]) == 2
    assert text in capsys.readouterr().err.splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["grid.yaml"]


def shown(view):
    console = Console(file=io.StringIO(), width=120)
    console.print(view._table())
    return console.file.getvalue()


def test_the_live_table_shows_what_runs_and_the_time_left():
    jobs = [SimpleNamespace(name=f"run {place:02d}") for place in range(30)]
    view = SweepView(jobs, hidden=True)
    judged = NoisyEvaluation(np.array([25.0, 0.0]), 100.0, 1.0, 0.0, 4.0)
    view.update(Going(jobs[0], 1, 4, accuracy_text(Progress(0, 4, np.zeros(2), 1.0, None, judged))))
    text = shown(view)
    assert "0 of 30 runs" in text
    assert "left" in text
    assert "75.0% ± 1.0 (private)" in text
    assert "run 19" in text
    assert "run 20" not in text
    for job in jobs:
        view.update(Outcome(job, "refused", "why"))
    assert "30 of 30 runs" in shown(view)
    assert "run 29" in shown(view)
