"""Check 8: sizes and denominators are functions of public values; the guarantees of exact rebalancing and `release`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rrcluster.audit.sensitivity import CRITICAL_SIZES, B, Round
from rrcluster.audit.targets import CLIP, AuditSetting, Finding, Mechanism, Target, as_reports, given, noised, plan_of
from rrcluster.privacy.reports import Reports
from rrcluster.rng import Rng
from rrcluster.server.server import release
from rrcluster.types import Array, Release


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
    return Finding(target.name, "denominators", claim, wrong or "so", not wrong)


def check_rebalancing(rebalance: Callable[..., Any], *, rng: Rng) -> Finding:
    """Exact rebalancing: all clusters end with B or more, small ones with exactly B, donors not below B, none lost.

    And its input is not edited. Deterministic guarantees, tried on random assignments around every critical size.
    """
    wrong = ""
    for _ in range(200):
        sizes = rng.choice([*CRITICAL_SIZES, 3 * B], size=3)
        assignment = rng.permutation(np.repeat(np.arange(3), sizes))
        if sizes.sum() < 3 * B:
            continue
        before = assignment.copy()
        moved = rebalance(assignment, num_clusters=3, min_cluster_size=B, rng=rng)
        after = np.bincount(moved, minlength=3)
        small = sizes < B
        if after.sum() != sizes.sum() or (after < B).any() or (after[small] != B).any():
            wrong = f"sizes {sizes.tolist()} became {after.tolist()} at B = {B}"
        elif (after[~small] > sizes[~small]).any() or not np.array_equal(before, assignment):
            wrong = f"a large cluster grew, or the input was edited, at sizes {sizes.tolist()}"
    return Finding("exact rebalancing", "guarantees", "all clusters end with at least B", wrong or "so", not wrong)


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
    seen = [_public(fixed.release(Reports(*one), rng=np.random.default_rng(seed))) for one in rounds]
    return "" if all(np.array_equal(seen[0], one) for one in seen) else "they change with what clients report"


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
    return Finding(target.name, "public sizes", "without counts, sizes are q M / k", wrong or "so", not wrong)


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
    given = release(updates, choices, plan=plan, rng=draws[0], client_ids=ids)
    own = plan.mechanism.release(Reports(updates, choices, client_ids=ids), rng=draws[1])
    once = plan.mechanism.release(Reports(updates[:3], choices[:3], client_ids=ids[:3]), rng=draws[2])
    same = np.array_equal(noised(given, mechanism), noised(own, mechanism))
    wrong = "" if same else "the same reports are released otherwise"
    if not np.array_equal(noised(given, mechanism), noised(once, mechanism)):
        wrong = "a client that reports twice counts twice"
    return Finding(target.name, "release function", "release() is the mechanism's release", wrong or "so", not wrong)
