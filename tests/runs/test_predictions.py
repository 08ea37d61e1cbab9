"""Scores of new rows: by the folder of a run alone, equal in every way there is to compute them."""

import contextlib
import csv
import gzip
import io
import json
import re
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
import torch

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import ConfigError, DataError, PrivacyError

pytestmark = pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")  # of unseen categories
ROWS, CLIENTS = 10_000, 300
FEATURES = ("age", "income", "colour", "shop", "since", "seen")
RULES = {
    "cells": {
        "scale": {"age": (0, 100)},
        "categories": {"colour": ["red", "grün", "12", "true"]},
        "types": {"seen": "year"},
    },
    "declared": {
        "scale": {"age": (0, 100), "income": (0, 1000)},
        "categories": {"colour": ["red", "grün", "12", "true"], "shop": ["Łódź", "a, b"], "since": ["2024-01-31"]},
        "missing": {"age": 40, "income": -1, "colour": "red", "shop": "Łódź", "seen": "2024-02-29"},
        "types": {"seen": ["month", "weekday"]},
    },
}
TASKS = {
    "two": {"target": "yes", "classes": ["no", "yes"]},
    "three": {"target": "size", "classes": ["S", "M", "L"]},
    "number": {"target": "price", "regression": True},
}


@pytest.fixture(scope="module")
def rows():
    """Cells as people write them: nulls, unseen categories, unicode, numbers in several spellings, dates."""
    rng = np.random.default_rng(5)
    who = rng.integers(0, CLIENTS, ROWS)
    group, age = who % 2, rng.uniform(0, 110, ROWS)
    score = np.where(group, -1, 1) * (age - 50) / 20 + rng.normal(size=ROWS) / 2
    spelled = np.array([f"{value:.6f}" if place % 3 else f"+{value:.6e}" for place, value in enumerate(age)])
    frame = pd.DataFrame(
        {
            "who": [f"client {number}" for number in who],
            "age": np.where(rng.random(ROWS) < 0.05, "", spelled),
            "income": rng.choice(["", "NaN", "0", "1e3", "True", " 12.5 ", "-7"], ROWS),
            "colour": rng.choice(["red", "grün", "12.0", "TRUE", "", "неизвестно", " red "], ROWS),
            "shop": rng.choice(["Łódź", "a, b", "日本", "007", "7", "7.10", "null", 'say "x"'], ROWS),
            "since": rng.choice(["2024-01-31", "2024-01-31 00:00:00", "2023-05-06T07:08:09", "soon"], ROWS),
            "seen": rng.choice(["2024-06-03 22:10:00+05:00", "2021-12-31", "20240229", "03.06.2024", "5", "NA"], ROWS),
            "yes": np.where(score > 0, "yes", "no"),
            "size": np.select([score < -0.7, score < 0.7], ["S", "M"], "L"),
            "price": np.round(100 + 20 * score, 3),
        }
    )
    return frame.astype(str)


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    """The folder of a run, made once for each kind of inputs and task."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(encoding, task):
        if (encoding, task) not in made:
            settings = {
                "delta": 1e-3,
                "epsilon": 20,
                "out": folder / f"{encoding}-{task}",
                "seed": 1,
                "test_share": 0.0,
            }
            if encoding == "declared":
                settings |= {"num_clusters": 2, "num_rounds": 15, "local_lr": 0.3, "local_epochs": 1}
            columns = {"client": "who", "features": FEATURES, "encoding": encoding} | RULES[encoding] | TASKS[task]
            if task == "number":
                columns["scale"] = columns["scale"] | {"price": (0, 200)}
            made[encoding, task] = rr.run(data=rows, **columns, **settings).folder
        return made[encoding, task]

    return run


def cell_name(text):
    """A text by its value, as the file beside an ONNX model says it."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    if re.fullmatch(r"-?(0|[1-9][0-9]*)\.[0-9]+", text):
        text = text.rstrip("0").rstrip(".")
    return text.removesuffix(" 00:00:00")


def part_of_date(text, column):
    for given in (text.strip(), str(column.get("missing", ""))):
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(given)
            moment = moment.astimezone(UTC) if moment.tzinfo else moment
            return {"weekday": f"{moment:%A}"}.get(column["part"]) or str(getattr(moment, column["part"]))
    return ""


def by_the_file(about, frame):
    """The inputs of rows by the JSON file alone: an implementation of its own."""
    values, codes = [], []
    for column in about["columns"]:
        cells = frame[column["column"]].tolist()
        cells = [column.get("missing", cell) if cell.strip() in about["empty"] else cell for cell in map(str, cells)]
        if "part" in column:
            cells = [part_of_date(str(cell), column) for cell in cells]
        empty = [str(cell).strip() in about["empty"] for cell in cells]
        names = [cell_name(str(cell)) for cell in cells]
        if "values" in column:
            hot = [[name == value for value in column["values"]] for name in names]
            hot = np.array([[*row, not any(row)] for row in hot], dtype=float)
            hot[[place for place, none in enumerate(empty) if none]] = np.nan
            values += list(hot.T)
            codes += [np.zeros(len(cells))] * hot.shape[1]
            continue
        plain = [str(cell).strip() for cell in cells]
        plain = [{"true": "1", "false": "0"}.get(text.lower(), text) for text in plain]
        numbers = np.array(
            [
                float(text) if re.match(about["number"], text) and not none else np.nan
                for text, none in zip(plain, empty, strict=True)
            ]
        )
        if column.get("date"):
            for place, text in enumerate(plain):
                with contextlib.suppress(ValueError):
                    numbers[place] = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() / 86400
        code = np.zeros(len(cells))
        if "text_key" in column:
            for place, name in enumerate(names):
                if np.isnan(numbers[place]) and not empty[place]:
                    key = bytes.fromhex(column["text_key"])
                    text = re.sub("T", " ", name) if re.match(r"\d{4}-\d\d-\d\dT", name) else name
                    digest = blake2b(text.encode(), key=key, digest_size=8, person=b"rrcluster cell").digest()
                    code[place] = 1 + int.from_bytes(digest, "big") % about["buckets"]
        low, high = column.get("scale", (0, 1))
        values.append((numbers - low) / (high - low))
        codes.append(code)
    return np.stack([*values, *(codes if about["buckets"] else ())], axis=1).astype(np.float32)


def finished(about, outputs):
    outputs = np.asarray(outputs, dtype=np.float64)
    if "logits_of" in about["outputs"]:
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)
    low, high = about["outputs"]["low"], about["outputs"]["high"]
    return low + (high - low) * outputs[:, 0]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("encoding", RULES)
def test_all_ways_give_the_same_predictions(rows, trained, tmp_path, encoding, task):
    """predict of a frame and of a file, the command's table, the module and the preprocessing beside ONNX."""
    from rrcluster.runs.predictions import preprocessing

    run, unlabelled = trained(encoding, task), rows.drop(columns=["yes", "size", "price"])
    models = rr.load(run)
    numbers = task == "number"
    clusters = {name: place % models.num_clusters for place, name in enumerate(sorted(set(rows.who)))}
    wanted = models.predict(unlabelled, clusters=clusters)
    assert not wanted.problems
    assert np.isfinite(wanted.outputs).all()
    file, table = tmp_path / "rows.csv", tmp_path / "clusters.csv"
    unlabelled.to_csv(file, index=False)
    table.write_text("client,cluster,margin\n" + "".join(f"{name},{place},\n" for name, place in clusters.items()))
    assert (
        main(["predict", str(run), "--data", str(file), "--clusters", str(table), "--out", str(tmp_path / "s.csv")])
        == 0
    )
    scores = pd.read_csv(tmp_path / "s.csv")
    columns = ["prediction"] if numbers else [f"probability_{name}" for name in TASKS[task]["classes"]]
    np.testing.assert_allclose(scores[columns].to_numpy().squeeze(), wanted.outputs, atol=1e-12)
    assert scores.client.tolist() == rows.who.tolist()
    if not numbers:
        assert scores.prediction.tolist() == wanted.prediction.tolist()
    about = json.loads(json.dumps(preprocessing(models)))
    inputs = by_the_file(about, unlabelled)
    for cluster in range(models.num_clusters):
        mine = np.array([clusters[name] == cluster for name in rows.who])
        with torch.no_grad():
            outputs = models.module(cluster)(torch.as_tensor(inputs[mine])).numpy()
        np.testing.assert_allclose(finished(about, outputs), wanted.outputs[mine], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", RULES)
def test_onnx_with_its_preprocessing_gives_the_same(rows, trained, tmp_path, encoding):
    pytest.importorskip("onnx", reason="ONNX files need rrcluster[onnx]")
    pytest.importorskip("onnxscript", reason="ONNX files need rrcluster[onnx]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="to run the file that was written")
    for task in TASKS:
        models = rr.load(trained(encoding, task))
        path = models.onnx(0, tmp_path / f"{task}.onnx")
        about = json.loads(path.with_suffix(".json").read_text())
        session = onnxruntime.InferenceSession(path)
        (outputs,) = session.run(None, {session.get_inputs()[0].name: by_the_file(about, rows)})
        wanted = models.predict(rows, cluster=0).outputs
        np.testing.assert_allclose(finished(about, outputs), wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_cannot_be_read_are_named_and_the_others_scored(rows, trained, tmp_path, capsys):
    run = trained("declared", "two")
    broken = rows.iloc[:40].copy()
    broken.iloc[3, broken.columns.get_loc("since")] = ""  # no rule for missing values
    broken.iloc[7, broken.columns.get_loc("income")] = "плохо"
    broken.iloc[7, broken.columns.get_loc("age")] = "1e300"
    broken.iloc[9, broken.columns.get_loc("who")] = ""
    broken.to_csv(tmp_path / "broken.csv", index=False)
    assert main(["predict", str(run), "--data", str(tmp_path / "broken.csv"), "--out", str(tmp_path / "s.csv")]) == 0
    said = capsys.readouterr().err
    scores = list(csv.DictReader((tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()))
    odd = {row["row"]: row["problem"] for row in scores if row["problem"]}
    assert "плохо" not in said + str(odd)
    assert "1e300" not in said + str(odd)
    assert len(odd) == 3
    assert "3 rows could not be read; the first is row" in said
    assert {text.split(":")[0] for text in odd.values()} == {"column 'since'", "column 'income'", "column 'who'"}
    fine = [row for row in scores if not row["problem"]]
    assert len(fine) == len(broken) - 3
    assert all(row["prediction"] in ("yes", "no") for row in fine)
    assert {row["prediction"] + row["probability_yes"] for row in scores if row["problem"]} == {""}


def test_scores_are_readable_by_their_owner_alone_and_never_in_a_run_folder(rows, trained, tmp_path):
    run = trained("cells", "two")
    scored = rr.load(run).predict(rows.iloc[:20])
    assert scored.write_csv(tmp_path / "scores.csv").stat().st_mode & 0o777 == 0o600
    with pytest.raises(PrivacyError, match="inside the run folder"):
        scored.write_csv(run / "scores.csv")


def test_no_row_chooses_the_model_that_scores_it(rows, trained):
    """Labelled rows that are scored too decide nothing: labels of theirs can be turned and nothing changes."""
    for encoding in RULES:
        models = rr.load(trained(encoding, "two"))
        scored, others = rows.iloc[:2000], rows.iloc[2000:]
        beside = models.predict(scored, labelled=others)
        turned = scored.assign(yes=np.where(scored.yes == "yes", "no", "yes"))
        among = models.predict(scored, labelled=pd.concat([turned, others]))
        np.testing.assert_array_equal(beside.outputs, among.outputs)
        assert among.left_out == 2000
        assert "decided nothing" in among.sentence()
        np.testing.assert_array_equal(
            beside.outputs, models.predict(turned.drop(columns="yes"), labelled=others).outputs
        )


def test_a_row_is_the_same_with_either_sign_of_zero(rows, trained):
    models, zero = rr.load(trained("cells", "two")), rows.iloc[:200].assign(income="0")
    among = models.predict(zero, labelled=zero.assign(income="-0"))
    assert among.left_out == 200


def test_labelled_rows_give_the_cluster_of_assign_and_own_effects(rows, trained, tmp_path):
    models, labelled, scored = rr.load(trained("declared", "two")), rows.iloc[5000:], rows.iloc[:5000]
    rules = {"features": FEATURES, "encoding": "declared"} | RULES["declared"] | TASKS["two"]
    table = rr.assign(models, rr.from_frame(labelled, client="who", **rules))
    by_labels, by_table = models.predict(scored, labelled=labelled), models.predict(scored, clusters=table)
    np.testing.assert_array_equal(by_labels.outputs, by_table.outputs)
    path = table.write_csv(tmp_path / "clusters.csv")
    np.testing.assert_array_equal(by_labels.outputs, models.predict(scored, clusters=path).outputs)
    unknown = models.predict(scored)
    assert (unknown.cluster == -1).all()
    assert "averaged by released sizes" in unknown.sentence()
    right = {name: (got.prediction == scored.yes).mean() for name, got in (("labels", by_labels), ("none", unknown))}
    assert right["labels"] > right["none"] + 0.1, right
    shares = np.array(models.sizes) / sum(models.sizes)
    mean = sum(shares[cluster] * models.predict(scored, cluster=cluster).outputs for cluster in range(2))
    np.testing.assert_allclose(unknown.outputs, mean, atol=1e-6)


def test_mixed_effects_serve_labelled_clients_better_than_unlabelled_ones(rows, trained):
    for task in TASKS:
        models, labelled, scored = rr.load(trained("cells", task)), rows.iloc[5000:], rows.iloc[:5000]
        known, unknown = models.predict(scored, labelled=labelled), models.predict(scored)
        assert known.own_models == len(set(scored.who) & set(labelled.who))
        assert not unknown.own_models
        if task == "number":
            errors = [np.sqrt(((got.prediction - scored.price.astype(float)) ** 2).mean()) for got in (known, unknown)]
            assert errors[0] < 0.7 * errors[1], errors
        else:
            target = TASKS[task]["target"]
            right = [(got.prediction == scored[target]).mean() for got in (known, unknown)]
            assert right[0] > right[1] + 0.1, (task, right)


def test_what_cannot_be_scored_is_one_sentence(rows, trained, tmp_path):
    models = rr.load(trained("declared", "two"))
    with pytest.raises(DataError, match="'income' is not a column"):
        models.predict(rows.drop(columns="income"))
    with pytest.raises(DataError, match="no rows to score"):
        models.predict(rows.iloc[:0])
    with pytest.raises(DataError, match="row 1 has no cluster from 0 to 1"):
        models.predict(rows, clusters={"client 1": 7})
    with pytest.raises(ConfigError, match="need cluster="):
        models.predict(np.zeros((2, 12), dtype=np.float32))
    alone = tmp_path / "models.safetensors"  # passed on without its summary
    alone.write_bytes((trained("declared", "two") / "models.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="no released sizes"):
        rr.load(tmp_path).predict(rows)
    assert not rr.load(tmp_path).predict(rows, cluster=1).problems


def test_folders_without_rules_say_the_way_out(tmp_path):
    run = rr.run(num_clients=30, num_rounds=2, max_samples=5, epsilon=8, out=tmp_path / "run", init="independent")
    with pytest.raises(ConfigError, match=r"no rules for columns.*train again"):
        rr.load(run.folder).predict(pd.DataFrame({"a": [1]}))


def test_rows_without_a_column_of_clients(rows, trained):
    models = rr.load(trained("cells", "two"))
    scored = models.predict(rows.drop(columns="who"))
    assert scored.client is None
    assert "name no clients" in scored.sentence()
    np.testing.assert_allclose(scored.outputs, models.predict(rows).outputs, atol=1e-6)


def test_from_the_wages_table_to_scores(tmp_path, monkeypatch):
    """Each command, from a file to the table of scores."""
    monkeypatch.chdir(tmp_path)
    packed = files("rrcluster").joinpath("data/bundled/wages.csv.gz").read_bytes()
    table = pd.read_csv(io.BytesIO(gzip.decompress(packed)), dtype=str)
    table[table.time <= "1980"].to_csv("past.csv", index=False)
    table[table.time > "1980"].drop(columns="target").to_csv("new.csv", index=False)
    features = ["age", "experience", "tenure", "hours", "year", "married", "south", "rural", "city"]
    columns = ["--client-column", "client", "--target-column", "target", "--feature-columns", *features]
    columns += ["--classes", "0", "1", "--epsilon", "8", "--delta", "1e-4", "--clients", "1700"]
    runs = {"mixed": [], "ifca": ["--features", "declared", "-k", "2", "--rounds", "20", "--local-lr", "0.5"]}
    truth = table[table.time > "1980"].target.to_numpy()
    right = {}
    for name, options in runs.items():
        assert main(["run", "--data", "past.csv", *columns, *options, "--out", name]) == 0
        assert main(["assign", name, "--out", f"{name}-clusters.csv"]) == 0
        ways = {"labels": ["--labelled", "past.csv"], "table": ["--clusters", f"{name}-clusters.csv"], "none": []}
        for way, flags in ways.items():
            out = f"{name}-{way}.csv"
            assert main(["predict", name, "--data", "new.csv", *flags, "--out", out]) == 0
            scores = pd.read_csv(out, dtype={"prediction": str})
            assert len(scores) == len(truth)
            assert scores.problem.isna().all()
            right[name, way] = (scores.prediction == truth).mean()
    assert right["mixed", "labels"] > right["mixed", "none"] + 0.02, right
    assert right["ifca", "labels"] > right["ifca", "none"] + 0.02, right
    assert right["ifca", "table"] > right["ifca", "none"] + 0.02, right
