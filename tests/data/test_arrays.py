import numpy as np
import pytest

from rrcluster.data.arrays import at_most, from_arrays
from rrcluster.errors import DataError

RAGGED = [np.ones((2, 3)), np.full((4, 3), 2.0), np.full((1, 3), 3.0)]
CLASSES = [[0, 1], [1, 1, 2, 0], [2]]


def test_ragged_clients_by_hand():
    data = from_arrays(RAGGED, CLASSES)
    cohort = data.cohort([2, 1])
    assert data.num_clients == 3
    assert data.sizes.tolist() == [2, 4, 1]
    assert (data.num_classes, data.input_shape, data.num_groups) == (3, (3,), 0)
    assert data.test_sets == ()
    assert data.test_of.tolist() == [-1, -1, -1]
    assert cohort.inputs[:, :, 0].tolist() == [[3, 0, 0, 0], [2, 2, 2, 2]]
    assert cohort.targets.tolist() == [[2, 0, 0, 0], [1, 1, 2, 0]]
    assert cohort.targets.dtype == np.int64


def test_one_array_for_all_clients():
    inputs = np.arange(24.0).reshape(2, 3, 2, 2)
    data = from_arrays(inputs, np.zeros((2, 3), dtype=int), num_classes=5)
    assert (data.num_classes, data.input_shape) == (5, (2, 2))
    assert np.array_equal(data.cohort([1, 0]).inputs, inputs[::-1])


@pytest.mark.parametrize("targets", [np.zeros((2, 3)), np.zeros((2, 3), dtype=int)])
def test_regression(targets):
    data = from_arrays(np.zeros((2, 3, 4)), targets, num_classes=0 if targets.dtype == int else None)
    assert data.num_classes == 0
    assert data.cohort([0]).targets.dtype == np.float32


def test_a_test_set_for_all_or_one_per_group():
    shared = from_arrays(RAGGED, CLASSES, test_inputs=np.zeros((5, 3)), test_targets=np.zeros(5, dtype=int))
    assert shared.test_of.tolist() == [0, 0, 0]
    assert shared.test_sets[0].inputs.shape == (5, 3)
    assert shared.test_sets[0].inputs.dtype == np.float32
    tests = [np.zeros((5, 3)), np.ones((6, 3))]
    each = from_arrays(RAGGED, CLASSES, test_inputs=tests, test_targets=[[0] * 5, [3] * 6], groups=[1, 0, 1])
    assert each.test_of.tolist() == each.groups.tolist() == [1, 0, 1]
    assert (each.num_groups, each.num_classes) == (2, 4)
    assert len(each.test_sets[1].targets) == 6


def test_one_test_set_per_client_where_groups_are_not_known():
    tests = [np.zeros((5, 3)), np.ones((6, 3)), np.ones((1, 3))]
    data = from_arrays(RAGGED, CLASSES, test_inputs=tests, test_targets=[[0] * 5, [2] * 6, [1]])
    assert (data.num_groups, data.test_of.tolist()) == (0, [0, 1, 2])
    with pytest.raises(DataError, match=r"one per client \(3\)"):
        from_arrays(RAGGED, CLASSES, test_inputs=tests[:2], test_targets=[[0] * 5, [2] * 6])


@pytest.mark.parametrize("others", [1, 3, 500])
def test_which_samples_are_kept_follows_from_the_clients_own_number(others):
    rows = [np.arange(60.0).reshape(20, 3), *[np.zeros((others, 3))] * 9]
    data = at_most(from_arrays(rows, [[0, 1] * 10, *[[0] * others] * 9], num_classes=2), 5)
    assert data.sizes[0] == 5
    assert data.store.client(0)[0][:, 0].tolist() == [0, 12, 24, 36, 48]


@pytest.mark.parametrize("groups", [[0, 1, 1], [0, 1, 2]])
def test_ones_group_does_not_take_the_others_own_test_rows_from_them(groups):
    """With as many groups as clients the sets were taken for the groups': others judged models on other rows."""
    tests = [np.full((1, 3), place) for place in range(3)]
    data = from_arrays(RAGGED, CLASSES, test_inputs=tests, test_targets=[[0]] * 3, groups=groups)
    assert data.held_out
    assert [data.test_sets[place].inputs[0, 0] for place in data.test_of] == [0, 1, 2]


def test_ids_stay_whole_numbers():
    ids = [np.array([[2**40, 0]]), np.array([[1, 2], [3, 4]], dtype=np.uint8)]
    data = from_arrays(ids, [[0], [1, 0]], test_inputs=np.array([[7, 8]]), test_targets=np.array([1]), ids=True)
    cohort = data.cohort([0, 1])
    assert data.input_dtype == cohort.inputs.dtype == data.test_sets[0].inputs.dtype == np.int64
    assert cohort.inputs.tolist() == [[[2**40, 0], [0, 0]], [[1, 2], [3, 4]]]
    assert from_arrays(ids, [[0], [1, 0]]).cohort([0]).inputs.dtype == np.float32


@pytest.mark.parametrize("inputs", [[[[1.0]]], [[[-1]]], [[[True]]]])
def test_what_is_not_an_id(inputs):
    with pytest.raises(DataError, match=r"client 0 has inputs of type .* not ids"):
        from_arrays(inputs, [[0]], ids=True)


def test_the_data_is_copied():
    inputs = np.ones((2, 3, 4), dtype=np.float32)
    data = from_arrays(inputs, np.zeros((2, 3), dtype=int))
    inputs[:] = 5
    assert (data.cohort([0, 1]).inputs == 1).all()


@pytest.mark.parametrize(
    ("inputs", "targets", "options", "expected"),
    [
        pytest.param([], [], {}, "0 clients", id="nobody"),
        pytest.param(RAGGED, CLASSES[:2], {}, "inputs are of 3 clients and targets of 2", id="client-counts"),
        pytest.param(RAGGED, [[0, 1], [1], [2]], {}, r"client 1 has inputs \(4, 3\) and targets \(1,\)", id="counts"),
        pytest.param([np.ones((0, 3))], [np.ones(0, dtype=int)], {}, "client 0 has inputs", id="empty-client"),
        pytest.param(
            [*RAGGED[:2], np.ones((1, 4))], CLASSES, {}, r"client 2 .* \(4,\), client 0 of \(3,\)", id="shape"
        ),
        pytest.param([np.array([[np.nan]])], [[0]], {}, "client 0 has inputs that are not finite", id="nan"),
        pytest.param([np.array([[1e300]])], [[0]], {}, "not finite in float32", id="overflow"),
        pytest.param([[[1.0]]], [[np.inf]], {}, "client 0 has targets that are not finite", id="inf-target"),
        pytest.param([[["a"]]], [[0]], {}, "inputs of type", id="text"),
        pytest.param([[[1.0], [1.0, 2.0]]], [[0, 1]], {}, "not one rectangular array", id="jagged"),
        pytest.param(RAGGED, CLASSES, {"num_classes": 2}, "0 to 1", id="too-few-classes"),
        pytest.param([[[1.0]]], [[-1]], {}, "targets must be classes from 0", id="negative-class"),
        pytest.param([[[1.0]]], [[0.5]], {"num_classes": 2}, "needs integer targets", id="float-classes"),
        pytest.param(RAGGED, CLASSES, {"groups": [0, 1]}, "groups must be 3 integers", id="group-count"),
        pytest.param(RAGGED, CLASSES, {"groups": [0, 1, -1]}, "groups must be 3 integers", id="negative-group"),
        pytest.param(RAGGED, CLASSES, {"test_inputs": np.ones((2, 3))}, "give both or neither", id="half-a-test"),
        pytest.param(
            RAGGED,
            CLASSES,
            {"test_inputs": np.ones((2, 3)), "test_targets": [0, 1]},
            "both be arrays",
            id="mixed-test",
        ),
        pytest.param(
            RAGGED,
            CLASSES,
            {"test_inputs": np.ones((2, 5)), "test_targets": np.zeros(2, dtype=int)},
            r"test set 0 has samples of shape \(5,\)",
            id="test-shape",
        ),
        pytest.param(
            RAGGED,
            CLASSES,
            {"test_inputs": [np.ones((2, 3))], "test_targets": [[0, 1]], "groups": [0, 1, 0]},
            r"one per client \(3\), or per group \(2\)",
            id="test-per-group",
        ),
    ],
)
def test_what_does_not_fit_is_named(inputs, targets, options, expected):
    with pytest.raises(DataError, match=expected):
        from_arrays(inputs, targets, **options)


def test_errors_contain_no_client_value():
    with pytest.raises(DataError) as error:
        from_arrays([[[123456.0], [np.nan]]], [[0, 1]])
    assert "123456" not in str(error.value)
