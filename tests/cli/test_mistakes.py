"""What people mistype: each mistake ends with status 2 and one line that names it and the way out, none is silent."""

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from rrcluster.cli import main
from rrcluster.errors import ConfigError
from rrcluster.runs.config import from_flat

T = "--client-column who --target-column y"
G = f"--data good.csv {T}"
MISTAKES = [
    # columns and files
    ("run --data good.csv --target y --client-column who", "did you mean --target-column?"),
    ("run --data good.csv --client who --target-column y", "did you mean --client-column?"),
    ("run --data good.csv", "--target-column"),
    ("run --data good.csv --target-column y", "--client-column"),
    ("run --data good.csv --client-column whoo --target-column y", "did you mean 'who'?"),
    ("run --data good.csv --client-column who --target-column Y", "did you mean 'y'?"),
    (f"run {G} --feature-columns a c", "its columns are who, a, b, y"),
    (f"run {G} --feature-columns a y", "two roles"),
    (f"run {G} --time-column when", "its columns are"),
    (f"run {G} --test-column b", "neither true nor false"),
    (f"run {G} --group-column team", "'team' is not a column"),
    (f"run {G} --scale z=0,1", "'z' is not a column"),
    (f"run {G} --scale a=5", "two numbers"),
    (f"run {G} --categories a", "column=value"),
    (f"run {G} --missing q=0", "'q' is not a column"),
    (f"run --data goood.csv {T}", "no such file"),
    (f"run --data good {T}", "is not known"),
    ("run good.csv", "give it as --data good.csv"),
    ("run book.xlsx", "save the table as CSV"),
    (f"run --data book.xlsx {T}", "save the table as CSV"),
    (f"run --data rows.json {T}", "save the table as CSV"),
    (f"run --data fake.parquet {T}", "write it again"),
    (f"run --data empty.csv {T}", "is empty"),
    (f"run --data header.csv {T}", "holds no rows"),
    (f"run --data one.csv {T}", "predict another column"),
    (f"run --data double.csv {T}", "appears twice; rename one"),
    (f"run --data ragged.csv {T}", "more or fewer cells"),
    (f"run --data no-target.csv {T}", "has no value"),
    (f"run --data no-client.csv {T}", "has no value"),
    (f"run --data latin.csv {T}", "UTF-8"),
    (f"run --data semicolons.csv {T}", "semicolons"),
    (f"run --data tabs.csv {T}", "has tabs between columns"),
    (f"run --data bars.csv {T}", "has bars between columns"),
    (f"run --data spaces.csv {T}", "did you mean ' y'?"),
    (f"run --data utf16.csv {T}", "UTF-8"),
    (f"run --data ids.csv {T}", "no column is left to predict from"),
    (f"run --data labels.csv {T}", "differs in every row"),
    (f"run --data dates.csv {T} --types a=month --features declared", "has no date"),
    (f"run --data dates.csv {T} --time-column a", "no date (2024-01-31)"),
    (f"run {G} --types a=day", "parts of dates: year,month,weekday,hour"),
    (f"run {G} --types when=month", "'when' is not a column"),
    (f"run {G} --types a=month --scale a=0,1", "means nothing for month"),
    (f"run {G} --types a=month --missing a=7", "must be a date"),
    (f"run --data https://example.org/good.csv {T}", "download the file"),
    (f"run --data folder {T}", "write ./folder"),
    (f"run --data ./folder {T}", "is empty"),
    (f"run --data=~/no-such.csv {T}", "/no-such.csv: no such file"),
    ("run --data mnist", "did you mean emnist?"),
    ("run --client-column who", "give --data FILE"),
    # numbers
    (f"run {G} --epsilon 0", "greater than 0"),
    (f"run {G} --epsilon -1", "greater than 0"),
    (f"run {G} --epsilon nan", "must be a number"),
    (f"run {G} --epsilon four", "should be a number"),
    (f"run {G} --epsilon", "Missing value"),
    (f"run {G} --eps 4", "did you mean --epsilon?"),
    (f"run {G} --epsilon 4 --noise-multiplier 1", "exactly one of"),
    (f"run {G} --delta 0.5", "Use at most"),
    (f"run {G} --delta 0", "greater than 0"),
    (f"run {G} -k 0", "at least 1"),
    (f"run {G} -k two", "should be a whole number"),
    (f"run {G} --clients 5", "declare a bound"),
    (f"run {G} --rounds 5", "at least 18"),
    (f"run {G} --sample-rate 1.5", "at most 1"),
    (f"run {G} --test-share 1.5", "less than 1"),
    (f"run {G} --seeds 1 1", "names a seed twice"),
    # classes and kinds
    (f"run {G} --classes 0", "list all classes"),
    (f"run {G} --classes 0 2", "add it to classes"),
    (f"run {G} --classes 0 1 --regression", "leave one of them out"),
    (f"run {G} --model lineer", "did you mean linear?"),
    (f"run {G} --algorithm kmeans", "choose one of"),
    (f"run {G} --mechanism gaussian", "choose one of"),
    (f"run {G} --device tpu", "use auto, cpu or cuda"),
    (f"run {G} --participation schedule", "needs slots"),
    (f"run {G} --secure", "--clients"),
    (f"run {G} --secure --seed 3 --clients 60 --classes 0 1", "takes no seed"),
    # files of settings, folders, commands
    ("run k.yaml", "write 'num_clusters'"),
    ("run client.yaml", "write 'client'"),
    ("run typo.yaml", "did you mean 'epsilon'?"),
    ("run four.yaml", "should be number"),
    ("run list.yaml", "setting: value"),
    ("run torn.yaml", "cannot be read as YAML"),
    ("run no-such.yaml", "no such file"),
    ("run utf16.yaml", "is not in UTF-8"),
    ("run .", "give a YAML file of settings"),
    ("sweep one.yaml --report --shard 1/2", "--report is for a whole sweep"),
    (f"run {G} extra", "is not an option"),
    (f"run {G} --out good.csv", "choose one with --out"),
    (f"run {G} --start-from nowhere", "give the folder of a run"),
    (f"run {G} --start-from nowhere --exploration 2", "leave it out"),
    ("run --resume nowhere", "start one with"),
    (f"run {G} --plugin nowhere.py", "no such file"),
    (f"run {G} --plugin broken.py", "ZeroDivisionError"),
    (f"run {G} --plugin idle.py", "registers nothing"),
    ("rum", "did you mean run?"),
    ("--epsilon 4", "rrcluster run --epsilon"),
    ("sweep good.csv", "is a table"),
    ("sweep one.yaml --private-select", "several values"),
    ("account nowhere", "no such folder"),
    ("assign nowhere --out x.csv", "no run here"),
    ("report nowhere", "not a folder"),
    ("update nowhere --epsilon 1", "no run here"),
    ("update --epsilon 1", "needs a finished run first"),
    ("data get nosuch", "is not known"),
    ("data describe nosuch.csv", "no such file"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A good table, and many that are not."""
    folder, rng = tmp_path_factory.mktemp("mistakes"), np.random.default_rng(0)
    rows = [
        f"p{client},{rng.normal():.3f},{rng.normal():.3f},{rng.integers(2)}" for client in range(60) for _ in "four"
    ]
    head = "who,a,b,y"
    texts = {
        "good.csv": [head, *rows],
        "empty.csv": [],
        "header.csv": [head],
        "one.csv": [head, *(row[:-1] + "0" for row in rows)],
        "double.csv": ["who,a,a,y", *rows],
        "ragged.csv": [head, *rows, "p1,2"],
        "no-target.csv": [head, *rows, "p1,1,2,"],
        "no-client.csv": [head, *rows, ",1,2,0"],
        "tabs.csv": ["who\ta\tb\ty", "p1\t1\t2\t0"],
        "bars.csv": ["who|a|b|y", "p1|1|2|0"],
        "spaces.csv": ["who, a, b, y", *rows],
        "ids.csv": ["who,y", *(f"{row.split(',')[0]},{row[-1]}" for row in rows)],
        "labels.csv": [head, *(f"{row[:-1]}id{place}" for place, row in enumerate(rows))],
        "dates.csv": [head, *(f"p{place % 60},31.01.2024,1,{place % 2}" for place in range(240))],
        "semicolons.csv": ["who;a;b;y", "p1;1,5;2;0"],
        "fake.parquet": ["no table"],
        "rows.json": ["[]"],
        "k.yaml": ["k: 4"],
        "client.yaml": ["client_column: who"],
        "typo.yaml": ["epsilonn: 4"],
        "four.yaml": ["epsilon: four"],
        "list.yaml": ["- 1"],
        "torn.yaml": ["epsilon 4", "foo: [1"],
        "one.yaml": ["epsilon: 4"],
        "broken.py": ["1 / 0"],
        "idle.py": ["import rrcluster"],
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join([*lines, ""]) if lines else "", encoding="utf-8")
    (folder / "latin.csv").write_bytes(f"{head}\nJos\xe9,1,2,0\n".encode("latin-1"))
    for name in ("utf16.csv", "utf16.yaml"):
        (folder / name).write_text(f"{head}\np1,1,2,0\n", encoding="utf-16")
    (folder / "book.xlsx").write_bytes(b"PK\x03\x04")
    (folder / "folder").mkdir()
    return folder


@pytest.mark.parametrize(("line", "way_out"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_sentence_with_a_way_out(line, way_out, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main(shlex.split(line)) == 2
    message = capsys.readouterr().err
    assert way_out in message
    assert message.startswith("rrcluster")
    assert message.count("\n") == 1


def test_python_has_the_same_hints():
    for settings, way_out in (
        ({"k": 4}, "num_clusters"),
        ({"client_column": "who"}, "client"),
        ({"EPS": 4}, "epsilon"),
    ):
        with pytest.raises(ConfigError, match=f"write '{way_out}'"):
            from_flat(settings)
    assert not from_flat({"out": "~/runs/x"}, resolved=False).output.out.parts[0].startswith("~")


def test_help_is_short_and_help_all_is_whole(capsys):
    counts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stopped:
            main(["run", flag])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        counts[flag] = sum(
            re.match(r"--?\w", line.lstrip("│| ")) is not None and len(line) - len(line.lstrip("│| ")) < 5
            for line in text.splitlines()
        )
        assert ("--slot-key" in text) == (flag == "--help-all")
        assert "--client-column" in text
    assert 10 <= counts["--help"] <= 14
    assert counts["--help-all"] > 70


def test_a_plugin_makes_a_method_known_to_run_and_sweep(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "import rrcluster as rr\n\n\ndef cautious(models, clients, *, tools):\n"
        "    losses, _ = tools.measure(models, clients)\n    losses[:, 1:] += 0.1\n    return losses\n\n\n"
        'rr.register("method", "cautious", rr.Method("cautious", scores=cautious))\n',
        encoding="utf-8",
    )
    settings = {"data": "fashion-mini", "algorithm": "cautious", "num_clients": 40, "num_rounds": 2, "max_samples": 5}
    settings |= {"noise_multiplier": 1.0, "delta": 1e-3, "model": "edges-coarse", "local_epochs": 1}
    (tmp_path / "run.yaml").write_text(
        "".join(f"{name}: {value}\n" for name, value in settings.items()), encoding="utf-8"
    )
    (tmp_path / "grid.yaml").write_text(
        (tmp_path / "run.yaml").read_text() + "num_clusters: [1, 2]\n", encoding="utf-8"
    )
    for command in (
        ["run", "run.yaml", "--plugin", "own.py"],
        ["sweep", "grid.yaml", "--plugin=own.py", "--processes", "2"],
    ):
        words = [sys.executable, "-m", "rrcluster", *command, "--out", command[0], "-q"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/models.safetensors").exists()
    assert len(list((tmp_path / "sweep").glob("*/models.safetensors"))) == 2
