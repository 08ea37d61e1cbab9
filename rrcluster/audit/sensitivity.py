"""Check 1: with the noise off, no neighbour moves a release by more than the sensitivity the noise is made for."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rrcluster.audit.finding import Finding
from rrcluster.audit.neighbours import B, Neighbours, Round, add_remove, replace_one
from rrcluster.audit.targets import AuditSetting, Mechanism, Target, as_reports, claimed_sensitivity, given, noised
from rrcluster.privacy.reports import Reports
from rrcluster.types import Array, Release

ROUNDING = 1e-9
_QUIET = AuditSetting(noise_multiplier=0.0)


def check_sensitivity(target: Target, *, brief: bool = False) -> Finding:
    """The largest shift over all adversarial neighbours, shapes and rebalancing options, against the claim.

    Deterministic. For `identifier` conditional on the noisy assignment and on the rebalancing coins (both releases get
    the same generator), as the proof is; there the sizes and denominators must not move at all. A release that is not
    finite, or that a hostile report stops with an error, is an infinite shift. `brief` tries one shape of three: with
    shared coordinates, without rebalancing, and coins.
    """
    worst, where = 0.0, "nowhere"
    for mechanism, neighbours in _cases(target, brief=brief):
        base = released_quietly(mechanism, neighbours.round)
        for label, other in neighbours.others.items():
            ratio = shift(mechanism, base, released_quietly(mechanism, other)) / claimed_sensitivity(mechanism)
            if ratio > worst:
                worst, where = ratio, label
    bound = "sqrt(C^2 + w^2 + u^2/2)" if target.adjacency == "add-remove" else "2C, given the assignment"
    shown = f"{worst:.6f} of it" if worst <= 1 + ROUNDING else f"{worst:.4g} times it: {where}"
    return Finding(target.name, "sensitivity", f"one client moves at most {bound}", shown, worst <= 1 + ROUNDING)


def check_invalid_reports(target: Target) -> Finding:
    """An unusable report is as if absent under `joint`; under `identifier` it stays in the cohort, counted, at zero.

    Deterministic. Unusable: not finite, out of range, of another shape or type, a second one under the same id.
    """
    mechanism = target.make(_QUIET)
    claim = "as if absent" if target.adjacency == "add-remove" else "counted, with update zero"
    for name, reports in _unusable(mechanism).items():
        try:
            wrong = _treated_wrongly(mechanism, reports)
        except Exception as error:  # whatever it is: a report must not stop a round
            wrong = f"stops the round with {type(error).__name__}"
        if wrong:
            return Finding(target.name, "invalid reports", claim, f"{name}: {wrong}", False)
    return Finding(target.name, "invalid reports", claim, "so for every kind tried", True)


def _cases(target: Target, *, brief: bool) -> Iterator[tuple[Mechanism, Neighbours]]:
    shapes = (_QUIET, replace(_QUIET, shared=2), replace(_QUIET, min_cluster_size=B))
    possible = shapes if target.counted else shapes[:2]  # coins need released sizes
    for shape in shapes[1:2] if brief else possible:
        mechanism = target.make(shape)
        if target.adjacency == "add-remove":
            for coins in (True,) if brief or mechanism.flips_coins else (False, True):
                yield from ((mechanism, found) for found in add_remove(mechanism, coins=coins))
        else:
            yield from ((given(mechanism, found.assignment), found) for found in replace_one(mechanism))


def shift(mechanism: Mechanism, one: Release | None, two: Release | None) -> float:
    """How far two releases are apart; infinitely, if one is missing or if sizes move that are public constants."""
    if one is None or two is None:
        return np.inf
    constant = hasattr(mechanism, "identifier") or mechanism.count_weight == 0
    if constant and _sizes(one).tolist() != _sizes(two).tolist():
        return np.inf
    moved = float(np.linalg.norm(noised(two, mechanism) - noised(one, mechanism)))
    return moved if np.isfinite(moved) else np.inf


def released_quietly(mechanism: Mechanism, one: Round) -> Release | None:
    """The release, or None where a report stopped the round: that shows with certainty.

    Errors of arithmetic on hostile values are kept quiet: they are what is looked for.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        try:
            made: Release = mechanism.release(as_reports(mechanism, one), rng=np.random.default_rng(0))
        except Exception:  # whatever it is
            return None
    return made


def _sizes(release: Release) -> Array:
    return np.concatenate([release.sizes, release.denominators, [release.shared_denominator]])


def _unusable(mechanism: Mechanism) -> dict[str, tuple[Any, Any, Any]]:
    """Rounds of three clients whose last report cannot be used: updates, choices, client ids."""
    width, k, clip = mechanism.coordinates.width, mechanism.num_clusters, mechanism.update_clip
    good, ids = np.full((3, width), clip / width), [7, 8, 9]
    bad = {name: np.vstack([good[:2], np.full(width, value)]) for name, value in _NOT_NUMBERS.items()}
    return {
        **{name: (updates, [0, 1, 1], ids) for name, updates in bad.items()},
        "cluster k": (good, [0, 1, k], ids),
        "cluster -1": (good, np.array([0, 1, -1]), ids),
        "cluster 0.5": (good, [0, 1, 0.5], ids),
        "a row too long": ([*good[:2], np.zeros(width + 1)], [0, 1, 1], ids),
        "a row of text": ([*good[:2], "text"], [0, 1, 1], ids),
        "the same id again": (good, [0, 1, 1], [7, 8, 8]),
        "the same id in an array": (good, np.array([0, 1, 1]), np.array([7, 8, 8])),
        "the same id as another type": (good, [0, 1, 1], [7, 8, np.int64(8)]),
        "the same id as a text": (good, [0, 1, 1], ["a", "b", "b"]),
    }


_NOT_NUMBERS = {"NaN": np.nan, "infinity": np.inf, "an overflowing norm": 1e200}


def _treated_wrongly(mechanism: Mechanism, reports: tuple[Any, Any, Any]) -> str:
    updates, choices, ids = reports
    with np.errstate(all="ignore"):
        if not hasattr(mechanism, "identifier"):
            with_it = mechanism.release(Reports(updates, choices, client_ids=ids), rng=np.random.default_rng(0))
            without = mechanism.release(
                Reports(updates[:2], choices[:2], client_ids=ids[:2]), rng=np.random.default_rng(0)
            )
            same = np.array_equal(noised(with_it, mechanism), noised(without, mechanism))
            return "" if same else "it shows in the release"
        fixed = given(mechanism, np.array([0, 1, 1]))
        release = fixed.release(Reports(updates, choices, client_ids=ids), rng=np.random.default_rng(0))
        zeroed = fixed.release(Reports(updates[:2], choices[:2], client_ids=ids[:2]), rng=np.random.default_rng(0))
    if release.sizes.sum() != 3 or zeroed.sizes.sum() != 3:
        return f"the cohort of 3 is counted as {release.sizes.sum():g}, or {zeroed.sizes.sum():g} when it drops out"
    same = np.array_equal(noised(release, fixed), noised(zeroed, fixed))
    return "" if same else "it differs from a client that dropped out"
