"""One client's cells change no other client's arrays, however tables are spelled, typed and stored.

The guarantee is among populations that differ in one client, so two files that differ in the rows of one client have to
give everybody else the same inputs, targets and held-out rows, bit for bit.
"""

import csv
import gzip
from datetime import date

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.audit.neighbouring_tables import client_arrays, draw_neighbours, write_csv
from rrcluster.errors import ConfigError, DataError, NotDeclared

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")


def write_file(path, rows):
    with path.open("w", newline="", encoding="utf-8") as text:
        csv.writer(text).writerows([["who", "x0", "label", "held"], *rows])


@pytest.mark.parametrize("block", range(10))
def test_a_neighbour_changes_nobody_elses_arrays(block, tmp_path):
    for seed in range(50 * block, 50 * block + 50):
        pair, paths = draw_neighbours(seed), [tmp_path / "one.csv", tmp_path / "other.csv"]
        for path, rows in zip(paths, (pair.one, pair.other), strict=True):
            write_csv(path, rows)
        arrays = [client_arrays(path, pair.rules) for path in paths]
        for own in arrays:
            own.pop(pair.client, None)
        assert len(arrays[0]) >= 2
        assert arrays[0] == arrays[1], seed


def test_compressed_files_are_read_alike(tmp_path):
    pair = draw_neighbours(3)
    write_csv(tmp_path / "one.csv", pair.one)
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress((tmp_path / "one.csv").read_bytes()))
    assert client_arrays(tmp_path / "one.csv.gz", pair.rules) == client_arrays(tmp_path / "one.csv", pair.rules)


@pytest.mark.parametrize("odd", ["unknown", "x", "", "NA", "7.5", "2024-05-05"])
@pytest.mark.parametrize(
    ("cells", "vocabulary"),
    [
        (["True", "False"], ["True", "False"]),
        (["01", "02"], ["01", "02"]),
        (["1.0", "2.0"], ["1", "2"]),
        (["NA", "DE"], ["NA", "DE"]),
        (["1e3", "2e3"], ["1e3", "2e3"]),
        (["2024-01-31", "2024-02-01"], ["2024-01-31", "2024-02-01"]),
        ([" red", "blue"], ["red", "blue"]),
    ],
)
def test_a_single_odd_cell_leaves_the_others_in_their_declared_category(cells, vocabulary, odd, tmp_path):
    rows = [[f"c{place}", cells[place % 2], "1", "false"] for place in range(6)]
    rules = {"categories": {"x0": vocabulary}, "missing": {"x0": vocabulary[0]}, "features": ["x0"], "classes": [0, 1]}
    for name, last in (("one", cells[0]), ("other", odd)):
        write_file(tmp_path / f"{name}.csv", [*rows, ["odd", last, "1", "false"]])
    one, other = (client_arrays(tmp_path / f"{name}.csv", rules) for name in ("one", "other"))
    inputs = np.frombuffer(b"".join(one[f"c{place}"][0] for place in range(6)), dtype=np.float32).reshape(6, 3)
    assert (inputs.argmax(axis=1) == [0, 1] * 3).all()  # each in its own category, none among the others
    assert [other[f"c{place}"] for place in range(6)] == [one[f"c{place}"] for place in range(6)]


def test_numbers_are_read_cell_by_cell(tmp_path):
    rows = [[f"c{place}", cell, "1", "0"] for place, cell in enumerate(["1", "+2", " 3 ", "4e0", ".5", "True", "007"])]
    write_file(tmp_path / "x.csv", rows)
    data = rr.from_frame(str(tmp_path / "x.csv"), "who", "label", features=["x0"], classes=[0, 1])
    assert [data.store.client(i)[0].item() for i in range(7)] == [1, 2, 3, 4, 0.5, 1, 7]
    write_file(tmp_path / "x.csv", [*rows, ["c9", "1_000", "1", "0"]])
    with pytest.raises(DataError, match=r"column 'x0' holds text; .*\(row 8 \(client 'c9'\)"):
        rr.from_frame(str(tmp_path / "x.csv"), "who", "label", features=["x0"], classes=[0, 1])


@pytest.mark.parametrize(
    "text", ['who,label,x\na,1,1\nb,0,"2\nc,1,3\nd,0,4\n', 'who,label,x\na,1,1\nb,0,"2\nc,1,"3\nd,0,4\n']
)
def test_a_quotation_mark_swallows_nobodys_rows(text, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match="quotation marks do not fit"):
        rr.from_frame(str(tmp_path / "x.csv"), "who", "label", classes=[0, 1])


def typed(kind, rng, size):
    """A column of one type, as programs make them."""
    whole = rng.integers(0, 3, size=size)
    return {
        "int64": lambda: pa.array(whole),
        "uint8": lambda: pa.array(whole, pa.uint8()),
        "float64": lambda: pa.array(whole.astype(float)),
        "float32": lambda: pa.array(whole.astype(np.float32)),
        "nullable": lambda: pa.array([None if value == 2 else int(value) for value in whole], pa.int64()),
        "nan": lambda: pa.array([float("nan") if value == 2 else float(value) for value in whole]),
        "text": lambda: pa.array([str(value) for value in whole]),
        "text of floats": lambda: pa.array([f"{value}.0" for value in whole]),
        "dictionary": lambda: pa.array([str(value) for value in whole]).dictionary_encode(),
        "decimal": lambda: pa.array(whole).cast(pa.decimal128(21, 2)),
        "boolean": lambda: pa.array(whole > 0),
        "text of booleans": lambda: pa.array([("True", "false", "TRUE")[value] for value in whole]),
    }[kind]()


@pytest.mark.parametrize("kind", ["int64", "uint8", "float64", "float32", "nullable", "nan", "text", "decimal"])
def test_width_and_nullability_of_a_typed_column_change_no_value(kind):
    size = 12
    who = pa.array([f"c{place}" for place in range(size)])
    rules = {"categories": {"x": [0, 1]}, "missing": {"x": 1}, "classes": [0, 1, 2]}

    def inputs(x):
        table = pa.table({"who": who, "x": x, "label": pa.array(np.zeros(size, dtype=int))})
        data = rr.from_frame(table, "who", "label", **rules)
        return [data.store.client(client)[0].tolist() for client in range(size)]

    whole = np.random.default_rng(1).integers(0, 3, size=size)
    expected = [[[float(value == 0), float(value == 1), float(value == 2)]] for value in whole]
    if kind in ("nullable", "nan"):
        expected = [[[float(value == 0), float(value != 0), 0.0]] for value in whole]
    assert inputs(typed(kind, np.random.default_rng(1), size)) == expected


def test_one_value_is_one_category_whatever_its_type():
    size = 12
    for one, other in (("boolean", "text of booleans"), ("float64", "text of floats"), ("int64", "dictionary")):
        inputs = []
        for kind in (one, other):
            x = typed(kind, np.random.default_rng(3), size)
            who = pa.array([f"c{place}" for place in range(size)])
            table = pa.table({"who": who, "x": x, "label": pa.array(np.zeros(size, dtype=int))})
            categories = {"x": [True, False] if "boolean" in one else [0, 1]}
            data = rr.from_frame(table, "who", "label", categories=categories, classes=[0, 1])
            inputs.append([data.store.client(client)[0].argmax() for client in range(size)])
        if "boolean" not in one:
            assert inputs[0] == inputs[1]
        else:
            assert set(inputs[0]) | set(inputs[1]) <= {0, 1}


def test_whole_numbers_that_floats_cannot_hold_are_refused_as_names():
    table = pa.table({"who": [2.0**53 + 2, 1.0], "x": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(DataError, match=r"column 'who': row 1 .* as text"):
        rr.from_frame(table, "who", "label", classes=[0, 1])


def test_dates_are_one_value_in_every_unit():
    day = [date(2024, 1, 31), date(2024, 2, 1)]
    for unit in ("s", "ms", "us", "ns"):
        x = pa.array(day).cast(pa.timestamp(unit))
        table = pa.table({"who": ["a", "b"], "x": x, "label": [0, 1]})
        data = rr.from_frame(table, "who", "label", categories={"x": ["2024-01-31", "2024-02-01"]}, classes=[0, 1])
        assert [data.store.client(client)[0].argmax() for client in range(2)] == [0, 1]


def with_row_numbers(path, gone=()):
    """A table as pandas writes it with its index; `gone` clients left it before."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": [f"c{i // 2:02d}" for i in range(20)], "x": range(20), "y": [0, 1] * 10})
    frame = frame[~frame.who.isin(gone)].reset_index(drop=True)
    if path.suffix == ".csv":
        frame.to_csv(path)
    else:
        frame[frame.x != 7].to_parquet(path)  # after a filter, its index is a column
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "read again"])
def test_row_numbers_that_programs_write_beside_a_table_are_no_inputs(name, tmp_path):
    pandas = pytest.importorskip("pandas")
    rules = {"client": "who", "target": "y", "classes": [0, 1], "types": {"x": "number", "y": "number"}}
    arrays = []
    for gone in ((), ("c00",)):
        path = with_row_numbers(tmp_path / (name if "." in name else "x.csv"), gone)
        data = rr.from_frame(str(path) if "." in name else pandas.read_csv(path), **rules)
        arrays.append({who: data.store.client(place)[0].tolist() for place, who in enumerate(data.clients)})
    assert arrays[0]["c05"] == [[10.0], [11.0]]
    assert all(arrays[0][who] == rows for who, rows in arrays[1].items())


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_row_numbers_are_named_in_rehearsals_and_refused_in_secure_runs(name, tmp_path):
    path = with_row_numbers(tmp_path / name)
    types = {"x": "number", "y": "number"}
    settings = {"data": str(path), "client": "who", "target": "y", "classes": [0, 1], "types": types, "num_clients": 20}
    settings |= {"num_clusters": 2, "num_rounds": 2, "noise_multiplier": 1.0, "delta": 1e-3}
    with pytest.warns(NotDeclared, match="column .* looks like row numbers and is left out"):
        rr.experiment(**settings)
    with pytest.raises(ConfigError, match="looks like row numbers and is left out") as refusal:
        rr.experiment(**settings, secure=True, seed=None)
    assert "index_level_0__=" not in str(refusal.value)
    assert rr.experiment(**settings, secure=True, seed=None, features=["x"]).data.input_shape == (1,)
