"""A run beside a constant and one model for all: figures as scikit-learn has them, and sentences that can be wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.data.arrays import without_newcomers
from rrcluster.errors import ConfigError
from rrcluster.report import make_report
from rrcluster.report.folders import find_runs, read_run
from rrcluster.report.tables import results_table
from rrcluster.report.values import effects_text
from rrcluster.runs.comparison import CONSTANT, NEW, ONE, PERSONAL, RUN, Predicted, figures, gain, hurt, verdict

pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
FAST = {"num_clusters": 2, "num_rounds": 12, "sample_rate": 0.5, "delta": 1e-2, "device": "cpu", "mechanism": "none"}
ROLES = {"client": "who", "target": "label", "classes": ["no", "yes"], "test_share": 0.3}


def table(clients=60, *, opposed=True, seed=0):
    """Clients of two groups that read the same column in opposite ways, or all alike."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(clients), 12)
    x = rng.normal(size=(len(who), 2)).round(3)
    yes = (x[:, 0] > 0) ^ ((who % 2 == 1) & opposed)
    names = [f"c{number}" for number in who]
    return {"who": names, "a": x[:, 0], "b": x[:, 1], "label": np.where(yes, "yes", "no")}


def case(rng, kind):
    """Random predictions of a few clients, with ties."""
    rows = int(rng.integers(20, 60))
    owners = np.sort(np.r_[np.arange(5), rng.integers(5, size=rows - 5)])
    if kind == "number":
        return Predicted(owners, rng.normal(size=rows) * 10, rng.normal(size=rows) * 10)
    classes = 2 if kind == "binary" else 4
    scores = rng.integers(1, 6, size=(rows, classes)).astype(float)
    targets = np.r_[np.arange(classes), rng.integers(classes, size=rows - classes)]
    return Predicted(owners, targets, scores / scores.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_figures_are_those_of_scikit_learn(kind):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(100):
        one = case(rng, kind)
        mine, y, said = figures(one), one.targets, one.outputs
        if kind == "number":
            due = {"rmse": metrics.mean_squared_error(y, said) ** 0.5, "r2": metrics.r2_score(y, said)}
        else:
            chosen = said.argmax(axis=1)
            due = {
                "accuracy_rows": metrics.accuracy_score(y, chosen),
                "balanced_accuracy": metrics.balanced_accuracy_score(y, chosen),
                "log_loss": metrics.log_loss(y, said),
                "auc": metrics.roc_auc_score(y, said[:, 1] if kind == "binary" else said, multi_class="ovr"),
            }
        assert {name: mine[name] for name in due} == pytest.approx(due, rel=0, abs=1e-9)


def test_figures_of_clients_by_hand():
    outputs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    one = Predicted(np.array([0, 0, 1]), np.array([0, 0, 1]), outputs)  # client 0 has one of two right, client 1 none
    mine = figures(one)
    assert (mine["accuracy"], mine["accuracy_rows"], mine["worst_decile"]) == pytest.approx((0.25, 1 / 3, 0.0))
    numbers = figures(Predicted(np.array([0, 0, 1]), np.array([1.0, 1.0, 5.0]), np.array([1.0, 3.0, 2.0])))
    assert (numbers["rmse_clients"], numbers["worst_rmse"]) == pytest.approx(((2**0.5 + 3) / 2, 3.0))
    same = Predicted(np.array([0]), np.array([1]), np.array([[0.5, 0.5]]))
    assert figures(same)["auc"] is None


def test_clients_that_are_hurt_and_what_chance_gives():
    """Two coins that know nothing hurt as many as chance says; a model that is worse for some hurts more."""
    rng = np.random.default_rng(1)
    owners, targets = np.repeat(np.arange(400), 5), rng.integers(2, size=2000)

    def coin(right):
        said = np.where(rng.random(2000) < right, targets, 1 - targets)
        return Predicted(owners, targets, np.eye(2)[said])

    one, two = coin(0.7), coin(0.7)
    share, chance = hurt(one, two)
    assert share == pytest.approx(chance, abs=0.06)
    assert hurt(one, one) == (0.0, 0.0)
    worse = coin(np.where(owners < 100, 0.1, 0.7))
    share, chance = hurt(worse, two)
    assert share > chance + 0.05
    assert gain(worse, two)[0] < 0
    assert gain(worse, two)[1]
    text = verdict({RUN: worse, CONSTANT: coin(0.3), ONE: two}, groups="groups", constant="no")
    assert text.startswith("Better than always saying no")
    assert "groups lose" in text
    text = verdict({RUN: one, CONSTANT: two, ONE: two}, groups="groups", constant="no")
    assert text.startswith("No better than always saying no")
    assert "groups gain nothing clear over one model" in text


def test_groups_that_disagree_pay_and_groups_that_do_not_exist_do_not(tmp_path):
    for opposed, words in ((True, "groups gain "), (False, "groups gain nothing clear")):
        run = rr.run(data=table(opposed=opposed), **ROLES, **FAST, algorithm="ifca", out=tmp_path / str(opposed))
        judged = read_run(run.folder).final
        assert words in judged.verdict
        assert list(judged.figures) == [RUN, ONE, PERSONAL, CONSTANT]
        assert judged.figures[RUN]["accuracy"] == pytest.approx(judged.accuracy)
        assert judged.figures[RUN]["worst_decile"] == pytest.approx(judged.worst_decile)
        shown = results_table(find_runs([run.folder]))
        assert [row[0] for row in shown.rows][1:] == [ONE, PERSONAL, CONSTANT]
        assert "Chance" not in shown.note
        page = make_report([run.folder], out=tmp_path / "page").page.read_text()
        assert "Verdict (diagnostic, not private):" in page


def test_references_can_be_left_out_and_secure_runs_have_none(tmp_path):
    run = rr.run(data=table(), **ROLES, **FAST, algorithm="ifca", references=False, out=tmp_path / "a")
    assert list(read_run(run.folder).final.figures) == [RUN, CONSTANT]
    secure = FAST | {"mechanism": "joint", "noise_multiplier": 1.0, "secure": True, "num_clients": 60, "num_rounds": 3}
    run = rr.run(
        data=table(),
        **ROLES | {"test_share": 0.0},
        **secure,
        algorithm="ifca",
        types={"a": "number", "b": "number"},
        out=tmp_path / "b",
    )
    assert not (run.folder / "diagnostics.jsonl").exists()


@pytest.mark.parametrize("algorithm", ["mixed-effects", "fedavg"])
def test_numbers_are_judged_by_rmse(tmp_path, algorithm):
    rows = table()
    rows["label"] = rows["a"] * np.where(np.arange(len(rows["a"])) // 12 % 2, 3.0, 1.0) + 1
    roles = {"client": "who", "target": "label", "regression": True, "test_share": 0.3}
    private = {"mechanism": "joint", "noise_multiplier": 0.05} if algorithm == "mixed-effects" else {}
    rounds = {"num_rounds": 30} if algorithm == "mixed-effects" else {}
    run = rr.run(data=rows, **roles, **FAST | private | rounds, algorithm=algorithm, out=tmp_path / "a")
    judged = read_run(run.folder).final
    assert judged.figures[RUN]["rmse"] ** 2 == pytest.approx(judged.loss)  # clients have equally many test rows
    assert judged.figures[CONSTANT]["r2"] == pytest.approx(0, abs=0.05)
    better = judged.figures[RUN]["rmse_clients"] < judged.figures[CONSTANT]["rmse_clients"]
    assert better or algorithm == "mixed-effects"  # for so few clients noise is too much
    assert judged.verdict.startswith("Better than always saying 0.9" if better else "No better than always")
    assert "RMSE" in results_table(find_runs([run.folder])).columns


def test_new_clients_take_no_part_and_are_served(tmp_path):
    whole, changed = table(), table()
    runs = [rr.run(data=whole, **ROLES, **FAST, algorithm="ifca", new_clients=0.2, out=tmp_path / "a")]
    data = rr.from_frame(whole, **ROLES)
    kept = without_newcomers(data, 0.2)
    assert (kept.num_clients, kept.newcomers.num_clients) == (48, 12)
    assert not {*kept.clients} & {*kept.newcomers.clients}
    new = np.isin(changed["who"], kept.newcomers.clients)
    changed["a"] = np.where(new, 100.0, changed["a"])
    runs.append(rr.run(data=changed, **ROLES, **FAST, algorithm="ifca", new_clients=0.2, out=tmp_path / "b"))
    assert np.array_equal(runs[0].models.clustered, runs[1].models.clustered)
    first, second = (read_run(run.folder).final.figures for run in runs)
    assert first[RUN] == second[RUN]
    assert first[RUN + NEW] != second[RUN + NEW]
    assert first[RUN + NEW]["clients"] == 12
    assert [row[0] for row in results_table(find_runs([runs[0].folder])).rows if NEW in row[0]]
    with pytest.raises(ConfigError, match="secure run"):
        rr.run(data=whole, **ROLES, **FAST | {"mechanism": "joint"}, new_clients=0.2, secure=True, num_clients=60)
    with pytest.raises(ConfigError, match="its own clients"):
        rr.run(data="fashion-mini", new_clients=0.2)


def test_without_test_rows_new_clients_are_tested_on_rows_that_chose_nothing(tmp_path):
    roles = ROLES | {"test_share": 0.0}
    run = rr.run(data=table(), **roles, **FAST, algorithm="ifca", new_clients=0.2, out=tmp_path / "a")
    line = json.loads((run.folder / "diagnostics.jsonl").read_text().splitlines()[-1])
    assert "comparison" not in line or RUN + NEW in line["comparison"]["figures"]


def test_groups_are_told_by_the_columns_that_part_them(tmp_path):
    """The models alone say that column a parts the groups and column b does not; a secure run has it too."""
    rules = {"scale": {"a": (-3, 3), "b": (-3, 3)}, "types": {"a": "number", "b": "number"}}
    roles = ROLES | rules | {"test_share": 0.0}
    run = rr.run(data=table(), **roles, **FAST | {"num_rounds": 40}, algorithm="ifca", local_lr=0.5, out=tmp_path / "a")
    secure = FAST | {"mechanism": "joint", "noise_multiplier": 1.0, "secure": True, "num_clients": 60, "num_rounds": 3}
    released = rr.run(data=table(), **roles, **secure, algorithm="ifca", out=tmp_path / "b")
    assert len(read_run(released.folder).summary["groups"]["typical"]) == 2
    told = read_run(run.folder).summary["groups"]
    assert told["effects"][0]["column"] == "a"
    low, high = sorted(told["effects"][0]["by_group"])
    assert low < -0.3 < 0.3 < high
    assert {entry["column"] for entry in told["effects"]} == {"a", "b"}
    assert told["agreement"][0][1] < 0.5
    assert sum(told["shares"]) == pytest.approx(1)
    assert told["outputs"] == ["yes"]
    page = make_report([run.folder], out=tmp_path / "page").page.read_text()
    assert "Your groups" in page
    assert "Where the groups differ most" in page


def test_rows_that_are_scored_choose_no_cluster(tmp_path):
    """Other test rows, other figures, and the same clusters: assigned, and measured beside the run."""
    run = rr.run(data=table(), **ROLES, **FAST, algorithm="ifca", references=False, out=tmp_path / "a")
    data = rr.from_frame(table(), **ROLES)
    tests = [replace(one, targets=1 - one.targets) for one in data.test_sets]
    flipped = replace(data, test_sets=tuple(tests))
    one, two = (rr.assign(rr.load(run.folder), population) for population in (data, flipped))
    assert one.cluster.tolist() == two.cluster.tolist()
    assert np.bincount(one.cluster).tolist() == list(run.evaluation.choice_sizes)
    again = rr.run(data=replace(flipped, name="mine"), **FAST, algorithm="ifca", out=tmp_path / "b")
    assert again.evaluation.choice_sizes == run.evaluation.choice_sizes
    assert again.evaluation.accuracy == pytest.approx(1 - run.evaluation.accuracy)


def test_mixed_effects_release_what_they_gain_over_one_model(tmp_path):
    """Also in a secure run, which measures nothing else."""
    secure = {"num_clients": 60, "secure": True, "noise_multiplier": 0.5, "delta": 1e-3, "num_rounds": 30}
    roles = ROLES | {"test_share": 0.0, "types": {"a": "number", "b": "number"}, "features": ["a", "b"]}
    run = read_run(rr.run(data=table(), **roles, **secure, out=tmp_path / "a").folder)
    gain = run.summary["gain_over_one_model"]
    assert gain["noise_std"] > 0
    assert run.final is None
    assert not any(run.summary["random_effects"]) or "less than under one model (released)" in effects_text(run.summary)
