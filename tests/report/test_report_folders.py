import json

import pytest

from rrcluster.errors import RunFolderError
from rrcluster.registry import METHODS, register
from rrcluster.report.folders import find_runs, read_run
from rrcluster.report.values import distinct_labels, method_label


def test_reads_a_run(tmp_path, run_folder):
    run = read_run(run_folder(tmp_path / "one"))
    assert (run.label, run.private, run.seed, run.status) == ("DP-IFCA", True, 0, "finished")
    assert run.epsilon == pytest.approx(4.0, rel=1e-3)
    assert (run.delta, run.seconds, run.num_clusters) == (1e-4, 41.25, 4)
    assert len(run.rounds) == 12
    assert run.final is not None
    assert run.final.accuracy == 0.75
    assert run.exposed


@pytest.mark.parametrize("name", ["config.yaml", "privacy.json", "rounds.jsonl"])
def test_missing_file_is_named(tmp_path, run_folder, name):
    folder = run_folder(tmp_path / "one")
    (folder / name).unlink()
    with pytest.raises(RunFolderError, match=name):
        read_run(folder)


@pytest.mark.parametrize("name", ["config.yaml", "privacy.json", "summary.json", "rounds.jsonl", "diagnostics.jsonl"])
@pytest.mark.parametrize("damage", [b"{broken: [\n\n", b"[1, 2]\n", b"\xff\xfe\x00\n", b"[" * 20_000 + b"\n"])
def test_damage_is_named_with_a_way_out(tmp_path, run_folder, name, damage):
    folder = run_folder(tmp_path / "one")
    (folder / name).write_bytes(damage)
    with pytest.raises(RunFolderError, match=rf"{name}.*[Rr]un again|{name}.*Restore"):
        read_run(folder)


def test_yaml_cannot_make_objects(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    (folder / "config.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        read_run(folder)
    assert not (tmp_path / "made").exists()


def test_statement_must_say_whether_it_is_private(tmp_path, run_folder):
    with pytest.raises(RunFolderError, match=r"privacy\.json"):
        read_run(run_folder(tmp_path / "one", privacy={"private": "yes"}))


def test_torn_last_line_is_left_out(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    path = folder / "rounds.jsonl"
    path.write_text(path.read_text() + '{"round": 12, "sizes": [1.0, 2')
    assert len(read_run(folder).rounds) == 12


def test_torn_line_in_the_middle_is_damage(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    path = folder / "rounds.jsonl"
    path.write_text('{"round": 0, "si\n' + path.read_text())
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl, line 1"):
        read_run(folder)


def test_round_without_number_is_damage(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    (folder / "diagnostics.jsonl").write_text('{"accuracy": 0.5}\n')
    with pytest.raises(RunFolderError, match=r"diagnostics\.jsonl"):
        read_run(folder)


def test_run_that_goes_on_shows_the_cost_of_its_whole_plan(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    (folder / "summary.json").unlink()
    (folder / "rounds.jsonl").unlink()
    run = read_run(folder)
    assert (run.status, run.epsilon, run.rounds) == ("unfinished", pytest.approx(4.0, rel=1e-3), ())


def test_a_stopped_run_shows_the_cost_of_its_whole_plan(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one", status="stopped", summary={"epsilon": 1.0})  # as version 0.1 wrote it
    assert read_run(folder).epsilon == pytest.approx(4.0, rel=1e-3)


def test_numbers_that_are_none_are_none(tmp_path, run_folder):
    folder = run_folder(tmp_path / "one")
    (folder / "diagnostics.jsonl").write_text('{"round": 3, "accuracy": NaN, "loss": 1e999, "worst_decile": "x"}\n')
    final = read_run(folder).final
    assert final is not None
    assert (final.accuracy, final.loss, final.worst_decile) == (None, None, None)


def test_finds_one_run_a_folder_of_seeds_and_a_folder_of_both(tmp_path, run_folder):
    run_folder(tmp_path / "runs" / "a")
    for seed in (10, 2):
        run_folder(tmp_path / "runs" / "b" / f"seed-{seed}", seed=seed, num_clusters=8)
    (tmp_path / "runs" / "figures").mkdir()
    assert [len(group.runs) for group in find_runs([tmp_path / "runs" / "a"])] == [1]
    assert [run.seed for run in find_runs([tmp_path / "runs" / "b"])[0].runs] == [2, 10]
    assert [len(group.runs) for group in find_runs([tmp_path / "runs"])] == [1, 2]


def test_the_same_folder_twice_counts_once(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a")
    assert [len(group.runs) for group in find_runs([folder, tmp_path, str(folder)])] == [1]


def test_a_seed_met_twice_is_no_second_seed(tmp_path, run_folder):
    run_folder(tmp_path / "a")
    run_folder(tmp_path / "b")
    assert [len(group.runs) for group in find_runs([tmp_path])] == [1, 1]


def test_no_runs(tmp_path):
    for paths, words in (([tmp_path], "no run in it"), ([tmp_path / "none"], "not a folder"), ([], "no run folder")):
        with pytest.raises(RunFolderError, match=words):
            find_runs(paths)


def test_all_that_commands_leave_under_runs_can_be_reported_at_once(tmp_path, run_folder):
    one = run_folder(tmp_path / "one")
    two = run_folder(tmp_path / "sweep" / "a" / "seed-0", update_clip=0.1)
    run_folder(tmp_path / "reproduce" / "fashion" / "cell" / "row" / "seed-0", update_clip=0.7)
    (tmp_path / "reproduce" / "fashion" / "reproduction.json").write_text("{}")
    for paths in ([tmp_path], sorted(tmp_path.iterdir())):
        assert [run.path for group in find_runs(paths) for run in group.runs] == [one, two]
    (tmp_path / "reproduce" / "own").mkdir()
    three = run_folder(tmp_path / "reproduce" / "own" / "three", update_clip=0.3)
    for paths in ([one, tmp_path / "reproduce"], [tmp_path / "reproduce", one]):  # runs beside tables count
        assert {run.path for group in find_runs(paths) for run in group.runs} == {one, three}
    three.rename(tmp_path / "three")
    with pytest.raises(RunFolderError, match=r"holds tables of `rrcluster reproduce`.*report .*fashion`"):
        find_runs([tmp_path / "reproduce"])


def test_checkpoints_are_never_read(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.yaml").write_text("{")
    assert len(find_runs([folder])) == 1
    assert len(find_runs([tmp_path])) == 1


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"algorithm": "fedavg", "mechanism": "none"}, "FedAvg"),
        ({"algorithm": "ifca", "mechanism": "joint"}, "DP-IFCA"),
        ({"algorithm": "ifca", "mechanism": "joint", "rebalance": "coin"}, "DP-IFCA"),
        ({"mechanism": "joint", "rebalance": "coin", "min_cluster_size": 15}, "RR-Cluster (IFCA), B=15"),
        ({"mechanism": "identifier", "rebalance": "auto", "min_cluster_size": 8}, "RR-Cluster (IFCA), B=8"),
        ({"mechanism": "joint", "exploration": 1.0}, "DP-IFCA + exploration"),
        ({"mechanism": "joint", "exploration": 1.0, "algorithm": "fedavg"}, "DP-FedAvg"),
        ({"mechanism": "joint", "exploration": 0.0}, "DP-IFCA"),
        ({"mechanism": "joint", "exploration": 0.0, "init": "independent"}, "DP-IFCA"),
        ({"mechanism": "none", "init": "survey"}, "IFCA + survey"),
        ({"mechanism": "none", "rebalance": "exact", "min_cluster_size": 8}, "RR-Cluster (IFCA), B=8, no privacy"),
        ({"mechanism": "joint", "min_cluster_size": 15}, "RR-Cluster (IFCA), B=15"),
        ({"mechanism": "joint", "rebalance": "none", "min_cluster_size": 15}, "DP-IFCA"),  # of version 0.1
        ({"algorithm": "my-own", "mechanism": "joint"}, "DP-my-own"),
    ],
)
def test_method_label(settings, label):
    assert method_label({"algorithm": "ifca", **settings}) == label


def test_a_method_registered_at_run_time_has_a_label():
    settings = {"algorithm": "my-own", "mechanism": "none", "exploration": 1.0}
    register("method", "my-own", object(), label="My own", chooses_by_loss=True)
    try:
        assert method_label(settings) == "My own + exploration"
    finally:
        METHODS.unregister("my-own")
    assert method_label(settings) == "my-own"


def test_methods_of_the_same_name_are_told_apart():
    base = {"algorithm": "ifca", "mechanism": "joint", "seed": 0}
    two = [{**base, "epsilon": 2.0}, {**base, "epsilon": 8.0}]
    assert distinct_labels(two, ["a", "b"]) == ("DP-IFCA, epsilon 2", "DP-IFCA, epsilon 8")
    assert distinct_labels([base, {**base, "seed": 1}], ["a", "b"]) == ("DP-IFCA [a]", "DP-IFCA [b]")
    assert distinct_labels([base, base], ["a", "a"]) == ("DP-IFCA [a] #1", "DP-IFCA [a] #2")


def test_reading_does_not_change_a_folder(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    read_run(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert json.loads(before["summary.json"])["status"] == "finished"
