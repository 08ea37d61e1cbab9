"""Rounds over messages are the simulator's rounds, bit for bit, and a member that misbehaves has dropped out."""

from dataclasses import replace

import numpy as np
import pytest
from federation_lab import ROUNDS, SECURE, agree, daemons_of, deployed_rounds, experiment_of
from torch import nn

from rrcluster import registry
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import PrivacyError, RoundError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.collect import InProcess
from rrcluster.federation.messages import Letter, decode
from rrcluster.privacy.ledger import Ledger
from rrcluster.simulation.clients import Faults

CHANGES = {"min_cluster_size": 3, "private_evaluation": 0.2}


@pytest.fixture(scope="module")
def experiment():
    return experiment_of(**CHANGES)


@pytest.fixture(scope="module")
def agreement():
    return agree(**CHANGES)


def rounds_over(transport, agreed):
    return list(deployed_rounds(agreed, transport))


def test_rounds_over_messages_are_those_of_the_simulator(experiment, agreement, tmp_path):
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    over_messages = rounds_over(InProcess(daemons), agreed)
    simulated = list(experiment.rounds())
    assert len(over_messages) == len(simulated) == ROUNDS
    for one, other in zip(over_messages, simulated, strict=True):
        np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
        np.testing.assert_array_equal(one.release.sizes, other.release.sizes)
        np.testing.assert_array_equal(one.release.evaluation.sums, other.release.evaluation.sums)
        np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)


def test_what_clients_remember_stays_with_their_member(tmp_path):
    experiment = experiment_of(algorithm="fesem")
    agreed, daemons = daemons_of(agree(algorithm="fesem"), experiment.data, tmp_path)
    over_messages = rounds_over(InProcess(daemons), agreed)
    simulated = list(experiment.rounds())
    np.testing.assert_array_equal(over_messages[-1].state.models.clustered, simulated[-1].state.models.clustered)
    known = {client for daemon in daemons.values() for client in daemon.memory.rows}
    assert known == set(simulated[-1].memory.rows)


class Misbehaving:
    def __init__(self, daemon, change):
        self.daemon, self.change = daemon, change

    def answer(self, content):
        return self.change(self.daemon.answer(content))


def other_clients(content):
    letter = decode(content, longest=10**9)
    return replace(letter, arrays={**letter.arrays, "clients": letter.arrays["clients"] * 0}).encode()


@pytest.mark.parametrize(
    "change",
    [lambda _: b"", lambda content: content[:-1], lambda _: Letter("refused").encode(), other_clients],
    ids=["nothing", "cut", "refused", "clients of others"],
)
def test_a_member_that_answers_nonsense_has_dropped_out(experiment, agreement, tmp_path, change):
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    spoilt = {**daemons, 1: Misbehaving(daemons[1], change)}
    with_nonsense = rounds_over(InProcess(spoilt), agreed)
    gone = Gone(range(20, 45))
    without = list(replace(experiment, faults=gone).rounds())
    np.testing.assert_array_equal(with_nonsense[-1].state.models.clustered, without[-1].state.models.clustered)


class Gone(Faults):
    """A simulator whose clients of one member drop out of every round."""

    def __init__(self, clients):
        super().__init__()
        object.__setattr__(self, "clients", sorted(clients))

    def remaining(self, clients, *, streams, round_index):
        return clients[~np.isin(clients, self.clients)]


@pytest.mark.parametrize(
    "changes",
    [
        {"participation": "schedule", "slots": 2, "num_rounds": 4},
        {"mechanism": "identifier", "algorithm": "ifca", "num_rounds": 2, "sample_rate": 0.5},
    ],
    ids=["schedule", "identifier"],
)
def test_other_participations_and_mechanisms_are_the_simulators_too(tmp_path, changes):
    experiment = experiment_of(**changes)
    agreed, daemons = daemons_of(agree(**changes), experiment.data, tmp_path)
    over_messages, simulated = rounds_over(InProcess(daemons), agreed), list(experiment.rounds())
    for one, other in zip(over_messages, simulated, strict=True):
        np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)


def test_a_seeded_round_that_was_charged_is_not_asked_for_again(experiment, agreement, tmp_path):
    """Members may answer otherwise after a crash, and the same noise on two sums uncovers their difference."""
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    ledger = Ledger(limit=agreed.num_releases)
    first = next(deployed_rounds(agreed, InProcess(daemons), ledger=ledger))
    again = deployed_rounds(agreed, InProcess(daemons), ledger=ledger)
    with pytest.raises(PrivacyError, match="was charged before a crash"):
        next(again)
    later = deployed_rounds(agreed, InProcess(daemons), ledger=ledger, state=first.state)
    assert next(later).round_index == 1


@pytest.mark.parametrize("gone", [{0, 1, 2}, {0, 2}])
def test_a_round_with_fewer_than_the_agreed_members_is_not_charged(experiment, agreement, tmp_path, gone):
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    assert agreement.least_members == 2  # more than half of three
    ledger = Ledger(limit=agreed.num_releases)
    with pytest.raises(RoundError, match=r"was not charged: [01] of 3 members take part, and 2 were agreed on"):
        next(deployed_rounds(agreed, InProcess(daemons, gone=frozenset(gone)), ledger=ledger))
    assert ledger.num_charged == 0
    two = InProcess(daemons, gone=frozenset({0}))
    assert len(list(deployed_rounds(agreed, two, ledger=ledger, next_attempt=iter(range(9, 99)).__next__))) == ROUNDS


def test_members_that_refuse_every_attempt_end_the_training(experiment, agreement, tmp_path):
    """They are there, and their ledgers say no: another attempt does not help."""
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    same, ledger = (lambda: 0), Ledger(limit=agreed.num_releases)
    rounds = deployed_rounds(agreed, InProcess(daemons), ledger=ledger, next_attempt=same, patience=60)
    first = next(rounds)
    for daemon in daemons.values():
        daemon.ledger.join(agreement.digest, ROUNDS - 1, 1000, limit=99)
    later = deployed_rounds(
        agreed, InProcess(daemons), ledger=ledger, next_attempt=same, state=first.state, patience=60
    )
    with pytest.raises(RoundError, match="round 1 was not charged: 0 of 3 members take part"):
        next(later)
    assert ledger.num_charged == 1


class Says:
    """A member whose daemon, or node, answers everything with one word."""

    def __init__(self, word):
        self.word = word

    def answer(self, _):
        return Letter(self.word).encode()


@pytest.mark.parametrize("word", ["refused", "away"])
def test_members_that_decline_are_not_connected(experiment, agreement, tmp_path, word):
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    ledger = Ledger(limit=agreed.num_releases)
    with pytest.raises(RoundError, match="1 of 3 members take part"):
        next(deployed_rounds(agreed, InProcess({0: daemons[0], 1: Says(word), 2: Says(word)}), ledger=ledger))
    assert ledger.num_charged == 0


def test_members_that_stay_connected_and_say_nothing_have_dropped_out(experiment, agreement, tmp_path):
    """What a daemon computes may take it long: whether a round is charged must not depend on that."""
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)

    class Slow(InProcess):
        def stayed(self):
            return set(self.gone)

    assert len(rounds_over(Slow(daemons, gone=frozenset({0, 1, 2})), agreed)) == ROUNDS


def test_a_round_waits_for_members_that_come_back(experiment, agreement, tmp_path):
    """A cable that is out for five messages costs an attempt and no charge; the models are the simulator's."""
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)

    class Cable(InProcess):
        left, attempts = 5, 0

        def ask(self, messages):
            letters = [decode(content, longest=10**9) for content in messages.values()]
            Cable.attempts += any(letter.name == "train" for letter in letters)
            Cable.left -= 1
            return {} if Cable.left >= 0 else super().ask(messages)

    ledger = Ledger(limit=agreed.num_releases)
    finished = list(deployed_rounds(agreed, Cable(daemons), ledger=ledger, patience=60))
    assert (ledger.num_charged, Cable.attempts) == (ROUNDS, ROUNDS + 1)
    simulated = list(experiment.rounds())
    np.testing.assert_array_equal(finished[-1].state.models.clustered, simulated[-1].state.models.clustered)


def test_a_daemon_refuses_without_a_word(experiment, agreement, tmp_path, caplog):
    agreed, daemons = daemons_of(agreement, experiment.data, tmp_path)
    sent = []

    class Recording(InProcess):
        def ask(self, messages):
            sent.append(dict(messages))
            return super().ask(messages)

    rounds_over(Recording(daemons), agreed)
    task = decode(sent[0][0], longest=10**9)
    digest = agreement.digest.hex()
    cases = {
        "replay": sent[0][0],
        "another federation": replace(task, facts={**task.facts, "federation": "00"}).encode(),
        "more rounds than agreed": replace(task, facts={**task.facts, "round": ROUNDS, "federation": digest}).encode(),
        "clients of others": replace(
            task, facts={**task.facts, "round": 7}, arrays={**task.arrays, "clients": np.array([59])}
        ).encode(),
        "another shape": replace(
            task, facts={**task.facts, "round": 8}, arrays={**task.arrays, "shared": np.zeros(3, dtype="f4")}
        ).encode(),
        "no attempt": replace(task, facts={**task.facts, "round": 9, "attempt": -1}).encode(),
        "unknown message": Letter("delete", {"federation": digest}).encode(),
        "nonsense": b"nonsense",
    }
    for name, content in cases.items():
        assert decode(daemons[0].answer(content), longest=1000) == Letter("refused"), name
    assert "not later than the last one joined" in caplog.text  # for the operator
    agreement.check_consent(
        0,
        decode(daemons[0].answer(Letter("hello", {"federation": digest}).encode()), longest=1000)
        .arrays["consent"]
        .tobytes(),
    )


def test_a_server_does_not_choose_what_clients_draw_by_in_a_real_run(tmp_path):
    agreement = agree(secure=True, num_rounds=2)
    agreed, daemons = daemons_of(agreement, experiment_of().data, tmp_path, engine="batched")
    sent = []

    class Recording(InProcess):
        def ask(self, messages):
            sent.append(dict(messages))
            return {}

        def stayed(self):
            return {0, 1, 2}

    next(deployed_rounds(agreed, Recording(daemons)))
    letter = decode(sent[0][0], longest=10**9)
    assert letter.facts["keys"] is None
    keys = {"batches": [1, 2], "choice": [3, 4], "coin": [5, 6]}
    chosen = replace(letter, facts={**letter.facts, "keys": keys})
    assert decode(daemons[0].answer(chosen.encode()), longest=10**9) == Letter("refused")
    assert daemons[0].ledger.joined(agreement.digest) == 0
    assert decode(daemons[0].answer(letter.encode()), longest=10**9).name == "report"


@pytest.mark.parametrize("mode", ["plain", "secure"])
def test_members_compute_a_network_of_ones_own_one_client_at_a_time(mode):
    brought = registry.Entry("brought", lambda shape, outputs: nn.Sequential(nn.Flatten(), nn.Linear(784, outputs)), "")
    registry.MODELS.register(brought)
    try:
        agreement = agree(mode=mode, model="brought", **SECURE)
        assert isinstance(AgreedRun.build(agreement).side.engine, ReferenceEngine)
        with pytest.raises(PrivacyError, match="engine = batched computes clients of brought with one copy"):
            AgreedRun.build(agreement, engine="batched")
    finally:
        registry.MODELS.unregister("brought")
