"""A printed epsilon is never below the one that was computed, wherever it is printed."""

import re
from types import SimpleNamespace

import pytest

from rrcluster.cli import account_command, dry_run
from rrcluster.federation.agreement import Agreement, SampleShape
from rrcluster.federation.commands import enrolment as federation_enrolment
from rrcluster.privacy.budget import account
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.report.values import delta_text, field_text

NOISE = {"noise_multiplier": 0.83, "delta": 3e-6, "sample_rate": 0.037, "num_rounds": 217, "num_clients": 10_000}


@pytest.fixture(scope="module")
def budget():
    return account(**NOISE)  # 5.92930238 by pld, which `.4f` prints as 5.9293


def test_account_prints_no_epsilon_below_its_own(budget, capsys):
    account_command._print(budget)
    text = capsys.readouterr().out
    printed = [float(number) for number in re.findall(r"│\s*0\.8300\s*│\s*([0-9.]+)\s*│\s*([0-9.]+)", text)[0]]
    assert printed[0] >= budget["pld"].epsilon
    assert printed[1] >= budget["pld"].epsilon_seen
    least, most = map(float, re.findall(r"epsilon is between ([0-9.]+) and ([0-9.]+)\.", text)[0])
    assert least <= budget["pld"].least
    assert most >= budget["pld"].most


def test_account_prints_no_noise_below_the_calibrated_one(capsys):
    budget = account(epsilon=3.3, delta=1e-5, num_rounds=30)
    account_command._print(budget)
    printed = re.findall(r"│\s*(?:pld|rdp)\s*│\s*([0-9.]+)\s*│", capsys.readouterr().out)
    assert len(printed) == 2
    assert all(float(text) >= budget[name].noise_multiplier for text, name in zip(printed, ("pld", "rdp"), strict=True))


@pytest.mark.parametrize("epsilon", [4.0004, 1.23449, 104.94, 0.123449])
def test_a_dry_run_prints_no_epsilon_below_its_own(monkeypatch, capsys, epsilon):
    answer = {"epsilon": epsilon, "delta": 1.00004e-5, "epsilon_cohorts_seen": epsilon, "warnings": []}
    monkeypatch.setattr(dry_run, "estimate", lambda *_, **__: answer)
    dry_run.show(None, as_json=False)
    printed = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert [text >= value for text, value in zip(printed, answer.values(), strict=False)] == [True] * 3


def test_an_operator_reads_no_epsilon_below_the_one_that_is_signed(capsys):
    guarantee = {
        "adjacency": "add-remove",
        "epsilon": 4.0000049,
        "delta": 1.0000004e-5,
        "epsilon_towards_members": 5.9900049,
        "rehearsal": False,
    }
    agreement = Agreement("a", {}, SampleShape((1,), 0), ())
    bounds = {"at_1_percent": 0.0997001, "at_5_percent": 0.2736, "advantage": 0.3981}
    agreed = {
        "guarantee": lambda: guarantee,
        "risk": lambda _: bounds,
        "secure": None,
        "plan": SimpleNamespace(event=PoissonGaussian(noise_multiplier=1.0, sample_rate=1.0)),
    }
    federation_enrolment.show_agreement(SimpleNamespace(agreement=agreement, **agreed))
    shown = capsys.readouterr().out
    assert "at most 10.0% of the cases" in shown
    assert "1% of those where it is not, 27.4% while wrong in 5%" in shown
    lines = [line.rpartition(": ") for line in shown.splitlines()]
    printed = {
        name.strip().replace(" ", "_"): float(text)
        for name, _, text in lines
        if name.startswith("  ") and text[:1].isdigit()
    }
    for name in ("epsilon", "delta", "epsilon_towards_members"):
        assert printed[name] >= float(guarantee[name])


def test_every_bound_of_a_report_is_rounded_to_the_safe_side():
    assert float(field_text("epsilon_together", 8.0000004)) > 8
    assert float(delta_text(1.00000004e-5)) > 1e-5
    assert delta_text(1e-4) == "1e-4"
    assert delta_text(2.5e-5) == "2.5e-5"
