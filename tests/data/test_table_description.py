"""`data describe FILE`: every problem of a table at once, and settings that run when they are edited."""

import json

import pytest
import yaml

from rrcluster.cli import main
from rrcluster.data.table_description import describe_table
from rrcluster.errors import DataError
from rrcluster.runs.experiment import build_experiment
from rrcluster.settings import declared_columns

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
ODD = """Unnamed: 0,who,age,colour,note,label,const
0,a,12,red,x1,yes,1
1,a,NA,blue,x2,no,1
2,b,34,red,x3,,1
3,,unknown,red,x4,no,1
"""


@pytest.fixture
def odd(tmp_path):
    (tmp_path / "odd.csv").write_text(ODD)
    return tmp_path / "odd.csv"


def test_all_problems_at_once(odd):
    found = describe_table(odd, "who", "label")
    expected = [
        "rows without a client in 'who': 1;",
        "clients: 2, which is few",
        "clients of one row: 1;",
        "rows without a 'label': 1;",
        "'Unnamed: 0' differs in every row",
        "'age' has text in 1 of its cells beside numbers",
        "'note' differs in every row",
        "'const' has one value at most",
    ]
    assert len(found.problems) == len(expected)
    assert all(text in problem for text, problem in zip(expected, found.problems, strict=True))
    assert found.facts["rows_of_a_client"] == "1 to 2, median 1"
    age = next(column for column in found.columns if column.column == "age")
    assert (age.numbers, age.text, age.missing, age.distinct) == (2, 1, 1, 3)


def test_roles_that_are_missing_or_misspelled(odd):
    assert describe_table(odd, None, None).problems[:2] == (
        "no client column is named; give --client-column.",
        "no target column is named; give --target-column.",
    )
    assert "did you mean 'label'?" in " ".join(describe_table(odd, "who", "labl").problems)
    with pytest.raises(DataError, match="no such file"):
        describe_table(odd.with_name("none.csv"), "who", "label")


def test_the_settings_run_once_they_are_edited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"c{row % 210},{row},{('red', 'blue')[row % 2]},{row % 2}" for row in range(630)]
    (tmp_path / "t.csv").write_text("who,x,colour,y\n" + "\n".join(lines) + "\n")
    assert main(["data", "describe", "t.csv", "--client-column", "who", "--target-column", "y", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["facts"]["target"] == "2 classes, the most common in 50% of rows"
    text = found["settings"].replace("# ", "").replace("Public constants", "# ").replace("num_clients: BOUND", "")
    text = text.replace("[LOW, HIGH]", "[0, 630]").replace("classes: [VALUE, VALUE]", "classes: [0, 1]")
    settings = yaml.safe_load(text.replace("[VALUE, VALUE]", "[red, blue]"))
    assert settings["features"] == ["x", "colour"]
    assert settings["scale"] == {"x": [0, 630]}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(settings | {"algorithm": "fedavg", "num_rounds": 2, "epsilon": 8}))
    assert main(["run", "t.yaml", "--device", "cpu", "-q"]) == 0


def test_row_names_and_missing_numbers_to_predict_are_told(tmp_path):
    lines = [f"{row},c{row % 210},{row * 0.37:.2f},{row / 7 if row else 'NA'}" for row in range(630)]
    (tmp_path / "t.csv").write_text("rownames,who,x,y\n" + "\n".join(lines) + "\n")
    found = describe_table(tmp_path / "t.csv", "who", "y")
    assert [problem.partition(";")[0] for problem in found.problems] == [
        "rows without a 'y': 1",
        "'rownames' differs in every row, like an id or a row number",
    ]
    assert yaml.safe_load(found.settings)["features"] == ["x"]


def test_dates_are_proposed_as_the_parts_that_differ(tmp_path):
    days = ["2024-01-31", "2024-02-01", "2024-03-01 10:00:00", "soon"]
    lines = [f"c{row % 210},{days[row % 4]},{row % 2}" for row in range(630)]
    (tmp_path / "t.csv").write_text("who,flown,y\n" + "\n".join(lines) + "\n")
    found = describe_table(tmp_path / "t.csv", "who", "y")
    assert found.problems == ("'flown' has ISO dates (2024-01-31), and other text in 157 cells; correct these.",)
    assert yaml.safe_load(found.settings)["types"] == {"flown": ["month", "weekday", "hour"]}


def test_types_and_folders(tmp_path):
    table = pa.table({"who": ["a", "b"], "x": [1.0, 2.0], "y": [0.5, 1.5], "v": [[1, 2], [3, 4]]})
    __import__("pyarrow.parquet").parquet.write_table(table, tmp_path / "t.parquet")
    settings = yaml.safe_load(describe_table(tmp_path / "t.parquet", "who", "y").settings)
    assert settings["types"] == {"x": "number", "y": "number", "v": "list"}
    assert settings["regression"] is True
    assert settings["features"] == ["x", "v"]
    (tmp_path / "folder").mkdir()
    for name in ("anna", "bela"):
        (tmp_path / "folder" / f"{name}.csv").write_text("x,y\n1,0\n2,1\n")
    found = describe_table(tmp_path / "folder", None, "y")
    assert found.facts["clients"] == 2
    assert not any("--client-column" in problem for problem in found.problems)


def test_the_page_says_that_nothing_covers_it(odd, capsys):
    assert main(["data", "describe", str(odd), "--client-column", "who", "--target-column", "label"]) == 0
    shown = capsys.readouterr()
    assert "no guarantee covers choices" in shown.err
    assert "- 'const' has one value" in shown.out
    assert "# classes: [VALUE, VALUE]" in shown.out


def test_settings_filled_from_the_data_run_and_the_statement_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"c{row % 210},{row % 17},{('red', 'grün, hell')[row % 2]},{('no', 'yes')[row % 2]}" for row in range(630)]
    quoted = [line.replace("grün, hell", '"grün, hell"') for line in lines]
    (tmp_path / "t.csv").write_text("who,x,colour,y\n" + "\n".join(quoted) + "\n", encoding="utf-8")
    flags = ["--client-column", "who", "--target-column", "y", "--fill-from-data", "--json"]
    assert main(["data", "describe", "t.csv", *flags]) == 0
    filled = json.loads(capsys.readouterr().out)["settings"]
    settings = yaml.safe_load(filled)
    assert filled.startswith("# From clients' values")
    assert settings["scale"] == {"x": [0.0, 16.0]}
    assert settings["categories"] == {"colour": ["grün, hell", "red"]}
    assert settings["classes"] == ["no", "yes"]
    assert settings["filled_from_data"] == ["x", "colour", "y"]
    (tmp_path / "t.yaml").write_text(filled + "algorithm: fedavg\nnum_rounds: 2\nepsilon: 8\ndelta: 1.0e-3\nout: run\n")
    assert main(["run", "t.yaml", "-q"]) == 0
    stated = json.loads((tmp_path / "run" / "privacy.json").read_text())["not_covered"]
    assert any("rules of x, colour, y" in line for line in stated)


def test_rules_of_a_table_in_memory_that_were_filled_from_it_are_named():
    table = {"who": ["a", "b"] * 5, "x": list(range(10)), "y": ["0", "1"] * 5}
    about = {"client": "who", "target": "y", "classes": ["0", "1"], "scale": {"x": (0, 9)}, "delta": 0.1}
    made = build_experiment(
        data=table, filled_from_data=["x"], algorithm="fedavg", num_clients=2, noise_multiplier=1.0, **about
    )
    assert any("rules of x," in line for line in made.statement()["not_covered"])


def test_one_column_filled_from_the_data_is_named_whole():
    assert declared_columns(client="who", target="y", filled_from_data="colour").filled_from_data == ("colour",)


def test_vocabularies_and_classes_from_a_file(tmp_path, monkeypatch):
    from rrcluster.errors import ConfigError
    from rrcluster.settings import ColumnSettings, declared_columns

    monkeypatch.chdir(tmp_path)
    (tmp_path / "airports.txt").write_text("JFK\n\nŁódź, Lublinek\n", encoding="utf-8")
    columns = ColumnSettings(categories=("dest=@airports.txt", "colour=red"), classes=("@airports.txt",))
    assert columns.vocabulary == {"dest": ("JFK", "Łódź, Lublinek"), "colour": ("red",)}
    assert columns.classes == ("JFK", "Łódź, Lublinek")
    assert ColumnSettings(categories=columns.categories).vocabulary == columns.vocabulary  # what config.yaml holds
    handles = declared_columns(categories={"handle": ["@a", "@b"]})
    assert handles.vocabulary == {"handle": ("@a", "@b")}
    assert declared_columns(categories={"dest": "@airports.txt"}).vocabulary["dest"][0] == "JFK"
    with pytest.raises(ConfigError, match=r"categories = @none.txt: no such file"):
        ColumnSettings(categories=("dest=@none.txt",))


def test_files_are_not_read_for_what_somebody_else_wrote(tmp_path):
    from rrcluster.errors import ConfigError
    from rrcluster.federation.agreed_settings import agreed_rules
    from rrcluster.settings import without_removed

    (tmp_path / "secret.txt").write_text("a\nb\n")
    for settings in (
        {"classes": [f"@{tmp_path}/secret.txt"]},
        {"categories": [f"x=@{tmp_path}/secret.txt"]},
        {"categories": {"x": f"@{tmp_path}/secret.txt"}},
    ):
        for read in (without_removed, agreed_rules):
            with pytest.raises(ConfigError, match="name a file"):
                read(settings)
