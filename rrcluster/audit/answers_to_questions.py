"""Questions of mixed effects: bounds on a client's message, its independence of others, and what the server learns."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rrcluster.audit.targets import Finding, Recorder
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import TableColumns
from rrcluster.mixed.answers import Rows, TableQuestion
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questionnaire import Questionnaire
from rrcluster.mixed.questions import AXES, FEWEST_ROUNDS, STAGES, Form
from rrcluster.privacy.ledger import Ledger
from rrcluster.runs.experiment import build_experiment
from rrcluster.simulation.simulate import Checkpoint
from rrcluster.types import Array, Release

SUBJECT = "questions on a table"
FORMS = (
    Form(3, 2, 1, "binary"),
    Form(3, 0, 4, "classes"),
    Form(3, 0, 1, "number"),
    Form(130, 0, 1, "binary"),
    Form(3, 2, 1, "binary", ordered=True),
)
_CLIENTS, _ROWS = 12, 8
Messages = Callable[[TableQuestion, Rows], Array]  # (n, width) messages of clients


def check_questions(messages: Messages = TableQuestion.messages, *, seed: int = 0) -> list[Finding]:
    """Every question of every kind of table, on extreme rows and on facts that no honest server would send.

    Deterministic. A message must have length at most 1, each of its parts at most the stated length, and not a bit may
    change with the rows of other clients.
    """
    findings = []
    for place, (name, _) in enumerate(STAGES):
        long, beside = "", ""
        for form in FORMS:
            for scale in (1.0, 1e6):
                question, rows = TableQuestion(form, place, told(form, seed, scale)), odd_rows(form, seed, scale)
                sent = messages(question, rows)
                long = long or _too_long(question, sent)
                beside = beside or _depends(question, rows, sent, messages)
        claim = "no message is longer than 1, no part longer than stated"
        findings.append(Finding(SUBJECT, name, claim, long or "holds, on far rows and any facts", not long))
        claim = "an answer depends on the client's own rows alone"
        findings.append(Finding(SUBJECT, name, claim, beside or "holds, to the bit", not beside))
    return findings


def check_learning(learn: Callable[..., Questionnaire] = Questionnaire.updated, *, seed: int = 0) -> Finding:
    """The server's knowledge after each round follows from sums and public constants: equal sums teach the same.

    The sums are pure noise, so that any other source would show. Each sum must also be used in its own round: a longer
    sum must change the result in every stage.
    """
    form, wrong = FORMS[0], ""
    first, second, other = (Questionnaire(form) for _ in range(3))
    rng = np.random.default_rng(seed)
    for t in range(form.num_rounds):
        total = 20 * rng.standard_normal(form.width)
        about = {"noise": 6.0, "count_noise": 24.0, "expected": 1000.0}
        first, second = learn(first, t, total, 1000.0, **about), learn(second, t, total, 1000.0, **about)
        other = learn(other, t, 2 * total, 1000.0, **about)
        pairs = zip(first.tensors().values(), second.tensors().values(), strict=True)
        if not all(np.array_equal(*pair) for pair in pairs):
            wrong = wrong or f"round {t} changed something that its sum does not determine"
    if np.array_equal(first.tensors()["questionnaire.second"], other.tensors()["questionnaire.second"]):
        wrong = wrong or "sums of twice the length change nothing"
    return Finding(
        SUBJECT, "learning", "the server's knowledge is a function of noisy sums", wrong or "holds", not wrong
    )


def check_asked_runs(*, seed: int = 0) -> Finding:
    """Whole runs on fixed releases, half of the clients absent or changed: all other answers stay equal, bit for bit.

    Deterministic; clients are computed together, and one by one as in secure runs. The server's knowledge must be equal
    to the bit as well, since it is made of releases alone.
    """
    wrong, even = "", np.arange(0, _CLIENTS, 2)
    for secure in (False, True):
        first = _asked_run(seed, np.arange(_CLIENTS), secure=secure)
        releases = [made for _, made in first[0].raw]
        for others, cohort in ((0, even), (1, np.arange(_CLIENTS))):
            again = _asked_run(seed, cohort, secure=secure, others=others, canned=releases)
            for t, (one, two) in enumerate(zip(first[0].raw, again[0].raw, strict=True)):
                answers = [dict(zip(sent.client_ids, sent.updates, strict=True)) for sent, _ in (one, two)]
                if not all(np.array_equal(answers[0][client], answers[1][client]) for client in even):
                    wrong = wrong or f"answers of others differ in round {t}"
            if not all(np.array_equal(*pair) for pair in zip(first[1], again[1], strict=True)):
                wrong = wrong or "equal releases lead to different knowledge"
    claim = "answers depend on the client alone, knowledge on releases alone"
    return Finding(SUBJECT, "asked runs", claim, wrong or "holds, to the bit, over whole runs", not wrong)


def _asked_run(
    seed: int, cohort: Array, *, secure: bool, others: int = 0, canned: Sequence[Release] = ()
) -> tuple[Recorder, list[Array]]:
    """A recorded run on a small table, and the tensors it learnt; `others` sets every second client's rows."""
    inputs, labels = [], []
    for client in range(_CLIENTS):
        rng = np.random.default_rng([seed, client, others * (client % 2)])
        values = rng.normal(size=(2 + client % 5 + 3 * others * (client % 2), 3)) * 10.0 ** rng.integers(-2, 4, size=3)
        codes = rng.integers(0, 3, size=values.shape) * (rng.random(values.shape) < 0.2)
        inputs.append(np.concatenate([np.where(codes > 0, np.nan, values), codes], axis=1))
        labels.append(rng.integers(0, 2, size=len(values)))
    columns = TableColumns(("a", "b", "c"), 2, (None,) * 3)
    data = from_arrays(inputs, labels, num_classes=2, name="audit-table", columns=columns)
    data = replace(data, ordered=not secure)
    options: dict[str, Any] = {"algorithm": "mixed-effects", "num_rounds": FEWEST_ROUNDS, "noise_multiplier": 0.02}
    options |= {"num_clients": _CLIENTS, "delta": 0.01, "secure": secure, "participation": "everybody"}
    experiment = build_experiment(data=data, **options)
    recorder = Recorder(experiment.plan.mechanism, cohorts=[cohort], canned=canned)
    watched = replace(experiment, plan=replace(experiment.plan, mechanism=recorder))
    ledger = Ledger(secure=secure)
    tensors = [r.state.learnt.values() for r in watched.rounds(checkpoint=Checkpoint(), ledger=ledger)]
    return recorder, [values for round_ in tensors for values in round_]


def told(form: Form, seed: int, scale: float) -> Facts:
    """Facts of the right shapes with arbitrary numbers."""
    rng = np.random.default_rng(seed)
    a = form.num_encoded
    families, low = form.families_of(a), -scale * rng.random(form.num_ranges)
    return Facts(
        low=low,
        high=low + scale * rng.random(form.num_ranges),
        knee=rng.integers(0, 2, form.num_ranges) * rng.random(form.num_ranges),
        density=np.array([0.5]),
        active=np.arange(a, dtype=float),
        middle=0.1 * rng.normal(size=a),
        reach=rng.random((a, 2)),
        centre=0.1 * rng.normal(size=a),
        scale=0.1 + rng.random(a),
        whiten=np.eye(a) * scale if a <= 40 else np.zeros(0),
        target=np.array([0.1, 0.5]) if form.kind == "number" else np.zeros(0),
        length=np.array([1.0 + a]),
        axes=scale * rng.normal(size=(a, AXES)),
        centres=rng.normal(size=(sum(families) - 1, AXES)),
        first=scale * rng.normal(size=(sum(families), form.num_outputs, 1 + a)),
        second=scale * rng.normal(size=(families[-1], form.num_outputs, 1 + a)),
        chosen=np.array([families[-1], 0.5, 0.2]),
    )


def odd_rows(form: Form, seed: int, scale: float) -> Rows:
    """Clients with extreme numbers, missing cells, texts and few rows."""
    rng = np.random.default_rng(seed)
    values = scale * rng.normal(size=(_CLIENTS, _ROWS, form.num_columns))
    values[rng.random(values.shape) < 0.1] = np.nan
    mask = (np.arange(_ROWS) < rng.integers(0, _ROWS + 1, size=_CLIENTS)[:, None]).astype(float)
    padded = mask[..., None]
    codes = None
    if form.buckets:
        codes = rng.integers(0, form.buckets + 1, size=values.shape) * np.isnan(values) * padded
    labels = rng.integers(0, max(form.num_outputs, 2), size=(_CLIENTS, _ROWS))
    targets = np.eye(form.num_outputs)[labels] if form.kind == "classes" else scale * labels[..., None]
    if form.kind == "binary":
        targets = labels[..., None].astype(float)
    return Rows(np.where(padded > 0, values, 0.0), codes, targets * padded, mask)


def _too_long(question: TableQuestion, sent: Array) -> str:
    lengths = np.linalg.norm(sent, axis=1)
    if not np.isfinite(sent).all() or lengths.max() > 1 + 1e-9:
        return f"a message of length {lengths.max():.6g}"
    for name, share, length in _by_part(question, sent):
        if length > share + 1e-9:
            return f"{name} of length {length:.6g}, stated {share:.6g}"
    return ""


def _by_part(question: TableQuestion, sent: Array) -> Iterator[tuple[str, float, float]]:
    """(name, stated length, longest message) of every part."""
    parts = question.form.parts(question.stage, len(question.facts.active) if question.stage else None)
    total, start = math.sqrt(sum(part.weight**2 for part in parts)), 0
    for part in parts:
        longest = np.linalg.norm(sent[:, start : start + part.width], axis=1).max()
        yield part.name, part.weight / total, float(longest)
        start += part.width


def _depends(question: TableQuestion, rows: Rows, sent: Array, messages: Messages) -> str:
    for client in range(_CLIENTS):
        place = slice(client, client + 1)
        codes = None if rows.codes is None else rows.codes[place]
        alone = messages(question, Rows(rows.values[place], codes, rows.targets[place], rows.mask[place]))
        if not np.array_equal(alone[0], sent[client]):
            return "an answer differs when others are computed with it"
    return ""
