"""Rounds over messages are the simulator's rounds, bit for bit, and a member that misbehaves has dropped out."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.client import ClientSide
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.experiments.setup import build_experiment
from rrcluster.federation.agreement import Agreement, Member
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.collect import InProcess, PlainCollect
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.wire import Letter, decode
from rrcluster.privacy.ledger import Ledger
from rrcluster.server import run_rounds
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.simulate import make_server

ROUNDS, COUNTS = 3, (20, 25, 15)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 4)]


def experiment_of(**changes):
    settings = {
        "data": "fashion-mini",
        "num_clients": sum(COUNTS),
        "samples_per_client": 8,
        "num_clusters": 2,
        "num_rounds": ROUNDS,
        "noise_multiplier": 1.0,
        "sample_rate": 0.5,
        "local_epochs": 1,
        "delta": 1e-3,
        "engine": "reference",
    }
    return build_experiment(**{**settings, **changes})


@pytest.fixture(scope="module")
def experiment():
    return experiment_of(min_cluster_size=3, private_evaluation=0.2)


def hosted(data, first, count):
    """The clients of one member as a population of its own."""

    class Part:
        def client(self, client):
            return data.store.client(first + client)

    rows = slice(first, first + count)
    return replace(data, sizes=data.sizes[rows], groups=data.groups[rows], test_of=data.test_of[rows], store=Part())


def federation(experiment, folder):
    members = tuple(
        Member(f"member {place}", key.public_key().public_bytes_raw(), count)
        for place, (key, count) in enumerate(zip(KEYS, COUNTS, strict=True))
    )
    agreement = Agreement(experiment.config.flat(), members, least_honest=2, most_colluders=0)
    side = ClientSide(
        experiment.algorithm,
        experiment.split,
        ReferenceEngine(experiment.model),
        experiment.local,
        experiment.plan.mechanism,
    )
    daemons = {
        place: Daemon(
            place,
            agreement,
            KEYS[place],
            hosted(experiment.data, agreement.first_client(place), count),
            side,
            ClientLedger(folder / f"member-{place}.jsonl"),
            experiment.plan.num_releases,
            ClientMemory(experiment.algorithm.memory_width(experiment.model)),
        )
        for place, count in enumerate(COUNTS)
    }
    return agreement, daemons


def rounds_over(transport, agreement, experiment):
    server = make_server(
        model=experiment.model,
        algorithm=experiment.algorithm,
        plan=experiment.plan,
        settings=experiment.server,
        streams=experiment.streams,
    )
    collect = PlainCollect(agreement, experiment.plan, transport, experiment.streams)
    ledger = Ledger(limit=experiment.plan.num_releases)
    return list(run_rounds(server, collect, state=server.first_state(), ledger=ledger, streams=experiment.streams))


def test_rounds_over_messages_are_those_of_the_simulator(experiment, tmp_path):
    agreement, daemons = federation(experiment, tmp_path)
    over_messages = rounds_over(InProcess(daemons), agreement, experiment)
    simulated = list(experiment.rounds())
    assert len(over_messages) == len(simulated) == ROUNDS
    for one, other in zip(over_messages, simulated, strict=True):
        np.testing.assert_array_equal(one.release.cluster_sums, other.release.cluster_sums)
        np.testing.assert_array_equal(one.release.sizes, other.release.sizes)
        np.testing.assert_array_equal(one.release.evaluation.sums, other.release.evaluation.sums)
        np.testing.assert_array_equal(one.state.models.clustered, other.state.models.clustered)


def test_what_clients_remember_stays_with_their_member(tmp_path):
    experiment = experiment_of(algorithm="fesem")
    agreement, daemons = federation(experiment, tmp_path)
    over_messages = rounds_over(InProcess(daemons), agreement, experiment)
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
def test_a_member_that_answers_nonsense_has_dropped_out(experiment, tmp_path, change):
    agreement, daemons = federation(experiment, tmp_path / "a")
    spoilt = {**daemons, 1: Misbehaving(daemons[1], change)}
    with_nonsense = rounds_over(InProcess(spoilt), agreement, experiment)
    agreement, daemons = federation(experiment, tmp_path / "b")
    without = rounds_over(InProcess(daemons, gone=frozenset({1})), agreement, experiment)
    np.testing.assert_array_equal(with_nonsense[-1].state.models.clustered, without[-1].state.models.clustered)


def test_a_round_that_nobody_answers_is_released_all_the_same(experiment, tmp_path):
    agreement, daemons = federation(experiment, tmp_path)
    finished = rounds_over(InProcess(daemons, gone=frozenset({0, 1, 2})), agreement, experiment)
    assert len(finished) == ROUNDS


def test_a_daemon_refuses_without_a_word(experiment, tmp_path, caplog):
    agreement, daemons = federation(experiment, tmp_path)
    sent = []

    class Recording:
        def ask(self, messages):
            sent.append(dict(messages))
            return InProcess(daemons).ask(messages)

    rounds_over(Recording(), agreement, experiment)
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
