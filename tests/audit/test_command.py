"""`rrcluster audit` as a person meets it, in this process so that a bug can be planted."""

import json

import pytest
from planted_mechanisms import no_clip

from rrcluster.audit.canaries import audit_end_to_end
from rrcluster.audit.suite import Step, audit_steps
from rrcluster.audit.targets import identifier_target, joint_target
from rrcluster.cli import main
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.joint import JointMechanism
from rrcluster.simulation.simulate import simulate


@pytest.fixture
def one_check(monkeypatch):
    """Only the check of the sensitivity, to be quick."""

    def steps(**settings):
        return [step for step in audit_steps(**settings) if (step.subject, step.check) == ("joint", "sensitivity")]

    monkeypatch.setattr("rrcluster.audit.suite.audit_steps", steps)


def test_exit_status_0_and_a_table_when_all_claims_hold(one_check, capsys):
    assert main(["audit", "--mechanism", "joint"]) == 0
    told = capsys.readouterr()
    assert "holds" in told.out
    assert "No claim was refuted" in told.out
    assert "[1/1] joint: sensitivity" in told.err


def test_exit_status_1_when_a_claim_fails(one_check, capsys, monkeypatch):
    monkeypatch.setattr("rrcluster.privacy.joint.clip_to_grid", no_clip)
    assert main(["audit", "--mechanism", "joint", "--json"]) == 1
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert answer["holds"] is False
    assert answer["findings"][0]["verdict"] == "FAILS"
    assert told.err == ""


def test_code_that_cannot_be_checked_fails():
    def broken():
        raise ZeroDivisionError("of something")

    (found,) = Step("joint", "noise", broken).findings()
    assert found.holds is False
    assert "ZeroDivisionError" in found.measured


def test_the_audit_covers_what_it_says():
    steps = audit_steps(mechanism="all", end_to_end=True)
    assert {step.subject.split(",")[0] for step in steps} == {
        "joint",
        "identifier (gaussian)",
        "identifier (kary)",
        "exact rebalancing",
        "joint (w = 0)",
        "joint (w = C)",
        "joint (w = 16 C)",
        "joint (evaluation)",
        "joint (secure)",
        "identifier (gaussian) (secure)",
        "run folder",
        "accountants",
    }
    assert sum(step.check == "canaries" for step in steps) == 3
    assert all("identifier" not in step.subject for step in audit_steps(mechanism="joint"))


class NoiseMissing(JointMechanism):
    noise_std = 0.0


class NoiseMissingToo(IdentifierMechanism):
    noise_std = 0.0


@pytest.mark.parametrize("algorithm", ["ifca", "fedavg"])
@pytest.mark.parametrize("target", [joint_target(), identifier_target()], ids=lambda target: target.name)
def test_canaries_show_less_than_the_claim(target, algorithm):
    found = audit_end_to_end(target, simulate, algorithm=algorithm)
    assert found.holds is None  # no gate
    claimed, bound = (float(text.split()[2]) for text in (found.claim, found.measured))
    assert 0.05 < bound < claimed


MISSING = [joint_target(NoiseMissing), identifier_target("gaussian", NoiseMissingToo)]


@pytest.mark.parametrize("target", MISSING, ids=lambda target: target.name)
def test_canaries_show_that_the_noise_is_missing(target):
    assert "ABOVE THE CLAIM" in audit_end_to_end(target, simulate).measured
