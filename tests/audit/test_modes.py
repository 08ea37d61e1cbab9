"""Mistakes that once escaped the audit are caught by the check that is said to catch them, and only where planted."""

import pytest
from planted_modes import MODES
from some_fast import some_fast

from rrcluster.audit.suite import audit_steps
from rrcluster.audit.targets import failures

STEP_OF = {"noise scale": ("joint (secure)", "noise")}


def findings_of(check):
    """What the audit as it is run by the command says under this name."""
    subject, step_name = STEP_OF.get(check, ("", check))
    steps = audit_steps(mechanism="joint")
    chosen = [step for step in steps if step.check == step_name and step.subject.startswith(subject)]
    assert chosen, "the audit has no such check"
    return [found for step in chosen for found in step.findings()]


@pytest.mark.parametrize("name", some_fast(MODES, one_in=4))
def test_a_mistake_in_a_mode_is_caught(name, monkeypatch):
    check, patches = MODES[name]
    for place, function in patches.items():
        monkeypatch.setattr(place, function)
    findings = findings_of(check)
    assert check in {found.check for found in failures(findings)}
    assert not any("stopped by" in found.measured for found in findings), "a mistake, not code that fails"


@pytest.mark.parametrize("check", some_fast(sorted({check for check, _ in MODES.values()}), one_in=4))
def test_correct_modes_are_not_flagged(check):
    findings = findings_of(check)
    assert check in {found.check for found in findings}
    assert not failures(findings)
