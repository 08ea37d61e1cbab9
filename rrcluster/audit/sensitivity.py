"""Check 1: with the noise off, no neighbour moves a release by more than the sensitivity the noise is scaled to.

Neighbouring rounds are adversarial: hostile updates, around every cluster size at which a rule might switch. Updates
and evaluations come in every container and type: a client stays within its sensitivity and moves nobody's row.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.audit.targets import (
    CLIP,
    GRID_BITS,
    AuditSetting,
    Finding,
    Mechanism,
    Target,
    as_reports,
    claimed_sensitivity,
    given,
    noised,
    plan_of,
)
from rrcluster.privacy.rebalancing import coin_transition, flip_coins
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng, Streams, client_uniforms
from rrcluster.server.server import release
from rrcluster.types import Array, Release

B = 4
CRITICAL_SIZES = (0, B - 1, B, B + 1)


@dataclass(frozen=True)
class Round:
    """The reports of one cohort."""

    updates: Any
    choices: Any
    destinations: Any = None
    evaluations: Any = None


@dataclass(frozen=True)
class Neighbours:
    """A round, its neighbours by name, and the noisy assignment that `identifier` gives to all of them."""

    round: Round
    others: dict[str, Round]
    assignment: Array


def hostile_rows(width: int, clip: float) -> dict[str, Array]:
    """Updates a client may send: zero, the clip, far more, in one coordinate or in all, and invalid numbers."""
    axis, dense = np.eye(width)[0], np.ones(width) / np.sqrt(width)
    halves = np.where(np.arange(width) % 2, 1.0, -1.0) / np.sqrt(width)
    return {
        "zero": 0.0 * axis,
        "C": clip * axis,
        "-C": -clip * axis,
        "50C": 50 * clip * axis,
        "50C in every coordinate": 50 * clip * dense * np.sqrt(width),
        "50C, both signs": -50 * clip * halves,
        "1e30": 1e30 * axis,
        "overflow": 1e200 * dense,
        "NaN": np.where(axis > 0, np.nan, 0.0),
        "infinity": np.where(axis > 0, np.inf, clip),
        "-infinity everywhere": np.full(width, -np.inf),
    }


def add_remove(mechanism: Mechanism, *, coins: bool) -> Iterator[Neighbours]:
    """Cohorts around every critical size, then one client more, in every cluster, with every hostile update.

    Other clients' coins stay as they are (they are keyed by client id); the newcomer's sends it to any block. Where all
    sizes are different or all equal, every hostile update is tried; elsewhere the clip against the others' signs.
    """
    k, hostile = mechanism.num_clusters, hostile_rows(mechanism.coordinates.width, mechanism.update_clip)
    for sizes in itertools.product(CRITICAL_SIZES, repeat=k):
        choices = np.repeat(np.arange(k), sizes)
        to = _coins(choices, k) if coins else choices
        for signs in (-np.ones(k), np.where(np.arange(k) % 2, 1.0, -1.0)):
            updates = signs[choices][:, None] * hostile["C"]
            others = {
                f"sizes {sizes}, one more in {cluster} sending {name}": Round(
                    np.vstack([updates, hostile[name]]),
                    np.append(choices, cluster),
                    np.append(to, (cluster + 1) % k) if coins else None,
                )
                for name, cluster in itertools.product(_tried(sizes, hostile), range(k))
            }
            yield Neighbours(Round(updates, choices, to if coins else None), others, choices)


def replace_one(mechanism: Mechanism) -> Iterator[Neighbours]:
    """Assignments around every critical size, then one client of every cluster sends another update."""
    k, least = mechanism.num_clusters, mechanism.min_cluster_size
    hostile = hostile_rows(mechanism.coordinates.width, mechanism.update_clip)
    for sizes in itertools.product(CRITICAL_SIZES, repeat=k):
        if sum(sizes) < max(k * least, 1):
            continue
        assignment = np.repeat(np.arange(k), sizes)
        for client in np.unique(assignment, return_index=True)[1]:
            updates, choices = np.tile(hostile["-C"], (len(assignment), 1)), assignment.copy()
            choices[client] = (assignment[client] + 1) % k
            others = {
                f"sizes {sizes}, client {client} sending {name} for C": Round(_with(updates, client, row), choices)
                for name, row in ((name, hostile[name]) for name in _tried(sizes, hostile))
            }
            yield Neighbours(Round(_with(updates, client, hostile["C"]), assignment), others, assignment)


def _tried(sizes: tuple[int, ...], hostile: dict[str, Array]) -> Iterable[str]:
    return hostile if len(set(sizes)) in (1, len(sizes)) and sizes == tuple(sorted(sizes)) else ("C", "-C")


def _with(updates: Array, client: int, row: Array) -> Array:
    return np.vstack([updates[:client], row, updates[client + 1 :]])


def _coins(choices: Array, num_clusters: int) -> Array:
    """Destinations from coins that were made public before the round, from sizes of an earlier one."""
    earlier = np.linspace(0.5 * B, 2.5 * B, num_clusters)
    draws = client_uniforms(Streams(0).client_key("coin", 0), np.arange(len(choices)))[:, 0]
    return flip_coins(choices, coin_transition(earlier, min_cluster_size=B), uniforms=draws)


ROUNDING = 1e-9
_QUIET = AuditSetting(noise_multiplier=0.0)


def check_sensitivity(target: Target, *, brief: bool = False) -> Finding:
    """The largest shift over all adversarial neighbours, shapes and rebalancing options, against the claim.

    Deterministic. For `identifier` conditional on the noisy assignment and on the rebalancing coins (both releases get
    the same generator), as in the proof; there the sizes and denominators must not move at all. A release that is not
    finite, or that a hostile report stops with an error, counts as an infinite shift. `brief` tries one shape of three:
    with shared coordinates, without rebalancing, and coins.
    """
    worst, where = 0.0, "nowhere"
    for mechanism, neighbours in _cases(target, brief=brief):
        base = released_quietly(mechanism, neighbours.round)
        for label, other in neighbours.others.items():
            ratio = shift(mechanism, base, released_quietly(mechanism, other)) / claimed_sensitivity(mechanism)
            if ratio > worst:
                worst, where = ratio, label
    bound = "sqrt(C^2 + w^2 + u^2/2)" if target.adjacency == "add-remove" else "2C, given the assignment"
    result = f"{worst:.6f} of it" if worst <= 1 + ROUNDING else f"{worst:.4g} times it: {where}"
    return Finding(target.name, "sensitivity", f"one client moves at most {bound}", result, worst <= 1 + ROUNDING)


def check_invalid_reports(target: Target) -> Finding:
    """An unusable report counts as absent under `joint`; under `identifier` it stays in the cohort, counted, at zero.

    Deterministic. Unusable: not finite, out of range, of another shape or type, a second one under the same id.
    """
    mechanism = target.make(_QUIET)
    claim = "as if absent" if target.adjacency == "add-remove" else "counted, with update zero"
    for name, reports in _unusable(mechanism).items():
        try:
            wrong = _treated_wrongly(mechanism, reports)
        except Exception as error:  # any error at all: a report must not stop a round
            wrong = f"stops the round with {type(error).__name__}"
        if wrong:
            return Finding(target.name, "invalid reports", claim, f"{name}: {wrong}", False)
    return Finding(target.name, "invalid reports", claim, "holds for every kind tried", True)


def _cases(target: Target, *, brief: bool) -> Iterator[tuple[Mechanism, Neighbours]]:
    shapes = (_QUIET, replace(_QUIET, shared=2), replace(_QUIET, min_cluster_size=B))
    possible = shapes if target.counted else shapes[:2]  # coins need released sizes
    for shape in shapes[1:2] if brief else possible:
        mechanism = target.make(shape)
        if target.adjacency == "add-remove":
            for coins in (True,) if brief or mechanism.flips_coins else (False, True):
                yield from ((mechanism, case) for case in add_remove(mechanism, coins=coins))
        else:
            yield from ((given(mechanism, case.assignment), case) for case in replace_one(mechanism))


def shift(mechanism: Mechanism, one: Release | None, two: Release | None) -> float:
    """Distance of two releases; infinite if one is missing or if sizes that are public constants change."""
    if one is None or two is None:
        return np.inf
    constant = hasattr(mechanism, "identifier") or mechanism.count_weight == 0
    if constant and _sizes(one).tolist() != _sizes(two).tolist():
        return np.inf
    distance = float(np.linalg.norm(noised(two, mechanism) - noised(one, mechanism)))
    return distance if np.isfinite(distance) else np.inf


def released_quietly(mechanism: Mechanism, one: Round) -> Release | None:
    """The release, or None where a report stopped the round, which any observer would notice.

    Arithmetic warnings on hostile values are suppressed: they are expected here.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        try:
            release: Release = mechanism.release(as_reports(mechanism, one), rng=np.random.default_rng(0))
        except Exception:  # any error at all
            return None
    return release


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
    judged = np.ones((3, 2)) if getattr(mechanism, "evaluation_weight", 0.0) else None
    whole = Reports(updates, choices, client_ids=ids, evaluations=judged)
    two = Reports(updates[:2], choices[:2], client_ids=ids[:2], evaluations=None if judged is None else judged[:2])
    with np.errstate(all="ignore"):
        if not hasattr(mechanism, "identifier"):
            with_it, without = (mechanism.release(one, rng=np.random.default_rng(0)) for one in (whole, two))
            same = np.array_equal(noised(with_it, mechanism), noised(without, mechanism))
            return "" if same else "it changes the release"
        fixed = given(mechanism, np.array([0, 1, 1]))
        release, zeroed = (fixed.release(one, rng=np.random.default_rng(0)) for one in (whole, two))
    if release.sizes.sum() != 3 or zeroed.sizes.sum() != 3:
        return f"the cohort of 3 is counted as {release.sizes.sum():g}, or {zeroed.sizes.sum():g} when it drops out"
    same = np.array_equal(noised(release, fixed), noised(zeroed, fixed))
    return "" if same else "it differs from a dropout"


_SAID = (None, (1.0, 1.0), (0.0, 0.0), (50.0, -50.0), (np.nan, 0.5), ("text", 1e300))


def check_message_norm(target: Target) -> Finding:
    """One client's message, whatever its content, has length at most S, in integers; messages add up to the sum.

    Deterministic and exact.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=1.0, shared=2))
    step = 2.0 ** (math.floor(math.log2(mechanism.update_clip)) - GRID_BITS)
    bound, longest = (claimed_sensitivity(mechanism) / step) ** 2, 0
    evaluations = _SAID[1:] if mechanism.evaluation_weight else _SAID[:1]
    rows = hostile_rows(mechanism.coordinates.width, mechanism.update_clip).values()
    for row, judged, choice in itertools.product(rows, evaluations, (0, 2, -1)):
        message = mechanism.message(row, choice, destination=1, evaluation=judged)
        longest = max(longest, sum(int(part) ** 2 for part in message.tolist()))
    updates = np.full((3, mechanism.coordinates.width), 0.1)
    cohort = as_reports(mechanism, Round(updates, np.array([0, 1, 1])))
    judged = [None] * 3 if cohort.evaluations is None else cohort.evaluations
    parts = [mechanism.message(updates[i], cohort.choices[i], evaluation=judged[i]) for i in range(3)]
    adds_up = np.array_equal(np.sum(parts, axis=0), mechanism.sum_messages(cohort))
    holds = longest <= bound and adds_up
    measured = f"{math.sqrt(longest / bound):.6f} of it" if adds_up else "messages do not add up to the sum"
    return Finding(target.name, "message norm", "a message has length at most S", measured, holds)


_WIDE = AuditSetting(noise_multiplier=0.0, clustered=300)
_ASSIGNMENT = np.array([0, 1, 2, 0, 1])


def check_types(target: Target, *, rng: Rng) -> Finding:
    """Updates of every floating-point type and container, above the clip: one client moves the sensitivity at most.

    Eight random directions and three lengths each, so that a norm computed in low precision is caught.
    """
    mechanism = given(target.make(_WIDE), _ASSIGNMENT)
    result, holds = _worst_shift(mechanism, _long_rows(mechanism, rng))
    return Finding(target.name, "types", "the sensitivity holds for every type of update", result, holds)


def _worst_shift(mechanism: Mechanism, neighbours: Iterator[tuple[str, Round, Round]]) -> tuple[str, bool]:
    """(the largest shift, relative to the claimed sensitivity, in words; whether it is within the claim)."""
    worst, where = 0.0, ""
    for label, one, two in neighbours:
        distance = shift(mechanism, released_quietly(mechanism, one), released_quietly(mechanism, two))
        if distance > worst:
            worst, where = distance, label
    ratio = worst / claimed_sensitivity(mechanism)
    holds = ratio <= 1 + ROUNDING
    return (f"{ratio:.6f} of it" if holds else f"{ratio:.6g} times it: {where}"), holds


def check_odd_rows(target: Target) -> Finding:
    """One odd row, choice or type in a container: the other clients' contributions stay the same.

    Deterministic. The odd client is the last; it is in cluster 1: the others' clusters must stay as they are.
    """
    mechanism = given(target.make(AuditSetting(noise_multiplier=0.0)), _ASSIGNMENT)
    width = mechanism.coordinates.width
    good = np.full((4, width), mechanism.update_clip / (2 * width))
    base = released_quietly(mechanism, Round([*good, np.zeros(width)], [0, 1, 2, 0, -1]))
    wrong = ""
    for name, cohort in _odd(good).items():
        release = released_quietly(mechanism, cohort)
        if shift(mechanism, base, release) > claimed_sensitivity(mechanism) * (1 + ROUNDING):
            wrong = f"{name}: more than one client's contribution changes"
        elif base is None or release is None or not np.allclose(base.cluster_sums[::2], release.cluster_sums[::2]):
            wrong = f"{name}: clusters that it does not belong to change"
    claim = "an odd row changes nobody else's contribution"
    return Finding(target.name, "odd rows", claim, wrong or "holds", not wrong)


def _long_rows(mechanism: Mechanism, rng: Rng) -> Iterator[tuple[str, Round, Round]]:
    width, clip = mechanism.coordinates.width, mechanism.update_clip
    for trial in range(8):
        direction = rng.standard_normal(width)
        direction *= clip / np.linalg.norm(direction)
        for times in (1.0, 3.0, 400.0):
            rows = np.vstack([np.tile(-direction, (4, 1)), direction * times])
            for kind, cast in type_casts().items():
                all_rows = cast(rows)
                replaced = cast(np.vstack([rows[:4], -rows[4:]]))
                removed = replaced if hasattr(mechanism, "identifier") else all_rows[:4]
                label = f"{times:g} C as {kind}, direction {trial}"
                yield label, Round(removed, _ASSIGNMENT[: len(removed)]), Round(all_rows, _ASSIGNMENT)


def type_casts() -> dict[str, Callable[[Array], Any]]:
    """By name: an (n, d) float64 array in every type and container that a caller may have."""
    import torch

    return {
        "float64": lambda rows: rows,
        "float32": lambda rows: rows.astype(np.float32),
        "float16": lambda rows: rows.astype(np.float16),
        "torch float32": lambda rows: torch.as_tensor(rows).float(),
        "torch float16": lambda rows: torch.as_tensor(rows).half(),
        "torch bfloat16": lambda rows: torch.as_tensor(rows).bfloat16(),
        "objects": lambda rows: rows.astype(object),
        "a list of float16 rows": lambda rows: [*rows.astype(np.float16)],
        "a list of tensors": lambda rows: [torch.as_tensor(row).bfloat16() for row in rows],
    }


def _odd(good: Array) -> dict[str, Round]:
    """Four good rows and one odd row, in containers that give all rows one type."""
    import torch

    width, choices = good.shape[1], [0, 1, 2, 0, 1]
    huge = np.vstack([good, np.full(width, 1e30)])
    listed: dict[str, Any] = {
        "text": "text",
        "nothing": None,
        "a longer row": np.zeros(width + 1),
        "a single number": 1.0,
        "whole numbers": np.arange(width),
        "truth values": np.ones(width, dtype=bool),
        "complex numbers": np.full(width, 1 + 1j),
        "a mapping": {"update": 1.0},
        "float16": np.full(width, 6e4, dtype=np.float16),
        "a tensor": torch.full((width,), float("nan")),
        "whole numbers beyond 64 bits": [2**70] * width,
    }
    kinds = {f"a list with {name}": Round([*good, row], choices) for name, row in listed.items()}
    mixed = np.empty((5, width), dtype=object)
    mixed[:4], mixed[4] = good, "text"
    return kinds | {
        "objects with text": Round(mixed, choices),
        "texts": Round(np.vstack([good, np.ones(width)]).astype(str), choices),
        "complex numbers": Round(np.vstack([good, np.full(width, 1j)]), choices),
        "an outlier": Round(huge, choices),
        "an outlier in float32": Round(huge.astype(np.float32), choices),
        "choices with a text": Round(huge, [0, 1, 2, 0, "one"]),
        "choices as texts": Round(huge, np.array([0, 1, 2, 0, "x"])),
        "choices of float64 with NaN": Round(huge, np.array([0, 1, 2, 0, np.nan])),
        "choices with an object": Round(huge, [0, 1, 2, 0, {}]),
    }


_SAID_OF_CONTAINERS = {
    "the best": (1.0, 1.0),
    "the worst": (0.0, 0.0),
    "out of range": (50.0, -50.0),
    "far out of range": (6e4, 6e4),
    "beyond float16": (-1e30, 1e30),
    "NaN": (np.nan, 0.5),
    "infinity": (np.inf, -np.inf),
}
_COHORTS = (0, 1, 7, 40)


def check_evaluation_sensitivity(target: Target) -> Finding:
    """One more client with any evaluation of any type: its message stays within sqrt(C^2 + w^2 + u^2/2).

    Deterministic. Values in and out of range, and non-numbers, in every type and container.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=0.0))
    result, holds = _worst_shift(mechanism, _neighbours(mechanism))
    claim = "with an evaluation of any type, one client moves at most sqrt(C^2 + w^2 + u^2/2)"
    return Finding(target.name, "evaluation sensitivity", claim, result, holds)


def check_evaluation_scale(target: Target) -> Finding:
    """An evaluation counts the same in every cohort, and stated stds and floors are the same for every cohort.

    Deterministic: n clients that report (1, 0) move the row by n u
    2 in every cohort.
    """
    mechanism = target.make(AuditSetting(noise_multiplier=0.0, size_floor=3.0))
    loud = target.make(AuditSetting(size_floor=3.0))
    wrong, constants = "", set()
    for count in _COHORTS:
        choices = np.arange(count) % mechanism.num_clusters
        evaluations = np.tile([1.0, 0.0], (count, 1))
        cohort = Round(np.zeros((count, mechanism.coordinates.width)), choices, evaluations=evaluations)
        release = released_quietly(mechanism, cohort)
        if release is None or release.evaluation is None:
            wrong = f"no evaluation is released with {count} clients"
            continue
        if not np.allclose(release.evaluation.sums, np.array([0.5, -0.5]) * count, rtol=1e-6, atol=1e-9):
            wrong = f"{count} clients move it by {release.evaluation.sums.tolist()}, not by {count} halves"
        noisy = released_quietly(loud, cohort)
        judged = None if noisy is None else noisy.evaluation
        if judged is not None:
            constants.add((judged.sum_noise_std, judged.clients_noise_std, judged.loss_bound, judged.least_clients))
            if not np.isclose(judged.clients, noisy.sizes.sum(), rtol=1e-9):  # type: ignore[union-attr]
                wrong = "its number of clients is not the sum of released sizes"
    wrong = wrong or ("" if len(constants) == 1 else "stated stds or floors depend on the cohort")
    claim = "an evaluation weighs the same in every cohort"
    return Finding(target.name, "evaluation scale", claim, wrong or "holds", not wrong)


def _neighbours(mechanism: Mechanism) -> Iterator[tuple[str, Round, Round]]:
    """Four clients, and one more at the clip with an evaluation, in every type; all in one container."""
    updates = np.zeros((5, mechanism.coordinates.width))
    updates[:, 0] = mechanism.update_clip
    choices = np.array([0, 1, 2, 0, 1])
    for name, pair in _SAID_OF_CONTAINERS.items():
        rows = np.vstack([np.tile([0.75, 0.25], (4, 1)), pair])
        for kind, cast in type_casts().items():
            with np.errstate(all="ignore"):
                evaluations = cast(rows)
            others = Round(updates[:4], choices[:4], evaluations=evaluations[:4])
            yield f"{name} as {kind}", others, Round(updates, choices, evaluations=evaluations)


def check_denominators(target: Target, *, rng: Rng) -> Finding:
    """Denominators and stated noise stds are functions of released values and public constants.

    `joint`: denominators are recomputed from the released sizes, max(size_floor, B, size), and the stated noise stds
    must be the same for every cohort. `identifier`: given the noisy assignment and the coins, nothing a client reports
    changes them. Deterministic.
    """
    check = _joint if target.adjacency == "add-remove" else _identifier
    wrong = ""
    for least, floor in ((0, 0.0), (B, 0.0), (0, 3.0)):
        setting = AuditSetting(noise_multiplier=1.0, shared=2, min_cluster_size=least, size_floor=floor)
        wrong = wrong or check(target.make(setting), rng)
    claim = "denominators and stated stds are functions of what is released"
    return Finding(target.name, "denominators", claim, wrong or "holds", not wrong)


def check_rebalancing(rebalance: Callable[..., Any], *, rng: Rng) -> Finding:
    """Exact rebalancing: all clusters end with B or more, small ones with exactly B, donors not below B, none lost.

    The input is not edited. Deterministic guarantees, tried on random assignments around every critical size.
    """
    wrong = ""
    for _ in range(200):
        sizes = rng.choice([*CRITICAL_SIZES, 3 * B], size=3)
        assignment = rng.permutation(np.repeat(np.arange(3), sizes))
        if sizes.sum() < 3 * B:
            continue
        before = assignment.copy()
        rebalanced = rebalance(assignment, num_clusters=3, min_cluster_size=B, rng=rng)
        after = np.bincount(rebalanced, minlength=3)
        small = sizes < B
        if after.sum() != sizes.sum() or (after < B).any() or (after[small] != B).any():
            wrong = f"sizes {sizes.tolist()} became {after.tolist()} at B = {B}"
        elif (after[~small] > sizes[~small]).any() or not np.array_equal(before, assignment):
            wrong = f"a large cluster grew, or the input was edited, at sizes {sizes.tolist()}"
    return Finding("exact rebalancing", "guarantees", "all clusters end with at least B", wrong or "holds", not wrong)


def _joint(mechanism: Mechanism, rng: Rng) -> str:
    stds = set()
    for n in (0, 1, 7, 40):
        choices = rng.integers(mechanism.num_clusters, size=n)
        reports = Reports(np.full((n, mechanism.coordinates.width), CLIP), choices, destinations=choices)
        release = mechanism.release(reports, rng=rng)
        stds.add((release.sum_noise_std, release.size_noise_std))
        least = max(mechanism.size_floor, mechanism.min_cluster_size, 1.0)
        shared = max(mechanism.num_clusters * mechanism.size_floor, float(release.sizes.sum()), 1.0)
        if not np.allclose(release.denominators, np.maximum(release.sizes, least), rtol=1e-12, atol=0):
            return f"cluster denominators are not max(size_floor, B, released size) with {n} clients"
        if not np.isclose(release.shared_denominator, shared, rtol=1e-12, atol=0):
            return f"the shared denominator is not the sum of released sizes, floored, with {n} clients"
    return "" if len(stds) == 1 else "stated noise stds depend on the cohort"


def _identifier(mechanism: Mechanism, rng: Rng) -> str:
    assignment = np.repeat(np.arange(3), (2, 7, 9))
    fixed = given(mechanism, assignment)
    seed, width = int(rng.integers(2**32)), mechanism.coordinates.width
    rounds = [
        (np.zeros((18, width)), assignment),
        (np.full((18, width), CLIP), (assignment + 1) % 3),
        (np.full((18, width), np.nan), np.full(18, -1)),
        (np.zeros((5, width)), np.zeros(5, dtype=np.int64)),
    ]
    constants = [_public(fixed.release(Reports(*one), rng=np.random.default_rng(seed))) for one in rounds]
    return "" if all(np.array_equal(constants[0], one) for one in constants) else "they change with what clients report"


def _public(release: Release) -> Array:
    numbers = [release.shared_denominator, release.sum_noise_std, release.size_noise_std]
    return np.concatenate([release.sizes, release.denominators, numbers])


def check_public_sizes(target: Target, *, rng: np.random.Generator) -> Finding:
    """Without a count row (w = 0) the sizes are q M / k, a public constant, for every cohort. Deterministic."""
    mechanism = target.make(AuditSetting(num_clusters=4, num_clients=50, sample_rate=0.3))
    wrong = ""
    for sizes in ((0, 0, 0, 0), (9, 0, 0, 0), (1, 2, 3, 4), (30, 30, 30, 30)):
        choices = np.repeat(np.arange(4), sizes)
        reports = as_reports(mechanism, Round(np.zeros((len(choices), 2)), choices))
        release = mechanism.release(reports, rng=target.generator(rng))
        if not np.allclose(release.sizes, 0.3 * 50 / 4, rtol=1e-12) or release.size_noise_std != 0:
            wrong = f"sizes {release.sizes.round(3).tolist()} for a cohort of {list(sizes)}"
    return Finding(target.name, "public sizes", "without counts, sizes are q M / k", wrong or "holds", not wrong)


_SHAPE = AuditSetting(noise_multiplier=1.0, shared=2)


def check_release_function(target: Target) -> Finding:
    """`rrcluster.release` is the mechanism's own release: with the same reports and draws, the same numbers.

    Deterministic. A client that reports twice counts once there too.
    """
    mechanism = target.make(_SHAPE)
    plan = plan_of(_SHAPE, mechanism=mechanism.name)
    width = mechanism.coordinates.width
    updates, choices, ids = np.full((4, width), 0.1), np.array([0, 1, 2, 2]), np.array([5, 6, 7, 7])
    draws = [np.random.default_rng(0) for _ in range(3)]
    by_function = release(updates, choices, plan=plan, rng=draws[0], client_ids=ids)
    by_mechanism = plan.mechanism.release(Reports(updates, choices, client_ids=ids), rng=draws[1])
    once = plan.mechanism.release(Reports(updates[:3], choices[:3], client_ids=ids[:3]), rng=draws[2])
    same = np.array_equal(noised(by_function, mechanism), noised(by_mechanism, mechanism))
    wrong = "" if same else "the same reports give another release"
    if not np.array_equal(noised(by_function, mechanism), noised(once, mechanism)):
        wrong = "a client that reports twice counts twice"
    return Finding(
        target.name, "release function", "release() equals the mechanism's release", wrong or "holds", not wrong
    )
