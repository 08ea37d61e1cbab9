"""Tables of one's own as populations: every kind of frame, the rules for columns, held-out rows and groups."""

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, DataError
from rrcluster.settings import ColumnSettings, data_label, declared_columns, names_file

pa = pytest.importorskip("pyarrow", reason="tables of one's own need the extra [frames]")

COLUMNS = {
    "who": ["b", "a", "b", "a10", "a"],
    "age": [20, 30, 40, 50, 60],
    "colour": ["red", "blue", "green", "red", "red"],
    "label": ["yes", "no", "no", "yes", "yes"],
}
ROLES = {"client": "who", "target": "label", "classes": ["no", "yes"]}
VOCABULARY = {"categories": {"colour": ["red", "blue"]}}


def samples(data):
    return [tuple(part.tolist() for part in data.store.client(client)) for client in range(data.num_clients)]


def as_pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns, index=[7, 7, 8, 9, 10])


def as_polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def as_datasets(columns):
    return pytest.importorskip("datasets", reason="Hugging Face datasets is not installed").Dataset.from_dict(columns)


def as_batches(columns):
    """Anything with the Arrow stream protocol."""

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table(columns).__arrow_c_stream__(requested_schema)

    return Stream()


@pytest.mark.parametrize("make", [dict, pa.table, as_pandas, as_polars, as_datasets, as_batches])
def test_every_kind_of_frame_is_the_same_population(make):
    data = rr.from_frame(make(COLUMNS), **ROLES, **VOCABULARY, scale={"age": (0, 100)}, name="people")
    assert (data.name, data.clients, data.num_classes) == ("people", ("a", "b", "a10"), 2)
    assert data.counted == {"types": "declare them (--types age=number; in Python types={'age': 'number'})"}
    declared = rr.from_frame(make(COLUMNS), **ROLES, **VOCABULARY, scale={"age": (0, 100)}, types={"age": "number"})
    assert (samples(declared), declared.counted) == (samples(data), {})
    first, second, third = samples(data)
    assert np.allclose(first[0], [[0.3, 0, 1, 0], [0.6, 1, 0, 0]])
    assert np.allclose(second[0], [[0.2, 1, 0, 0], [0.4, 0, 0, 1]])  # green is not in the vocabulary
    assert np.allclose(third[0], [[0.5, 1, 0, 0]])
    assert (first[1], second[1], third[1]) == ([0, 1], [1, 0], [1])


def test_the_columns_of_pandas_categories_need_a_declared_vocabulary_too():
    frame = as_pandas(COLUMNS)
    frame["colour"] = frame["colour"].astype("category")
    with pytest.raises(DataError, match="'colour' holds text; declare its public vocabulary"):
        rr.from_frame(frame, **ROLES)
    assert rr.from_frame(frame, **ROLES, **VOCABULARY).input_shape == (4,)


def test_whole_numbers_can_be_categories_and_lists_are_several_features():
    columns = COLUMNS | {"zone": [1, 2, 3, 1, 2], "vector": [[1.0, 2.0]] * 4 + [[3.0, 4.0]]}
    data = rr.from_frame(columns, **ROLES, features=["vector", "zone"], categories={"zone": [2, 3]})
    assert samples(data)[0][0] == [[1, 2, 1, 0, 0], [3, 4, 1, 0, 0]]


def test_a_missing_value_is_what_was_declared():
    columns = COLUMNS | {"age": [20, None, float("nan"), 50, 60], "colour": ["red", None, "", "red", "red"]}
    with pytest.raises(DataError, match=r"column 'age': row 2 \(client 'a'\) has no value; .*--missing age=VALUE"):
        rr.from_frame(columns, **ROLES, **VOCABULARY)
    data = rr.from_frame(columns, **ROLES, **VOCABULARY, missing={"age": 33.5, "colour": "blue"})
    assert samples(data)[0][0] == [[33.5, 0, 1, 0], [60, 1, 0, 0]]
    assert samples(data)[1][0][1] == [33.5, 0, 1, 0]


def test_counted_classes_are_noted_and_sorted():
    data = rr.from_frame(COLUMNS | {"label": [10, 9, 9, 10, 2]}, "who", "label", ["age"])
    assert (data.num_classes, list(data.counted)) == (3, ["types", "classes"])
    assert samples(data)[0][1] == [1, 0]


def test_declared_classes_need_not_occur_and_floats_match_whole_numbers():
    data = rr.from_frame(COLUMNS | {"label": [1.0, 0.0, 0.0, 1.0, 1.0]}, "who", "label", ["age"], [0, 1, 2])
    assert (data.num_classes, samples(data)[0][1]) == (3, [0, 1])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([True, False, False, True, True], [False, True]), ([1.0, 0.0, 0.0, 1.0, 1.0], [0.0, 1.0]), (list("ynnyy"), "ny")],
)
def test_classes_are_matched_as_they_are_written(labels, classes):
    data = rr.from_frame(COLUMNS | {"label": labels}, "who", "label", ["age"], list(classes))
    assert samples(data)[0][1] == [0, 1]


def test_a_rule_may_say_what_a_missing_mark_of_the_test_column_stands_for():
    columns = many([4, 3]) | {"half": [True, None, False, False, None, False, False]}
    with pytest.raises(DataError, match=r"'half': row 2 .*--missing half"):
        rr.from_frame(columns, **HELD_OUT, test_column="half")
    assert rr.from_frame(columns, **HELD_OUT, test_column="half", missing={"half": 0}).test_of.tolist() == [0, -1]


def test_regression_predicts_scaled_numbers():
    columns = COLUMNS | {"label": [1, 2, 3, 4, 5]}
    data = rr.from_frame(columns, "who", "label", ["age"], regression=True, scale={"label": (0, 10)})
    assert data.num_classes == 0
    assert np.allclose(samples(data)[0][1], [0.2, 0.5])
    vectors = rr.from_frame(COLUMNS | {"label": [[1.0, 2.0]] * 5}, "who", "label", ["age"], regression=True)
    assert (vectors.target_shape, samples(vectors)[2][1]) == ((2,), [[1, 2]])


def many(rows_per_client):
    who = np.repeat([f"c{i}" for i in range(len(rows_per_client))], rows_per_client)
    x = np.arange(len(who), dtype=float)
    return {"who": who, "x": x, "label": (x % 2).astype(int), "half": x % 2 == 0, "g": [name[-1] for name in who]}


HELD_OUT = {"client": "who", "target": "label", "features": ["x"], "classes": [0, 1]}


def test_held_out_rows_belong_to_the_client_alone():
    data = rr.from_frame(many([10, 1, 5]), **HELD_OUT, test_share=0.2)
    assert data.sizes.tolist() == [8, 1, 4]
    assert data.test_of.tolist() == [0, -1, 1]  # a client of one row trains on it and is not tested
    alone = rr.from_frame(many([10]), **HELD_OUT, test_share=0.2)
    assert alone.test_sets[0].inputs.tolist() == data.test_sets[0].inputs.tolist()
    shuffled = {name: np.asarray(column)[::-1] for name, column in many([10, 1, 5]).items()}
    again = rr.from_frame(shuffled, **HELD_OUT, test_share=0.2)
    assert again.sizes.tolist() == data.sizes.tolist()
    alike = rr.from_frame(many([10] * 5), **HELD_OUT, test_share=0.2)
    assert len({tuple(tests.inputs[:, 0] % 10) for tests in alike.test_sets}) > 1  # by name, not by size alone


def test_a_test_column_goes_together_with_known_groups():
    data = rr.from_frame(
        many([4, 1, 6]) | {"half": [1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0]}, **HELD_OUT, test_column="half", group="g"
    )
    assert (data.num_groups, data.groups.tolist(), data.test_of.tolist()) == (3, [0, 1, 2], [0, -1, 1])
    assert data.test_sets[0].inputs.tolist() == [[0], [2]]


def test_lists_and_tensors_make_populations_too():
    import torch

    lists = rr.from_arrays([[[1, 2], [3, 4]], [[5, 6]]], [[0, 1], [1]], num_classes=2)
    tensors = rr.from_arrays(
        [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0]])],
        [torch.tensor([0, 1]), torch.tensor([1])],
        test_inputs=torch.zeros(3, 2),
        test_targets=torch.tensor([0, 1, 0]),
        num_classes=2,
    )
    assert samples(lists) == samples(tensors)
    assert tensors.test_of.tolist() == [0, 0]
    assert (lists.counted, list(rr.from_arrays([[[1.0]]], [[1]]).counted)) == ({}, ["num_classes"])


def test_settings_of_columns_survive_their_texts():
    declared = declared_columns(
        categories={"c": ["a,b", 'say "x"', "z"]}, scale={"age": (0, 99.5)}, missing={"ok": True}
    )
    assert declared.vocabulary == {"c": ("a,b", 'say "x"', "z")}
    assert (declared.ranges, declared.fills) == ({"age": (0.0, 99.5)}, {"ok": "true"})
    assert ColumnSettings(categories=declared.categories) == declared_columns(categories=declared.vocabulary)


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"categories": ["colour"]}, "categories = 'colour' must be written column=value,value"),
        ({"categories": ["c=a", "c=b"]}, "names the column 'c' twice"),
        ({"categories": ["c=a,a"]}, "one twice"),
        ({"scale": ["age=5"]}, "scale = age=5 must be two numbers"),
        ({"scale": ["age=5,5"]}, "the lower first"),
        ({"scale": {"c": (0, 1)}, "categories": {"c": ["a"]}}, "both categories and scale"),
        ({"missing": ["age=1,2"]}, "must name one value"),
        ({"classes": ["a"]}, "nothing to tell apart"),
        ({"classes": ["1", 1]}, "names a class twice"),
        ({"classes": [0, 1], "regression": True}, "exclude each other"),
        ({"test_share": 0.2, "test_column": "t"}, "exclude each other"),
        ({"test_share": 1.0}, "test_share = 1.0"),
        ({"client": "a", "target": "a"}, "column 'a' has two roles"),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(declared, text):
    with pytest.raises(ConfigError, match=text):
        declared_columns(**declared)


def test_files_are_told_from_datasets_by_their_names():
    assert all(map(names_file, ["a.csv", "A.PARQUET", "x/y", "./clients", "a.tsv.gz", "C:\\a.csv"]))
    assert not any(map(names_file, ["fashion-mini", "csv", "synthetic-balanced-easy"]))
    labels = {data: data_label(data) for data in ("/home/me/my data.csv.gz", "clients/", "..", "../.csv", "emnist")}
    assert list(labels.values()) == ["my-data", "clients", "..", "data", "emnist"]
