"""Every planted bug is caught by the check that is said to catch it, and no correct variant is flagged."""

import numpy as np
import pytest
from planted_mechanisms import PLANTED, literal_rule
from planted_rounds import ACCOUNTANTS, ROUNDS
from some_fast import some_fast

from rrcluster.audit.accountants import check_accountants
from rrcluster.audit.cohorts import check_sampler
from rrcluster.audit.noise import check_identifiers, check_noise, check_noise_reuse
from rrcluster.audit.part_sums import check_parts
from rrcluster.audit.rounds import Training, check_ledger, check_messages, check_postprocessing, check_round_noise
from rrcluster.audit.sensitivity import check_denominators, check_invalid_reports, check_rebalancing, check_sensitivity
from rrcluster.audit.statistics import check_distinguishing
from rrcluster.audit.suite import REMEMBERING, WITHOUT_MEMORY, mechanism_steps
from rrcluster.audit.targets import AuditSetting, failures, identifier_target, joint_target
from rrcluster.errors import PrivacyError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.identifier import IDENTIFIERS
from rrcluster.privacy.rebalancing import rebalance
from rrcluster.privacy.reports import Reports
from rrcluster.simulation.simulate import simulate


def sensitivity(target):
    """The check on one shape of mechanism, and only if that shows nothing on all of them, which takes longer."""
    brief = check_sensitivity(target, brief=True)
    return brief if brief.holds is False else check_sensitivity(target)


OF_A_MECHANISM = {
    "sensitivity": lambda target, rng: [sensitivity(target)],
    "invalid reports": lambda target, rng: [check_invalid_reports(target)],
    "noise scale": lambda target, rng: check_noise(target, rng=rng),
    "noise law": lambda target, rng: check_noise(target, rng=rng),
    "noise reuse": lambda target, rng: [check_noise_reuse(target, seed=0)],
    "identifier noise": lambda target, rng: [check_identifiers(target, rng=rng)],
    "distinguishing, projection": lambda target, rng: check_distinguishing(target, rng=rng),
    "distinguishing, scale": lambda target, rng: check_distinguishing(target, rng=rng),
    "sampler": lambda target, rng: [check_sampler(target, rng=rng)],
    "denominators": lambda target, rng: [check_denominators(target, rng=rng)],
}
OF_A_ROUND = {
    "ledger": check_ledger,
    "messages": check_messages,
    "parts": check_parts,
    "post-processing": check_postprocessing,
    "noise of rounds": check_round_noise,
}


def caught(findings):
    return {found.check for found in failures(findings)}


@pytest.mark.parametrize("name", some_fast(PLANTED, one_in=8))
def test_a_bug_in_a_mechanism_is_caught(name, monkeypatch, rng):
    check, target, patches = PLANTED[name]
    for place, function in patches.items():
        monkeypatch.setattr(place, function)
    assert check in caught(OF_A_MECHANISM[check](target, rng))
    honest = target.make(AuditSetting()).release(Reports(np.full((12, 2), 0.1), np.arange(12) % 3), rng=rng)
    assert np.isfinite(honest.cluster_sums).all(), "a mistake nobody would notice, not code that does not run"


@pytest.mark.parametrize("name", some_fast(ROUNDS, one_in=4))
def test_a_bug_around_the_mechanism_is_caught(name, monkeypatch):
    check, patches, simulator = ROUNDS[name]
    for place, function in patches.items():
        monkeypatch.setattr(place, function)
    training = Training(joint_target(), simulator or simulate)
    assert check in caught([OF_A_ROUND[check](training)])
    assert len(training.run(training.plan())) == 4, "a mistake nobody would notice, not code that does not run"


@pytest.mark.parametrize("name", some_fast(ACCOUNTANTS, one_in=4))
def test_a_bug_in_an_accountant_is_caught(name):
    check, wrong = ACCOUNTANTS[name]
    assert check in caught(check_accountants(wrong, only=check))


def test_the_papers_donor_rule_breaks_the_guarantee_of_rebalancing(rng):
    assert check_rebalancing(literal_rule, rng=rng).holds is False


CORRECT = [joint_target(), *(identifier_target(kind) for kind in IDENTIFIERS)]


@pytest.mark.parametrize("target", some_fast(CORRECT, one_in=3))
def test_correct_mechanisms_are_not_flagged(target):
    findings = [found for step in mechanism_steps(target, seed=0) for found in step.findings()]
    assert not failures(findings)
    assert {found.check for found in findings} >= set(OF_A_MECHANISM) - {"identifier noise"}


@pytest.mark.parametrize("method", some_fast((*WITHOUT_MEMORY, *REMEMBERING), one_in=6))
@pytest.mark.parametrize("target", CORRECT, ids=lambda target: target.name)
def test_correct_rounds_are_not_flagged(target, method):
    training = Training(target, simulate, method)
    if method in REMEMBERING and target.adjacency == "replace-one":
        with pytest.raises(PrivacyError, match="keeps memory on the clients"):
            training.run(training.plan())
        return
    findings = [check(training) for check in OF_A_ROUND.values()]
    assert not failures(findings)
    assert [found.check for found in findings] == list(OF_A_ROUND)


def test_correct_accountants_and_rebalancing_are_not_flagged(rng):
    assert not failures([*check_accountants(epsilon), check_rebalancing(rebalance, rng=rng)])
