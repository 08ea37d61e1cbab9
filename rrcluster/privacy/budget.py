"""Noise from epsilon, or epsilon from noise, by every accountant that applies, and why others do not.

>>> budget = account(epsilon=4, delta=1e-3, sample_rate=0.1, num_rounds=100)
>>> f"{budget['pld'].noise_multiplier:.2f}"
'1.10'
>>> f"{account(noise_multiplier=1.1, delta=1e-3, sample_rate=0.1, num_rounds=100)['pld'].epsilon:.2f}"
'4.00'
"""

from dataclasses import dataclass
from typing import Any

from rrcluster.errors import PrivacyError
from rrcluster.privacy.accounting import ACCOUNTANTS
from rrcluster.privacy.evidence import evidence
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import participation_name
from rrcluster.types import Coordinates


@dataclass(frozen=True)
class BudgetRow:
    """One accountant's answer; `reason` says why there is none."""

    accountant: str  # its name
    description: str  # its method
    noise_multiplier: float | None  # of the whole round, relative to the mechanism's own sensitivity
    epsilon: float | None  # of the whole plan
    noise: dict[str, float]  # noise std of each released part, for clip = 1
    reason: str | None  # why it does not apply; None where it does
    least: float | None = None  # under `pld`, bounds on epsilon that include all rounding
    most: float | None = None  # see `least`
    profile: tuple[tuple[float, float], ...] = ()  # (epsilon, delta) that hold together with this one
    risk: dict[str, float] | None = None  # bounds on guesses about a client's participation
    recompute: dict[str, Any] | None = None  # the event for dp-accounting
    epsilon_seen: float | None = None  # towards an observer of participation
    most_participations: int = 0  # of one client, covered by epsilon


@dataclass(frozen=True)
class Budget:
    """The cost of a mechanism for given sampling and rounds, by each accountant."""

    mechanism: str  # the released values
    adjacency: str  # the neighbouring relation
    sampling: str  # the sampling of cohorts
    delta: float  # probability with which an epsilon may fail to bound what is learnt
    rows: tuple[BudgetRow, ...]  # one per accountant
    participation: str = "poisson"  # as `--participation` names it
    most_participations: int = 0  # of one client, covered by an epsilon

    def __getitem__(self, accountant: str) -> BudgetRow:
        """The row of one accountant."""
        return next(row for row in self.rows if row.accountant == accountant)


def account(
    *, epsilon: float | None = None, noise_multiplier: float | None = None, delta: float | None = None, **settings: Any
) -> Budget:
    """Ask every accountant. Give `epsilon` (noise is calibrated) or `noise_multiplier` (epsilon follows).

    Settings are those of `PrivacySettings` by name, num_clients (1000) and num_clusters (4). A setting that no
    accountant accepts raises PrivacyError.
    """
    sample = _plan(delta=delta, noise_multiplier=1.0, **(settings | {"max_epsilon": None}))
    rows = tuple(_row(name, epsilon, noise_multiplier, sample.delta, settings) for name in ACCOUNTANTS)
    event, most = sample.event, max(row.most_participations for row in rows)
    way = participation_name(sample)
    return Budget(sample.mechanism.name, event.adjacency, event.sampling, sample.delta, rows, way, most)


def calibrate(*, epsilon: float, delta: float | None = None, accountant: str = "pld", **settings: Any) -> float:
    """The least noise multiplier (noise std / sensitivity, of the whole round) that costs at most `epsilon`.

    Rounded up: it never overspends. Settings as in `account`.
    """
    multiplier = _plan(epsilon=epsilon, delta=delta, accountant=accountant, **settings).noise_multiplier
    assert multiplier is not None  # `none` refuses an epsilon
    return multiplier


def _plan(*, num_clusters: int = 4, num_clients: int = 1000, **settings: Any) -> PrivacyPlan:
    """A plan for a clip of 1; accountants read neither the clip nor the coordinates."""
    return PrivacyPlan.build(
        coordinates=Coordinates(0, 1),
        num_clusters=num_clusters,
        num_clients=num_clients,
        **({"update_clip": 1.0} | settings),
    )


def _row(
    name: str, epsilon: float | None, noise_multiplier: float | None, delta: float, settings: dict[str, Any]
) -> BudgetRow:
    about = ACCOUNTANTS[name].description
    try:
        plan = _plan(
            epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta, **(settings | {"accountant": name})
        )
        spent, seen = plan.epsilon(), plan.epsilon_seen()
    except PrivacyError as refusal:
        return BudgetRow(name, about, None, None, {}, str(refusal))
    shown = evidence(plan.event, num_rounds=plan.num_participations, delta=delta, accountant=name)
    ends = shown["bracket"] if name == "pld" else {}
    return BudgetRow(
        name,
        about,
        plan.noise_multiplier,
        spent,
        plan.mechanism.describe().noise_per_part,
        None,
        least=ends.get("least"),
        most=ends.get("most"),
        profile=tuple((pair["epsilon"], pair["delta"]) for pair in shown["profile"]),
        risk=shown["risk"],
        recompute=shown["recompute"],
        epsilon_seen=seen,
        most_participations=plan.num_participations,
    )
