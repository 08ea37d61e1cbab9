"""Data of one's own, from a file or a frame: the same runs, resumes and reports as for a dataset, and every mistake."""

import json
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import rrcluster as rr
from rrcluster.audit.run_folders import _unlisted
from rrcluster.cli import main
from rrcluster.errors import ConfigError, NotDeclared, PrivacyError, RunFolderError
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.fingerprint import keyed_digest
from rrcluster.runs.run import start

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")

CLIENTS = 24
RUN = {
    "num_clusters": 2,
    "num_rounds": 3,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-2,
    "device": "cpu",
}
ROLES = {"client": "who", "target": "label", "classes": ["no", "yes"]}
TYPES = {"a": "number", "b": "number", "side": "number"}
FLAGS = ["--client-column", "who", "--target-column", "label", "--classes", "no", "yes"]
SMALL = ["-k", "2", "--rounds", "3", "--sample-rate", "0.5", "--local-epochs", "1", "--delta", "1e-2", "-q"]
SMALL += ["--noise-multiplier", "1", "--device", "cpu"]


def columns(seed=0):
    """Clients of unequal sizes in two groups that disagree."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(CLIENTS), rng.integers(3, 9, size=CLIENTS))
    x = rng.normal(size=(len(who), 2)).round(3)
    yes = (x[:, 0] > 0) ^ (who % 2 == 1)
    names = [f"c{number}" for number in who]
    return {"who": names, "a": x[:, 0], "b": x[:, 1], "label": np.where(yes, "yes", "no"), "side": who % 2}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_csv(path, table=None):
    from pyarrow import csv

    csv.write_csv(pa.table(columns() if table is None else table), path)


def write_parquet(path, table=None):
    from pyarrow import parquet

    parquet.write_table(pa.table(columns() if table is None else table), path)


def write_folder(path):
    path.mkdir()
    table = columns()
    for client in dict.fromkeys(table["who"]):
        rows = [place for place, who in enumerate(table["who"]) if who == client]
        part = {name: np.asarray(column)[rows] for name, column in table.items() if name != "who"}
        write_csv(path / f"{client}.csv", part)


def read(path):
    return json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())


def test_csv_parquet_folder_and_frame_are_one_population(here):
    write_csv(here / "clients.csv")
    write_parquet(here / "clients.parquet")
    write_folder(here / "each")
    whole = {"test_share": 0.3, "group": "side"} | RUN | ROLES
    alone = {name: value for name, value in whole.items() if name != "client"}
    results = [
        rr.run(data="clients.csv", **whole, out="1"),
        rr.run(data=Path("clients.parquet"), **whole, out="2"),
        rr.run(data=Path("each"), **alone, out="3"),
        rr.run(data=columns(), **whole, out="4"),
        rr.run(data=rr.from_frame(columns(), **ROLES, test_share=0.3, group="side", name="mine"), **RUN, out="5"),
    ]
    for result in results[1:]:
        assert np.array_equal(result.models.clustered, results[0].models.clustered)
        assert result.evaluation == results[0].evaluation
    assert len(results[0].evaluation.group_accuracy) == 2
    assert [read(Path(f"{i}/config.yaml"))["data"] for i in (1, 4, 5)] == ["clients.csv", "your-data", "mine"]
    assert {read(Path(f"{i}/config.yaml"))["num_clients"] for i in range(1, 6)} == {CLIENTS}
    assert "partition" not in read(Path("1/config.yaml"))
    rules = {"target": "label", "classes": ["no", "yes"], "test_share": 0.3, "group": "side"}
    for path, client, name in (("clients.csv", "who", "clients"), (here / "each", None, "each")):
        population = rr.from_frame(path, client, **rules)  # of the run, for assign and personalise
        table = rr.assign(rr.load("1"), population)
        assert (population.name, repr(table).split(",")[0]) == (name, f"Assignment({CLIENTS} clients")
    models = rr.load("1")
    assert repr(models) == "TrainedModels(2 x linear, ifca)"
    rows = np.zeros((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64)
    calls = (lambda: rr.assign(models, rows), lambda: rr.personalise(models, rows))
    for call in (*calls, lambda: models.predict(rows[0], cluster=0)):
        with pytest.raises(ConfigError, match=r"samples of shape \(3,\) are given, and the run's models take \(2,\)"):
            call()
    with pytest.raises(ConfigError, match="data = str should be one client's"):
        rr.assign(models, "clients.csv")


def test_parquet_on_the_command_line_alone(here, capsys):
    write_parquet(here / "people.parquet")
    flags = ["--data", "people.parquet", *FLAGS, *SMALL, "--test-share", "0.3", "--group-column", "side"]
    assert main(["run", *flags]) == 0
    assert "people, 24 clients, 3 rounds" in capsys.readouterr().out
    (folder,) = (here / "runs").iterdir()
    assert folder.name == "people-ifca-joint-noise1"
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "people, 24 clients" in page
    assert "rotation" not in page


def write_page_example(path):
    """The table of docs/own-data.md: 60 clients in two groups that disagree about a colour."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(60), 12)
    red = rng.random(len(who)) < 0.5
    yes = red ^ (who % 2 == 1)
    ages = rng.integers(18, 90, size=len(who))
    table = {"client_id": [f"p{i}" for i in who], "age": ages, "colour": np.where(red, "red", "blue")}
    write_csv(path, table | {"label": np.where(yes, "yes", "no")})


PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()


def test_the_program_of_the_page_is_short_and_runs(here):
    """CSV to private models to a table, and out again."""
    write_page_example(here / "clients.csv")
    program, after = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(program.splitlines()) < 15
    answer = subprocess.run([sys.executable, "-c", program + after], capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert "epsilon 8.0, accuracy" in answer.stdout
    assert "| DP-Mixed effects, everybody | 8.00 |" in answer.stdout
    assert (here / "clusters.csv").read_text().startswith("client,cluster,margin\np0,")


def test_the_commands_of_the_page_are_understood(here):
    from rrcluster.cli.run_command import read_command

    write_page_example(here / "clients.csv")
    commands = re.findall(r"^rrcluster run (--data.*?[^\\])$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(commands) == 3
    for command in commands[1:]:  # the first needs no declarations
        columns = read_command(command.replace("\\\n", " ").split()).config.columns
        assert columns.vocabulary == {"colour": ("red", "blue")}
    (grid,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    from rrcluster.runs.sweep import check_own_data, read_grid

    settings = read_grid(yaml.safe_load(grid), source="page", out=here / "out")
    assert list(settings.axes) == ["local_lr"]
    check_own_data(settings, source="page")


def test_classes_that_are_not_declared_are_said(here, capsys):
    write_csv(here / "clients.csv")
    some = ["--data", "clients.csv", "--client-column", "who", "--target-column", "label", *SMALL]
    assert main(["run", *some, "--feature-columns", "a", "b", "--out", "1"]) == 0
    said = capsys.readouterr().err
    assert said.count("classes were counted in the labels of clients") == 1
    assert "--classes" in said
    assert ".py" not in said  # a sentence, not a place in the code
    assert main(["assign", "1", "--out", "clusters.csv"]) == 0
    assert "counted" not in capsys.readouterr().err, "the run has its classes"
    with pytest.warns(NotDeclared, match="no guarantee covers"):
        rr.run(data=columns(), client="who", target="label", **RUN, out="2")
    data = rr.from_frame(columns(), "who", "label")
    with pytest.raises(ConfigError, match=r"types were taken from the table .* secure run"):
        rr.run(data=data, **RUN, num_clients=CLIENTS, secure=True, out="3")
    data = rr.from_frame(columns(), "who", "label", types=TYPES)
    with pytest.raises(ConfigError, match=r"classes were counted .* secure run"):
        rr.run(data=data, **RUN, num_clients=CLIENTS, secure=True, out="3")
    assert not (here / "3").exists()


SECURE = {
    "number of clients": (FLAGS, "needs --clients"),
    "classes": (["--client-column", "who", "--target-column", "label", "--clients", "24"], "needs --classes"),
    "more clients": (
        [*FLAGS, "--clients", "23"],
        "num_clients = 23 was declared as a bound and the population has more",
    ),
    "an exact number": (
        [*FLAGS, "--clients", "25", "--mechanism", "identifier"],
        "num_clients = 25 was declared but the population has 24",
    ),
}


@pytest.mark.parametrize(("flags", "text"), SECURE.values(), ids=SECURE.keys())
def test_a_secure_run_is_told_its_constants(flags, text, here, capsys):
    write_csv(here / "clients.csv")
    assert main(["run", "--data", "clients.csv", "--secure", *flags, *SMALL]) == 2
    assert text in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_a_secure_run_refuses_a_table_of_other_types_than_were_declared(here, capsys):
    flags = ["run", "--data", "x.parquet", *FLAGS, "--clients", str(CLIENTS), "--secure", *SMALL]
    write_parquet(here / "x.parquet")
    assert main(flags) == 2
    assert "types were taken from the table of x" in capsys.readouterr().err
    declared = ["--types", *(f"{name}={kind}" for name, kind in TYPES.items()), "--out", "run"]
    assert main([*flags, *declared]) == 0
    assert read(here / "run" / "config.yaml")["types"] == ["a=number", "b=number", "side=number"]
    assert any("types that a program inferred" in line for line in read(here / "run" / "privacy.json")["not_covered"])
    table = columns()
    write_parquet(here / "x.parquet", table | {"a": [str(value) for value in table["a"]]})
    capsys.readouterr()
    assert main([*flags, *declared[:-1], "again"]) == 2
    assert "types = a=number was declared, but the column has text" in capsys.readouterr().err
    assert not (here / "again").exists()


GOOD = "who,a,b,label\n" + "".join(f"c{i},{i}.5,{i},{i % 2}\n" for i in range(8))
ROLE = ["--client-column", "who", "--target-column", "label"]
MISTAKES = {
    "no such file": (None, ROLE, "x.csv: no such file; give a file"),
    "empty file": ("", ROLE, "x.csv: is empty; give a table"),
    "header alone": ("who,a,label\n", [*ROLE, "--clients", "8"], "x.csv: holds no rows"),
    "not a table": ("who,a,label\nc1,1\n", ROLE, "line 2 has more or fewer cells than the header"),
    "no client column": (GOOD, ["--target-column", "label"], "needs the column that names the client"),
    "no target column": (GOOD, ["--client-column", "who"], "needs the column to predict; give --target-column"),
    "missing column": (
        GOOD,
        ["--client-column", "woh", *ROLE[2:]],
        "client = 'woh' is not a column of it; did you mean 'who'?",
    ),
    "missing feature": (
        GOOD,
        [*ROLE, "--feature-columns", "zzz"],
        "features = 'zzz' is not a column of it; its columns are",
    ),
    "column twice": (GOOD.replace("who,a,", "who,who,", 1), ROLE, "column 'who' appears twice"),
    "no features": ("who,label\na,0\nb,1\n", ROLE, "no column is left to predict from"),
    "text column": (
        GOOD.replace(",3.5,", ",tall,"),
        ROLE,
        "column 'a' holds text; declare its public vocabulary (--categories a=",
    ),
    "missing value": (
        GOOD.replace(",3.5,", ",,"),
        ROLE,
        "column 'a': row 4 (client 'c3') has no value; remove the row, or say",
    ),
    "missing values": (
        GOOD.replace(",3.5,", ",,").replace(",5\n", ",\n").replace("5.5,5,", "5.5,,"),
        ROLE,
        "(--missing a=VALUE b=VALUE, missing={'a': value} in Python).",
    ),
    "no rows": ("who,a,label\n", ROLE, "x.csv: holds no rows"),
    "semicolons": (GOOD.replace(",", ";"), ROLE, "has semicolons between columns; write commas"),
    "NaN": (GOOD.replace(",3.5,", ",nan,"), ROLE, "column 'a': row 4 (client 'c3') has no value"),
    "infinite": (
        GOOD.replace(",3.5,", ",1e39,"),
        ROLE,
        "column 'a': row 4 (client 'c3') has a number that is infinite",
    ),
    "missing id": (GOOD.replace("c3,", ","), ROLE, "column 'who': row 4 has no value"),
    "missing label": (GOOD.replace("3.5,3,1", "3.5,3,"), ROLE, "column 'label': row 4 (client 'c3') has no value"),
    "unknown label": (
        GOOD,
        [*ROLE, "--classes", "0", "2"],
        "row 2 (client 'c1') has a label outside the 2 declared classes",
    ),
    "float labels": (
        GOOD.replace(",0\n", ",0.5\n"),
        ROLE,
        "'label' has floats, which may be numbers or classes",
    ),
    "one class": (GOOD.replace(",1\n", ",0\n"), ROLE, "'label' holds one class only"),
    "text to regress": (
        GOOD.replace(",1\n", ",x\n"),
        [*ROLE, "--regression"],
        "'label' holds text; regression predicts numbers",
    ),
    "test column": (
        GOOD,
        [*ROLE, "--test-column", "a"],
        "test_column = 'a': row 1 (client 'c0') is neither true nor false",
    ),
    "all rows tested": (
        GOOD.replace("label\n", "label,t\n").replace(",0\n", ",0,false\n").replace(",1\n", ",1,true\n"),
        [*ROLE, "--test-column", "t"],
        "holds out every row of client 'c1'; leave each client a row to train on",
    ),
    "two groups": (GOOD + "c1,9.5,1,1\n", [*ROLE, "--group-column", "a"], "row 9 (client 'c1') has a different group"),
    "wrong width": (GOOD, [*ROLE, "--model", "cnn"], "model = cnn"),
    "too few for B": (GOOD, [*ROLE, "-B", "9"], "min_cluster_size"),
    "too many clients": (GOOD, [*ROLE, "--clients", "7"], "num_clients = 7 was declared as a bound and the population"),
    "a partition": (
        GOOD,
        [*ROLE, "--partition", "dirichlet"],
        "partition = dirichlet divides a dataset among clients, but x.csv has",
    ),
    "rule without use": (GOOD, [*ROLE, "--missing", "who=c9"], "column 'who' has a rule and is not among the features"),
    "two roles": (GOOD, [*ROLE, "--group-column", "who"], "column 'who' has two roles"),
}


@pytest.mark.parametrize(("text", "flags", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_in_one_line_and_nothing_is_written(text, flags, told, here, capsys):
    if text is not None:
        (here / "x.csv").write_text(text)
    assert (
        main(
            [
                "run",
                "--data",
                "x.csv",
                "--algorithm",
                "ifca",
                *flags,
                "-k",
                "2",
                "--rounds",
                "2",
                "--noise-multiplier",
                "1",
                "--delta",
                "0.1",
            ]
        )
        == 2
    )
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("rrcluster run: ")
    assert told in error
    assert not [path for path in here.iterdir() if path.name != "x.csv"]


def test_a_run_on_a_good_file_works_where_the_mistakes_do_not(here):
    (here / "x.csv").write_text(GOOD)
    assert (
        main(
            [
                "run",
                "--data",
                "x.csv",
                "--algorithm",
                "ifca",
                *ROLE,
                "-k",
                "2",
                "--rounds",
                "2",
                "--noise-multiplier",
                "1",
                "--delta",
                "0.1",
                "-q",
            ]
        )
        == 0
    )


FOLDERS = {
    "one client twice": ({"a.csv": GOOD, "a.tsv": GOOD}, "a.csv and a.tsv are both client 'a'"),
    "other columns": (
        {"a.csv": "x,label\n1,0\n", "b.csv": "z,label\n1,0\n"},
        "b.csv: has no column 'x', which a.csv has",
    ),
    "mixed types": ({"a.csv": "x,label\n1,0\n", "b.csv": "x,label\nold,1\n"}, "'x' holds text; declare its public"),
    "no table": ({"a.csv": GOOD, "notes.txt": ""}, "holds notes.txt, which is no table"),
    "empty": ({}, "is empty"),
}


@pytest.mark.parametrize(("files", "told"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_with_a_mistake(files, told, here, capsys):
    (here / "each").mkdir()
    for name, text in files.items():
        (here / "each" / name).write_text(text)
    assert main(["run", "--data", "./each", "--target-column", "label", *SMALL]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_written_without_a_slash_is_explained(here):
    (here / "each").mkdir()
    with pytest.raises(ConfigError, match=r"write \./each for"):
        rr.experiment(data="each", target="label")


def test_columns_belong_to_files():
    with pytest.raises(ConfigError, match="client is about a column of your own data, and data = fashion-mini"):
        rr.experiment(client="who")
    with pytest.raises(ConfigError, match="data is a table, and target is not given"):
        rr.experiment(data=columns(), client="who")


def test_mistakes_of_frames_are_named():
    pandas = pytest.importorskip("pandas")
    mixed = pandas.DataFrame({"who": ["a", "b"], "x": pandas.Series([1, "SECRET"], dtype=object), "label": [0, 1]})
    for frame, told in (
        (mixed, "column 'x' mixes values of different types"),
        ({"who": ["a"], "x": [1, 2]}, "differ in length"),
        (object(), "object cannot be read as a table"),
        (pandas.DataFrame(columns=["who", "label"]), "has no rows"),
        ({"who": ["a", "b"], "x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "lists of different lengths"),
        ({"who": ["a", "b"], "x": [[["y"]], [["z"]]], "label": [0, 1]}, "lists of"),
    ):
        with pytest.raises(ValueError, match=told) as raised:
            rr.from_frame(frame, "who", "label")
        assert "SECRET" not in str(raised.value)
    with pytest.raises(ConfigError, match="give client="):
        rr.from_frame(mixed, None, "label")
    with pytest.raises(ValueError, match=r"nowhere.csv: no such file"):
        rr.from_frame("nowhere.csv", "who", "label")


def test_without_pyarrow_the_way_out_is_said_and_without_torch(here):
    program = """
        import sys
        sys.modules["pyarrow"] = None
        from rrcluster.cli import main
        status = main(["run", "--data", "x.csv", "--client-column", "who", "--target-column", "label"])
        assert "torch" not in sys.modules
        sys.exit(status)
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "pip install '.[frames]'" in answer.stderr


def test_a_wrong_path_or_column_is_said_before_torch_is_imported(here):
    (here / "x.csv").write_text(GOOD)
    program = """
        import sys
        from rrcluster.cli import main
        statuses = [
            main(["run", "--data", data, "--client-column", column, "--target-column", "label"])
            for data, column in (("nosuch.csv", "who"), ("x.csv", "woh"), ("x.txt/", "who"))
        ]
        assert "torch" not in sys.modules and statuses == [2, 2, 2], statuses
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def stopped(**settings):
    """A run that was stopped after its first round."""
    rounds = start(build_experiment(**settings)).rounds()
    next(rounds)
    rounds.close()


def test_a_run_resumes_with_the_same_objects_alone(here):
    settings = RUN | {"num_rounds": 4}
    data = rr.from_frame(columns(), **ROLES, name="mine")
    whole = rr.run(data=data, **settings, out="whole")
    stopped(data=data, **settings, out="run")
    other = rr.from_frame(columns(seed=1), **ROLES, name="mine")
    with pytest.raises(RunFolderError, match="the data mine is not what this run was started with"):
        rr.run(resume="run", data=other)
    with pytest.raises(ConfigError, match="was started with model = linear, not mlp"):
        rr.run(resume="run", data=data, model="mlp")
    with pytest.raises(ConfigError, match="epsilon is a setting of the run"):
        rr.run(resume="run", data=data, epsilon=3)
    result = rr.run(resume="run", data=rr.from_frame(columns(), **ROLES, name="mine"))
    assert np.array_equal(result.models.clustered, whole.models.clustered)
    assert not (here / "run" / "checkpoint").exists()


def test_a_run_on_objects_says_how_it_is_resumed_elsewhere(here, capsys):
    from rrcluster import registry

    stopped(data=rr.from_frame(columns(), **ROLES, name="gone"), **RUN, out="run")
    registry.DATASETS.unregister("gone")
    assert main(["run", "--resume", "run"]) == 2
    assert "Give it again in Python: rr.run(resume='run', data=...)" in capsys.readouterr().err


def test_a_file_may_move_but_not_change(here, capsys):
    write_csv(here / "clients.csv")
    settings = RUN | ROLES | {"data": "clients.csv"}
    rr.run(**settings, out="whole")
    stopped(**settings, out="run")
    (here / "clients.csv").rename(here / "moved.csv")
    assert main(["run", "--resume", "run"]) == 2
    assert "clients.csv: no such file" in capsys.readouterr().err
    write_csv(here / "other.csv", columns(seed=1))
    assert main(["run", "--resume", "run", "--data", "other.csv"]) == 2
    assert "is not what this run was started with" in capsys.readouterr().err
    assert main(["run", "--resume", "run", "--data", "moved.csv", "--rounds", "9"]) == 2
    assert main(["run", "--resume", "run", "--data", "moved.csv", "-q"]) == 0
    assert np.array_equal(rr.load("run").models.clustered, rr.load("whole").models.clustered)


def test_the_digest_is_private_keyed_and_of_everything(here):
    data = rr.from_frame(columns(), **ROLES, test_share=0.3, name="mine")
    stopped(data=data, **RUN, out="run")
    noted = read(here / "run" / "checkpoint" / "data.json")
    assert (here / "run" / "checkpoint" / "data.json").stat().st_mode & 0o77 == 0
    assert noted["digest"] == keyed_digest(data, noted["key"]) != keyed_digest(data, "0" * 64)
    public = "".join(
        path.read_text() for path in (here / "run").iterdir() if path.suffix in (".json", ".jsonl", ".yaml")
    )
    assert noted["digest"] not in public
    assert noted["key"] not in public
    assert '"data"' not in (here / "run" / "ledger.jsonl").read_text()
    for changed in range(3):
        table = columns()
        place = len(table["a"]) - 1 - changed
        table["a"][place] += 1e-3
        again = rr.from_frame(table, **ROLES, test_share=0.3, name="mine")
        assert keyed_digest(again, noted["key"]) != noted["digest"]


def test_a_sweep_and_a_selection_on_a_file(here, capsys):
    write_csv(here / "clients.csv")
    grid = RUN | ROLES | {"data": "clients.csv", "local_lr": [0.02, 0.1], "private_evaluation": 0.5}
    (here / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert main(["sweep", "grid.yaml", "-q"]) == 0
    assert {run["status"] for run in read(here / "runs" / "grid" / "sweep.json")["runs"]} == {"finished"}
    assert main(["sweep", "grid.yaml", "-q"]) == 0
    assert main(["sweep", "grid.yaml", "--private-select", "--mean-repetitions", "2", "-q", "--out", "chosen"]) == 0
    assert read(here / "chosen" / "config.yaml")["data"] == "clients.csv"
    capsys.readouterr()
    (here / "wrong.yaml").write_text(yaml.safe_dump(grid | {"target": "lable"}))
    assert main(["sweep", "wrong.yaml", "-q"]) == 2
    assert "did you mean 'label'?" in capsys.readouterr().err
    assert not (here / "runs" / "wrong").exists()


def test_tensorboard_and_dry_run_on_a_file(here, capsys):
    pytest.importorskip("tensorboard")
    write_csv(here / "clients.csv")
    flags = ["--data", "clients.csv", *FLAGS, *SMALL]
    assert main(["run", *flags, "--dry-run"]) == 0
    assert not (here / "runs").exists()
    assert main(["run", *flags, "--tensorboard", "--out", "run"]) == 0
    assert list((here / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(("mechanism", "fits"), [("joint", True), ("identifier", False)])
def test_a_plan_is_for_populations_up_to_its_bound(mechanism, fits):
    fewer = {name: column[:40] for name, column in columns().items()}
    whole, part = (rr.from_frame(table, **ROLES, name="mine") for table in (columns(), fewer))
    few = part.num_clients
    experiment = rr.experiment(data=part, **RUN, num_clients=few, mechanism=mechanism)
    with pytest.raises(PrivacyError, match=f"num_clients = {few} was declared"):
        next(replace(experiment, data=whole).rounds())
    experiment = rr.experiment(data=whole, **RUN, num_clients=CLIENTS, mechanism=mechanism)
    if fits:
        assert next(replace(experiment, data=part).rounds()).round_index == 0
    else:
        with pytest.raises(PrivacyError, match=f"num_clients = {CLIENTS} was declared"):
            next(replace(experiment, data=part).rounds())


def test_public_files_of_a_secure_run_do_not_tell_how_many_clients_there_are(here):
    told = []
    for number, last in enumerate((None, -1)):
        table = columns()
        rows = slice(None) if last is None else [place for place, who in enumerate(table["who"]) if who != "c3"]
        write_csv(here / "people.csv", {name: np.asarray(column)[rows] for name, column in table.items()})
        flags = ["--data", "people.csv", *FLAGS, *SMALL, "--clients", "30", "--secure", "--out", f"run{number}"]
        assert main(["run", *flags]) == 0
        assert main(["report", f"run{number}"]) == 0
        run = here / f"run{number}"
        texts = {
            name: (run / name).read_text().replace(str(run.name), "run") for name in ("config.yaml", "privacy.json")
        }
        lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        told.append((texts, lines, sorted(read(run / "summary.json")), sorted(path.name for path in run.iterdir())))
    assert told[0] == told[1]
    assert "populations of at most so many clients" in told[0][0]["privacy.json"]


def test_slots_by_name_are_not_refused_for_the_names_there_are(here):
    """Whether a slot is empty would tell of a client: only the declared number decides."""
    settings = RUN | {"participation": "schedule", "slots": 3, "num_clusters": 1, "num_clients": CLIENTS}
    settings.pop("sample_rate")
    table = columns()
    data = rr.from_frame(table, **ROLES, name="mine")
    slots = rr.experiment(data=data, **settings).plan.mechanism.slots
    first = [place for place, who in enumerate(table["who"]) if slots.of([who])[0] == 0]
    alone = rr.from_frame({name: np.asarray(column)[first] for name, column in table.items()}, **ROLES, name="first")
    for _ in rr.experiment(data=alone, **settings).rounds():
        pass
    with pytest.raises(ConfigError, match=r"would leave .* slots without any client"):
        rr.experiment(data=alone, **settings | {"num_clients": 8})


@pytest.mark.slow
def test_a_secure_run_on_own_data_killed_five_times(here):
    """Ledger, statement and report are those of a run on a dataset: every attempt is charged, and epsilon covers it."""
    write_parquet(here / "people.parquet")
    flags = [
        *FLAGS,
        "--data",
        "people.parquet",
        "--types",
        *(f"{name}={kind}" for name, kind in TYPES.items()),
        "--clients",
        str(CLIENTS),
        "--secure",
        "--reserve-rounds",
        "20",
        "-k",
        "2",
    ]
    flags += ["--rounds", "40", "--sample-rate", "0.5", "--noise-multiplier", "2", "--delta", "1e-2", "--device", "cpu"]
    command, kills = ["run", *flags, "--out", "run"], 0
    ledger = here / "run" / "ledger.jsonl"
    while kills < 5:
        process = subprocess.Popen(
            [sys.executable, "-m", "rrcluster", *command, "-q"], stderr=subprocess.PIPE, text=True
        )
        before = charges(ledger)
        while process.poll() is None and charges(ledger) < before + 4:
            time.sleep(0.002)
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
        kills, command = kills + 1, ["run", "--resume", "run"]
    assert main([*command, "-q"]) == 0
    summary, statement = read(here / "run" / "summary.json"), read(here / "run" / "privacy.json")
    assert (summary["status"], summary["rounds_done"], summary["data"]) == ("finished", 40, "people")
    assert summary["releases_charged"] == charges(ledger) >= 40
    assert summary["epsilon"] == statement["epsilon"]
    assert statement["num_releases"] == 60
    assert not list(_unlisted(here / "run"))  # files and keys that a secure run may write, no others
    assert main(["report", "run"]) == 0
    assert "people, 24 clients" in (here / "run" / "report.html").read_text()


def charges(ledger):
    return ledger.read_text().count("\n") if ledger.exists() else 0


def test_clients_of_a_file_are_assigned_by_name(here, capsys):
    write_csv(here / "clients.csv")
    assert main(["run", "--data", "clients.csv", *FLAGS, *SMALL, "--feature-columns", "a", "b", "--out", "run"]) == 0
    write_csv(here / "new.csv", {name: np.asarray(column)[:9] for name, column in columns(seed=5).items()})
    capsys.readouterr()
    for flags, first in (([], "c0"), (["--data", "new.csv"], "c0")):
        assert main(["assign", "run", *flags, "--json"]) == 0
        table = json.loads(capsys.readouterr().out)
        assert table[0]["client"] == first
        assert len(table) == (len({*columns(seed=5)["who"][:9]}) if flags else CLIENTS)


def test_one_model_without_test_rows_has_a_report(here, capsys):
    write_csv(here / "clients.csv")
    flags = ["--data", "clients.csv", *FLAGS, *SMALL, "--algorithm", "fedavg", "--out", "run"]
    assert main(["run", *flags]) == 0
    assert "No rows were held out to test on" in " ".join(capsys.readouterr().out.split())
    assert main(["report", "run"]) == 0


def test_clients_of_a_secure_run_are_assigned(here, capsys):
    write_csv(here / "clients.csv")
    flags = ["--data", "clients.csv", *FLAGS, "--clients", str(CLIENTS), *SMALL, "--secure", "--out", "run"]
    assert main(["run", *flags]) == 0
    assert main(["assign", "run", "--out", "clusters.csv"]) == 0
    assert len((here / "clusters.csv").read_text().splitlines()) == 1 + CLIENTS
    (here / "run" / "models.safetensors").unlink()
    capsys.readouterr()
    assert main(["assign", "run", "--out", "none.csv"]) == 2
    assert "finish the run with `rrcluster run --resume run`" in capsys.readouterr().err


def test_a_selection_is_not_repeated_on_other_data(here, capsys, monkeypatch):
    """Seeded, it would add the same noise to other sums and be charged once."""
    from rrcluster.runs import private_selection

    write_csv(here / "clients.csv")
    grid = RUN | ROLES | {"data": "clients.csv", "local_lr": [0.02, 0.1], "private_evaluation": 0.5}
    (here / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = ["sweep", "grid.yaml", "--private-select", "--mean-repetitions", "2", "-q", "--out", "chosen"]

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(private_selection, "_repetition", stop)
        with pytest.raises(SystemExit):
            main(command)
    write_csv(here / "clients.csv", columns(seed=1))
    assert main(command) == 2
    assert "is not what this run was started with" in capsys.readouterr().err
    write_csv(here / "clients.csv")
    assert main(command) == 0
    assert len((here / "chosen" / "ledger.jsonl").read_text().splitlines()) == 1
    assert not (here / "chosen" / "checkpoint").exists()


def test_a_module_and_a_frame_of_ones_own_resume_together(here):
    from torch import nn

    settings = RUN | ROLES | {"data": columns(), "features": ["a", "b"]}
    whole = rr.run(**settings, model=nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), out="whole")
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    stopped(**settings, model=module, out="run")
    frame = {name: settings[name] for name in ("data", "features", *ROLES)}
    assert rr.run(resume="run", **frame, model=module).models.clustered.shape == whole.models.clustered.shape
    with pytest.raises(RunFolderError, match="has finished"):
        rr.run(resume="run", **frame, model=module)


def test_a_run_is_not_resumed_after_its_clients_were_renamed(here, capsys):
    """Slots go by name: renamed in the middle of a run, clients would take part more often than it states."""
    write_csv(here / "named.csv")
    text = (here / "named.csv").read_text()
    settings = {**RUN, "sample_rate": None, "participation": "schedule", "slots": 4, "num_rounds": 8}
    settings = {name: value for name, value in settings.items() if value is not None} | {"init": "independent"}
    roles = {**ROLES, "data": str(here / "named.csv"), "secure": True, "num_clients": CLIENTS}

    class Stop(Exception):
        pass

    def stop(number, _):
        if number == 1:
            raise Stop

    with pytest.raises(Stop):
        rr.run(**settings, **roles, out=str(here / "renamed"), on_round=stop, progress=False)
    (here / "named.csv").write_text(re.sub(r'(?m)^("?)c(?=\d)', r"\1d", text))
    with pytest.raises(RunFolderError, match="is not what this run was started with"):
        rr.run(resume=str(here / "renamed"), progress=False)
    (here / "named.csv").write_text(text)
    assert rr.run(resume=str(here / "renamed"), progress=False).epsilon > 0


def test_a_method_that_reads_true_groups_is_for_rehearsals(here):
    roles = {**ROLES, "data": columns(), "types": TYPES, "group": "side", "num_clients": CLIENTS}
    assert build_experiment(**RUN, **roles, algorithm="oracle").method.name == "oracle"
    with pytest.raises(PrivacyError, match="algorithm = oracle uses the true groups"):
        build_experiment(**RUN, **roles, algorithm="oracle", secure=True)
