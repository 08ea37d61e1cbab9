"""`rrcluster audit` as a person meets it, in this process so that a bug can be planted."""

import json
import re
from pathlib import Path

import pytest
from planted_mechanisms import no_clip

from rrcluster.audit.audit_command import LEFT_TO_TESTS
from rrcluster.audit.canaries import audit_end_to_end
from rrcluster.audit.run_folders import small_experiment
from rrcluster.audit.suite import Step, audit_steps
from rrcluster.audit.targets import failures, identifier_target, joint_target, varied
from rrcluster.cli import main
from rrcluster.methods import METHODS
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.joint import JointMechanism
from rrcluster.runs.run import start
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
    assert "Left to the test suite: transports" in told.out
    assert "[1/1] joint: sensitivity" in told.err
    named = re.findall(r"tests/[\w/*.]+\w", LEFT_TO_TESTS)
    assert len(named) == 7
    assert all(list(Path(__file__).parents[2].glob(name + "*")) for name in named)


def test_exit_status_1_when_a_claim_fails(one_check, capsys, monkeypatch):
    monkeypatch.setattr("rrcluster.privacy.joint.clip_to_grid", no_clip)
    assert main(["audit", "--mechanism", "joint", "--json"]) == 1
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert answer["holds"] is False
    assert answer["findings"][0]["verdict"] == "FAILS"
    assert told.err == ""


def test_a_secure_folder_says_which_audit_ran_last(one_check, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def stated(name, **settings):
        start(small_experiment(tmp_path / name, **settings)).folder.release()
        return json.loads((tmp_path / name / "privacy.json").read_text()).get("audit")

    assert stated("seeded") is None
    assert stated("none", secure=True) == {"result": "no audit ran on this machine"}
    main(["audit", "--mechanism", "joint", "--json"])
    audit = stated("one", secure=True)
    assert audit["result"] == "all claims hold (1 findings, joint mechanisms)"
    assert audit["of_this_code"] is True
    assert set(audit) == {"version", "commit", "code", "result", "of_this_code"}  # and no date
    monkeypatch.setattr("rrcluster.privacy.joint.clip_to_grid", no_clip)
    main(["audit", "--mechanism", "joint", "--json"])
    assert stated("two", secure=True)["result"].startswith("1 claims fail")
    noted = tmp_path / "cache" / "rrcluster" / "audit.json"
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"code": "another"}))
    assert stated("three", secure=True)["of_this_code"] is False
    capsys.readouterr()


def test_code_that_cannot_be_checked_fails():
    def broken():
        raise ZeroDivisionError("of something")

    (found,) = Step("joint", "noise", broken).findings()
    assert found.holds is False
    assert "ZeroDivisionError" in found.measured


def test_the_audit_covers_what_it_says():
    steps = audit_steps(mechanism="all")
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
        "joint (slots)",
        "identifier (gaussian) (secure)",
        "run folder",
        "accountants",
        "ledger",
        "plan",
        "questions on a table",
        "federation",
        "refusals",
        "selection",
        "secure randomness",
        "streams",
        "tables",
    }
    assert sum(step.check == "parts" for step in steps) == 5  # seeded and secure
    assert sum(step.check == "canaries" for step in steps) == 2
    assert all("identifier" not in step.subject for step in audit_steps(mechanism="joint"))


ELSEWHERE = (  # what nothing else in the fast suite runs as the audit does
    *("own networks", "asked runs", "resumed run", "started run", "stated budget", "several runs"),
    *("parts", "secure sums", "noise shares", "signed cost", "federated rounds", "participation"),
)


@pytest.mark.parametrize("check", ELSEWHERE)
def test_correct_code_is_not_accused(check):
    steps = [step for step in audit_steps() if step.check == check]
    assert steps
    assert not failures([finding for step in steps for finding in step.findings()])


@pytest.mark.slow
def test_the_whole_audit_holds():
    assert not failures([finding for step in audit_steps() for finding in step.findings()])


def test_a_deep_audit_has_every_method_and_further_seeds():
    usual, deep = audit_steps(), audit_steps(deep=True)
    trained = {step.subject.split(", ")[1] for step in deep if step.check == "messages"}
    assert trained == set(METHODS) - {"local", "mixed-effects"}  # whose messages the checks of questions look at
    assert sum(step.check == "canaries" for step in deep) == 8
    assert len(deep) > 3 * len(usual)


class HalfTheNoise(JointMechanism):
    @property
    def noise_std(self):
        return self.noise_multiplier * self.sensitivity / 2


class HalfTheNoiseToo(IdentifierMechanism):
    @property
    def noise_std(self):
        return self.noise_multiplier * self.sensitivity / 2


CANARY_TARGETS = {
    "joint": (joint_target, HalfTheNoise, "ifca"),
    "identifier": (lambda *kind: identifier_target("gaussian", *kind), HalfTheNoiseToo, "fedavg"),
}


def bounds(found):
    """(claimed, shown) epsilon."""
    return tuple(float(text.split()[2]) for text in (found.claim, found.measured))


@pytest.mark.parametrize("name", ["joint", pytest.param("identifier", marks=pytest.mark.slow)])
def test_canaries_show_much_of_the_claim_and_no_more(name, fixed_entropy):
    make, _, method = CANARY_TARGETS[name]
    found = audit_end_to_end(varied(make(), "secure", secure=True), simulate, method=method)
    claimed, shown = bounds(found)
    assert found.holds
    assert 0.45 * claimed < shown < claimed  # 2.7 of 4.4 as a rule


@pytest.mark.parametrize("name", ["joint", pytest.param("identifier", marks=pytest.mark.slow)])
def test_canaries_show_that_half_the_noise_is_missing(name, fixed_entropy):
    make, half, method = CANARY_TARGETS[name]
    found = audit_end_to_end(varied(make(half), "secure", secure=True), simulate, method=method)
    claimed, shown = bounds(found)
    assert found.holds is False
    assert shown > 1.2 * claimed
