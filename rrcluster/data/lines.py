"""The paper's synthetic scenarios: noisy lines y = slope x + intercept, balanced or not, easy or hard to cluster.

The paper (appendix on synthetic data) gives the model, four groups, and that hard differs from easy by a larger noise
variance; it prints no constant. Ours: the four lines below, x uniform in [-1, 1], noise std 0.1 (easy) or 0.5 (hard,
half the smallest gap between intercepts), groups 1:1:1:1 (balanced) or 4:2:1:1 (imbalanced), and 20 to 60 samples per
client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rrcluster import checks
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.data.generated import HELD_CLIENTS, TEST_SAMPLES, Samples, generated
from rrcluster.data.partition import assign_groups
from rrcluster.errors import ConfigError
from rrcluster.rng import Rng

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
    drawn = [law.draw(int(group), int(count), rng=rng) for group, count in zip(groups, counts, strict=True)]
    return [inputs for inputs, _ in drawn], [targets for _, targets in drawn]
