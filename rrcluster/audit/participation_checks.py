"""Slots and correlated noise: clients that take part several times, and noise that is correlated over rounds.

The interface under test is `sum_messages` and `noisy_sum` of a mechanism with slots, round after round, and the rounds
of a small simulation. Slots, the matrix C and what is claimed are recomputed here.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.audit.distinguish import error_bounds, separation
from rrcluster.audit.rounds import NUM_CLIENTS, Training
from rrcluster.audit.statistics import SIGNIFICANCE, correlation_p_value, scale_p_value, smallest
from rrcluster.audit.targets import CLIP, AuditSetting, Finding, claimed_sensitivity, joint_target, plan_of
from rrcluster.entropy import secure_rng
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.rng import Rng, stream
from rrcluster.simulation.simulate import simulate
from rrcluster.types import Array

SUBJECT = "joint (slots)"
SLOTS, KEY = 3, "audit"
ROUNDS = 11  # the last block is a short one
CLIENTS = 90
RUNS = 4000  # with and without the canary
MakePlan = Callable[..., PrivacyPlan]


def slotted_plan(*, num_rounds: int = ROUNDS, **changes: Any) -> PrivacyPlan:
    """A plan with slots, as `PrivacyPlan.build` makes it; `changes` are fields of `AuditSetting`."""
    setting = replace(AuditSetting(num_clients=CLIENTS, sample_rate=1.0), **changes)
    return plan_of(setting, num_rounds=num_rounds, participation="schedule", slots=SLOTS, slot_key=KEY)


def check_participation(make: MakePlan = slotted_plan, *, seed: int = 0) -> list[Finding]:
    """All checks of plans with slots."""
    return [
        check_cohorts(make, rng=stream(seed, "slots")),
        check_own_slot(make),
        check_blocks(make),
        *(check_whiteness(make, secure=secure, rng=stream(seed, "white")) for secure in (False, True)),
        check_canary(make, rng=stream(seed, "canary")),
        check_trained_cohorts(make, seed=seed),
    ]


def slot_of(client: int) -> int:
    """The slot of a client as documented: BLAKE2b of the id, keyed by that of the key."""
    key = hashlib.blake2b(KEY.encode(), digest_size=32).digest()
    return int.from_bytes(hashlib.blake2b(b"number:%d" % client, key=key, digest_size=8).digest(), "little") % SLOTS


def members(round_index: int, population: int = CLIENTS) -> list[int]:
    """Who may take part in a round."""
    return [client for client in range(population) if slot_of(client) == round_index % SLOTS]


def check_cohorts(make: MakePlan, *, rng: Rng) -> Finding:
    """A schedule draws exactly the members of the round's slot, and refuses rounds beyond the plan."""
    wrong = ""
    for population in (CLIENTS, CLIENTS - 1):
        sampler = make().sampler
        drawn = [sampler.draw(population, rng=rng, round_index=t).tolist() for t in range(ROUNDS)]
        for t, ids in enumerate(drawn):
            may = members(t, population)
            if ids != may:
                wrong = f"another cohort in round {t} of {population} clients"
        counts = np.bincount(np.concatenate([np.array(ids, dtype=int) for ids in drawn]), minlength=population)
        if counts.max() > -(-ROUNDS // SLOTS):
            wrong = wrong or f"a client took part {counts.max()} times"
        wrong = wrong or _beyond_the_plan(sampler, population, rng)
    claim = f"once in {SLOTS} rounds, at most {-(-ROUNDS // SLOTS)} times, by the hash of the id alone"
    return Finding(SUBJECT, "slots", claim, wrong or "so", not wrong)


def _beyond_the_plan(sampler: Any, population: int, rng: Rng) -> str:
    try:
        sampler.draw(population, rng=rng, round_index=ROUNDS)
    except Exception:
        return ""
    return "a cohort after the last round"


def check_own_slot(make: MakePlan) -> Finding:
    """A client that reports in every round counts in the rounds of its slot alone: never twice within b rounds."""
    mechanism: Any = make().mechanism
    client, row = members(1)[0], np.full(mechanism.coordinates.width, CLIP)
    everywhere = _totals(mechanism, dict.fromkeys(range(ROUNDS), (client, row, 0)))
    nowhere = _totals(mechanism, {})
    counted = [t for t in range(ROUNDS) if _behind_c(mechanism, everywhere - nowhere, t).any()]
    allowed = [t for t in range(ROUNDS) if t >= 1]  # its blocks are adjacent: rounds 1 to 3, 4 to 6, ...
    own = _totals(mechanism, dict.fromkeys(range(1, ROUNDS, SLOTS), (client, row, 0)))
    holds = bool((everywhere == own).all()) and counted == allowed
    measured = "so" if holds else "a report from outside of the slot moved the release"
    return Finding(SUBJECT, "own slot", "a client counts in its own slot's rounds alone", measured, holds)


def check_blocks(make: MakePlan) -> Finding:
    """Neighbours that take part in all their rounds, with the same noise: every block behind C is at most S long."""
    mechanism: Any = make().mechanism
    limit, worst = claimed_sensitivity(mechanism), 0.0
    for first in range(SLOTS):
        for sign in (1.0, -50.0):
            row = sign * np.full(mechanism.coordinates.width, CLIP)
            messages = {t: (members(first)[0], row, t % 2) for t in range(first, ROUNDS, SLOTS)}
            apart = _totals(mechanism, messages) - _totals(mechanism, {})
            for start in range(first, ROUNDS, SLOTS):
                block = [_behind_c(mechanism, apart, t) for t in range(start, min(start + SLOTS, ROUNDS))]
                worst = max(worst, float(np.linalg.norm(block)))
    claim = f"one client moves a block by at most S = {limit:.6g}"
    return Finding(SUBJECT, "blocks", claim, f"{worst:.6g} at the worst", worst <= limit * (1 + 1e-9))


def check_whiteness(make: MakePlan, *, secure: bool, rng: Rng) -> Finding:
    """C times the noise is independent from round to round, of std z S in every round."""
    mechanism: Any = make(secure=secure, clustered=700).mechanism
    totals = _totals(mechanism, {}, rng=secure_rng() if secure else rng)
    white = np.array([_behind_c(mechanism, totals, t) for t in range(ROUNDS)])
    std = mechanism.event.noise_multiplier * claimed_sensitivity(mechanism)
    p_values = {f"scale in round {t}": scale_p_value(white[t], std) for t in range(ROUNDS)}
    p_values["scale"] = scale_p_value(white, std)
    for lag in range(1, SLOTS + 1):
        p_values[f"rounds {lag} apart"] = correlation_p_value(white[lag:].ravel(), white[:-lag].ravel())
    length = math.sqrt(sum(value**2 for value in mechanism.correlation.coefficients))
    where, p_value = smallest(p_values)
    holds = p_value >= SIGNIFICANCE and abs(length - 1) < 1e-9 and len(mechanism.correlation.coefficients) <= SLOTS
    measured = f"{white.std() / std:.4f} of the std" + ("" if holds else f"; not so: {where}")
    kind = "exact" if secure else "seeded"
    return Finding(SUBJECT, f"correlation, {kind}", "C times the noise is white, of std z S", measured, holds)


def check_canary(make: MakePlan, *, rng: Rng) -> Finding:
    """A client that takes part in all its rounds is distinguished from an absent one no better than mu = sqrt(R) / z.

    Without counts its message lies in one coordinate. The coordinates of a wide release stand for as many runs: each
    has noise of its own. What the client adds to them is read off a narrow release.
    """
    common: dict[str, Any] = {"noise_multiplier": 1.0, "num_clusters": 1, "count_weight": 0.0}
    narrow: Any = make(clustered=1, **common).mechanism
    wide: Any = make(clustered=RUNS, **common).mechanism
    messages = {t: (members(0)[0], np.array([CLIP]), 0) for t in range(0, ROUNDS, SLOTS)}
    claimed = math.sqrt(len(messages)) / narrow.event.noise_multiplier
    shift = (_totals(narrow, messages) - _totals(narrow, {}))[:, :1]
    known = np.array([_behind_c(narrow, shift, t) for t in range(ROUNDS)])

    def statistic(moved: Array) -> Array:
        totals = _totals(wide, {}, rng=rng)[:, :RUNS] + moved
        behind = np.array([_behind_c(wide, totals, t) for t in range(ROUNDS)])
        return np.asarray((behind * known).sum(axis=0)[:, None])

    measured_mu = separation(*error_bounds(statistic(0 * shift), statistic(shift)))
    claim = f"mu <= sqrt(R) / z = {claimed:.3g} over {len(messages)} participations"
    return Finding(SUBJECT, "canary in all its rounds", claim, f"mu >= {measured_mu:.3g}", measured_mu <= claimed)


@dataclass(frozen=True)
class _Watched:
    """A mechanism that remembers who reported in each round."""

    mechanism: Any
    seen: dict[int, list[int]]

    def __getattr__(self, name: str) -> Any:
        """Everything else is the mechanism's own."""
        return getattr(self.mechanism, name)

    def sum_messages(self, reports: Reports, *, round_index: int) -> Array:
        """Record who reported, and delegate."""
        self.seen.setdefault(round_index, []).extend(int(client) for client in reports.client_ids)
        total: Array = self.mechanism.sum_messages(reports, round_index=round_index)
        return total


def check_trained_cohorts(make: MakePlan, *, seed: int) -> Finding:
    """In a training run the cohorts are those of the slots, whatever the clients' data are."""
    training = Training(joint_target(), simulate, seed=seed)
    shape = training.plan().mechanism.coordinates
    plan = make(num_clients=NUM_CLIENTS, num_rounds=4, num_clusters=2, shared=shape.shared, clustered=shape.clustered)
    watched = _Watched(plan.mechanism, {})
    training.run(replace(plan, mechanism=watched))
    expected = {t: members(t, NUM_CLIENTS) for t in range(4)}
    holds = watched.seen == expected
    measured = "so" if holds else "cohorts of a training run are others"
    return Finding(SUBJECT, "trained cohorts", "cohorts follow the slots, not data", measured, holds)


def _totals(mechanism: Any, messages: dict[int, tuple[int, Array, int]], *, rng: Rng | None = None) -> Array:
    """(rounds, width) noisy sums, in units of the clip's; without `rng` the same noise in every call."""
    rng, past, totals = rng or np.random.default_rng(1), mechanism.first_past(), []
    for t in range(ROUNDS):
        reports = _reports([messages[t]] if t in messages else [], mechanism.coordinates.width)
        exact = MessageSum(mechanism.sum_messages(reports, round_index=t))
        noisy_sum, past = mechanism.noisy_sum(exact, past, rng=rng)
        totals.append(noisy_sum.total)
    return np.array(totals) * 2.0 ** (math.floor(math.log2(CLIP)) - 30)


def _reports(given: Sequence[tuple[int, Array, int]], width: int) -> Reports:
    rows = np.array([row for _, row, _ in given]).reshape(len(given), width)
    choices = np.array([choice for *_, choice in given], dtype=np.int64)
    return Reports(rows, choices, client_ids=np.array([client for client, *_ in given], dtype=np.int64))


def _behind_c(mechanism: Any, totals: Array, t: int) -> Array:
    """Row t of C times what was released."""
    c = mechanism.correlation.coefficients
    return np.asarray(sum(value * totals[t - lag] for lag, value in enumerate(c) if lag <= t))
