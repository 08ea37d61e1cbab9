"""The checks of an audit, in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rrcluster import checks
from rrcluster.audit.rounds import Training
from rrcluster.audit.targets import Finding, Target, identifier_target, joint_target
from rrcluster.privacy.identifier import IDENTIFIERS
from rrcluster.rng import Streams

TARGETS = {
    "joint": (joint_target(),),
    "identifier": tuple(identifier_target(kind) for kind in IDENTIFIERS),
}


@dataclass(frozen=True)
class Step:
    """One check, to be run."""

    subject: str
    check: str
    run: Callable[[], Finding | list[Finding]]

    def findings(self) -> list[Finding]:
        """Run the check; an error of the code under audit is a failed claim."""
        try:
            outcome = self.run()
        except Exception as error:  # any error of the code under audit
            stopped = f"stopped by {type(error).__name__}: {error}"
            return [Finding(self.subject, self.check, "can be checked", stopped, False)]
        return outcome if isinstance(outcome, list) else [outcome]


def audit_steps(*, mechanism: str = "all", method: str = "ifca", seed: int = 0, deep: bool = False) -> list[Step]:
    """Every check of the installed code for `mechanism` (joint, identifier or all), training with `method`.

    `deep` repeats random checks with further seeds, trains with every method, and sends more canaries.
    """
    checks.one_of((*TARGETS, "all"), mechanism=mechanism)
    checks.one_of((*WITHOUT_MEMORY, *REMEMBERING), algorithm=method)
    names = list(TARGETS) if mechanism == "all" else [mechanism]
    targets = [target for name in names for target in TARGETS[name]]
    steps = [step for target in targets for step in mechanism_steps(target, seed=seed)]
    steps += [step for name in names for step in variant_steps(name, method=method, seed=seed)]
    steps += [step for target in targets for step in _training_steps(target, method, seed)]
    steps += [_histories_step(TARGETS[name][0], seed) for name in names]
    steps += [step for name in names for step in canary_steps(name, seed=seed)]
    steps += common_steps(seed)
    if deep:
        steps += [step for name in names for step in _deep_steps(name, method=method, seed=seed)]
    return steps


def _deep_steps(mechanism: str, *, method: str, seed: int) -> Iterator[Step]:
    for further in range(seed + 1, seed + 4):
        for target in TARGETS[mechanism]:
            yield from mechanism_steps(target, seed=further)
        yield from variant_steps(mechanism, method=method, seed=further)
        yield from canary_steps(mechanism, seed=further, canaries=6000)
    for target in TARGETS[mechanism]:
        remembering = () if target.adjacency == "replace-one" else REMEMBERING
        for name in (*WITHOUT_MEMORY, *remembering):
            if name != method:
                yield from _training_steps(target, name, seed)


# Methods that report updates, by whether their clients remember rounds, which `identifier` does not cover. Questions on
# a table have separate checks.
WITHOUT_MEMORY = (
    *("ifca", "ifca-shared", "fedcam", "fedavg", "fedprox", "oracle"),
    *("fesem-memoryless", "fedper-memoryless"),
)
REMEMBERING = ("fesem", "fesem-last", "fedcam-fesem", "fedper", "mr-mtl")


def mechanism_steps(target: Target, *, seed: int) -> Iterator[Step]:
    """The checks that need only the mechanism."""
    from rrcluster.audit.cohorts import check_sampler
    from rrcluster.audit.noise import check_identifiers, check_noise, check_noise_reuse
    from rrcluster.audit.sensitivity import (
        check_denominators,
        check_invalid_reports,
        check_message_norm,
        check_odd_rows,
        check_release_function,
        check_sensitivity,
        check_types,
    )
    from rrcluster.audit.statistics import check_distinguishing

    rng = Streams(seed)
    name = target.name
    yield Step(name, "sensitivity", lambda: check_sensitivity(target))
    yield Step(name, "invalid reports", lambda: check_invalid_reports(target))
    yield Step(name, "noise", lambda: check_noise(target, rng=rng(f"noise {name}")))
    if target.adjacency == "replace-one":
        yield Step(name, "identifiers", lambda: check_identifiers(target, rng=rng(f"identifiers {name}")))
    yield Step(name, "distinguishing", lambda: check_distinguishing(target, rng=rng(f"distinguish {name}")))
    yield Step(name, "sampler", lambda: check_sampler(target, rng=rng(f"sampler {name}")))
    yield Step(name, "noise reuse", lambda: check_noise_reuse(target, seed=seed))
    yield Step(name, "denominators", lambda: check_denominators(target, rng=rng(f"denominators {name}")))
    yield Step(name, "types", lambda: check_types(target, rng=rng(f"types {name}")))
    yield Step(name, "odd rows", lambda: check_odd_rows(target))
    yield Step(name, "release function", lambda: check_release_function(target))
    if target.adjacency == "add-remove":
        yield Step(name, "message norm", lambda: check_message_norm(target))
    yield from _cohort_steps(target, rng)


def variant_steps(mechanism: str, *, method: str = "ifca", seed: int) -> Iterator[Step]:
    """The checks of other weights, of private evaluation and of the secure mode."""
    from rrcluster.audit.cohorts import SUBJECT, check_participation
    from rrcluster.audit.noise import check_noise
    from rrcluster.audit.sensitivity import (
        check_evaluation_scale,
        check_evaluation_sensitivity,
        check_invalid_reports,
        check_message_norm,
        check_public_sizes,
        check_sensitivity,
    )
    from rrcluster.audit.targets import EVALUATED, VARIANTS

    rng = Streams(seed)
    for target in VARIANTS[mechanism]:
        name = target.name
        noise = rng(f"noise {name}")
        yield Step(name, "noise", partial(check_noise, target, rng=noise, releases=400 if target.secure else 200))
        if target.secure:
            yield from _secure_steps(target, method, seed)
        else:
            yield Step(name, "sensitivity", partial(check_sensitivity, target, brief=True))
        if target.adjacency == "add-remove":
            yield Step(name, "message norm", partial(check_message_norm, target))
        if not target.counted:
            yield Step(name, "public sizes", partial(check_public_sizes, target, rng=rng("public sizes")))
    if mechanism == "joint":
        yield Step(EVALUATED.name, "evaluation sensitivity", lambda: check_evaluation_sensitivity(EVALUATED))
        yield Step(EVALUATED.name, "invalid reports", lambda: check_invalid_reports(EVALUATED))
        yield Step(EVALUATED.name, "evaluation scale", lambda: check_evaluation_scale(EVALUATED))
        yield Step(SUBJECT, "participation", lambda: check_participation(seed=seed))


def _secure_steps(target: Target, method: str, seed: int) -> Iterator[Step]:
    from rrcluster.audit.cohorts import check_round_cohorts, check_sampler, check_secure_sampler
    from rrcluster.audit.error_leaks import check_discretion
    from rrcluster.audit.histories import check_histories
    from rrcluster.audit.noise import check_entropy, check_secure_noise
    from rrcluster.audit.part_sums import check_parts
    from rrcluster.audit.targets import CANARY_RUNS
    from rrcluster.simulation.simulate import simulate

    rng, name = Streams(seed), target.name
    training = Training(target, simulate, method, seed)
    yield Step(name, "secure noise", lambda: check_secure_noise(target))
    yield Step(name, "secure sampler", lambda: check_secure_sampler(target))
    yield Step(name, "sampler", lambda: check_sampler(target, rng=rng("secure sampler")))
    yield from _cohort_steps(target, rng)
    yield Step(training.subject, "cohorts of rounds", lambda: check_round_cohorts(training))
    unjudged = CANARY_RUNS["joint"][0][0] if target.adjacency == "add-remove" else target  # regression has no accuracy
    yield Step(training.subject, "parts", lambda: check_parts(Training(unjudged, simulate, method, seed)))
    yield Step(name, "entropy", lambda: check_entropy(target))
    yield Step(name, "discretion", lambda: check_discretion(Training(target, simulate, "ifca", seed)))
    if target.adjacency == "add-remove":
        yield Step(name, "histories", lambda: check_histories(training))


def _cohort_steps(target: Target, rng: Streams) -> Iterator[Step]:
    from rrcluster.audit.cohorts import check_population, check_small_cohorts

    name = target.name
    yield Step(name, "small cohorts", lambda: check_small_cohorts(target, rng=rng(f"small cohorts {name}")))
    yield Step(name, "population", lambda: check_population(target, rng=rng(f"population {name}")))


def training_steps(training: Training) -> Iterator[Step]:
    """The checks on a small training run."""
    from rrcluster.audit import cohorts, part_sums, rounds
    from rrcluster.audit import isolation as strangers

    for title, check in {
        "ledger": rounds.check_ledger,
        "messages": rounds.check_messages,
        "post-processing": rounds.check_postprocessing,
        "noise of rounds": rounds.check_round_noise,
        "cohorts of rounds": cohorts.check_round_cohorts,
        "parts": part_sums.check_parts,
        "strangers": strangers.check_strangers,
    }.items():
        yield Step(training.subject, title, lambda check=check: check(training))  # type: ignore[misc]


def federation_steps() -> Iterator[Step]:
    """The checks of federations, where their extra is installed."""
    try:
        from rrcluster.audit import federated_claims as federated
    except ImportError:
        missing = Finding("federation", "federation", "can be checked", "not checked: the extra is not installed", None)
        yield Step("federation", "federation", lambda: missing)
        return
    yield Step(federated.SUBJECT, "secure sums", federated.check_secure_sums)
    yield Step(federated.SUBJECT, "noise shares", federated.check_noise_shares)
    yield Step(federated.SUBJECT, "signed cost", federated.check_federated_cost)
    yield Step(federated.SUBJECT, "federated rounds", federated.check_federated_rounds)


def _histories_step(target: Target, seed: int) -> Step:
    from rrcluster.audit.histories import check_histories
    from rrcluster.simulation.simulate import simulate

    return Step(target.name, "histories", lambda: check_histories(Training(target, simulate, seed=seed)))


def _training_steps(target: Target, method: str, seed: int) -> Iterator[Step]:
    from rrcluster.simulation.simulate import simulate

    return training_steps(Training(target, simulate, method, seed))


def common_steps(seed: int) -> list[Step]:
    """The checks that do not depend on a mechanism."""
    from rrcluster.audit import ledger_claims, neighbouring_tables, refusals, run_folders, selections
    from rrcluster.audit import noise as secure_draws
    from rrcluster.audit.accountants import CHECKS as ACCOUNTANT_CHECKS
    from rrcluster.audit.accountants import check_accountants
    from rrcluster.audit.answers_to_questions import SUBJECT, check_asked_runs, check_learning, check_questions
    from rrcluster.audit.isolation import check_own_networks
    from rrcluster.audit.run_folders import check_public_files
    from rrcluster.audit.sensitivity import check_rebalancing
    from rrcluster.privacy.accounting import epsilon
    from rrcluster.privacy.rebalancing import rebalance
    from rrcluster.simulation.simulate import simulate

    rng = Streams(seed)
    return [
        *federation_steps(),
        Step("joint, ifca", "own networks", lambda: check_own_networks(Training(joint_target(), simulate, seed=seed))),
        Step("streams", "streams", lambda: secure_draws.check_streams(seed)),
        Step("secure randomness", "secure draws", secure_draws.check_secure_draws),
        Step("secure randomness", "discrete Gaussian", secure_draws.check_discrete_gaussian),
        Step("tables", "neighbouring tables", lambda: neighbouring_tables.check_tables(seed)),
        Step(SUBJECT, "questions", lambda: check_questions(seed=seed)),
        Step(SUBJECT, "learning", lambda: check_learning(seed=seed)),
        Step(SUBJECT, "asked runs", lambda: check_asked_runs(seed=seed)),
        Step("run folder", "public files", check_public_files),
        Step("run folder", "public values", run_folders.check_public_values),
        Step("run folder", "stated cost", run_folders.check_stated_cost),
        Step("run folder", "resumed run", run_folders.check_resumed_run),
        Step("run folder", "started run", run_folders.check_started_run),
        Step("ledger", "ledger rules", ledger_claims.check_ledger_rules),
        Step("plan", "stated budget", ledger_claims.check_stated_budget),
        Step("refusals", "refusals", refusals.check_refusals),
        Step("selection", "selection", selections.check_selection),
        Step("selection", "selection cost", selections.check_selection_cost),
        Step("selection", "selection law", lambda: selections.check_selection_law(rng=rng("selection"))),
        Step("exact rebalancing", "guarantees", lambda: check_rebalancing(rebalance, rng=rng("rebalancing"))),
        *(Step("accountants", name, partial(check_accountants, epsilon, only=name)) for name in ACCOUNTANT_CHECKS),
    ]


def canary_steps(mechanism: str, *, seed: int, canaries: int | None = None) -> Iterator[Step]:
    """Whole secure runs with canaries: clustered under `joint`, one model under `identifier`."""
    from rrcluster.audit.canaries import CANARIES, audit_end_to_end
    from rrcluster.audit.targets import CANARY_RUNS
    from rrcluster.simulation.simulate import simulate

    for target, method in CANARY_RUNS[mechanism]:
        name = f"{target.name}, {method}"
        settings: dict[str, Any] = {"method": method, "seed": seed, "canaries": canaries or CANARIES}
        yield Step(name, "canaries", partial(audit_end_to_end, target, simulate, **settings))
