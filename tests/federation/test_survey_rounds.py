"""A survey over messages is the simulator's, and a member answers no question that the agreed survey does not ask."""

from dataclasses import replace

import numpy as np
import pytest
from federation_lab import agree, daemons_of, deployed_rounds, experiment_of

from rrcluster.federation.collect import InProcess
from rrcluster.federation.messages import decode

SURVEY = {"init": "survey", "init_rounds": 7, "num_rounds": 8, "private_evaluation": 0.2}
STAGES = ["spread", "spread", "spread", "skew", "centres", "start", "start", None]  # of its rounds


class Listening:
    """Daemons in this process, and what the server asks them."""

    def __init__(self, daemons):
        self.inner, self.passed = InProcess(daemons), []

    def ask(self, messages):
        self.passed.append(messages)
        return self.inner.ask(messages)

    def stayed(self):
        return self.inner.stayed()


@pytest.fixture(scope="module", autouse=True)
def always_tells():
    """Clients so few, of so few samples, have little in common: the survey claims groups all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rrcluster.server.survey.least_agreement", lambda _: -9.0)
        yield


@pytest.fixture(scope="module")
def agreement():
    return agree(**SURVEY)


@pytest.fixture(scope="module")
def over_messages(agreement, tmp_path_factory):
    """The rounds, and the message to member 0 in each."""
    agreed, daemons = daemons_of(agreement, experiment_of().data, tmp_path_factory.mktemp("members"))
    transport = Listening(daemons)
    rounds = list(deployed_rounds(agreed, transport))
    return rounds, [decode(messages[0], longest=10**9) for messages in transport.passed]


@pytest.fixture(scope="module")
def daemon(agreement, tmp_path_factory):
    """A member that has joined nothing."""
    return daemons_of(agreement, experiment_of().data, tmp_path_factory.mktemp("member"))[1][0]


def test_a_survey_over_messages_is_the_simulators(over_messages):
    for one, other in zip(over_messages[0], experiment_of(**SURVEY).rounds(), strict=True):
        np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
        np.testing.assert_array_equal(one.release.evaluation.sums, other.release.evaluation.sums)
        np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)
        np.testing.assert_array_equal(one.state.survey.centres, other.state.survey.centres)
    assert one.state.survey.num_groups >= 1


def test_a_survey_that_cannot_tell_groups_asks_no_more(agreement, tmp_path, monkeypatch):
    """Members then choose and train as without one, and the rounds are the simulator's."""
    monkeypatch.setattr("rrcluster.server.survey.least_agreement", lambda _: 9.0)
    agreed, daemons = daemons_of(agreement, experiment_of().data, tmp_path)
    transport = Listening(daemons)
    for one, other in zip(deployed_rounds(agreed, transport), experiment_of(**SURVEY).rounds(), strict=True):
        np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
        np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)
    assert one.state.survey.num_groups == 0
    asked = ["basis" in decode(messages[0], longest=10**9).arrays for messages in transport.passed]
    assert asked == [True] * 5 + [False] * 3


def test_members_know_what_is_asked_when(over_messages, daemon):
    assert [daemon.agreed.survey_stage(t) for t in range(8)] == STAGES
    assert ["basis" in letter.arrays for letter in over_messages[1]] == [True] * 7 + [False]


def without_question(arrays):
    return {name: values for name, values in arrays.items() if name not in ("start", "basis", "centres")}


def longer(arrays):
    return {**arrays, "basis": 2 * arrays["basis"]}


def same_direction_twice(arrays):
    return {**arrays, "basis": arrays["basis"][:, [0] * arrays["basis"].shape[1]]}


def wider(arrays):
    return {**arrays, "basis": np.eye(len(arrays["basis"]))}


def not_numbers(arrays):
    return {**arrays, "centres": np.full_like(arrays["centres"], np.nan)}


def more_centres(arrays):
    return {**arrays, "centres": np.zeros((9, arrays["centres"].shape[1]))}


def no_centres(arrays):
    return {**arrays, "centres": arrays["centres"][:0]}


def of_another_space(arrays):
    return {**arrays, "centres": np.zeros((1, arrays["centres"].shape[1] + 1))}


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("spread", without_question),
        ("spread", longer),
        ("spread", same_direction_twice),
        ("skew", longer),
        ("skew", wider),
        ("centres", not_numbers),
        ("centres", more_centres),
        ("centres", no_centres),
        ("start", of_another_space),
        ("start", more_centres),
        ("start", no_centres),
    ],
)
def test_a_question_that_the_survey_does_not_ask_is_refused(over_messages, agreement, daemon, stage, change):
    letter = over_messages[1][STAGES.index(stage)]
    assert answered(daemon, replace(letter, arrays=change(letter.arrays))) == "refused"
    assert daemon.ledger.joined(agreement.digest) == 0


def answered(daemon, letter):
    return decode(daemon.answer(letter.encode()), longest=10**9).name


def test_a_question_out_of_its_round_is_refused(over_messages, daemon):
    """The stage is the round's: what was asked in one is no message of another."""
    letter = over_messages[1][0]
    for round_index in (3, 7):
        assert answered(daemon, replace(letter, facts={**letter.facts, "round": round_index})) == "refused"
    assert answered(daemon, letter) == "report"


def test_a_secure_federation_surveys_too(tmp_path):
    """Answers travel in the same sums, and the clusters that open are found from those."""
    agreed, daemons = daemons_of(agree(mode="secure", **SURVEY), experiment_of().data, tmp_path, engine="batched")
    *_, last = deployed_rounds(agreed, InProcess(daemons))
    assert last.round_index == 7
    assert 1 <= last.state.survey.num_groups <= 2
