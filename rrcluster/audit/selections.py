"""Private selection: charged as a whole before the first run, by its own law; only the best run is published."""

import contextlib
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.audit.run_folders import ALLOWED, listed_name, small_experiment
from rrcluster.audit.statistics import SIGNIFICANCE, binomial_p_value, correlation_p_value, smallest
from rrcluster.audit.targets import Finding, Recorder, refused
from rrcluster.entropy import secure_rng
from rrcluster.errors import PrivacyError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.ledger import read_charges
from rrcluster.privacy.reports import Reports
from rrcluster.privacy.selection import check_covered, draw_repetitions, worst_run
from rrcluster.rng import Rng
from rrcluster.runs.fingerprint import KEY_FILE
from rrcluster.runs.private_selection import Candidates, SelectSettings, candidates, select
from rrcluster.runs.run import Running
from rrcluster.runs.sweep import read_grid
from rrcluster.types import Release

SUBJECT = "selection"
DRAWS = 3000
_ROUNDS, _MEAN = 2, 4.0


def check_selection_cost() -> Finding:
    """Epsilon of selections, by the audit's own form of the theorem, for Gaussians without sampling.

    Papernot, Steinke 2022 (arXiv 2110.03620v2), Theorem 2, minimised over a fine grid of orders. Deterministic.
    """
    wrong = ""
    for law, mean, z, rounds in (("geometric", 5.0, 3.0, 4), ("logarithmic", 5.0, 3.0, 4), ("geometric", 20.0, 6.0, 9)):
        event = RepeatAndSelect(PoissonGaussian(z, 1.0), rounds, mean, law)
        expected_cost = selected_epsilon(z / math.sqrt(rounds), mean, law, 1e-4)
        cost = epsilon(event, num_rounds=1, delta=1e-4, accountant="rdp")
        if not expected_cost * (1 - 1e-3) <= cost <= expected_cost * 1.05:
            wrong = f"{cost:.5g} where {expected_cost:.5g} is due ({law}, mean {mean:g})"
    one, two = (PoissonGaussian(1.0, 0.1), 5), (PoissonGaussian(2.0, 0.2), 9)
    if worst_run([one, two]) != (PoissonGaussian(1.0, 0.2), 9):
        wrong = wrong or "the charge is not for the most expensive candidate"
    selection = RepeatAndSelect(PoissonGaussian(2.0, 0.1), 5, _MEAN, "geometric")
    for costlier, rounds in (
        (PoissonGaussian(1.9, 0.1), 5),
        (PoissonGaussian(2.0, 0.11), 5),
        (PoissonGaussian(2.0, 0.1), 6),
    ):
        if not refused(partial(check_covered, selection, costlier, rounds), PrivacyError):
            wrong = wrong or "a run that costs more than its selection covers is accepted"
    claim = "a selection costs what the theorem says"
    return Finding(SUBJECT, "selection cost", claim, wrong or "holds", not wrong)


def selected_epsilon(multiplier: float, mean: float, law: str, delta: float) -> float:
    """Epsilon of selecting the best of a random number of Gaussian releases of this multiplier."""
    orders = 1 + np.exp(np.linspace(math.log(0.01), math.log(2000), 4000))
    rdp = orders / (2 * multiplier**2)
    gamma = 1 / mean if law == "geometric" else _logarithmic_gamma(mean)
    shape = 1.0 if law == "geometric" else 0.0
    price = (1 + shape) * ((1 - 1 / orders) * rdp + math.log(1 / gamma) / orders).min()
    raised = rdp + price + math.log(mean) / (orders - 1)
    converted = raised + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return float(converted.min())


def _logarithmic_gamma(mean: float) -> float:
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (1 / middle - 1) / math.log(1 / middle) > mean else (low, middle)
    return low


def check_selection_law(*, rng: Rng) -> Finding:
    """The number of runs, seeded and secure, geometric and logarithmic: exact binomial tests of every small number."""
    p_values = {}
    for law in ("geometric", "logarithmic"):
        event = RepeatAndSelect(PoissonGaussian(1.0, 0.1), 5, _MEAN, law)
        gamma = 1 / _MEAN if law == "geometric" else _logarithmic_gamma(_MEAN)
        for kind, source in {"seeded": rng, "secure": secure_rng()}.items():
            repetitions = np.array([draw_repetitions(event, rng=source) for _ in range(DRAWS)])
            for number in range(7):
                expected = _share(number, gamma, law)
                p_value = binomial_p_value(int((repetitions == number).sum()), DRAWS, expected)
                p_values[f"{law}, {kind}, {number} runs"] = p_value
    name, p_value = smallest(p_values)
    holds = p_value >= SIGNIFICANCE
    measured = f"no deviation (least p-value {p_value:.2g})" if holds else f"another law: {name} (p = {p_value:.2g})"
    return Finding(SUBJECT, "selection law", "the number of runs follows the law of the charge", measured, holds)


def _share(number: int, gamma: float, law: str) -> float:
    if number < 1:
        return 0.0
    if law == "geometric":
        return gamma * (1 - gamma) ** (number - 1)
    return (1 - gamma) ** number / (number * math.log(1 / gamma))


def check_selection() -> Finding:
    """Whole selections: one charge before the first release, epsilon of all, private scores, no trace of the others.

    A secure selection that is stopped and repeated is charged twice, and states both.
    """
    wrong = _with_several_runs(secure=False) or _with_several_runs(secure=True)
    with tempfile.TemporaryDirectory() as folder:
        wrong = wrong or _stopped_and_repeated(Path(folder) / "best")
    claim = "charged as a whole, first; scored privately; only the best run remains"
    return Finding(SUBJECT, "selection", claim, wrong or "holds", not wrong)


def _with_several_runs(*, secure: bool) -> str:
    """What is wrong with a selection of more than one run; their number is random."""
    for seed in range(8):
        with tempfile.TemporaryDirectory() as folder:
            runs, wrong = _selected(Path(folder) / "best", seed=seed, secure=secure)
        if wrong or runs > 1:
            return wrong
    return ""


class _Charged(Recorder):
    """A mechanism that checks before every release that the ledger has the selection."""

    def __init__(self, mechanism: Any, ledger: Path) -> None:
        super().__init__(mechanism)
        self.ledger, self.uncharged = ledger, 0

    def released(self, reports: Reports, release: Callable[[], Release]) -> Release:
        """Check the ledger, and release."""
        charges = read_charges(self.ledger) if self.ledger.exists() else []
        events = [charge["event"]["type"] for charge in charges]
        self.uncharged += events != ["RepeatAndSelect"]
        return super().released(reports, release)


def _selected(out: Path, *, seed: int, secure: bool) -> tuple[int, str]:
    """(number of runs, what is wrong)."""
    offer = _offer(out, seed=seed, secure=secure)
    probe = _Charged(offer.experiments[0].plan.mechanism, out / "ledger.jsonl")
    experiments = tuple(replace(each, plan=replace(each.plan, mechanism=probe)) for each in offer.experiments)
    scores: list[tuple[float, float]] = []

    def scored(running: Running) -> float:
        scores.append((offer.score(running), _released_accuracy(running.folder.path)))
        return scores[-1][0]

    select(replace(offer, experiments=experiments, score=scored))
    if probe.uncharged:
        return len(scores), f"{probe.uncharged} releases were made before the selection was charged"
    wrong = _left_over(out, secure=secure) or _stated(out, offer, charges=1)
    if any(abs(score - released) > 1e-9 for score, released in scores):
        wrong = wrong or "runs are scored by unreleased values"
    if abs(_released_accuracy(out) - max(released for _, released in scores)) > 1e-9:
        wrong = wrong or "the published run is not the best"
    return len(scores), wrong or _shared(probe)


def _offer(out: Path, *, seed: int, secure: bool) -> Candidates:
    registered = small_experiment(out).config  # registers the clients under their name
    settings: dict[str, Any] = {
        "data": registered.data.data,
        "num_clients": registered.data.num_clients,
        "model": "linear",
        "num_clusters": 2,
        "num_rounds": _ROUNDS,
        "noise_multiplier": 2.0,
        "delta": 0.01,
        "sample_rate": 0.5,
        "private_evaluation": 0.5,
        "server_lr": [0.5, 1.0],
        "out": str(out),
    }
    settings |= {"secure": True} if secure else {"seed": seed}
    return candidates(read_grid(settings, source="audit", out=out), SelectSettings(mean_repetitions=_MEAN))


def _released_accuracy(folder: Path) -> float:
    """The last round's accuracy, from releases: with two rounds, the last quarter is one round."""
    last = json.loads((folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[-1])["private_evaluation"]
    return float(0.5 + last["sums"][0] / max(last["clients"], last["least_clients"]))


def _left_over(out: Path, *, secure: bool) -> str:
    allowed = {*ALLOWED} if secure else {*ALLOWED, "diagnostics.jsonl"}
    others = sorted({listed_name(str(path.relative_to(out))) for path in out.rglob("*")} - allowed)
    rounds = len((out / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    if others or rounds != _ROUNDS:
        return f"more than the best run remains: {', '.join(others) or f'{rounds} rounds'}"
    keys = {*json.loads((out / "summary.json").read_text(encoding="utf-8"))} - ALLOWED["summary.json"]
    keys |= {*json.loads((out / "privacy.json").read_text(encoding="utf-8"))} - ALLOWED["privacy.json"] - {"selection"}
    return f"keys that are not listed: {', '.join(sorted(keys))}" if keys else ""


def _stated(out: Path, offer: Candidates, *, charges: int) -> str:
    event = offer.selection.event
    cost = epsilon(event, num_rounds=charges, delta=0.01, accountant="rdp")
    for name in ("privacy.json", "summary.json"):
        stated_epsilon = json.loads((out / name).read_text(encoding="utf-8"))["epsilon"]
        if stated_epsilon is None or stated_epsilon < cost - 1e-9:
            return f"{name} states {stated_epsilon}, and {charges} selections cost {cost:.5g}"
    charged = read_charges(out / "ledger.jsonl")
    types = [charge["event"]["type"] for charge in charged]
    return "" if types == ["RepeatAndSelect"] * charges else f"the ledger holds {types} for {charges} selections"


def _shared(probe: Recorder) -> str:
    """Whether two releases of a selection share a cohort or noise."""
    sums = [made.cluster_sums.ravel() for _, made in probe.raw]
    cohorts = [tuple(np.sort(np.asarray(reports.client_ids)).tolist()) for reports, _ in probe.raw]
    pairs = [(i, j) for i in range(len(sums)) for j in range(i) if i // _ROUNDS != j // _ROUNDS]
    alike = [correlation_p_value(sums[i], sums[j]) < SIGNIFICANCE and cohorts[i] == cohorts[j] for i, j in pairs]
    return "two runs of a selection share cohorts and noise" if any(alike) else ""


def _stopped_and_repeated(out: Path) -> str:
    offer = _offer(out, seed=0, secure=True)

    def stopped(_: Running) -> float:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        select(replace(offer, score=stopped))
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} - {f"checkpoint/{KEY_FILE}"}
    if files != {"ledger.jsonl"}:
        return f"a stopped selection leaves {', '.join(sorted(files))}"
    again = _offer(out, seed=0, secure=True)
    select(again)
    return _stated(out, again, charges=2)
