from itertools import combinations

import numpy as np
import pytest

from rrcluster.data.synthetic import linear_regression
from rrcluster.errors import ConfigError
from rrcluster.rng import stream


def test_least_squares_recovers_the_parameters_of_every_group(rng):
    problem = linear_regression(num_clients=120, ratio=(2, 1, 1), dimension=6, noise_std=0.1, rng=rng)
    data = problem.data
    for group in range(3):
        members = data.cohort(np.flatnonzero(data.groups == group))
        x, y = members.inputs.reshape(-1, 6).astype(float), members.targets.ravel().astype(float)
        found, *_ = np.linalg.lstsq(x, y, rcond=None)
        assert np.abs(found - problem.parameters[group]).max() < 6 * 0.1 / np.sqrt(len(y))
        residual = y - x @ problem.parameters[group]
        assert abs(residual.std() / 0.1 - 1) < 5 / np.sqrt(2 * len(y))


def test_noiseless_targets_are_exact(rng):
    problem = linear_regression(num_clients=8, noise_std=0.0, dimension=5, samples_per_client=7, rng=rng)
    data = problem.data
    cohort = data.cohort(range(8))
    exact = np.einsum("msd,md->ms", cohort.inputs, problem.parameters[data.groups])
    np.testing.assert_allclose(cohort.targets, exact, atol=1e-5)
    test = data.test_sets[2]
    np.testing.assert_allclose(test.targets, test.inputs @ problem.parameters[2], atol=1e-5)


def test_separation_shape_and_groups(rng):
    problem = linear_regression(num_clients=40, ratio=(2, 1, 1), separation=3.0, dimension=3, rng=rng)
    for a, b in combinations(problem.parameters, 2):
        assert np.linalg.norm(a - b) == pytest.approx(3.0)
    data = problem.data
    assert (data.name, data.num_classes, data.input_shape, data.num_groups) == ("synthetic", 0, (3,), 3)
    assert np.bincount(data.groups).tolist() == [20, 10, 10]
    assert data.test_of.tolist() == data.groups.tolist()
    assert data.cohort([0]).targets.dtype == np.float32


def test_the_seed_decides():
    first, same, other = (linear_regression(num_clients=8, rng=stream(s, "partition")) for s in (0, 0, 1))
    assert np.array_equal(first.data.cohort([3]).inputs, same.data.cohort([3]).inputs)
    assert not np.array_equal(first.data.cohort([3]).inputs, other.data.cohort([3]).inputs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dimension": 3}, "dimension = 3 is less than the 4 groups"),
        ({"num_clients": 3}, "raise num_clients"),
        ({"separation": 0.0}, "separation"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"samples_per_client": 0}, "samples_per_client"),
    ],
)
def test_bad_settings_are_named(options, expected, rng):
    with pytest.raises(ConfigError, match=expected):
        linear_regression(**{"num_clients": 8, "rng": rng, **options})
