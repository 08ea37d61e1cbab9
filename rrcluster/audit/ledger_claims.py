"""Ledgers charge before a release, and again for fresh noise; plans state the cost of every release they allow."""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rrcluster.audit.accountants import gaussian_epsilon
from rrcluster.audit.targets import Finding, refused
from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.ledger import Ledger, read_charges
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import statement
from rrcluster.types import Coordinates

_EVENT, _OTHER = PoissonGaussian(1.0, 0.1), PoissonGaussian(2.0, 0.1)
_SETUP = {"config": "a", "torch": "1"}


def check_ledger_rules() -> Finding:
    """Try every rule of the ledger. Deterministic."""
    wrong = ""
    for rule in RULES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong = wrong or rule(Path(folder) / "ledger.jsonl")
            except Exception as error:  # a rule that cannot be tried does not hold
                wrong = wrong or f"{rule.__name__}: {type(error).__name__}: {error}"
    claim = "charges are on disk first, counted, limited, and never changed"
    return Finding("ledger", "ledger rules", claim, wrong or f"holds, {len(RULES)} rules", not wrong)


def secure_repeats_are_charged(path: Path) -> str:
    """A repeated secure round has fresh noise and is charged again, up to the limit."""
    ledger = Ledger(path, secure=True, limit=3)
    for round_index in (0, 0, 1):
        ledger.charge(round_index, _EVENT)
    if (ledger.num_charged, len(read_charges(path))) != (3, 3):
        return "a secure round that is repeated is not charged again"
    again = Ledger(path, secure=True, limit=3)
    if again.num_charged != 3:
        return "a ledger that is opened again forgets charges"
    if again.affords(2) or not refused(lambda: again.charge(2, _EVENT), PrivacyError):
        return "more releases than the limit are charged"
    return "" if not Ledger(path, secure=True).affords(2, limit=3) else "the plan's limit is not kept"


def seeded_repeats_are_free_and_identical(path: Path) -> str:
    """A repeated seeded round is the same release: charged once, and refused with other versions."""
    ledger = Ledger(path, made_by=_SETUP)
    for round_index in (0, 1, 1):
        ledger.charge(round_index, _EVENT)
    if ledger.num_charged != 2 or len(read_charges(path)) != 2:
        return "a repeated seeded round is not charged exactly once"
    other = Ledger(path, made_by=_SETUP | {"torch": "2"})
    return "" if refused(lambda: other.charge(1, _EVENT), PrivacyError) else "a round is repeated with other versions"


def charges_are_on_disk(path: Path) -> str:
    """When `charge` returns, the line is flushed to disk; where it cannot be written, the charge fails."""
    for round_index in range(3):
        ledger = Ledger(path)
        with _counted_flushes() as flushes:
            ledger.charge(round_index, _EVENT)
        if len(read_charges(path)) != round_index + 1:
            return "a charge is not on disk when it returns"
        if not flushes:
            return "a charge is not flushed to the disk"
    blocked = Ledger(path / "no folder" / "ledger.jsonl")
    if not refused(lambda: blocked.charge(0, _EVENT), Exception):
        return "a charge that cannot be written counts as made"
    return ""


def a_run_is_one_plan(path: Path) -> str:
    """Neither the event nor the settings of a run may change."""
    Ledger(path, made_by=_SETUP).charge(0, _EVENT)
    if not refused(lambda: Ledger(path, made_by=_SETUP).charge(1, _OTHER), PrivacyError):
        return "the event of a run may change"
    changed = _SETUP | {"config": "b"}
    return "" if refused(lambda: Ledger(path, made_by=changed), PrivacyError) else "the settings of a run may change"


def damage_is_refused(path: Path) -> str:
    """A torn last line belongs to no release; any other damage makes the cost unknown and is refused."""
    ledger = Ledger(path)
    for round_index in range(3):
        ledger.charge(round_index, _EVENT)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], "{damaged", lines[2]]) + "\n", encoding="utf-8")
    if not refused(lambda: Ledger(path), RunFolderError):
        return "damaged charges are ignored"
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9], encoding="utf-8")
    return "" if Ledger(path).num_charged == 2 else "a torn last charge changes the others"


RULES: tuple[Callable[[Path], str], ...] = (
    secure_repeats_are_charged,
    seeded_repeats_are_free_and_identical,
    charges_are_on_disk,
    a_run_is_one_plan,
    damage_is_refused,
)


@contextlib.contextmanager
def _counted_flushes() -> Iterator[list[int]]:
    """The file descriptors flushed to disk within the block."""
    fsync, flushed = os.fsync, list[int]()

    def watched(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            flushed.append(descriptor)
        fsync(descriptor)

    os.fsync = watched  # type: ignore[assignment]
    try:
        yield flushed
    finally:
        os.fsync = fsync


_DELTA, _ROUNDS, _RESERVE = 1e-3, 6, 4
_MECHANISMS: tuple[dict[str, Any], ...] = (
    {"mechanism": "joint"},
    {"mechanism": "joint", "secure": True, "private_evaluation": 0.5},
    {"mechanism": "identifier"},
    {"mechanism": "identifier", "identifier": "kary"},
)


def check_stated_budget() -> Finding:
    """Plans state the cost of all their releases; calibrated noise meets its target; limits are kept.

    Deterministic. Costs are computed for the number of releases that the audit counts, and without sampling by the
    audit's own formula. A tampered cache of multipliers must change nothing.
    """
    wrong = ""
    for settings in _MECHANISMS:
        wrong = wrong or _reserve(settings)
    with _own_cache() as cache:
        wrong = wrong or _calibrated(cache)
    wrong = wrong or _limited() or _slotted()
    claim = "stated epsilon = cost of every release allowed, reserve included"
    return Finding("plan", "stated budget", claim, wrong or "holds", not wrong)


def _reserve(settings: dict[str, Any]) -> str:
    plan = _plan(noise_multiplier=2.0, num_rounds=_ROUNDS, reserve_rounds=_RESERVE, **settings)
    releases = _ROUNDS + _RESERVE
    cost = epsilon(plan.event, num_rounds=releases, delta=_DELTA)
    document = statement(plan)
    epsilons = {"plan": plan.epsilon(), "statement": document["epsilon"]}
    epsilons |= {f"{row['accountant']} in the statement": row["epsilon"] for row in document["accountants"][:1]}
    for where, value in epsilons.items():
        if value is None or value < cost - 1e-9:
            return f"{where}: {value} where {releases} releases cost {cost:.4g} ({settings['mechanism']})"
    if (plan.num_releases, document["num_releases"]) != (releases, releases):
        return f"{plan.num_releases} releases are allowed and {document['num_releases']} stated, of {releases}"
    seen_cost = gaussian_epsilon(plan.event.noise_multiplier / releases**0.5, _DELTA)  # at least, whoever is replaced
    for value in (plan.epsilon_seen(), document["participation"]["towards"][1]["epsilon"]):
        if value < seen_cost - 1e-6:
            return f"{value:.4g} towards an observer of cohorts, where {seen_cost:.4g} is due ({settings['mechanism']})"
    if document["private"] is not plan.secure or next(iter(document)) != "private":
        return "a seeded run is called private, or a secure one is not"
    if document["delta"] != _DELTA or document["event"]["noise_multiplier"] != plan.event.noise_multiplier:
        return "delta or noise is stated wrongly"
    return ""


def _calibrated(cache: Path) -> str:
    """Without sampling, where ten rounds equal one Gaussian: the audit's own formula gives the cost of the noise."""
    target = 3.0
    options = {"epsilon": target, "num_rounds": _ROUNDS, "reserve_rounds": _RESERVE, "sample_rate": 1.0}
    for tampered in (False, True):
        if tampered:
            for path in cache.rglob("*.json"):
                multipliers = json.loads(path.read_text(encoding="utf-8"))
                path.write_text(json.dumps({key: value / 2 for key, value in multipliers.items()}), encoding="utf-8")
        plan = _plan(**options)
        cost = gaussian_epsilon(plan.event.noise_multiplier / (_ROUNDS + _RESERVE) ** 0.5, _DELTA)
        if not 0.98 * target <= cost <= target * (1 + 1e-6):
            how = " after its cache was tampered with" if tampered else ""
            return f"noise calibrated to epsilon {target:g} costs {cost:.5g}{how}"
    return ""


def _limited() -> str:
    plan = _plan(noise_multiplier=3.0, num_rounds=20, sample_rate=1.0, max_epsilon=2.0)
    cost = gaussian_epsilon(3.0 / plan.num_releases**0.5, _DELTA)
    if cost > 2.0 or plan.epsilon() > 2.0 or not plan.num_releases:
        return f"max_epsilon = 2 allows {plan.num_releases} releases, which cost {cost:.4g}"
    return ""


def _slotted() -> str:
    """With four slots a client takes part in at most three of ten rounds."""
    slots: dict[str, Any] = {"participation": "schedule", "slots": 4, "sample_rate": 1.0}
    plan = _plan(noise_multiplier=2.0, num_rounds=10, **slots)
    cost = gaussian_epsilon(2.0 / 3**0.5, _DELTA)
    if min(plan.epsilon(), statement(plan)["epsilon"], plan.epsilon_seen()) < cost - 1e-6:
        return f"{plan.epsilon():.4g} for three participations, which cost {cost:.4g}"
    return ""


def _plan(**settings: Any) -> PrivacyPlan:
    shape: dict[str, Any] = {"coordinates": Coordinates(0, 2), "num_clusters": 2, "num_clients": 200, "delta": _DELTA}
    return PrivacyPlan.build(**(shape | {"sample_rate": 0.1} | settings))


@contextmanager
def _own_cache() -> Iterator[Path]:
    """A temporary cache folder: earlier entries are not used, and tampered ones do not persist."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
