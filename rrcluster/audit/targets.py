"""What is audited: a mechanism that can be made at any noise, shape and B, the way a plan makes it.

Claims are recomputed here from first principles, never read from the code under test: a wrong formula there must not
excuse itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Rng
from rrcluster.types import Array, Coordinates, Release

CLIP, COUNT_WEIGHT = 0.5, 0.25  # neither 1, so that std, variance and multiplier cannot be taken for one another
DELTA = 1e-4

# Anything with release(reports, rng=...), a sampler, an event, and the
# public constants of `JointMechanism` or `IdentifierMechanism` as fields.
Mechanism = Any


@dataclass(frozen=True)
class AuditSetting:
    """The public constants a mechanism is made with. `noise_multiplier` is of the whole round; 0 switches noise off."""

    noise_multiplier: float = 1.7
    shared: int = 0
    clustered: int = 2
    num_clusters: int = 3
    min_cluster_size: int = 0
    size_floor: float = 0.0
    sample_rate: float = 0.1
    num_clients: int = 1000


@dataclass(frozen=True)
class Target:
    """A mechanism under audit. `make(setting)` builds it as `PrivacyPlan.build` does."""

    name: str
    make: Callable[[AuditSetting], Mechanism]
    adjacency: str
    identifier: str = "gaussian"  # under `identifier`, how choices are privatised


@dataclass(frozen=True)
class GivenAssignment:
    """Stands for the noisy identifiers that the guarantee of `identifier` conditions on, whatever is reported."""

    assignment: Array

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:  # noqa: ARG002
        """The given assignment."""
        return self.assignment[: len(choices)]


def joint_target(kind: type[JointMechanism] = JointMechanism) -> Target:
    """The joint mechanism, or a variant of it."""
    return Target("joint", lambda setting: _made(kind, setting, mechanism="joint"), "add-remove")


def identifier_target(identifier: str = "gaussian", kind: type[IdentifierMechanism] = IdentifierMechanism) -> Target:
    """The paper's mechanism, or a variant of it."""

    def make(setting: AuditSetting) -> Mechanism:
        return _made(kind, setting, mechanism="identifier", identifier=identifier)

    return Target(f"identifier ({identifier})", make, "replace-one", identifier)


def plan_of(setting: AuditSetting, *, num_rounds: int = 1, **changes: Any) -> PrivacyPlan:
    """A plan with these constants; noise 0 becomes 1 (a plan refuses to be silent)."""
    settings: dict[str, Any] = {
        "coordinates": Coordinates(setting.shared, setting.clustered),
        "num_clusters": setting.num_clusters,
        "num_clients": setting.num_clients,
        "sample_rate": setting.sample_rate,
        "update_clip": CLIP,
        "count_weight": COUNT_WEIGHT,
        "noise_multiplier": setting.noise_multiplier or 1.0,
        "min_cluster_size": setting.min_cluster_size,
        "size_floor": setting.size_floor,
        "delta": min(DELTA, 1 / setting.num_clients),
    }
    return PrivacyPlan.build(num_rounds=num_rounds, **(settings | changes))


def recast(mechanism: Mechanism, kind: Any) -> Mechanism:
    """The same settings in a mechanism of another kind."""
    return kind(**{field.name: getattr(mechanism, field.name) for field in fields(mechanism)})


def claimed_sensitivity(mechanism: Mechanism) -> float:
    """L2 sensitivity that the noise must be relative to: sqrt(C^2 + w^2) under `joint`, 2C under `identifier`."""
    clip = float(mechanism.update_clip)
    weight = getattr(mechanism, "count_weight", None)
    return 2 * clip if weight is None else math.sqrt(clip * clip + weight * weight)


def noised(release: Release, mechanism: Mechanism) -> Array:
    """Everything that gets Gaussian noise, as one vector: shared sum, cluster sums and, in `joint`, counts."""
    weight = getattr(mechanism, "count_weight", None)
    counts = [] if weight is None else [release.sizes * weight]
    return np.concatenate([release.shared_sum, release.cluster_sums.ravel(), *counts])


def given(mechanism: Mechanism, assignment: Array) -> Mechanism:
    """`identifier` with its noisy identifiers fixed, and a cohort to match; `joint` as it is."""
    if not hasattr(mechanism, "identifier"):
        return mechanism
    return replace(mechanism, identifier=GivenAssignment(assignment), cohort_size=len(assignment))


def _made(kind: Any, setting: AuditSetting, **changes: Any) -> Mechanism:
    made = recast(plan_of(setting, **changes).mechanism, kind)
    return replace(made, noise_multiplier=0.0) if setting.noise_multiplier == 0 else made
