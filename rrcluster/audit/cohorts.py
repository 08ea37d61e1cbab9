"""Check 5: cohorts follow the law of the event, also in small, secure and undeclared populations.

Slots and correlated noise: clients that take part several times, and noise that is correlated over rounds. The
interface under test is `sum_messages` and `noisy_sum` of a mechanism with slots, round after round, and the rounds of a
small simulation. Slots, the matrix C and the claims are recomputed here.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.audit.rounds import NUM_CLIENTS, Training, around, small_population
from rrcluster.audit.statistics import (
    SIGNIFICANCE,
    binomial_p_value,
    correlation_p_value,
    error_bounds,
    normal_p_value,
    scale_p_value,
    separation,
    smallest,
)
from rrcluster.audit.targets import (
    CLIP,
    AuditSetting,
    Finding,
    Mechanism,
    Recorder,
    Target,
    claimed_sensitivity,
    joint_target,
    plan_of,
)
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.privacy.sampling import Sampler
from rrcluster.rng import Rng, stream
from rrcluster.simulation.simulate import simulate
from rrcluster.types import Array

FEW, RATE = 5, 0.05
DECLARED = 60


def check_small_cohorts(target: Target, *, rng: Rng) -> Finding:
    """M = 5 and q = 0.05: three in four Poisson cohorts are empty, and fixed-size cohorts have exactly one client.

    Exact binomial tests of the number of empty cohorts, of cohorts of one, and of all clients drawn.
    """
    sampler = target.make(AuditSetting(num_clients=FEW, num_clusters=1, sample_rate=RATE)).sampler
    sizes = _sizes(sampler, FEW, target.generator(rng))
    if target.adjacency == "replace-one":
        holds = bool((sizes == 1).all())
        return Finding(target.name, "small cohorts", "one of 5, always", "holds" if holds else "other sizes", holds)
    empty = (1 - RATE) ** FEW
    name, p_value = smallest(
        {
            f"{(sizes == 0).mean():.3f} are empty": binomial_p_value(int((sizes == 0).sum()), DRAWS, empty),
            f"{(sizes == 1).mean():.3f} have one client": binomial_p_value(
                int((sizes == 1).sum()), DRAWS, FEW * RATE * (1 - RATE) ** (FEW - 1)
            ),
            f"{sizes.mean():.3f} clients on average": binomial_p_value(int(sizes.sum()), DRAWS * FEW, RATE),
        }
    )
    holds = p_value >= SIGNIFICANCE
    measured = f"{name} (p = {p_value:.2g})"
    return Finding(target.name, "small cohorts", f"{empty:.3f} of the cohorts of 5 at 0.05 are empty", measured, holds)


def check_population(target: Target, *, rng: Rng) -> Finding:
    """Poisson cohorts follow a population up to its bound; a larger one is refused, and at fixed size any other one."""
    sampler = target.make(AuditSetting(num_clients=DECLARED, num_clusters=1, sample_rate=0.2)).sampler
    fixed, wrong = target.adjacency == "replace-one", ""
    for population in (DECLARED // 3, 3 * DECLARED):
        try:
            sizes = _sizes(sampler, population, target.generator(rng))
        except PrivacyError:
            bounded = fixed or population > DECLARED
            wrong = wrong or ("" if bounded else f"a population of {population} is refused")
            continue
        likely = binomial_p_value(int(sizes.sum()), DRAWS * population, 0.2) >= SIGNIFICANCE
        if fixed or population > DECLARED or not likely:
            wrong = f"cohorts of {sizes.mean():.2f} from a population of {population}"
    claim = (
        "a population that was not declared is refused" if fixed else "cohorts follow the population, up to its bound"
    )
    return Finding(target.name, "population", claim, wrong or "holds", not wrong)


def check_secure_sampler(target: Target) -> Finding:
    """A secure sampler refuses seeded generators, and no cohort of 100 of 200 repeats (by chance: below 1e-50)."""
    sampler = target.make(AuditSetting(num_clients=200, num_clusters=1, sample_rate=0.5)).sampler
    wrong = ""
    for name, seeded in {"PCG64": np.random.default_rng(0), "Philox": np.random.Generator(np.random.Philox(1))}.items():
        try:
            sampler.draw(200, rng=seeded)
            wrong = f"a seeded generator ({name}) is accepted"
        except PrivacyError:
            pass
    cohorts = [tuple(sampler.draw(200, rng=secure_rng()).tolist()) for _ in range(10)]
    if len(set(cohorts)) < len(cohorts):
        wrong = "two secure cohorts are the same"
    claim = "secure cohorts take no seed and never repeat"
    return Finding(target.name, "secure sampler", claim, wrong or "holds", not wrong)


def check_round_cohorts(training: Training) -> Finding:
    """The cohorts of two real runs: none repeats (by chance: below 1e-9).

    Seeded runs have different seeds; secure runs share nothing.
    """
    plan, cohorts = training.plan(), []
    for seed in (training.seed, training.seed + 1):
        recorder = Recorder(plan.mechanism)
        Training(training.target, training.simulate, training.method, seed).run(around(plan, recorder))
        cohorts += [tuple(np.sort(one.client_ids).tolist()) for one in recorder.reported]
    again = len(cohorts) - len(set(cohorts))
    measured = f"{again} of {len(cohorts)} cohorts are repeated" if again else "holds"
    return Finding(training.subject, "cohorts of rounds", "every round draws a new cohort", measured, not again)


def _sizes(sampler: Sampler, population: int, rng: Rng) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([len(sampler.draw(population, rng=rng)) for _ in range(DRAWS)], dtype=np.int64)


DRAWS = 3000
POPULATION, SAMPLE_RATE = 60, 0.2


def check_sampler(target: Target, *, rng: Rng) -> Finding:
    """Tests of the mechanism's own sampler against its own event."""
    mechanism: Mechanism = target.make(AuditSetting(num_clients=POPULATION, sample_rate=SAMPLE_RATE))
    law = mechanism.event.sampling
    generator = target.generator(rng)
    name, p_value = smallest(sampling_p_values(mechanism.sampler, mechanism.event, rng=generator))
    holds = p_value >= SIGNIFICANCE
    measured = f"no deviation (least p-value {p_value:.2g})" if holds else f"another law: {name} (p = {p_value:.2g})"
    return Finding(target.name, "sampler", f"{law} cohorts", measured, holds)


def sampling_p_values(sampler: Sampler, event: RoundEvent, *, rng: Rng, draws: int = DRAWS) -> dict[str, float]:
    """P-values of: ids in range and distinct, inclusion, batch size, pairwise independence, rounds independent.

    Under a fixed size, "independence" means the covariance of draws without replacement. Exact binomial tests for
    inclusion, corrected for the number of clients; normal approximations for the others.
    """
    cohorts = [np.asarray(sampler.draw(POPULATION, rng=rng)) for _ in range(draws)]
    if any(len(np.unique(ids)) != len(ids) or not set(ids) <= set(range(POPULATION)) for ids in cohorts):
        return {"ids out of range or repeated": 0.0}
    member = np.zeros((draws, POPULATION))
    for row, ids in zip(member, cohorts, strict=True):
        row[ids] = 1.0
    poisson, rate = event.sampling == "Poisson", event.sample_rate
    each = [binomial_p_value(int(count), draws, rate) for count in member.sum(axis=0)]
    return {
        "inclusion of a client": min(1.0, POPULATION * min(each)),
        "size of the cohort": _sizes_p_value(member.sum(axis=1), rate, poisson),
        "two clients together": _pairs_p_value(member, rate, poisson),
        "two rounds together": _rounds_p_value(member, rate, poisson),
    }


def _sizes_p_value(sizes: Array, rate: float, poisson: bool) -> float:
    """Binomial(M, q): exact test of the mean; the variance against its sampling error. Fixed size: always the same."""
    if not poisson:
        return float((sizes == round(rate * POPULATION)).all())
    variance = POPULATION * rate * (1 - rate)
    fourth = variance * (1 + 3 * variance * (1 - 2 / POPULATION))  # central moment of a binomial
    spread = math.sqrt((fourth - variance**2) / len(sizes))
    measured = float(((sizes - POPULATION * rate) ** 2).mean())
    mean = binomial_p_value(int(sizes.sum()), len(sizes) * POPULATION, rate)
    return min(mean, normal_p_value((measured - variance) / spread))


def _pairs_p_value(member: Array, rate: float, poisson: bool) -> float:
    """Every pair of clients: how often both take part. Corrected for the number of pairs."""
    size = round(rate * POPULATION)
    both = rate**2 if poisson else rate * (size - 1) / (POPULATION - 1)
    together = (member.T @ member)[np.triu_indices(POPULATION, 1)]
    extremes = (int(together.min()), int(together.max()))
    return min(1.0, len(together) * min(binomial_p_value(count, len(member), both) for count in extremes))


def _rounds_p_value(member: Array, rate: float, poisson: bool) -> float:
    """Overlap of consecutive rounds: hypergeometric or binomial, summed over disjoint pairs of rounds."""
    again = (member[:-1:2] * member[1::2]).sum(axis=1)
    mean = POPULATION * rate**2
    size = round(rate * POPULATION)
    fixed = size * (1 - rate) ** 2 * rate * POPULATION / (POPULATION - 1)
    variance = POPULATION * rate**2 * (1 - rate**2) if poisson else fixed
    return normal_p_value(float(again.sum() - mean * len(again)) / math.sqrt(variance * len(again)))


SUBJECT = "joint (slots)"
SLOTS, KEY = 3, "audit"
ROUNDS = 11  # the last block is shorter
CLIENTS = 90
_NAMES = tuple(str(100 + number) for number in range(CLIENTS))
RUNS = 4000  # with and without the canary
MakePlan = Callable[..., PrivacyPlan]


def slotted_plan(*, num_rounds: int = ROUNDS, **changes: Any) -> PrivacyPlan:
    """A plan with slots, made by `PrivacyPlan.build`; `changes` are fields of `AuditSetting`."""
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


def slot_of(client: int | str) -> int:
    """The slot of a client by its number or name, from the published formula."""
    spelled = b"number:%d" % client if isinstance(client, int) else b"text:" + client.encode()
    key = hashlib.blake2b(KEY.encode(), digest_size=32).digest()
    return int.from_bytes(hashlib.blake2b(spelled, key=key, digest_size=8).digest(), "little") % SLOTS


def members(round_index: int, population: int = CLIENTS) -> list[int]:
    """The clients that may take part in a round."""
    return [client for client in range(population) if slot_of(client) == round_index % SLOTS]


def check_cohorts(make: MakePlan, *, rng: Rng) -> Finding:
    """A schedule draws exactly the members of the round's slot, and refuses rounds beyond the plan."""
    wrong = ""
    for population in (CLIENTS, CLIENTS - 1):
        sampler = make().sampler
        cohorts = [sampler.draw(population, rng=rng, round_index=t).tolist() for t in range(ROUNDS)]
        for t, ids in enumerate(cohorts):
            may = members(t, population)
            if ids != may:
                wrong = f"another cohort in round {t} of {population} clients"
        counts = np.bincount(np.concatenate([np.array(ids, dtype=int) for ids in cohorts]), minlength=population)
        if counts.max() > -(-ROUNDS // SLOTS):
            wrong = wrong or f"a client took part {counts.max()} times"
        wrong = wrong or _beyond_the_plan(sampler, population, rng)
    for names in (_NAMES, _NAMES[1:]):
        for t in range(SLOTS):
            ids = make().sampler.draw(len(names), rng=rng, round_index=t, names=names)
            if [name for name in names if slot_of(name) == t] != [names[place] for place in ids]:
                wrong = wrong or "clients are not in the slots of their names"
    claim = f"once in {SLOTS} rounds, at most {-(-ROUNDS // SLOTS)} times, by the hash of the id alone"
    return Finding(SUBJECT, "slots", claim, wrong or "holds", not wrong)


def _beyond_the_plan(sampler: Any, population: int, rng: Rng) -> str:
    try:
        sampler.draw(population, rng=rng, round_index=ROUNDS)
    except Exception:
        return ""
    return "a cohort after the last round"


def check_own_slot(make: MakePlan) -> Finding:
    """A client that reports in every round counts only in its slot's rounds: never twice within b rounds."""
    mechanism: Any = make().mechanism
    client, row = members(1)[0], np.full(mechanism.coordinates.width, CLIP)
    everywhere = _totals(mechanism, dict.fromkeys(range(ROUNDS), (client, row, 0)))
    nowhere = _totals(mechanism, {})
    rounds_with_effect = [t for t in range(ROUNDS) if _behind_c(mechanism, everywhere - nowhere, t).any()]
    slot_rounds = [t for t in range(ROUNDS) if t >= 1]  # its blocks are adjacent: rounds 1 to 3, 4 to 6, ...
    within_slot = _totals(mechanism, dict.fromkeys(range(1, ROUNDS, SLOTS), (client, row, 0)))
    holds = bool((everywhere == within_slot).all()) and rounds_with_effect == slot_rounds
    measured = "holds" if holds else "a report from outside of the slot moved the release"
    return Finding(SUBJECT, "own slot", "a client counts only in its slot's rounds", measured, holds)


def check_blocks(make: MakePlan) -> Finding:
    """Neighbours in all their rounds, under the same noise: every block behind C has length at most S."""
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
    return Finding(SUBJECT, "blocks", claim, f"{worst:.6g} at worst", worst <= limit * (1 + 1e-9))


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
    """A client that takes part in all its rounds is hidden at least as well as mu = sqrt(R) / z says.

    Without counts its message lies in one coordinate. The coordinates of a wide release stand for as many runs, since
    each has independent noise. The client's contribution is measured on a narrow release.
    """
    common: dict[str, Any] = {"noise_multiplier": 1.0, "num_clusters": 1, "count_weight": 0.0}
    narrow: Any = make(clustered=1, **common).mechanism
    wide: Any = make(clustered=RUNS, **common).mechanism
    messages = {t: (members(0)[0], np.array([CLIP]), 0) for t in range(0, ROUNDS, SLOTS)}
    claimed = math.sqrt(len(messages)) / narrow.event.noise_multiplier
    shift = (_totals(narrow, messages) - _totals(narrow, {}))[:, :1]
    shifts = np.array([_behind_c(narrow, shift, t) for t in range(ROUNDS)])

    def statistic(shift: Array) -> Array:
        totals = _totals(wide, {}, rng=rng)[:, :RUNS] + shift
        behind = np.array([_behind_c(wide, totals, t) for t in range(ROUNDS)])
        return np.asarray((behind * shifts).sum(axis=0)[:, None])

    measured_mu = separation(*error_bounds(statistic(0 * shift), statistic(shift)))
    claim = f"mu <= sqrt(R) / z = {claimed:.3g} over {len(messages)} participations"
    return Finding(SUBJECT, "canary in all its rounds", claim, f"mu >= {measured_mu:.3g}", measured_mu <= claimed)


@dataclass(frozen=True)
class _Watched:
    """A mechanism that records the reporting clients of each round."""

    mechanism: Any
    seen: dict[int, list[int]]

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the mechanism."""
        return getattr(self.mechanism, name)

    def sum_messages(self, reports: Reports, *, round_index: int) -> Array:
        """Record who reported, and delegate."""
        self.seen.setdefault(round_index, []).extend(int(client) for client in reports.client_ids)
        total: Array = self.mechanism.sum_messages(reports, round_index=round_index)
        return total


def check_trained_cohorts(make: MakePlan, *, seed: int) -> Finding:
    """In a training run the cohorts are those of the slots, whatever data the clients have."""
    training = Training(joint_target(), simulate, seed=seed)
    shape = training.plan().mechanism.coordinates
    plan = make(num_clients=NUM_CLIENTS, num_rounds=4, num_clusters=2, shared=shape.shared, clustered=shape.clustered)
    watched = _Watched(plan.mechanism, {})
    training.run(replace(plan, mechanism=watched))
    by_name = _Watched(plan.mechanism, {})
    data = replace(small_population(0), clients=_NAMES[:NUM_CLIENTS])
    training.run(replace(plan, mechanism=by_name), data=data)
    expected = {t: [int(name) for name in data.clients if slot_of(name) == t % SLOTS] for t in range(4)}
    holds = watched.seen == {t: members(t, NUM_CLIENTS) for t in range(4)} and by_name.seen == expected
    measured = "holds" if holds else "a training run has other cohorts"
    return Finding(SUBJECT, "trained cohorts", "cohorts follow the slots, not data", measured, holds)


def _totals(mechanism: Any, messages: dict[int, tuple[int, Array, int]], *, rng: Rng | None = None) -> Array:
    """(rounds, width) noisy sums in units of the clip; without `rng` every call uses the same noise."""
    rng, past, totals = rng or np.random.default_rng(1), mechanism.first_past(), []
    for t in range(ROUNDS):
        reports = _reports([messages[t]] if t in messages else [], mechanism.coordinates.width)
        exact = MessageSum(mechanism.sum_messages(reports, round_index=t))
        noisy_sum, past = mechanism.noisy_sum(exact, past, rng=rng)
        totals.append(noisy_sum.total)
    return np.array(totals) * 2.0 ** (math.floor(math.log2(CLIP)) - 30)


def _reports(messages: Sequence[tuple[int, Array, int]], width: int) -> Reports:
    rows = np.array([row for _, row, _ in messages]).reshape(len(messages), width)
    choices = np.array([choice for *_, choice in messages], dtype=np.int64)
    return Reports(rows, choices, client_ids=np.array([client for client, *_ in messages], dtype=np.int64))


def _behind_c(mechanism: Any, totals: Array, t: int) -> Array:
    """Row t of C times the released sums."""
    c = mechanism.correlation.coefficients
    return np.asarray(sum(value * totals[t - lag] for lag, value in enumerate(c) if lag <= t))
