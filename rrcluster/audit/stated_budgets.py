"""Plans and statements: the epsilon of every release they allow, reserve and limits included."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rrcluster.audit.accountants import gaussian_epsilon
from rrcluster.audit.finding import Finding
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

_DELTA, _ROUNDS, _RESERVE = 1e-3, 6, 4
_MECHANISMS: tuple[dict[str, Any], ...] = (
    {"mechanism": "joint"},
    {"mechanism": "joint", "secure": True, "private_evaluation": 0.5},
    {"mechanism": "identifier"},
    {"mechanism": "identifier", "identifier": "kary"},
)


def check_stated_budget() -> Finding:
    """What plans state is what all their releases cost; calibrated noise meets its target; limits are kept.

    Deterministic. Costs are computed for the number of releases that the audit counts, and without sampling by the
    audit's own formula. A cache of multipliers that was tampered with changes nothing.
    """
    wrong = ""
    for settings in _MECHANISMS:
        wrong = wrong or _reserve(settings)
    with _own_cache() as cache:
        wrong = wrong or _calibrated(cache)
    wrong = wrong or _limited()
    claim = "stated epsilon = cost of every release allowed, reserve included"
    return Finding("plan", "stated budget", claim, wrong or "so", not wrong)


def _reserve(settings: dict[str, Any]) -> str:
    plan = _plan(noise_multiplier=2.0, num_rounds=_ROUNDS, reserve_rounds=_RESERVE, **settings)
    releases = _ROUNDS + _RESERVE
    due = epsilon(plan.event, num_rounds=releases, delta=_DELTA)
    stated = statement(plan)
    epsilons = {"plan": plan.epsilon(), "statement": stated["epsilon"]}
    epsilons |= {f"{row['accountant']} in the statement": row["epsilon"] for row in stated["accountants"][:1]}
    for where, value in epsilons.items():
        if value is None or value < due - 1e-9:
            return f"{where}: {value} where {releases} releases cost {due:.4g} ({settings['mechanism']})"
    if (plan.num_releases, stated["num_releases"]) != (releases, releases):
        return f"{plan.num_releases} releases are allowed and {stated['num_releases']} stated, of {releases}"
    if stated["delta"] != _DELTA or stated["event"]["noise_multiplier"] != plan.event.noise_multiplier:
        return "delta or noise is stated otherwise than it is"
    return ""


def _calibrated(cache: Path) -> str:
    """Without sampling, where ten rounds are one Gaussian: the audit's own formula says what the noise costs."""
    target = 3.0
    asked = {"epsilon": target, "num_rounds": _ROUNDS, "reserve_rounds": _RESERVE, "sample_rate": 1.0}
    for tampered in (False, True):
        if tampered:
            for path in cache.rglob("*.json"):
                known = json.loads(path.read_text(encoding="utf-8"))
                path.write_text(json.dumps({key: value / 2 for key, value in known.items()}), encoding="utf-8")
        plan = _plan(**asked)
        spent = gaussian_epsilon(plan.event.noise_multiplier / (_ROUNDS + _RESERVE) ** 0.5, _DELTA)
        if not 0.98 * target <= spent <= target * (1 + 1e-6):
            how = " after its cache was tampered with" if tampered else ""
            return f"noise calibrated to epsilon {target:g} costs {spent:.5g}{how}"
    return ""


def _limited() -> str:
    plan = _plan(noise_multiplier=3.0, num_rounds=20, sample_rate=1.0, max_epsilon=2.0)
    spent = gaussian_epsilon(3.0 / plan.num_releases**0.5, _DELTA)
    if spent > 2.0 or plan.epsilon() > 2.0 or not plan.num_releases:
        return f"max_epsilon = 2 allows {plan.num_releases} releases, which cost {spent:.4g}"
    return ""


def _plan(**settings: Any) -> PrivacyPlan:
    shape: dict[str, Any] = {"coordinates": Coordinates(0, 2), "num_clusters": 2, "num_clients": 200, "delta": _DELTA}
    return PrivacyPlan.build(**(shape | {"sample_rate": 0.1} | settings))


@contextmanager
def _own_cache() -> Iterator[Path]:
    """A cache folder of the audit's own, so that nothing remembered helps and nothing tampered with stays."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
