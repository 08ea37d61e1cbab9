"""Cells decide for themselves: a value or a code each, whatever other cells are and whatever type they came in."""

from datetime import date, datetime

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.data.cells import bucket, buckets_for
from rrcluster.data.federated import TableColumns
from rrcluster.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")
LARGEST = float(np.finfo(np.float32).max)


def population(columns, **rules):
    size = len(next(iter(columns.values())))
    given = {"who": [f"c{place:03}" for place in range(size)], "label": [place % 2 for place in range(size)]} | columns
    return rr.from_frame(given, "who", "label", encoding="cells", **{"classes": [0, 1]} | rules)


def rows(data):
    """(clients, values) and (clients, codes) of clients with one row each, in order."""
    inputs = np.concatenate([data.store.client(client)[0] for client in range(data.num_clients)])
    return np.split(inputs, 2, axis=1)


def test_by_hand():
    cells = ["1", " 1.0 ", "+1e0", "true", "FALSE", "", "NA", "red", " red", "Red", "1,000", "-inf", "1e400"]
    values, codes = rows(population({"x": cells}))
    red = bucket("x", "red", 16)
    number = [1, 1, 1, 1, 0, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, -LARGEST, LARGEST]
    np.testing.assert_array_equal(values[:, 0], np.float32(number))
    others = [0, 0, 0, 0, 0, 0, 0, red, red, bucket("x", "Red", 16), bucket("x", "1,000", 16), 0, 0]
    assert codes[:, 0].tolist() == others


def test_a_code_is_a_public_function_of_column_and_text():
    assert bucket("colour", "red", 16) == 12  # recorded: models that were trained with it must go on meaning the same
    assert len({bucket(column, "red", 16) for column in "abcdefgh"}) > 3
    drawn = [bucket("x", str(place), 16) for place in range(1600)]
    assert set(drawn) == set(range(1, 17))
    assert np.bincount(drawn)[1:].min() > 60  # of 100 expected


@pytest.mark.parametrize(("columns", "buckets"), [(1, 16), (64, 16), (65, 15), (128, 8), (1024, 1), (5000, 1), (0, 16)])
def test_buckets_follow_from_the_number_of_columns(columns, buckets):
    assert buckets_for(columns) == buckets
    if columns == 128:
        assert population({f"x{place}": ["a", "1"] for place in range(columns)}).columns.buckets == buckets


def test_declared_columns_are_encoded_by_their_rules():
    table = {"age": ["20", "old", "", "150"], "colour": ["red", "NA", "green", "blue"], "x": ["1", "2", "3", "4"]}
    rules = {"scale": {"age": (0, 100)}, "categories": {"colour": ["red", "blue"]}}
    data = population(table, **rules)
    names = ("age", "colour=red", "colour=blue", "colour=(other)", "x")
    assert data.columns == TableColumns(names, 16, ((0.0, 1.0),) * 4 + (None,))
    assert data.input_shape == (10,)
    values, codes = rows(data)
    nan = np.nan
    expected = [[0.2, 1, 0, 0, 1], [nan, nan, nan, nan, 2], [nan, 0, 0, 1, 3], [1.5, 0, 1, 0, 4]]
    np.testing.assert_array_equal(values, np.float32(expected))
    assert not codes.any()
    filled, _ = rows(population(table, missing={"age": 50, "colour": "blue"}, **rules))
    np.testing.assert_array_equal(filled[1], np.float32([0.5, 0, 1, 0, 2]))


def test_missing_cells_are_what_the_rule_says():
    values, codes = rows(population({"x": ["", "2", "red"], "y": ["", "2", "red"]}, missing={"x": "red", "y": 7}))
    assert codes[0, 0] == codes[2, 0] == bucket("x", "red", 16)
    assert (values[0, 1], codes[0, 1]) == (7, 0)


SAME = [
    (["1", "2", ""], [1, 2, None]),
    (["1", "2", ""], [1.0, 2.0, float("nan")]),
    (["0.1", "2.5", "3"], pa.array([0.1, 2.5, 3.0], pa.float64())),
    (["0.1", "2.5", "3"], pa.array([0.1, 2.5, 3.0], pa.float32())),
    (["true", "False", ""], [True, False, None]),
    (["9007199254740993", "16777217", "1"], [9007199254740993, 16777217, 1]),
    (["1.10", "2.00", ""], pa.array([1.1, 2, None]).cast(pa.decimal128(9, 2))),
    (["red", "", "blue"], pa.array(["red", None, "blue"]).dictionary_encode()),
    (["1", "", "2"], pa.array(["1", None, "2"]).dictionary_encode()),
    (["2024-01-31", "2024-02-01", ""], [date(2024, 1, 31), date(2024, 2, 1), None]),
    (["2024-01-31 10:00:00", "2024-02-01 00:00:00", ""], [datetime(2024, 1, 31, 10), datetime(2024, 2, 1), None]),
    (["", "", ""], pa.nulls(3)),
]


@pytest.mark.parametrize("dates", [False, True])
@pytest.mark.parametrize(("text", "typed"), SAME)
def test_one_value_is_encoded_alike_in_every_type(text, typed, dates, tmp_path):
    table = pa.table({"who": ["a", "b", "c"], "label": [0, 1, 0], "x": typed})
    kinds = {"x": "date"} if dates and pa.types.is_temporal(table.schema.field("x").type) else {}
    (tmp_path / "x.csv").write_text(
        "who,label,x\n" + "".join(f"{who},0,{x}\n" for who, x in zip("abc", text, strict=True))
    )
    rules = {"encoding": "cells", "classes": [0, 1], "types": kinds}
    from_text = rows(rr.from_frame(str(tmp_path / "x.csv"), "who", "label", **rules))
    from_types = rows(rr.from_frame(table, "who", "label", **rules))
    np.testing.assert_array_equal(from_text, from_types)


def test_declared_dates_are_days(tmp_path):
    cells = ["1970-01-02", "1970-01-02T12:00:00", "1970-01-02 13:00:00+01:00", "2024-01-31", "7", "soon"]
    lines = [f"c{place},0,{cell}\n" for place, cell in enumerate(cells)]
    (tmp_path / "x.csv").write_text("who,label,x\n" + "".join(lines))
    rules = {"encoding": "cells", "classes": [0, 1]}
    values, codes = rows(rr.from_frame(str(tmp_path / "x.csv"), "who", "label", types={"x": "date"}, **rules))
    np.testing.assert_array_equal(values[:, 0], [1.0, 1.5, 1.5, 19753.0, 7.0, np.nan])
    assert (codes[:, 0] > 0).tolist() == [False] * 5 + [True]
    values, codes = rows(rr.from_frame(str(tmp_path / "x.csv"), "who", "label", **rules))
    assert (codes[:, 0] > 0).tolist() == [True] * 4 + [False, True]


DATES = ["2024-01-31", "2024-02-03T23:30:00-02:00", "20240701", "", "31.01.2024", "5"]
PARTS = ["year", "month", "weekday", "hour"]


def test_declared_parts_of_dates_are_numbers_and_categories(tmp_path):
    """Year, month, weekday and hour in universal time, a cell that is no date as a missing one."""
    data = population({"d": DATES}, types={"d": PARTS})
    names = ["d year", *(f"d month={month}" for month in [*range(1, 13), "(other)"])]
    assert list(data.columns.names[:14]) == names
    assert data.columns.names[14:16] == ("d weekday=Monday", "d weekday=Tuesday")
    assert data.columns.width == 1 + 13 + 8 + 25
    values, codes = rows(data)
    marked = [{data.columns.names[place] for place in np.flatnonzero(row == 1)} for row in values]
    assert marked[:2] == [
        {"d month=1", "d weekday=Wednesday", "d hour=0"},
        {"d month=2", "d weekday=Sunday", "d hour=1"},
    ]
    assert marked[2] == {"d month=7", "d weekday=Monday", "d hour=0"}
    assert values[:3, 0].tolist() == [2024, 2024, 2024]
    assert np.isnan(values[3:]).all()
    assert not codes.any()
    assert data.outside_rules == {"d": pytest.approx(2 / 6)}  # the empty one is missing, as its rule says
    filled, _ = rows(
        population({"d": DATES}, types={"d": PARTS}, missing={"d": "2023-12-25"}, scale={"d": (2020, 2030)})
    )
    np.testing.assert_allclose(filled[:, 0], [0.4, 0.4, 0.4, 0.3, 0.3, 0.3])
    assert filled[3:, names.index("d month=12")].tolist() == [1, 1, 1]


@pytest.mark.parametrize("typed", ["date", "datetime", "text"])
def test_parts_of_dates_are_the_same_in_every_type_and_encoding(typed):
    moments = [datetime(2024, 1, 31), datetime(2023, 7, 2), None]
    cells = {"date": [moment and moment.date() for moment in moments], "datetime": moments}
    cells["text"] = [moment and moment.isoformat() for moment in moments]
    rules = {"types": {"d": ["month", "weekday"]}, "missing": {"d": "2024-01-01"}, "classes": [0, 1]}
    data = rr.from_frame({"who": ["a", "b", "c"], "label": [0, 1, 0], "d": cells[typed]}, "who", "label", **rules)
    inputs = np.concatenate([data.store.client(client)[0] for client in range(3)])
    assert [np.flatnonzero(row).tolist() for row in inputs] == [[0, 13 + 2], [6, 13 + 6], [0, 13 + 0]]
    cells_too, codes = rows(population({"d": cells[typed]}, **rules))
    np.testing.assert_array_equal(cells_too, inputs)
    assert not codes.any()


def test_parts_of_dates_that_cannot_be(tmp_path):
    for rules, way_out in (
        ({"types": {"d": ["month", "day"]}}, "parts of dates: year,month,weekday,hour"),
        ({"types": {"d": ["month", "month"]}}, "parts of dates"),
        ({"types": {"d": "month"}, "scale": {"d": (0, 1)}}, "scale means nothing for month"),
        ({"types": {"d": "month"}, "categories": {"d": ["a"]}}, "categories means nothing for month"),
        ({"types": {"d": "month"}, "missing": {"d": 7}}, "must be a date"),
        ({"types": {"e": "month"}}, "types = 'e' is not a column"),
    ):
        with pytest.raises((ConfigError, DataError), match=way_out):
            population({"d": DATES}, **rules)
    with pytest.raises(DataError, match=r"row 4 .* has no date; remove the row, or say what a missing date"):
        rr.from_frame({"who": list("abcdef"), "label": [0, 1] * 3, "d": DATES}, "who", "label", types={"d": "month"})


def test_rows_outside_the_rules_are_counted_in_rehearsals_alone(recwarn):
    from rrcluster.runs.experiment import check_declared

    table = {
        "d": DATES,
        "colour": ["red", "blue", "", "rot", "red", "red"],
        "x": ["1", "red", "5", "2,5", "03.04.24", "-1,25"],
    }
    kinds = {"d": PARTS, "label": "number"}
    data = population(table, types=kinds, categories={"colour": ["red", "blue"]})
    check_declared(data, secure=True)
    assert not recwarn
    check_declared(data, secure=False)
    assert sorted(str(warned.message) for warned in recwarn) == [
        "column 'colour': 16.67% of rows have a value outside its categories, read as (other).",
        "column 'd': 33.33% of rows have no ISO date, treated as missing.",
        "column 'x': 50.00% of rows have a number or date that is read as text; write 1.5 and 2024-01-31.",
    ]


@pytest.mark.parametrize(
    "odd", ["", "x", "7.5", "True", "1e400", "INF", "nan", "NAN", "-nan", "２", " 3", "+4", "1_000", "0x10", "1."]
)
def test_no_cell_changes_how_another_is_read(odd):
    cells = ["1", "2.50", "-3e-2", "0", "12345678901234567890"]
    plain, other = (rows(population({"x": [*cells, last]})) for last in ("5", odd))
    np.testing.assert_array_equal(plain[0][:5], other[0][:5])
    np.testing.assert_array_equal(plain[1][:5], other[1][:5])
    for neighbour in ("1", "x"):
        alone = rows(population({"x": [odd, neighbour]}))
        np.testing.assert_array_equal([alone[0][0], alone[1][0]], [other[0][5], other[1][5]])


def test_lists_are_columns_of_their_own():
    data = population({"x": [[1.0, 2.0], [3.0, None]], "y": ["1", "a"]})
    assert data.columns.names == ("x[0]", "x[1]", "y")
    np.testing.assert_array_equal(rows(data)[0], np.float32([[1, 2, 1], [3, np.nan, np.nan]]))


def timed(sizes, **rules):
    """Clients with so many rows each, in shuffled order; x is the time."""
    place = np.random.default_rng(0).permutation(sum(sizes))
    who = np.repeat([f"c{client}" for client in range(len(sizes))], sizes)[place]
    when = np.concatenate([np.arange(size) for size in sizes])[place]
    table = {"who": who, "x": when, "when": [str(date.fromordinal(700_000 + int(day))) for day in when]}
    return rr.from_frame(table | {"label": when % 2}, "who", "label", ["x"], [0, 1], time="when", **rules)


@pytest.mark.parametrize("encoding", ["cells", "declared"])
def test_the_newest_rows_are_tested_on(encoding):
    data = timed([10, 3, 2, 1], encoding=encoding, test_share=0.2)
    trained = [data.store.client(client)[0][:, 0].tolist() for client in range(4)]
    cells = encoding == "cells"  # of two rows one is tested on, whatever the share
    assert trained == [list(range(8)), [0, 1], [0] if cells else [0, 1], [0]]
    assert data.test_of.tolist() == [0, 1, 2 if cells else -1, -1]
    assert data.test_sets[0].inputs[:, 0].tolist() == [8, 9]
    assert (data.columns is None) == (encoding == "declared")
    assert data.ordered


def test_by_default_a_third_of_rows_is_tested_on():
    data = timed([10, 2, 1], encoding="cells")
    assert data.sizes.tolist() == [7, 1, 1]
    assert timed([10, 2, 1], encoding="cells", test_share=0).sizes.tolist() == [10, 2, 1]
    assert timed([10, 2, 1], encoding="declared").sizes.tolist() == [10, 2, 1]
    drawn = population({"x": list(range(100)), "who": ["a"] * 60 + ["b"] * 40})
    assert drawn.sizes.tolist() == [42, 28]
    assert not drawn.ordered


def test_rows_without_a_time_are_refused():
    with pytest.raises(DataError, match=r"time = 'when': row 2 .* has no number and no date"):
        population({"x": [1, 2], "when": ["5", "soon"]}, time="when")
    with pytest.raises(ConfigError, match="'label' has two roles"):
        population({"x": [1, 2]}, time="label")


@pytest.mark.parametrize(
    ("labels", "classes", "counted"),
    [
        (["no", "yes", "no"], 2, "classes"),
        ([0, 1, 1], 2, "classes"),
        ([0.0, 1.0, 1.0], 2, "classes"),
        (["0.0", "1.0", "1"], 2, "classes"),
        ([0.5, 1.0, 2.0], 0, "regression"),
        (list(range(30)), 0, "regression"),
        ([f"n{place}" for place in range(30)], 30, "classes"),
    ],
)
def test_an_undeclared_target_is_looked_at_and_said(labels, classes, counted):
    data = population({"x": list(range(len(labels))), "label": labels}, classes=None)
    assert data.num_classes == classes
    assert counted in data.counted


def test_a_range_of_the_target_is_declared():
    data = population({"x": [1, 2], "label": [5.0, 20.0]}, classes=None, regression=True, scale={"label": (0, 10)})
    assert data.columns.target_range == (0.0, 1.0)
    assert [data.store.client(client)[1].item() for client in range(2)] == [0.5, 2.0]


def test_methods_that_read_numbers_alone_refuse_cells():
    data = population({"x": [1, 2, 3]}, test_share=0)
    with pytest.raises(ConfigError, match="needs numeric columns"):
        rr.experiment(data=data, algorithm="fedavg", noise_multiplier=1, delta=0.1)


def test_missing_values_need_columns_that_say_so():
    inputs, targets = [np.array([[1.0, np.nan]])], [np.array([0])]
    with pytest.raises(DataError, match="not finite"):
        rr.from_arrays(inputs, targets, num_classes=2)
    facts = TableColumns(("x",), 16, (None,))
    assert np.isnan(rr.from_arrays(inputs, targets, num_classes=2, columns=facts).store.client(0)[0][0, 1])
    with pytest.raises(DataError, match="not finite"):
        rr.from_arrays([np.array([[1.0, np.inf]])], targets, num_classes=2, columns=facts)
