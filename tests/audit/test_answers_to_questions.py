"""The audit of questions passes, and finds a mistake planted in each of them."""

import numpy as np
import pytest

from rrcluster.audit.answers_to_questions import check_learning, check_questions
from rrcluster.mixed import answers
from rrcluster.mixed.answers import TableQuestion
from rrcluster.mixed.questionnaire import Questionnaire
from rrcluster.mixed.questions import STAGES, packed


def failed(findings):
    return {(finding.check, finding.claim) for finding in findings if not finding.holds}


def test_the_questions_pass():
    assert not failed(check_questions())
    assert check_learning().holds


def without_clip(part, stage):
    """`packed` with one part as long as the client's answer is, and nothing clipped afterwards."""

    def plant(parts, given, *, count, width):
        names = [own.name for own in parts]
        message = packed(parts, given, count=count, width=width)
        if part in names and part in given:
            start = sum(own.width for own in parts[: names.index(part)])
            flat = given[part][0].reshape(count, -1)
            message[:, start : start + flat.shape[1]] = flat / given[part][1]
        return message

    return plant


@pytest.mark.parametrize(
    ("part", "stage"),
    [
        ("rows", "moments"),
        ("means", "moments"),
        ("moves of 2", "centres"),
        ("gradient of 1", "first training"),
        ("gradient", "second training"),
    ],
)
def test_a_part_that_is_not_clipped_is_found(part, stage, monkeypatch):
    monkeypatch.setattr(answers, "packed", without_clip(part, stage))
    assert stage in {check for check, _ in failed(check_questions())}


@pytest.mark.parametrize("stage", ["first choice", "last choice"])
def test_losses_that_are_not_clipped_are_found(stage, monkeypatch):
    monkeypatch.setattr(answers, "packed", without_clip("gains", stage))
    assert stage in {check for check, _ in failed(check_questions())}


@pytest.mark.parametrize("stage", ["coarse ranges", "fine ranges", "map"])
def test_a_vote_that_counts_twice_is_found(stage):
    def twice(question, rows):
        sent = question.messages(rows)
        return 2 * sent if STAGES[question.stage][0] == stage else sent

    assert {check for check, _ in failed(check_questions(twice))} == {stage}


def test_parts_divided_for_another_round_are_found(monkeypatch):
    def of_another_round(parts, given, *, count, width):
        message = packed(
            parts[:1], {parts[0].name: given[parts[0].name]} if parts[0].name in given else {}, count=count, width=width
        )
        return message if len(parts) > 1 else packed(parts, given, count=count, width=width)

    monkeypatch.setattr(answers, "packed", of_another_round)
    assert {"coarse ranges", "moments", "first training"} <= {check for check, _ in failed(check_questions())}


def test_an_answer_that_looks_at_others_is_found():
    def centred(question, rows):
        sent = question.messages(rows)
        return sent - 0.01 * sent.mean(axis=0) if STAGES[question.stage][0] == "centres" else sent

    found = failed(check_questions(centred))
    assert ("centres", "an answer depends on the client's own rows alone") in found


def test_centres_from_means_that_are_not_released_are_found():
    raw = iter(np.random.default_rng(0).normal(size=1000))

    def peeking(state, round_index, *given, **about):
        learnt = Questionnaire.updated(state, round_index, *given, **about)
        if round_index + 1 == learnt.form.ends[4]:
            from dataclasses import replace

            return replace(learnt, facts=replace(learnt.facts, centres=learnt.facts.centres + next(raw)))
        return learnt

    assert not check_learning(peeking).holds


def test_a_server_that_ignores_its_sums_is_found():
    def deaf(state, round_index, released, *given, **about):
        return Questionnaire.updated(state, round_index, np.ones_like(released), *given, **about)

    assert not check_learning(deaf).holds


def test_messages_are_the_questions_own():
    assert check_questions.__defaults__ == (TableQuestion.messages,)
