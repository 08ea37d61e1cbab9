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
    with pytest.raises(DataError, match="unbalanced quotation marks"):
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


CODES = ["01", "02"]


def table_of(cells, **more):
    size = len(cells)
    return pa.table({"who": [f"c{place}" for place in range(size)], "x": cells, "label": [0, 1] * (size // 2), **more})


def inputs_of(source, client="who", **rules):
    data = rr.from_frame(source, client, "label", classes=[0, 1], **rules)
    return {name: data.store.client(place)[0].tolist() for place, name in enumerate(data.clients)}, data.counted


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_the_order_of_columns_in_one_file_of_a_folder_moves_nobody(ending, tmp_path):
    parquet, csv_of = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.csv")
    arrays = []
    for name, extra in (("one", {}), ("other", {"a": ["z", "label", "x", "y"]})):
        (tmp_path / name).mkdir()
        for file, columns in {"b": ["x", "y", "z", "label"], "c": ["x", "y", "z", "label"], **extra}.items():
            table = pa.table({column: [number, 0] for number, column in enumerate(columns)})
            table = table.set_column(columns.index("label"), "label", [[0, 1]])
            if ending == ".csv":
                csv_of.write_csv(table, tmp_path / name / f"{file}.csv")
            else:
                parquet.write_table(table, tmp_path / name / f"{file}.parquet")
        arrays.append(inputs_of(tmp_path / name, client=None)[0])
    assert {client: arrays[1][client] for client in ("b", "c")} == arrays[0]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (pa.array([1, 2]), "number"),
        (pa.array([True, False]), "boolean"),
        (pa.array([date(2024, 1, 31), date(2024, 2, 1)]), "date"),
    ],
)
def test_categories_of_a_dictionary_are_of_the_kind_of_their_values(cells, kind):
    """pandas' `category` holds what its reader made of all cells: 01 is a number as long as everybody's cell is one."""
    rules = {"categories": {"x": ["01", "02"]}}
    assert f"'x': '{kind}'" in inputs_of(table_of(cells.dictionary_encode()), **rules)[1]["types"]
    with pytest.raises(DataError, match=f"types = x=text was declared, but the column has {kind}"):
        inputs_of(table_of(cells.dictionary_encode()), types={"x": "text"}, **rules)
    assert "'x'" not in inputs_of(table_of(pa.array(CODES).dictionary_encode()), **rules)[1]["types"]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([b"1", b"2"]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([3600, 7200], pa.duration("s")),
        pa.array([b"1", b"2"]).dictionary_encode(),
    ],
    ids=["bytes", "structs", "durations", "categories of bytes"],
)
def test_columns_that_are_of_no_declared_kind_are_refused(cells):
    with pytest.raises(DataError, match=r"column 'x' holds .*; make it text, numbers"):
        inputs_of(table_of(cells), categories={"x": CODES})


NOON = ["2024-01-01T12:00:00", "2024-01-02T00:00:00.250"]


@pytest.mark.parametrize("encoding", ["declared", "cells"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_the_unit_and_the_zone_of_dates_change_no_value(unit, zone, encoding):
    categories = {"x": ["2024-01-01 12:00:00", "2024-01-02 00:00:00.25"]}

    def inputs(unit, zone):
        stamps = pa.array(np.array(NOON, dtype=f"datetime64[{unit}]")).cast(pa.timestamp(unit, tz=zone))
        return inputs_of(table_of(stamps), categories=categories, types={"x": "date"}, encoding=encoding)[0]

    assert inputs(unit, zone) == inputs("ms", None)
    assert [np.argmax(row[0][:3]) for row in inputs(unit, zone).values()] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "bound"), [(pa.float16(), 2**11), (pa.float32(), 2**24), (pa.float64(), 2**53)], ids=["16", "32", "64"]
)
def test_names_that_a_float_of_their_width_may_have_rounded_are_refused(kind, bound):
    numpy_of = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}[kind]
    for odd in (bound, bound + 1):  # the second is rounded to the first
        cells = pa.array(np.array([odd, 5], dtype=numpy_of))
        with pytest.raises(DataError, match=rf"a number of 2\^{bound.bit_length() - 1} or more"):
            inputs_of(table_of(cells), categories={"x": [bound + 1, 5]})
    below = pa.array(np.array([bound - 1, 5], dtype=numpy_of))
    assert np.argmax(inputs_of(table_of(below), categories={"x": [bound - 1, 5]})[0]["c0"]) == 0


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
@pytest.mark.parametrize("rules", [{"categories": {"x": [2**24 + 1, 2049, 5]}}, {}])
def test_narrow_floats_in_one_file_of_a_folder_round_nobodys_numbers(narrow, rules, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrays = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for file in ("b", "c"):
            cells = pa.array([2**24 + 1 if narrow == np.float32 else 2049, 5], pa.int32())
            parquet.write_table(pa.table({"x": cells, "label": [0, 1]}), tmp_path / name / f"{file}.parquet")
    odd = pa.table({"x": pa.array(np.array([1.5, 2], dtype=narrow)), "label": [0, 1]})
    parquet.write_table(odd, tmp_path / "other" / "a.parquet")
    arrays = [inputs_of(tmp_path / name, client=None, types={"x": "number"}, **rules)[0] for name in ("one", "other")]
    assert {client: arrays[1][client] for client in ("b", "c")} == arrays[0]


TYPES = {
    "number": [
        pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(),
        pa.decimal128(9, 2), pa.decimal256(40, 3),
    ],
    "text": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "boolean": [pa.bool_()],
    "date": [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", tz="UTC")],
}  # fmt: skip
VALUES = {
    "number": [0, 1, 2, 3, 100],
    "text": ["red", "01", "true", "größe", "NA", ""],
    "boolean": [True, False],
    "date": [date(2024, 1, 31), date(2024, 2, 1), date(1969, 7, 20)],
}


def typed_column(kind, values, rng):
    """The values in one of the types that programs hold them in."""
    types = TYPES[kind]
    chosen = types[rng.integers(len(types))]
    if kind == "text" and pa.types.is_dictionary(chosen):
        return pa.array(values, pa.string()).dictionary_encode()
    if pa.types.is_decimal(chosen):
        return pa.array(values, pa.int64()).cast(pa.decimal128(21, 0)).cast(chosen)
    return pa.array(values, pa.date32()).cast(chosen) if kind == "date" else pa.array(values, chosen)


def typed_pair(seed):
    """Two tables at one declared schema that differ in a client's values, and in how wide everybody's types are."""
    rng = np.random.default_rng(seed)
    kinds = {f"x{place}": list(TYPES)[rng.integers(4)] for place in range(3)} | {"amount": "number", "label": "number"}
    owners = [f"c{place}" for place in range(6) for _ in range(rng.integers(1, 4))]
    held = [place > 0 and owners[place - 1] == owners[place] and rng.random() < 0.5 for place in range(len(owners))]

    def cell(name):
        kind = kinds[name]
        value = VALUES[kind][rng.integers(len(VALUES[kind]))]
        return rng.integers(2).item() if name == "label" else None if rng.random() < 0.2 else value

    rows = [{name: cell(name) for name in kinds} for _ in owners]
    mine = [place for place, owner in enumerate(owners) if owner == "c0"]
    changed = [{name: cell(name) for name in kinds} if place in mine else row for place, row in enumerate(rows)]
    kept = [place for place in range(len(owners)) if rng.random() < 0.5 or place not in mine[1:]]
    tables = []
    for cells, places in ((rows, range(len(owners))), (changed, kept)):
        columns = {name: typed_column(kinds[name], [cells[place][name] for place in places], rng) for name in kinds}
        who = pa.array([owners[place] for place in places])
        marks = pa.array([held[place] for place in places])
        tables.append(pa.table({"who": who, **columns, "held": marks}))
    rules = {
        "categories": {name: VALUES[kinds[name]][:2] for name in ("x0", "x1", "x2")},
        "missing": {"x0": VALUES[kinds["x0"]][0], "x1": "other", "x2": VALUES[kinds["x2"]][1], "amount": 0},
        "types": {name: kind for name, kind in kinds.items() if kind != "text"} | {"held": "boolean"},
        "test_column": "held",
        "classes": [0, 1],
    }
    return tables, rules


def through_pandas(table):
    pandas = pytest.importorskip("pandas")
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def through_polars(table):
    return pytest.importorskip("polars").from_arrow(table)


def through_parquet(table, path):
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("through", ["arrow", "parquet", "pandas", "polars"])
def test_a_neighbour_at_a_declared_schema_changes_nobody_elses_arrays(through, block, tmp_path):
    for seed in range(13 * block, 13 * block + 13):
        tables, rules = typed_pair(seed)
        if through == "polars" and any(pa.types.is_decimal256(own.type) for table in tables for own in table.schema):
            continue  # it holds no such numbers
        make = {
            "arrow": lambda table, _: table,
            "parquet": lambda table, number: through_parquet(table, tmp_path / f"{number}.parquet"),
            "pandas": lambda table, _: through_pandas(table),
            "polars": lambda table, _: through_polars(table),
        }[through]
        arrays = [client_arrays(make(table, number), rules) for number, table in enumerate(tables)]
        for own in arrays:
            own.pop("c0", None)
        assert len(arrays[0]) == 5
        assert arrays[0] == arrays[1], seed


def test_headers_with_marks_quotes_and_spaces_are_read_alike(tmp_path):
    """A byte order mark, quoted names, line ends of other systems: the same columns."""
    plain = "who,x,label\na,1,0\nb,2,1\n"
    forms = {
        "plain": plain.encode(),
        "mark": b"\xef\xbb\xbf" + plain.encode(),
        "quotes": plain.replace("who,x,label", '"who","x","label"').encode(),
        "windows": plain.replace("\n", "\r\n").encode(),
    }
    arrays = {}
    for name, content in forms.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
        arrays[name] = inputs_of(str(tmp_path / f"{name}.csv"))[0]
    assert all(own == arrays["plain"] for own in arrays.values())
    (tmp_path / "twice.csv").write_text("who,x,x,label\na,1,1,0\n")
    with pytest.raises(DataError, match="column 'x' appears twice"):
        inputs_of(str(tmp_path / "twice.csv"))


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
    settings |= {"algorithm": "ifca", "num_clusters": 2, "num_rounds": 2, "noise_multiplier": 1.0, "delta": 1e-3}
    with pytest.warns(NotDeclared, match="column .* looks like row numbers and is left out"):
        rr.experiment(**settings)
    with pytest.raises(ConfigError, match="looks like row numbers and is left out") as refusal:
        rr.experiment(**settings, secure=True, seed=None)
    assert "index_level_0__=" not in str(refusal.value)
    assert rr.experiment(**settings, secure=True, seed=None, features=["x"]).data.input_shape == (1,)
