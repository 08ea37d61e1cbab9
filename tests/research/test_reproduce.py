"""A study run from end to end, small enough for a test: two rounds, two seeds."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from immediate import Immediate
from rrcluster_research import studies
from rrcluster_research.paper_report import to_text
from rrcluster_research.paper_tables import main_tables, more_tables
from rrcluster_research.read_reproduction import read_reproduction
from rrcluster_research.reproduce import constant_accuracy, plan_reproduction, reproduce
from rrcluster_research.reuse import take_over
from rrcluster_research.studies import STUDIES
from rrcluster_research.study import IDENTIFIER, JOINT, NO_NOISE, Spotlight

from rrcluster.cli import main
from rrcluster.data.arrays import at_most, from_arrays, spaced
from rrcluster.data.build import load_federated
from rrcluster.errors import RunFolderError
from rrcluster.runs.job_runner import in_turn
from rrcluster.runs.sweep import FINISHED, Going, Outcome

SMALL = {
    "data": "fashion-mini",
    "num_clients": 24,
    "num_rounds": 2,
    "sample_rate": 1.0,  # everybody: accounted in closed form
    "local_epochs": 1,
    "delta": 1e-2,
    "max_samples": 20,
    "noise_multiplier": 1.0,  # given, so that nothing is calibrated
    "epsilon": None,
    "device": "cpu",
}
SIZES = {mechanism: {"min_cluster_size": 2} for mechanism in (IDENTIFIER, JOINT, NO_NOISE)}


@pytest.fixture
def tiny(monkeypatch):
    """`fashion` in two rounds, under its own name."""
    study = STUDIES["fashion"]
    quick = replace(
        study.quick,
        settings=SMALL,
        answers=SIZES,
        columns=("balanced-eps2", "balanced-eps8"),
        rows=("ifca", "fesem", "rr-ifca"),
        seeds=(0, 1),
    )
    light = Spotlight("balanced-eps8", (("ifca", JOINT), ("rr-ifca", JOINT)))
    tiny = replace(study, quick=quick, spotlights=(light,))
    monkeypatch.setitem(studies.STUDIES, "fashion", tiny)
    return tiny


def text_of(folder):
    it = read_reproduction(folder)
    return to_text(it, (*main_tables(it), *more_tables(it)))


@pytest.mark.slow
def test_twice_the_same_and_resumed_the_same(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "fashion", "--quick", "--out", "a/fashion"]) == 0
    shown = capsys.readouterr()
    assert "Balanced clusters (0, 90, 180, 270 degrees): accuracy (%)" in shown.out
    assert "verdicts-quick.md" in shown.err
    text = (tmp_path / "a" / "fashion" / "table.md").read_text()
    about = (tmp_path / "a" / "fashion" / "about.md").read_text()
    assert "`rrcluster reproduce fashion --quick --out a/fashion`" in about
    assert "for 24 runs" in about
    row = read_reproduction(tmp_path / "a" / "fashion").row("rr-ifca")
    told = row.cells["balanced-eps2", JOINT].runs[1].final.confusion
    assert np.array(told).shape == (4, 4)
    assert np.array(told).sum(axis=0).tolist() == [6] * 4  # by true group
    drawn = {path.name for path in (tmp_path / "a" / "fashion" / "figures").iterdir()}
    assert "62.68" in text  # published
    assert "algorithm = fesem-memoryless" in text  # under identifier
    assert "Constant predictor" in text
    assert {"sizes-1.pdf", "confusion-1.png", "epsilon-1-balanced.pdf", "worst-decile-1-balanced.png"} <= drawn
    assert "not yet measured" in (tmp_path / "a" / "fashion" / "verdicts-quick.md").read_text()

    plan = plan_reproduction(tiny, out=tmp_path / "b" / "fashion", quick=True)
    for step in reproduce(plan):  # stopped in the middle of a run
        if isinstance(step, Going) and step.job == plan.jobs[3]:
            break
    assert not (plan.jobs[4].folder / "config.yaml").exists()
    assert "not run yet" in text_of(plan.out)
    outcomes = [step for step in reproduce(plan) if isinstance(step, Outcome)]
    assert [outcome.status for outcome in outcomes] == [FINISHED] * len(plan.jobs)
    assert text_of(plan.out) == text


def test_the_executor_is_given_every_job(tiny, tmp_path):
    plan = plan_reproduction(tiny, out=tmp_path, quick=True, seeds=(3,))
    executor = Immediate(wanted=lambda job: job == plan.jobs[0])
    steps = list(reproduce(plan, executor=executor))
    assert executor.jobs == list(plan.jobs)
    assert steps == [Outcome(plan.jobs[0], FINISHED)]
    assert {job.config.seed for job in executor.jobs} == {3}


def test_a_run_of_the_same_settings_is_taken_over_from_another_table(tiny, tmp_path):
    first = plan_reproduction(tiny, out=tmp_path / "a", quick=True, seeds=(0,))
    list(in_turn(first.jobs[:2]))
    (first.jobs[1].folder / "models.safetensors").unlink()  # not finished
    (first.jobs[2].folder).mkdir(parents=True)
    (first.jobs[2].folder / "config.yaml").write_text("- damaged")
    (first.jobs[2].folder / "models.safetensors").touch()
    half = first.jobs[3].folder.with_name(".seed-0.copy")  # left by a process that was killed
    shutil.copytree(first.jobs[0].folder, half)
    (half / "config.yaml").write_text((half / "config.yaml").read_text().replace("seed: 0", "seed: 7"))
    again = plan_reproduction(tiny, out=tmp_path / "b", quick=True, seeds=(0,))
    assert take_over(plan_reproduction(tiny, out=again.out, quick=True, seeds=(7,)).jobs, [first.out]) == 0
    others = plan_reproduction(tiny, out=tmp_path / "c", quick=True, seeds=(0,), changes={"delta": 2e-2})
    assert take_over(others.jobs, [first.out]) == 0
    assert take_over(again.jobs, [first.out, others.out]) == 2  # its two columns have the same noise here
    assert list(in_turn(again.jobs[:1])) == [Outcome(again.jobs[0], FINISHED)]  # no round was run
    one, other = (job.folder / "rounds.jsonl" for job in (first.jobs[0], again.jobs[0]))
    assert one.read_text() == other.read_text()
    assert not again.jobs[1].folder.exists()
    assert take_over(again.jobs, [first.out]) == 0


def test_some_rows_alone(tiny, tmp_path, capsys):
    assert main(["reproduce", "fashion", "--quick", "--rows", "ifca", "oracel", "--out", str(tmp_path)]) == 2
    assert "no row 'oracel'; its rows are ifca, fesem, rr-ifca" in capsys.readouterr().err
    whole = plan_reproduction(tiny, out=tmp_path, quick=True, seeds=(0,))
    part = plan_reproduction(tiny, out=tmp_path, quick=True, seeds=(0,), rows=("ifca", "fesem"))
    assert part.jobs == tuple(job for job in whole.jobs if "rr-ifca" not in str(job.folder.parent.name))
    list(reproduce(part))
    text = text_of(tmp_path)
    assert "DP-FeSEM" in text
    assert "not run yet" not in text
    assert "| RR-Cluster" not in text


def test_runs_of_other_settings_are_never_put_under_a_new_description(tiny, tmp_path):
    before = replace(tiny, quick=replace(tiny.quick, rows=("ifca",), columns=("balanced-eps8",)))
    list(reproduce(plan_reproduction(before, out=tmp_path, quick=True, seeds=(0,))))
    told = (tmp_path / "reproduction.json").read_bytes()
    after = replace(before, quick=replace(before.quick, settings={**SMALL, "update_clip": 0.123}))
    with pytest.raises(RunFolderError, match="other settings than the table"):
        list(reproduce(plan_reproduction(after, out=tmp_path, quick=True, seeds=(0,))))
    assert (tmp_path / "reproduction.json").read_bytes() == told


def test_a_refused_run_is_told_in_its_cell(tiny, tmp_path):
    broken = replace(
        tiny, quick=replace(tiny.quick, answers={IDENTIFIER: {"min_cluster_size": 500}}, rows=("rr-ifca",))
    )
    plan = plan_reproduction(broken, out=tmp_path, quick=True, seeds=(0,))
    list(reproduce(plan, executor=Immediate(wanted=lambda job: "identifier" in job.name)))
    (row,) = read_reproduction(tmp_path).rows
    assert "min_cluster_size (B) = 500" in row.cells["balanced-eps2", IDENTIFIER].reason
    assert row.cells["balanced-eps2", JOINT].reason is None


def test_absent_data_is_left_out_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RRCLUSTER_DATA", str(tmp_path / "nothing"))
    assert main(["reproduce", "cifar", "--quick"]) == 1
    error = capsys.readouterr().err
    assert "Left out: cifar10 not found; searched" in error
    assert "To get it" in error
    assert "nothing could be run" in error
    text = (tmp_path / "runs/reproduce/cifar-quick/table.md").read_text()
    assert "Not run: cifar100 not found" in text  # the reason alone
    assert "57.46" not in text  # epsilon 4 is not part of the small version
    assert "58.41" in text


def test_part_of_the_data_is_enough(tiny, tmp_path, monkeypatch):
    def locate(name, folder):
        if name == "cifar100":
            raise studies.ConfigError("gone")
        return {}

    monkeypatch.setattr("rrcluster_research.reproduce.DataError", studies.ConfigError)
    monkeypatch.setattr("rrcluster_research.reproduce.locate", locate)
    plan = plan_reproduction(STUDIES["cifar"], out=tmp_path)
    assert {job.settings["data"] for job in plan.jobs} == {"cifar10"}
    assert plan.absent == {"cifar100": "gone"}


def test_the_command_line_helps(capsys):
    assert main(["reproduce", "fashion", "--seeds", "1", "1"]) == 2
    assert "names a seed twice" in capsys.readouterr().err
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [*STUDIES, "natural"]
    assert all(row["runs"] > row["quick_runs"] > 0 for row in listed)  # also where the data is not here
    assert main(["reproduce", "fashoin"]) == 2
    assert "did you mean 'fashion'" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert "--list" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "rrcluster reproduce fashion --quick" in capsys.readouterr().out


def test_the_constant_predictor_by_hand():
    """Training targets 1 1 1 0: the answer is 1, right in 2 of 4 and 0 of 2 test samples."""
    data = from_arrays(
        [np.zeros((2, 3)), np.zeros((2, 3))],
        [np.array([1, 1]), np.array([1, 0])],
        test_inputs=[np.zeros((4, 3)), np.zeros((2, 3))],
        test_targets=[np.array([1, 1, 0, 0]), np.array([0, 0])],
        num_classes=2,
    )
    assert constant_accuracy(data) == 0.25


def test_at_most_takes_samples_at_equal_distances():
    assert spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert spaced(3, 4).tolist() == [0, 1, 2]
    data = load_federated("fashion-mini", num_clients=20, seed=0)
    few = at_most(data, 5)
    assert few.sizes.tolist() == [5] * 20
    inputs, targets = data.store.client(7)
    kept = spaced(len(targets), 5)
    assert np.array_equal(few.cohort([7]).inputs[0], inputs[kept])
    assert np.array_equal(few.cohort([7]).targets[0], targets[kept])
    assert few.test_sets[1].inputs.shape[0] == len(few.test_sets[1].targets) == 5
    assert np.array_equal(few.groups, data.groups)
