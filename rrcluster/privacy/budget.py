"""Noise from epsilon, or epsilon from noise, by every accountant that applies; and why the others do not."""

from dataclasses import dataclass
from typing import Any

from rrcluster.errors import PrivacyError
from rrcluster.privacy.accounting import ACCOUNTANTS
from rrcluster.privacy.identifier_noise import (
    ByLossIdentifier,
    GaussianIdentifier,
    KaryIdentifier,
    ProjectionIdentifier,
    clear_choice_probability,
)
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.types import Coordinates


@dataclass(frozen=True)
class BudgetRow:
    """One accountant's answer; `reason` says why there is none."""

    accountant: str
    description: str
    noise_multiplier: float | None  # of the whole round, relative to the mechanism's own sensitivity
    epsilon: float | None
    noise: dict[str, float]  # what that multiplier means for each released part, clip = 1
    reason: str | None


@dataclass(frozen=True)
class Budget:
    """What a mechanism costs for given sampling and rounds, accountant by accountant."""

    mechanism: str
    adjacency: str
    sampling: str
    delta: float
    rows: tuple[BudgetRow, ...]

    def __getitem__(self, accountant: str) -> BudgetRow:
        """The row of one accountant."""
        return next(row for row in self.rows if row.accountant == accountant)


def account(
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-4,
    **settings: Any,
) -> Budget:
    """Ask every accountant. Give `epsilon` (noise is calibrated) or `noise_multiplier` (epsilon follows).

    Settings: mechanism ("joint"), sample_rate (0.1), num_rounds (100), num_clients (1000), num_clusters (4),
    count_weight, private_evaluation, identifier, identifier_share, and num_parameters (4420), which only the split
    `auto` looks at. A setting that no accountant could accept raises PrivacyError.
    """
    rows = tuple(_row(name, epsilon, noise_multiplier, delta, settings) for name in ACCOUNTANTS)
    sample = _plan(delta=delta, noise_multiplier=1.0, **settings)
    event = sample.event
    return Budget(sample.mechanism.name, event.adjacency, event.sampling, delta, rows)


def calibrate(*, epsilon: float, delta: float = 1e-4, accountant: str = "pld", **settings: Any) -> float:
    """The least noise multiplier (noise std / sensitivity, of the whole round) that costs at most `epsilon`.

    Rounded up: it never overspends. Settings as in `account`.
    """
    multiplier = _plan(epsilon=epsilon, delta=delta, accountant=accountant, **settings).noise_multiplier
    assert multiplier is not None  # `none` refuses an epsilon
    return multiplier


def _plan(*, num_parameters: int = 4420, **settings: Any) -> PrivacyPlan:
    defaults: dict[str, Any] = {
        "coordinates": Coordinates(0, num_parameters),
        "num_clusters": 4,
        "num_clients": 1000,
        "sample_rate": 0.1,
        "num_rounds": 100,
        "update_clip": 1.0,
    }
    return PrivacyPlan.build(**(defaults | settings))


def _row(
    name: str, epsilon: float | None, noise_multiplier: float | None, delta: float, settings: dict[str, Any]
) -> BudgetRow:
    about = ACCOUNTANTS[name].description
    try:
        plan = _plan(
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            **(settings | {"accountant": name}),
        )
        spent = plan.epsilon()
    except PrivacyError as refusal:
        return BudgetRow(name, about, None, None, {}, str(refusal))
    return BudgetRow(name, about, plan.noise_multiplier, spent, _noise(plan.mechanism), None)


def _noise(mechanism: Any) -> dict[str, float]:
    noise = {"sum noise std / clip": mechanism.noise_std / mechanism.update_clip}
    if isinstance(mechanism, JointMechanism) and mechanism.count_weight:
        noise["size noise std, clients"] = mechanism.noise_std / mechanism.count_weight
    if isinstance(mechanism, JointMechanism) and mechanism.evaluation_weight:
        noise["accuracy noise std x clients"] = mechanism.noise_std / mechanism.evaluation_weight
    identifier = getattr(mechanism, "identifier", None)
    if isinstance(identifier, GaussianIdentifier):
        noise["identifier noise std"] = identifier.noise_multiplier
    if isinstance(identifier, KaryIdentifier):
        noise["identifier keep probability"] = identifier.keep_probability
    if isinstance(identifier, ProjectionIdentifier):
        noise["projection noise std"] = identifier.noise_std
    if isinstance(identifier, ByLossIdentifier):
        noise["identifier epsilon"] = identifier.epsilon
        noise["clear choice kept"] = clear_choice_probability(identifier, mechanism.num_clusters)
    return noise
