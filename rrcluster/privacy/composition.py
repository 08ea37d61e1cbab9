"""The total cost of several runs on the same clients: their events composed, at one delta.

A client in all of them is protected by this total, not by the epsilon of each run. It holds where noise, sampling and
number of rounds of no run were chosen by looking at releases of another (composition with budgets chosen on the way is
a different theorem).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.errors import PrivacyError, RunFolderError, UnsupportedEvent
from rrcluster.privacy import events
from rrcluster.privacy.accounting import MAX_MULTIPLIER, MAX_PLD_ROUNDS, MIN_DELTA, AccountRow, check_delta, epsilon
from rrcluster.privacy.cost import Cost, Part, folder_cost

HOLDS_IF = (
    "Holds if noise, sampling and rounds of no run were chosen by looking at releases of another, and for all releases "
    "that the plans allow, made or not."
)


@dataclass(frozen=True)
class Together:
    """The total cost of runs, by every accountant that applies."""

    runs: tuple[Cost, ...]
    adjacency: str
    delta: float
    rows: tuple[AccountRow, ...]

    @property
    def epsilon(self) -> float | None:
        """The smallest bound, all of which hold; None without any."""
        return min((row.epsilon for row in self.rows if row.epsilon is not None), default=None)


def account_runs(folders: Sequence[Path], *, delta: float | None = None) -> Together:
    """Compose the plans of run folders, finished or not. `delta`: that of the runs, if they agree on one."""
    runs = tuple(_read_run(folder) for folder in folders)
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise PrivacyError("a run folder is named twice; its releases were made once. Name each once.")
    stated = {run.delta for run in runs}
    if delta is None and len(stated) > 1:
        listed = ", ".join(f"{value:g}" for value in sorted(stated))
        raise PrivacyError(f"the runs state epsilon at different deltas ({listed}); choose one with --delta.")
    at = check_delta(runs[0].delta if delta is None else delta)
    parts = tuple(run.part for run in runs)
    check_composable(parts)
    adjacency = one_relation({run.adjacency for run in runs})
    return Together(runs, adjacency, at, account_together(parts, delta=at))


def one_relation(relations: Collection[str]) -> str:
    """The neighbouring relation of all runs; PrivacyError where they differ."""
    if len(relations) > 1:
        raise PrivacyError(
            f"the runs are private under different neighbouring relations ({' and '.join(sorted(relations))}), which "
            "do not compose into one epsilon; state them side by side."
        )
    (relation,) = relations
    return relation


def check_composable(parts: Sequence[Part]) -> str:
    """The neighbouring relation of all events; PrivacyError where they differ, or for unknown events."""
    relation = one_relation({event.adjacency for event, _ in parts})
    for event, _ in parts:
        if type(event) not in events.EVENTS:  # whose repetitions simply compose
            raise PrivacyError(f"how {type(event).__name__} composes with other events is not known here.")
    return relation


@lru_cache(maxsize=4096)
def account_together(parts: tuple[Part, ...], *, delta: float) -> tuple[AccountRow, ...]:
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
    return tuple(rows)


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
    """Each event's distribution composed on its own grid, then rounded up to the coarsest grid and convolved."""
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


def _read_run(folder: Path) -> Cost:
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such folder; give folders of runs, and options with two dashes (--delta).")
    cost = folder_cost(folder)
    if cost is None:
        raise PrivacyError(
            f"{folder}: a run without privacy (mechanism none); nothing is guaranteed for it and other runs together."
        )
    return cost
