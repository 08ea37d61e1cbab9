"""Which checks an audit consists of, in the order a reader wants them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rrcluster import checks
from rrcluster.audit.finding import Finding
from rrcluster.audit.rounds import Training
from rrcluster.audit.targets import Target, identifier_target, joint_target
from rrcluster.methods import ALGORITHMS
from rrcluster.privacy.identifier_noise import IDENTIFIERS
from rrcluster.rng import Streams

TARGETS = {
    "joint": (joint_target(),),
    "identifier": tuple(identifier_target(kind) for kind in IDENTIFIERS),
}


@dataclass(frozen=True)
class Step:
    """One check, not yet run."""

    subject: str
    check: str
    run: Callable[[], Finding | list[Finding]]

    def findings(self) -> list[Finding]:
        """Run it. Code that cannot even be checked has not kept its claim: an error becomes a failure."""
        try:
            found = self.run()
        except Exception as error:  # whatever the code under audit does wrong
            stopped = f"stopped by {type(error).__name__}: {error}"
            return [Finding(self.subject, self.check, "can be checked", stopped, False)]
        return found if isinstance(found, list) else [found]


def audit_steps(
    *, mechanism: str = "all", algorithm: str = "ifca", seed: int = 0, end_to_end: bool = False
) -> list[Step]:
    """Every check of the installed code for `mechanism` (joint, identifier or all), training with `algorithm`."""
    checks.one_of((*TARGETS, "all"), mechanism=mechanism)
    checks.one_of(ALGORITHMS, algorithm=algorithm)
    names = list(TARGETS) if mechanism == "all" else [mechanism]
    targets = [target for name in names for target in TARGETS[name]]
    steps = [step for target in targets for step in mechanism_steps(target, seed=seed)]
    steps += [step for target in targets for step in _training_steps(target, algorithm, seed)]
    steps += _common_steps(seed)
    if end_to_end:
        steps += [_end_to_end_step(target, algorithm, seed) for target in targets]
    return steps


def mechanism_steps(target: Target, *, seed: int) -> Iterator[Step]:
    """The checks that need nothing but the mechanism."""
    from rrcluster.audit.denominators import check_denominators
    from rrcluster.audit.distinguish import check_distinguishing
    from rrcluster.audit.identifier_claims import check_identifiers
    from rrcluster.audit.noise_claims import check_noise, check_noise_reuse
    from rrcluster.audit.samplers import check_sampler
    from rrcluster.audit.sensitivity import check_invalid_reports, check_sensitivity

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


def training_steps(training: Training) -> Iterator[Step]:
    """The checks on a small training run."""
    from rrcluster.audit import rounds

    for title, check in {
        "ledger": rounds.check_ledger,
        "messages": rounds.check_messages,
        "post-processing": rounds.check_postprocessing,
        "noise of rounds": rounds.check_round_noise,
    }.items():
        yield Step(training.subject, title, lambda check=check: check(training))  # type: ignore[misc]


def _training_steps(target: Target, algorithm: str, seed: int) -> Iterator[Step]:
    from rrcluster.simulation.simulate import simulate

    return training_steps(Training(target, simulate, algorithm, seed))


def _common_steps(seed: int) -> list[Step]:
    from rrcluster.audit.accountants import check_accountants
    from rrcluster.audit.denominators import check_rebalancing
    from rrcluster.clusters.rebalancing import rebalance
    from rrcluster.privacy.accounting import epsilon

    return [
        Step("exact rebalancing", "guarantees", lambda: check_rebalancing(rebalance, rng=Streams(seed)("rebalancing"))),
        Step("accountants", "cross-checks", lambda: check_accountants(epsilon)),
    ]


def _end_to_end_step(target: Target, algorithm: str, seed: int) -> Step:
    from rrcluster.audit.canaries import audit_end_to_end
    from rrcluster.simulation.simulate import simulate

    return Step(target.name, "canaries", lambda: audit_end_to_end(target, simulate, algorithm=algorithm, seed=seed))
