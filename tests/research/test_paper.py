"""The paper's numbers, transcribed a second time, and the runs that answer them."""

import dataclasses
import json

import pytest
from immediate import Immediate
from rrcluster_research.reproduce import plan_reproduction, reproduce
from rrcluster_research.studies import STUDIES, find_study

from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS, check_applies
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import plan_for

# Lines of the tables as the paper's source has them, marks of emphasis removed; '-' is its dash.
PRINTED = {
    "fashion": """
        DP-FedAvg & 60.88 & 61.50 & 62.72 & 60.80 & 61.53 & 61.59
        DP-FedPer & 61.03 & 61.78 & 62.19 & 60.42 & 61.83 & 62.35
        DP-IFCA & 62.68 & 64.46 & 65.35 & 56.12 & 58.05 & 59.63
        DP-FeSEM & 63.16 & 64.68 & 64.76 & 58.55 & 59.82 & 60.10
        DP-FedCAM & 49.70 & 56.86 & 61.54 & 43.98 & 47.51 & 50.35
        RR-Cluster (IFCA) & 65.69 & 66.63 & 67.51 & 61.31 & 61.99 & 63.77
        RR-Cluster (FeSEM) & 63.89 & 64.80 & 64.86 & 58.70 & 60.34 & 61.16
        RR-Cluster (FedCAM) & 53.91 & 58.65 & 64.78 & 46.12 & 47.95 & 50.78""",
    "shakespeare": """
        DP-FedAvg & 04.47 & 13.43 & 17.53
        DP-FedPer & 13.09 & 13.14 & 13.18
        DP-IFCA & 12.62 & 12.64 & 13.20
        DP-FeSEM & 10.97 & 12.99 & 15.89
        DP-FedCAM & - & - & 04.47
        RR-Cluster (IFCA) & 13.42 & 13.83 & 16.25""",
    "emnist": """
        DP-FedAvg & 26.47 & 30.95 & 32.61 & 23.82 & 24.46 & 25.54
        DP-FedPer & 40.67 & 40.81 & 41.23 & 24.78 & 25.51 & 26.12
        DP-IFCA & 62.23 & 65.39 & 65.93 & 32.53 & 35.60 & 36.19
        DP-FeSEM & 60.43 & 65.72 & 66.24 & 31.12 & 37.52 & 38.74
        DP-FedCAM & 57.35 & 57.22 & 61.26 & 23.66 & 24.55 & 29.70
        RR-Cluster (IFCA) & 66.38 & 66.75 & 67.04 & 37.13 & 38.92 & 39.05""",
    "cifar": """
        DP-FedAvg & 52.89 & 54.48 & 14.05 & 14.49
        DP-FedProx & 52.04 & 54.61 & 14.48 & 14.53
        DP-FeSEM & 53.01 & 55.87 & 16.23 & 17.08
        DP-FedCAM & 52.50 & 54.73 & 16.36 & 17.04
        DP-IFCA & 53.91 & 56.77 & 16.29 & 17.47
        RR-Cluster (IFCA) & 57.46 & 58.41 & 17.83 & 18.00""",
    "clustering": """
        DP-IFCA & 34.37 & 42.18 & 39.06 & 40.62 & 42.18 & 75.00
        DP-FeSEM & - & 42.18 & 39.06 & 32.81 & 50.00 & 46.87
        RR-Cluster (IFCA), B = 4 & 40.62 & 45.31 & 43.75 & 59.37 & 87.50 & 98.44
        RR-Cluster (IFCA), B = 6 & 40.62 & 53.12 & 62.50 & 87.50 & 100.00 & 84.37
        RR-Cluster (IFCA), B = 8 & 40.62 & 59.37 & 87.50 & 98.44 & 100.00 & 100.00""",
    "ablation": "B = 0 (DP-IFCA) & 62.68",
}
BUDGETS = {  # epsilons by panel; None is infinity
    "intro": [1, 2, 4, 8, 16],  # ours: the figure prints none
    "fashion": [2, 4, 8, 2, 4, 8],
    "curves": [2, 4],
    "shakespeare": [4, 8, 16],
    "emnist": [2, 4, 8, 2, 4, 8],
    "cifar": [4, 8, 4, 8],
    "ablation": [2],
    "clustering": [0.5, 2, 4, 8, 16, None],
}


@pytest.mark.parametrize("name", PRINTED)
def test_published_numbers_cell_by_cell(name):
    study = STUDIES[name]
    printed = {}
    for line in PRINTED[name].strip().splitlines():
        method, *cells = [cell.strip() for cell in line.split("&")]
        printed[method] = [None if cell == "-" else float(cell) for cell in cells]
    told = [column for column in study.columns if column.epsilon is not None or name == "clustering"]
    ours = {row.name: [study.published(row, column) for column in told] for row in study.rows if row.published}
    assert ours == printed
    assert list(ours) == list(printed)


@pytest.mark.parametrize("name", BUDGETS)
def test_the_columns_are_the_papers(name):
    found = [column.epsilon for column in STUDIES[name].columns]
    asked = [epsilon for epsilon in found if epsilon is not None] + ([None] if None in BUDGETS[name] else [])
    assert asked == BUDGETS[name]
    assert len({column.key for column in STUDIES[name].columns}) == len(found)


def test_all_names_are_there():
    names = ["intro", "fashion", "curves", "shakespeare", "emnist", "cifar", "ablation", "clustering", "synthetic"]
    assert list(STUDIES) == [*names, "map"]
    with pytest.raises(ConfigError, match="did you mean 'shakespeare'"):
        find_study("Shakspeare")


def test_populations_are_the_papers():
    for name in ("fashion", "emnist", "cifar", "clustering", "ablation", "intro", "curves"):
        assert STUDIES[name].settings["num_clients"] == 1000
    assert STUDIES["shakespeare"].settings["num_clients"] == 300
    for name, study in STUDIES.items():
        assert len(study.seeds) >= 5
        rate = 1.0 if name == "shakespeare" else 0.1  # said among its choices
        assert name == "synthetic" or (study.settings["sample_rate"], study.settings["delta"]) == (rate, 1e-3)
    assert any("the paper: q = 0.1" in choice for choice in STUDIES["shakespeare"].choices)
    high, mild = (next(c for c in STUDIES["emnist"].columns if c.key.startswith(key)) for key in ("high", "mild"))
    assert (high.settings["concentration"], mild.settings["concentration"]) == (0.1, 0.5)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", STUDIES)
def test_no_job_is_refused(name, quick, tmp_path, monkeypatch):
    """Every combination makes sense; with the noise given, because calibrating all would take minutes."""
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    plan = plan_reproduction(STUDIES[name], out=tmp_path, quick=quick, seeds=(0,))
    assert plan.jobs
    assert len({job.folder for job in plan.jobs}) == len({job.name for job in plan.jobs}) == len(plan.jobs)
    for job in plan.jobs:
        config = job.config
        column = next(c for c in plan.columns if c.key == job.values["column"])
        assert config.privacy.epsilon == column.epsilon
        assert (config.privacy.mechanism == "none") == (column.epsilon is None)
        given = {} if config.privacy.mechanism == "none" else {"noise_multiplier": 1.0}
        noisy = dataclasses.replace(config, privacy=dataclasses.replace(config.privacy, epsilon=None, **given))
        method = config.method
        check_applies(METHODS[method.algorithm], config.privacy.mechanism, method.min_cluster_size)
        assert plan_for(noisy).num_rounds == config.privacy.num_rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_budget_can_be_calibrated(name, tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    done = set()
    for quick in (False, True):
        for job in plan_reproduction(STUDIES[name], out=tmp_path, quick=quick, seeds=(0,)).jobs:
            config = job.config
            clusters = METHODS[config.method.algorithm].num_clusters(config.method.num_clusters)
            key = (config.privacy, clusters, config.data.num_clients, config.privacy.num_rounds)
            if config.privacy.mechanism != "none" and key not in done:
                spent = plan_for(config).epsilon()
                assert 0.95 * config.privacy.epsilon <= spent <= config.privacy.epsilon
            done.add(key)


def test_the_map_scales_b_with_the_cohort_and_gives_the_oracle_its_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    plan = plan_reproduction(STUDIES["map"], out=tmp_path)
    columns = {column.key: column for column in plan.columns}

    def settings(row, column, mechanism):
        return plan.answer(plan.study.row(row), columns[column], mechanism)

    for column, exact, coin in (
        ("even-eps8", 8, 20),
        ("k8-eps2", 4, 10),
        ("small-eps8", 2, 6),
        ("uneven-large-eps2", 24, 60),
    ):
        assert settings("exact", column, "identifier")["min_cluster_size"] == exact
        assert settings("coin", column, "joint")["min_cluster_size"] == coin
    assert "min_cluster_size" not in settings("ifca", "even-eps8", "joint")
    for column, groups in (("even-eps8", 4), ("three-eps8", 3), ("one-eps2", 1), ("k8-eps8", 4)):
        assert settings("oracle", column, "joint")["num_clusters"] == groups
    assert settings("survey", "k8-eps8", "joint")["num_clusters"] == 8


@pytest.mark.parametrize("name", STUDIES)
def test_no_published_cell_is_left_out(name, tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    plan = plan_reproduction(STUDIES[name], out=tmp_path)
    for row in plan.rows:
        for column in plan.columns:
            if plan.study.published(row, column) is not None:
                mechanisms = [m for m in column.mechanisms if isinstance(plan.answer(row, column, m), dict)]
                assert mechanisms == list(column.mechanisms)


@pytest.mark.parametrize("name", STUDIES)
def test_rows_that_are_named_exist(name):
    study = STUDIES[name]
    rows, columns = {row.key: row for row in study.rows}, {column.key: column for column in study.columns}
    assert len(rows) == len(study.rows)
    for first, second, mechanism in study.pairs:
        assert mechanism in rows[first].answers
        assert mechanism in rows[second].answers
    for claim in study.claims:
        for pair in claim.pairs:
            assert all(isinstance(rows[key].answers[claim.mechanism], dict) for key in pair)
    for light in study.spotlights:
        assert light.column in columns
        assert all(mechanism in rows[key].answers for key, mechanism in light.cells)
    assert set(study.quick.rows) <= set(rows)
    assert set(study.quick.columns) <= set(columns)
    for row in study.rows:
        assert not row.published or len(row.published) == len(study.columns)


def test_base_rows_differ_from_rebalanced_ones_in_the_rebalancing_alone():
    """Else a comparison would show more than it says; exploration is compared with exploration.

    The map compares ways to find groups with each other, and says so.
    """
    for study in (study for name, study in STUDIES.items() if name != "map"):
        for first, second, mechanism in study.pairs:
            one, two = study.row(first).answers[mechanism], study.row(second).answers[mechanism]
            changed = {key for key in {*one, *two} if one.get(key) != two.get(key)}
            changed -= {"init"}  # with B there is no survey, so that exploration is all that both have
            assert changed <= {"rebalance", "min_cluster_size"} or (study.name, mechanism) == ("intro", "joint"), first


def test_exploration_is_written_out_in_every_row():
    for study in STUDIES.values():
        for row in study.rows:
            for answer in row.answers.values():
                assert isinstance(answer, str) or (answer["algorithm"] in METHODS and "exploration" in answer)


def test_another_model_leaves_the_rows_that_name_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    plan = plan_reproduction(STUDIES["fashion"], out=tmp_path, changes={"model": "mlp", "delta": 1e-4})
    models = {job.values["row"]: from_flat(dict(job.settings)).method.model for job in plan.jobs}
    assert models.pop("DP-FedPer") == "cnn"
    assert set(models.values()) == {"mlp"}
    assert {job.config.privacy.delta for job in plan.jobs} == {1e-4}


def test_a_network_brings_its_own_clip_wherever_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    by_model = {"cnn": {"update_clip": 0.7}, "mlp": {"local_lr": 0.9}}
    study = dataclasses.replace(STUDIES["fashion"], by_model=by_model, by_budget={})

    def found(changes):
        plan = plan_reproduction(study, out=tmp_path, seeds=(0,), changes=changes)
        clips = {job.values["row"]: job.config.privacy.update_clip for job in plan.jobs}
        return clips.pop("DP-FedPer"), set(clips.values()), {job.config.local.local_lr for job in plan.jobs}

    usual, rate = study.settings["update_clip"], study.settings["local_lr"]
    assert found({}) == (0.7, {usual}, {rate})  # DP-FedPer names the cnn for itself
    assert found({"model": "cnn"}) == (0.7, {0.7}, {rate})
    assert found({"model": "mlp"})[1:] == ({usual}, {0.9, rate})
    assert plan_reproduction(study, out=tmp_path, changes={"model": "cnn"}).shared["update_clip"] == 0.7


def test_a_table_with_another_network_has_its_settings_at_each_budget_for_every_row(tmp_path, monkeypatch):
    monkeypatch.setattr("rrcluster_research.reproduce.locate", lambda name, folder: {})
    wanted = {2.0: {"sample_rate": 0.5, "update_clip": 0.6}, None: {"update_clip": 0.8}}
    study = dataclasses.replace(STUDIES["fashion"], by_model={"cnn": {"update_clip": 0.7}}, by_budget={"cnn": wanted})

    def found(changes, *, quick=False):
        plan = plan_reproduction(study, out=tmp_path, seeds=(0,), quick=quick, changes=changes)
        return {
            (job.values["column"], job.config.privacy.sample_rate, job.config.privacy.update_clip) for job in plan.jobs
        }

    balanced = {cell for cell in found({"model": "cnn"}) if cell[0].startswith("balanced")}
    assert balanced == {
        ("balanced-eps2", 0.5, 0.6),
        ("balanced-eps4", 0.1, 0.7),
        ("balanced-eps8", 0.1, 0.7),
        ("balanced-no-noise", 0.1, 0.8),
    }  # one clip a column: DP-FedPer, which names the cnn, has it too
    assert {rate for _, rate, _ in found({})} == {0.1}  # not where a row alone has that network
    assert {rate for _, rate, _ in found({"model": "cnn"}, quick=True)} == {0.1}
    small = dataclasses.replace(study, settings={**study.settings, "data": "fashion-mini", "num_clients": 8})
    plan = plan_reproduction(small, out=tmp_path, seeds=(0,), changes={"model": "cnn"})
    list(reproduce(plan, executor=Immediate(wanted=lambda job: False)))
    told = json.loads((tmp_path / "reproduction.json").read_text())["shared"].split("; ")
    assert "update_clip = 0.7" in told[0]
    assert told[1:] == ["at epsilon 2: sample_rate = 0.5, update_clip = 0.6", "without noise: update_clip = 0.8"]
