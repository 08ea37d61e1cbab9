"""The synthetic problem of the theory: linear regression with one true parameter vector per group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.data.generated import HELD_CLIENTS, TEST_SAMPLES, Samples, generated
from rrcluster.data.partition import assign_groups
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """A population and the truth behind it: group g has y = <x, parameters[g]> + noise."""

    data: FederatedData
    parameters: NDArray[np.float64]  # (num_groups, dimension)
    separation: float
    noise_std: float


@dataclass(frozen=True, eq=False)
class LinearLaw:
    """x ~ N(0, I) and y = <x, parameters[g]> + noise."""

    parameters: NDArray[np.float64]  # (num_groups, dimension)
    noise_std: float

    def draw(self, group: int, count: int, *, rng: Rng) -> Samples:
        """Fresh samples of one group."""
        inputs = rng.standard_normal((count, self.parameters.shape[1]))
        return inputs, inputs @ self.parameters[group] + self.noise_std * rng.standard_normal(count)


def linear_regression(
    *,
    num_clients: int,
    rng: Rng,
    ratio: Sequence[float] = (1, 1, 1, 1),
    samples_per_client: int = 60,
    dimension: int = 20,
    separation: float = 1.0,
    noise_std: float = 0.1,
) -> LinearProblem:
    """Draw `num_clients` clients in len(ratio) groups, with x ~ N(0, I) and noise ~ N(0, noise_std^2).

    Guarantees: any two parameter vectors are exactly `separation` apart, in random directions, and all have
    the same norm; the expected loss (y - <x, w>)^2 / 2 of a group has the identity as its Hessian, so strong
    convexity and smoothness are both 1; groups are sized as in `group_sizes`, client ids in random order.
    Test sets: 1,000 fresh samples per group, noise included. More than 20,000 clients are not held but generated when
    asked for (`GeneratedStore`). `ConfigError` when there are more groups than dimensions.
    """
    checks.count(samples_per_client=samples_per_client)
    checks.count(dimension=dimension)
    checks.positive(separation=separation)
    checks.non_negative(noise_std=noise_std)
    groups = assign_groups(num_clients, ratio, rng=rng)
    parameters = _apart(len(ratio), dimension, separation, rng=rng)
    if num_clients > HELD_CLIENTS:
        law, sizes = LinearLaw(parameters, noise_std), np.full(num_clients, samples_per_client, dtype=np.int64)
        many = generated(
            "synthetic", law, dimension=dimension, groups=groups, sizes=sizes, num_groups=len(ratio), rng=rng
        )
        return LinearProblem(many, parameters, separation, noise_std)
    inputs = rng.standard_normal((num_clients, samples_per_client, dimension))
    targets = np.einsum("msd,md->ms", inputs, parameters[groups])
    targets += noise_std * rng.standard_normal(targets.shape)
    test_inputs = rng.standard_normal((len(ratio), TEST_SAMPLES, dimension))
    test_targets = np.einsum("gsd,gd->gs", test_inputs, parameters)
    test_targets += noise_std * rng.standard_normal(test_targets.shape)
    data = from_arrays(
        inputs,
        targets,
        test_inputs=list(test_inputs),
        test_targets=list(test_targets),
        groups=groups,
        num_classes=0,
        name="synthetic",
    )
    return LinearProblem(data, parameters, separation, noise_std)


def _apart(count: int, dimension: int, distance: float, *, rng: Rng) -> NDArray[np.float64]:
    """`count` random vectors of equal norm, every two of them `distance` apart: scaled orthonormal rows."""
    if dimension < count:
        raise ConfigError(f"dimension = {dimension} is less than the {count} groups; raise dimension.")
    orthonormal, _ = np.linalg.qr(rng.standard_normal((dimension, count)))
    return np.asarray(orthonormal.T * (distance / np.sqrt(2.0)))
