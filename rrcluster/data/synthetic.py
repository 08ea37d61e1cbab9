"""Generated populations: linear regression, the problem of the theory, and the noisy lines of the paper's figure.

The paper (appendix on synthetic data) gives the lines' model, four groups, and that hard differs from easy by a larger
noise variance; it prints no constant. Ours: the four lines below, x uniform in [-1, 1], noise std 0.1 (easy) or 0.5
(hard, half the smallest gap between intercepts), groups 1:1:1:1 (balanced) or 4:2:1:1 (imbalanced), and 20 to 60
samples per client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.arrays import Constant, from_arrays
from rrcluster.data.federated import FederatedData, Inputs, Targets, TestSet
from rrcluster.data.partition import assign_groups
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng, stream

HELD_CLIENTS = 20_000  # larger synthetic populations are not held in memory
TEST_SAMPLES = 1000  # per group

Samples = tuple[NDArray[np.float64], NDArray[np.float64]]  # inputs (count, dimension), targets (count,)


class Law(Protocol):
    """The distribution of a group's samples."""

    def draw(self, group: int, count: int, *, rng: Rng) -> Samples:
        """Fresh samples of one group."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class GeneratedStore:
    """Samples drawn from the law of the client's group; a function of (`key`, client id) alone."""

    law: Law
    groups: NDArray[np.int64]  # (num_clients,)
    sizes: NDArray[np.int64]  # (num_clients,)
    key: int

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of one client, the same on every call."""
        rng = stream(self.key, "samples", client)
        inputs, targets = self.law.draw(int(self.groups[client]), int(self.sizes[client]), rng=rng)
        return inputs.astype(np.float32), targets.astype(np.float32)


def generated(
    name: str,
    law: Law,
    *,
    dimension: int,
    groups: NDArray[np.int64],
    sizes: NDArray[np.int64],
    num_groups: int,
    rng: Rng,
) -> FederatedData:
    """The regression population in which client i has `sizes[i]` samples of the law of `groups[i]`.

    Guarantees: memory is three numbers per client; making a cohort costs what the cohort holds; 1,000 test samples per
    group, drawn once.
    """
    tests = []
    for group in range(num_groups):
        inputs, targets = law.draw(group, TEST_SAMPLES, rng=rng)
        tests.append(TestSet(targets.astype(np.float32), Constant(inputs.astype(np.float32))))
    return FederatedData(
        name=name,
        num_classes=0,
        input_shape=(dimension,),
        sizes=sizes,
        groups=groups,
        num_groups=num_groups,
        store=GeneratedStore(law, groups, sizes, int(rng.integers(2**62))),
        test_sets=tuple(tests),
        test_of=groups,
    )


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


SLOPES = (1.0, -1.0, 2.0, -2.0)
INTERCEPTS = (1.5, 0.5, -0.5, -1.5)


@dataclass(frozen=True)
class Scenario:
    """One row of the paper's figure: the groups' proportions and the noise std."""

    ratio: tuple[float, ...]
    noise_std: float


SCENARIOS: dict[str, Scenario] = {
    "synthetic-balanced-easy": Scenario((1, 1, 1, 1), 0.1),
    "synthetic-balanced-hard": Scenario((1, 1, 1, 1), 0.5),
    "synthetic-imbalanced-easy": Scenario((4, 2, 1, 1), 0.1),
    "synthetic-imbalanced-hard": Scenario((4, 2, 1, 1), 0.5),
}


@dataclass(frozen=True)
class LineLaw:
    """x uniform in [-1, 1] and y on the group's line, plus noise."""

    noise_std: float

    def draw(self, group: int, count: int, *, rng: Rng) -> Samples:
        """Fresh samples of one group."""
        x = rng.uniform(-1.0, 1.0, size=(count, 1))
        noise = self.noise_std * rng.standard_normal(count)
        return x, SLOPES[group] * x[:, 0] + INTERCEPTS[group] + noise


def noisy_lines(
    name: str,
    *,
    num_clients: int,
    ratio: Sequence[float],
    noise_std: float,
    rng: Rng,
    sizes: tuple[int, int] = (20, 60),
) -> FederatedData:
    """Draw clients of len(ratio) groups, each on its own line, with `sizes` (least, most) samples.

    Guarantees: group g has y = SLOPES[g] x + INTERCEPTS[g] + noise, x uniform in [-1, 1], noise normal; client sizes
    uniform from least to most; groups sized as in `group_sizes`. Test sets: 1,000 fresh samples per group, noise
    included. More than 20,000 clients are not held but generated when asked for (`GeneratedStore`). `ConfigError` for
    more groups than there are lines.
    """
    checks.non_negative(noise_std=noise_std)
    least, most = checks.count(samples=sizes[0]), checks.count(samples=sizes[1], at_least=sizes[0])
    if len(ratio) > len(SLOPES):
        raise ConfigError(f"{len(ratio)} groups are more than the {len(SLOPES)} lines of {name}; lower num_groups.")
    groups = assign_groups(num_clients, ratio, rng=rng)
    counts = rng.integers(least, most + 1, size=num_clients)
    law = LineLaw(noise_std)
    if num_clients > HELD_CLIENTS:
        return generated(name, law, dimension=1, groups=groups, sizes=counts, num_groups=len(ratio), rng=rng)
    inputs, targets = _samples(law, groups, counts, rng)
    tests = range(len(ratio))
    test_inputs, test_targets = _samples(law, tests, [TEST_SAMPLES] * len(ratio), rng)
    return from_arrays(
        inputs,
        targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        groups=groups,
        num_classes=0,
        name=name,
    )


def _samples(
    law: LineLaw, groups: Sequence[int] | np.ndarray, counts: Sequence[int] | np.ndarray, rng: Rng
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    samples = [law.draw(int(group), int(count), rng=rng) for group, count in zip(groups, counts, strict=True)]
    return [inputs for inputs, _ in samples], [targets for _, targets in samples]
