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
from rrcluster.errors import DataError

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")

# How people write cells; every list is a column in which a reader could infer a type from all cells together.
SPELLINGS = {
    "booleans": ["True", "False", "true", "FALSE"],
    "codes": ["01", "02", "10", "1"],
    "numbers": ["1", "2", "1.0", "2.50", "1e3", "-0", "+3", " 4 "],
    "missing": ["NA", "", "nan", "null", "None", "1"],
    "dates": ["2024-01-31", "2024-02-01 00:00:00", "31.01.2024"],
    "colours": ["red", "Red", " red", "rot,hell", 'a "quoted" one', "zwei\nZeilen", "größe", "日本", "é"],
    "amounts": ["1,000", "$5", "12%", "1_000"],
    "long": ["9007199254740993", "12345678901234567890", "0.1000000000000000055"],
}
ODD = ["unknown", "True", "01", "NA", "", "7", "7.5", "x", "2024-05-05", "é", "0x10", "1e400", "-", '"', "a\nb"]
NAMES = ["anna", "7", "007", "1.0", "NA", "true", "müller", "c,d", "null"]
LABELS = ["1", "0"]


def draw_rows(rng, kinds, owner, count):
    """Rows of one client: its name, a cell per column, a label, a mark of rows to test on."""
    return [
        [owner, *(str(rng.choice(SPELLINGS[kind])) for kind in kinds), str(rng.choice(LABELS)), "false"]
        for _ in range(count)
    ]


def draw_neighbours(seed):
    """Rows of a population, of one without its last client or with that client's cells changed, and the rules."""
    rng = np.random.default_rng(seed)
    kinds = list(rng.choice(list(SPELLINGS), size=3))
    owners = [str(name) for name in rng.permutation(NAMES)[: rng.integers(3, 7)]]
    others = [row for owner in owners[1:] for row in draw_rows(rng, kinds, owner, rng.integers(1, 4))]
    own = draw_rows(rng, kinds, owners[0], rng.integers(1, 4))
    changed = [[row[0], *(str(rng.choice(ODD)) for _ in kinds), *row[-2:]] for row in own]
    changed[0][-1] = str(rng.choice(["false", "0", "False"]))
    one, other = [own + others, changed + others] if rng.random() < 0.7 else [own + others, others]
    if rng.random() < 0.5:  # where in the file the client stands
        one, other = one[::-1], other[::-1]
    rules = {
        "categories": {f"x{place}": values(rng, kind) for place, kind in enumerate(kinds)},
        "missing": {f"x{place}": "filled" for place in range(len(kinds))},
        "test_share": 0.3 if rng.random() < 0.5 else 0.0,
    }
    if not rules["test_share"]:
        rules["test_column"] = "held"
    else:
        rules["features"] = [f"x{place}" for place in range(len(kinds))]
    return one, other, owners[0], rules


def values(rng, kind):
    """A public vocabulary: some of the spellings, none twice by value."""
    chosen = {" ".join(value.split()).lower(): value for value in rng.permutation(SPELLINGS[kind])[:3] if value.strip()}
    chosen.pop("-0", None)
    return [value for value in chosen.values() if value not in ("1.0", "nan")] or ["1"]


def write_file(path, rows):
    header = ["who", *(f"x{place}" for place in range(len(rows[0]) - 3)), "label", "held"]
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="", encoding="utf-8") as text:
        csv.writer(text, delimiter="\t" if ".tsv" in path.name else ",").writerows([header, *rows])


def arrays(path, rules):
    """Every client's arrays by name, tests included; the error where the table is refused."""
    try:
        data = rr.from_frame(path, "who", "label", classes=[0, 1], **rules)
    except DataError as error:
        return str(error)
    tests = [data.test_sets[place] if place >= 0 else None for place in data.test_of]
    return {
        name: [
            *(part.tobytes() for part in data.store.client(client)),
            *(() if test is None else (test.inputs.tobytes(), test.targets.tobytes())),
        ]
        for client, (name, test) in enumerate(zip(data.clients, tests, strict=True))
    }


@pytest.mark.parametrize("block", range(10))
def test_a_neighbour_changes_nobody_elses_arrays(block, tmp_path):
    compared = 0
    for seed in range(50 * block, 50 * block + 50):
        one, other, owner, rules = draw_neighbours(seed)
        ending = (".csv", ".tsv", ".csv.gz")[seed % 3]
        write_file(tmp_path / f"one{ending}", one)
        write_file(tmp_path / f"other{ending}", other)
        first, second = (arrays(str(tmp_path / f"{name}{ending}"), rules) for name in ("one", "other"))
        assert not isinstance(first, str), (seed, first)
        assert not isinstance(second, str), (seed, second)
        assert {name: parts for name, parts in first.items() if name != owner} == {
            name: parts for name, parts in second.items() if name != owner
        }, seed
        compared += 1
    assert compared == 50


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
    rules = {"categories": {"x0": vocabulary}, "missing": {"x0": vocabulary[0]}, "features": ["x0"]}
    for name, last in (("one", cells[0]), ("other", odd)):
        write_file(tmp_path / f"{name}.csv", [*rows, ["odd", last, "1", "false"]])
    one, other = (arrays(str(tmp_path / f"{name}.csv"), rules) for name in ("one", "other"))
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
