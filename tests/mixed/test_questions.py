"""Questions: a public list, messages of length at most 1 whatever a server asks, and answers of one client's rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rrcluster.mixed.answers import Rows, TableQuestion, from_upper, upper
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questions import AXES, STAGES, Form, packed

FORMS = {
    "binary": Form(3, 2, 1, "binary", num_rounds=40),
    "classes": Form(3, 0, 4, "classes", num_rounds=40),
    "number": Form(3, 0, 1, "number", num_rounds=40),
    "ordered": Form(3, 2, 1, "binary", num_rounds=40, ordered=True),
    "many columns": Form(130, 0, 1, "binary", num_rounds=40),
}


def rows(form, *, n=6, s=8, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    values = scale * rng.normal(size=(n, s, form.num_columns))
    values[rng.random(values.shape) < 0.1] = np.nan
    codes = None
    if form.buckets:
        codes = rng.integers(0, form.buckets + 1, size=values.shape).astype(float) * np.isnan(values)
    mask = (np.arange(s) < rng.integers(1, s + 1, size=n)[:, None]).astype(float)
    if form.kind == "classes":
        targets = np.eye(form.num_outputs)[rng.integers(0, form.num_outputs, size=(n, s))]
    else:
        targets = rng.integers(0, 2, size=(n, s, 1)).astype(float)
    padded = mask[..., None]
    return Rows(np.where(padded > 0, values, 0), codes if codes is None else codes * padded, targets * padded, mask)


def facts(form, *, seed=0, scale=1.0):
    """Any that a server might tell."""
    rng = np.random.default_rng(seed)
    active = np.arange(form.num_encoded, dtype=float)
    a, families = len(active), form.families_of(form.num_encoded)
    low = -scale * rng.random(form.num_ranges) - 0.1
    return Facts(
        low=low,
        high=low + scale * rng.random(form.num_ranges) + 0.1,
        knee=rng.integers(0, 2, form.num_ranges) * rng.random(form.num_ranges),
        density=np.array([0.5]),
        active=active,
        middle=0.1 * rng.normal(size=a),
        reach=rng.random((a, 2)),
        centre=0.1 * rng.normal(size=a),
        scale=0.1 + rng.random(a),
        whiten=np.eye(a) + 0.1 * rng.normal(size=(a, a)) * scale if a <= 40 else np.zeros(0),
        target=np.array([0.1, 0.5]) if form.kind == "number" else np.zeros(0),
        length=np.array([1.0 + a]),
        axes=scale * rng.normal(size=(a, AXES)),
        centres=rng.normal(size=(sum(families) - 1, AXES)),
        first=scale * rng.normal(size=(sum(families), form.num_outputs, 1 + a)),
        second=scale * rng.normal(size=(families[-1], form.num_outputs, 1 + a)),
        chosen=np.array([families[-1], 0.5, 0.2]),
    )


def questions(form, **about):
    return [TableQuestion(form, stage, facts(form, **about)) for stage in range(len(STAGES))]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_no_message_is_longer_than_one_whatever_is_told_and_whatever_rows_hold(name, scale):
    form = FORMS[name]
    for seed in range(3):
        for question in questions(form, seed=seed, scale=scale):
            messages = question.messages(rows(form, seed=seed, scale=scale))
            assert messages.shape == (6, form.width)
            assert np.isfinite(messages).all()
            assert np.linalg.norm(messages, axis=1).max() <= 1 + 1e-12
            asks = len(form.families) > 1 or STAGES[question.stage][0] not in ("map", "centres")
            assert (np.abs(messages).max() > 0) == asks, question.stage


def test_rows_that_are_no_numbers_send_nothing_rather_than_something_long():
    form = FORMS["number"]
    own = rows(form)
    broken = replace(own, targets=1e300 * own.targets)
    for question in questions(form):
        messages = question.messages(broken)
        assert np.isfinite(messages).all()
        assert np.linalg.norm(messages, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_no_bit_of_an_answer_depends_on_the_other_clients(name, size):
    form, own = FORMS[name], rows(FORMS[name], n=9, s=size)
    for question in questions(form):
        together = question.messages(own)
        for place in range(9):
            part = slice(place, place + 1)
            codes = None if own.codes is None else own.codes[part]
            alone = question.messages(Rows(own.values[part], codes, own.targets[part], own.mask[part]))
            assert (alone[0] == together[place]).all(), (STAGES[question.stage], place)


def test_the_list_of_questions_is_public_and_fills_the_rounds():
    for num_rounds in (18, 25, 40, 97):
        form = replace(FORMS["binary"], num_rounds=num_rounds)
        stages = [form.stage(t) for t in range(num_rounds)]
        assert sorted(set(stages)) == list(range(len(STAGES)))
        assert stages == sorted(stages)
        assert [stages.count(stage) for stage in range(len(STAGES))] == [form.rounds(s) for s in range(len(STAGES))]
    assert [FORMS["binary"].rounds(stage) for stage in range(len(STAGES))] == [share for _, share in STAGES]


def test_parts_share_a_message_by_their_weights():
    form = FORMS["classes"]
    for stage in range(len(STAGES)):
        parts = form.parts(stage, 3)
        full = {part.name: (np.full((1, part.width), 1e9), 1.0) for part in parts}
        message, start, total = packed(parts, full, count=1, width=form.width)[0], 0, 0.0
        lengths = [part.weight for part in parts]
        for part in parts:
            own = np.linalg.norm(message[start : start + part.width])
            assert own == pytest.approx(part.weight / math.hypot(*lengths))
            start, total = start + part.width, total + own**2
        assert total == pytest.approx(1.0)
        assert (message[start:] == 0).all()


def test_held_out_rows_are_the_newest_and_are_in_no_training_or_description():
    form, own = FORMS["ordered"], rows(FORMS["ordered"], s=8)
    held = (own.mask - own.older())[..., None]
    assert (held.sum(axis=(1, 2)) == np.where(own.mask.sum(axis=1) > 1, np.ceil(own.mask.sum(axis=1) / 4), 0)).all()
    changed = replace(own, values=np.where(held > 0, 50.0, own.values), targets=np.where(held > 0, 1, own.targets))
    for question in questions(form):
        same = (question.messages(own) == question.messages(changed)).all()
        assert same == (STAGES[question.stage][0] in ("map", "centres", "first training")), STAGES[question.stage]


def test_moments_travel_with_their_length():
    square = np.random.default_rng(0).normal(size=(1, 5, 5))
    square = square + square.transpose(0, 2, 1)
    assert np.allclose(from_upper(upper(square)[0], 5), square[0])
    assert np.isclose(np.linalg.norm(upper(square)), np.linalg.norm(square))
