"""The privacy cost of a run folder, and of several runs on the same clients together.

Everything that prints the epsilon of a folder calls `folder_cost`. Several runs cost their composed events at one
delta: a client in all of them is protected by that, not by the epsilon that each run states. It holds where noise,
sampling and number of rounds of no run were chosen by looking at releases of another (composition with budgets chosen
on the way is a different theorem).
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.errors import PrivacyError, RunFolderError, UnsupportedEvent
from rrcluster.privacy import events
from rrcluster.privacy.accounting import (
    ACCOUNTANTS,
    MAX_MULTIPLIER,
    MAX_PLD_ROUNDS,
    MIN_DELTA,
    AccountRow,
    check_delta,
    epsilon,
)
from rrcluster.privacy.ledger import describe, num_charged, read_charges
from rrcluster.storage import WAY_OUT, read_mapping


@dataclass(frozen=True)
class Cost:
    """What the releases of a folder cost, all that may still be made included."""

    epsilon: float | None  # None: no finite bound
    delta: float | None
    covered: int  # releases that epsilon covers
    charged: int  # releases that the ledger holds


def folder_cost(folder: Path) -> Cost | None:
    """The cost of the run in `folder`, whether it finished, was stopped, or was killed; None without privacy.

    It is that of the whole plan, as stated in privacy.json before the first release, and never that of the releases
    made so far: whoever stops a run may have looked at them (docs/privacy.md, "Stopping early"). The ledger must agree:
    RunFolderError if it holds more releases than the statement covers, or releases of another kind, or is missing where
    releases were made.
    """
    stated = read_mapping(folder / "privacy.json")
    if "private" not in stated:
        raise RunFolderError(f"{folder / 'privacy.json'}: does not say whether the run is private. {WAY_OUT}")
    if stated["private"] is False:
        return None
    covered = _covered(stated)
    charges = _charges(folder)
    charged = num_charged(charges, secure=stated.get("secure") is True)
    if covered is None or charged > covered:
        raise RunFolderError(
            f"{folder}: ledger.jsonl holds {charged} releases, but privacy.json covers {covered or 'an unknown number'}"
            f". One of the two is damaged, so the run's cost is unknown. {WAY_OUT}"
        )
    if charges and "event" in stated and charges[0]["event"] != stated["event"]:
        raise RunFolderError(
            f"{folder}: ledger.jsonl and privacy.json describe different releases. One of the two is damaged, so the "
            f"run's cost is unknown. {WAY_OUT}"
        )
    return Cost(_number(stated.get("epsilon")), _number(stated.get("delta")), covered, charged)


def stated_participations(stated: dict[str, Any]) -> int | None:
    """How many times the stated event happens to a client at most: its releases, or with slots fewer of them."""
    described = stated.get("participation")
    if isinstance(described, dict) and "slots" in described and "selection" not in stated:
        return _whole(described.get("most_participations"))
    return _covered(stated)


def _covered(stated: dict[str, Any]) -> int | None:
    """How many releases the statement covers; a selection is one, charged as a whole, and again when repeated."""
    if "selection" in stated:
        selection = stated["selection"]
        return _whole(selection.get("charges", 1)) if isinstance(selection, dict) else None
    if "num_releases" in stated:
        return _whole(stated["num_releases"])
    rounds, reserve = _whole(stated.get("num_rounds")), _whole(stated.get("reserve_rounds", 0))  # until version 0.1
    return None if rounds is None or reserve is None else rounds + reserve


def _charges(folder: Path) -> list[dict[str, Any]]:
    path = folder / "ledger.jsonl"
    if os.path.lexists(path):
        return read_charges(path)
    if (folder / "rounds.jsonl").exists():
        raise RunFolderError(f"{path}: missing, but rounds were released; the run's cost is unknown. {WAY_OUT}")
    return []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


Part = tuple[events.Event, int]  # an event, and how often it happens
_EVENTS = (events.PoissonGaussian, events.FixedSize, events.RepeatAndSelect)  # whose repetitions simply compose
_PARTS = (*_EVENTS, events.FoldedChoice, events.KaryChoice)


@dataclass(frozen=True)
class RunCost:
    """One run, as it is composed with others."""

    folder: Path
    event: events.Event
    num_releases: int  # that its plan allows, made or not
    epsilon: float | None  # what it states, alone
    delta: float | None
    secure: bool
    started_from: str | None
    participations: int  # how often the event happens to a client at most: fewer than releases where there are slots


@dataclass(frozen=True)
class Together:
    """What runs cost together, by every accountant that applies."""

    runs: tuple[RunCost, ...]
    adjacency: str
    delta: float
    rows: tuple[AccountRow, ...]

    @property
    def epsilon(self) -> float | None:
        """The least of the bounds, all of which hold; None without any."""
        return min((row.epsilon for row in self.rows if row.epsilon is not None), default=None)


def account_runs(folders: Sequence[Path], *, delta: float | None = None) -> Together:
    """Compose the plans of run folders, finished or not. `delta`: that of the runs, if they agree on one."""
    runs = tuple(_read_run(folder) for folder in folders)
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise PrivacyError("a run folder is named twice; its releases were made once. Name each once.")
    stated = {run.delta for run in runs}
    if delta is None and len(stated) > 1:
        listed = ", ".join(f"{value:g}" for value in sorted(value or 0.0 for value in stated))
        raise PrivacyError(f"the runs state epsilon at different deltas ({listed}); say at which with --delta.")
    at = check_delta(runs[0].delta if delta is None else delta)  # type: ignore[arg-type]
    parts = [(run.event, run.participations) for run in runs]
    return Together(runs, check_composable(parts), at, tuple(account_together(parts, delta=at)))


def check_composable(parts: Sequence[Part]) -> str:
    """The neighbouring relation of all events; PrivacyError where there are several, or an event of an unknown kind."""
    relations = sorted({event.adjacency for event, _ in parts})
    if len(relations) > 1:
        raise PrivacyError(
            f"the runs are private under different neighbouring relations ({' and '.join(relations)}), which do not "
            "compose into one epsilon; state them side by side."
        )
    for event, _ in parts:
        if type(event) not in _EVENTS:
            raise PrivacyError(f"how {type(event).__name__} composes with other events is not known here.")
    return relations[0]


def account_together(parts: Sequence[Part], *, delta: float) -> list[AccountRow]:
    """Epsilon of all parts together by `pld` and `rdp`; a refusal becomes a row with its reason."""
    merged: dict[events.Event, int] = {}
    for event, count in parts:
        merged[event] = merged.get(event, 0) + count
    rows = []
    for name, compose in (("pld", _pld_epsilon), ("rdp", _rdp_epsilon)):
        try:
            if len(merged) == 1:
                ((event, count),) = merged.items()
                value = epsilon(event, num_rounds=count, delta=delta, accountant=name)
            else:
                value = compose(list(merged.items()), delta)
            rows.append(AccountRow(name, value, None))
        except UnsupportedEvent as refusal:
            rows.append(AccountRow(name, None, str(refusal)))
    assert all(row.accountant in ACCOUNTANTS for row in rows)
    return rows


def _rdp_epsilon(parts: Sequence[Part], delta: float) -> float:
    """Sums of Renyi divergences, at the orders that all events have."""
    from dp_accounting.rdp import compute_epsilon

    curves = []
    for event, count in parts:
        epsilon(event, num_rounds=count, delta=delta, accountant="rdp")  # raises where the event cannot be accounted
        orders, rdp = event.at_most(MAX_MULTIPLIER).rdp()
        curves.append({float(order): count * float(value) for order, value in zip(orders, rdp, strict=True)})
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    total = np.array([sum(curve[order] for curve in curves) for order in common])
    return float(compute_epsilon(common, total, delta)[0])


def _pld_epsilon(parts: Sequence[Part], delta: float) -> float:
    """Each event's distribution composed on its own grid, then moved up to the coarsest grid and put together."""
    releases = sum(count for _, count in parts)
    if releases > MAX_PLD_ROUNDS or delta < MIN_DELTA * max(1.0, releases / 1000):
        raise UnsupportedEvent(f"{releases} releases at delta = {delta:g} are beyond the accountant 'pld'; see 'rdp'.")
    plds: list[Any] = []
    for event, count in parts:
        epsilon(event, num_rounds=count, delta=delta, accountant="pld")  # raises where the event cannot be accounted
        plds.append(event.at_most(MAX_MULTIPLIER).loss_distribution(coarse=False).self_compose(count))
    step = max(pld._pmf_remove._discretization for pld in plds)
    whole = _on_grid(plds[0], step)
    for pld in plds[1:]:
        whole = whole.compose(_on_grid(pld, step))
    return float(whole.get_epsilon_for_delta(delta))


def _on_grid(pld: Any, step: float) -> Any:
    """The same distribution with every loss rounded up to a multiple of `step`: pessimistic, by less than one step."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    def moved(pmf: Any) -> Any:
        dense = pmf.to_dense_pmf()
        losses = (np.arange(len(dense._probs)) + dense._lower_loss) * dense._discretization
        places = np.ceil(losses / step - 1e-9).astype(np.int64)  # a loss on the grid stays there
        masses = np.bincount(places - places[0], weights=dense._probs)
        return pld_pmf.DensePLDPmf(step, int(places[0]), masses, dense._infinity_mass, pessimistic_estimate=True)

    remove, add = pld._pmf_remove, pld._pmf_add
    return privacy_loss_distribution.PrivacyLossDistribution(moved(remove), None if add is remove else moved(add))


def _read_run(folder: Path) -> RunCost:
    cost = folder_cost(folder)
    if cost is None:
        raise PrivacyError(f"{folder}: a run without privacy (mechanism none); together with it nothing is guaranteed.")
    stated = read_mapping(folder / "privacy.json")
    started, most = stated.get("started_from"), stated_participations(stated)
    return RunCost(
        folder,
        read_event(stated.get("event"), folder),
        cost.covered,
        cost.epsilon,
        cost.delta,
        stated.get("secure") is True,
        str(started.get("run")) if isinstance(started, dict) else None,
        cost.covered if most is None else most,
    )


def read_event(described: Any, folder: Path) -> events.Event:
    """The event that `ledger.describe` wrote; RunFolderError where describing it again gives something else."""
    try:
        (kind,) = (kind for kind in _EVENTS if kind.__name__ == described["type"])
        event = kind(**{part.name: _value(described[part.name]) for part in fields(kind)})
        if describe(event) == described:
            return event
    except (KeyError, TypeError, ValueError):
        pass
    raise RunFolderError(
        f"{folder / 'privacy.json'}: its event is damaged or of a kind that is not composed here, so the run's cost "
        f"cannot be added to others. {WAY_OUT}"
    )


def _value(value: Any) -> Any:
    """A number or a name as it is; a mapping as the part of an event that has these fields."""
    if not isinstance(value, dict):
        return value
    (kind,) = (kind for kind in _PARTS if is_dataclass(kind) and {part.name for part in fields(kind)} == set(value))
    return kind(**{name: _value(inner) for name, inner in value.items()})
