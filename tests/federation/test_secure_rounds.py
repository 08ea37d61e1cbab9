"""Secure rounds over messages: the server's sum is that of messages and shares, and nothing else is answered."""

import logging
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from federation_lab import agree, daemons_of, deployed_rounds, experiment_of, members
from hypothesis import given, settings
from hypothesis import strategies as st

from rrcluster.client import ClientKeys
from rrcluster.errors import ConfigError, PrivacyError, RoundError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.collect import InProcess, SecureCollect
from rrcluster.federation.messages import Letter, decode
from rrcluster.federation.secagg.secure_client import SecureClient
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.ledger import Ledger
from rrcluster.rng import Streams
from rrcluster.server.server import Charge, RoundServer
from rrcluster.simulation.simulate import make_server

STAGES = ("advertise", "share", "mask", "sign", "reveal")


CHANGES = {"min_cluster_size": 3, "private_evaluation": 0.2}


@pytest.fixture(scope="module")
def data():
    return experiment_of().data


@pytest.fixture(scope="module")
def agreement():
    return agree(mode="secure", **CHANGES)


@pytest.fixture
def secure_federation(agreement, data, tmp_path):
    return daemons_of(agreement, data, tmp_path, engine="batched")


class Listening:
    """A transport that keeps what passes, and from which members go silent, or answer with what `spoil` makes of it."""

    def __init__(self, daemons, *, gone=None, spoil=None):
        self.inner, self.gone, self.spoil, self.passed, self.left = InProcess(daemons), gone or {}, spoil, [], set()

    def ask(self, messages):
        names = {decode(content, longest=10**9).name for content in messages.values()}
        (stage,) = names or {None}
        if stage == "advertise":
            self.left = set()
        self.left |= set(self.gone.get(stage, ()))
        asked = {place: content for place, content in messages.items() if self.spoil or place not in self.left}
        answers = self.inner.ask(asked)
        answers |= {place: self.spoil(answers[place]) for place in self.left.intersection(answers)}
        self.passed.append((stage, dict(messages), answers))
        return answers


def rounds_over(transport, agreed, *, attempt=0):
    numbers = iter(range(attempt, 10**6))
    ledger = Ledger(secure=True, limit=agreed.num_releases)
    return deployed_rounds(agreed, transport, next_attempt=lambda: next(numbers), ledger=ledger)


@pytest.fixture
def recorded(monkeypatch):
    """The messages and shares of every member, by the order in which they were made."""
    made = []
    own_share = SecurePlan.noise_share

    def noise_share(self):
        made.append(own_share(self))
        return made[-1]

    monkeypatch.setattr(SecurePlan, "noise_share", noise_share)
    return made


def test_the_sum_is_exactly_that_of_messages_and_shares(secure_federation, recorded, monkeypatch):
    agreed, daemons = secure_federation
    messages = []
    mechanism = type(agreed.plan.mechanism)
    own = mechanism.sum_messages
    monkeypatch.setattr(
        mechanism, "sum_messages", lambda self, reports: messages.append(own(self, reports)) or messages[-1]
    )
    totals = []
    release_sum = mechanism.release_sum
    monkeypatch.setattr(
        mechanism, "release_sum", lambda self, total: totals.append(total.total) or release_sum(self, total)
    )
    finished = list(rounds_over(Listening(daemons), agreed))
    assert len(finished) == 2
    for t, total in enumerate(totals):
        part = slice(3 * t, 3 * t + 3)
        np.testing.assert_array_equal(total, np.sum(messages[part], axis=0) + np.sum(recorded[part], axis=0))
    assert finished[0].release.sizes.sum() == pytest.approx(60, abs=8 * finished[0].release.size_noise_std)
    assert [daemon.ledger.joined(agreed.agreement.digest) for daemon in daemons.values()] == [2, 2, 2]


def test_a_member_none_of_whose_clients_can_answer_makes_noise_all_the_same(secure_federation, recorded):
    agreed, daemons = secure_federation
    daemons[1].withdrawn = lambda: range(agreed.agreement.num_clients)
    next(rounds_over(Listening(daemons), agreed))
    assert len(recorded) == 3
    assert all(share.std() > agreed.secure.sigma / 2 for share in recorded)


def test_a_rounds_sum_less_its_noise_is_the_simulators(secure_federation, data, monkeypatch):
    """Under the same keys, to the last bit: what members compute is what the simulator does."""
    agreed, daemons = secure_federation
    keys, mechanism, totals = ClientKeys.of_round(Streams(0), 0), agreed.plan.mechanism, []
    monkeypatch.setattr(ClientKeys, "of_round", lambda *_: keys)
    monkeypatch.setattr(SecurePlan, "noise_share", lambda self: np.zeros(self.terms.width, dtype=np.int64))
    release_sum, server_told = type(mechanism).release_sum, []
    monkeypatch.setattr(type(mechanism), "release_sum", lambda self, t: totals.append(t.total) or release_sum(self, t))
    told = RoundServer.tell
    monkeypatch.setattr(
        RoundServer, "tell", lambda self, *a, **k: server_told.append(told(self, *a, **k)) or server_told[-1]
    )
    next(rounds_over(Listening(daemons), agreed))
    everybody = agreed.first_memory().recall(data.cohort(np.arange(60)))
    reports, _ = agreed.side.answer(server_told[0], everybody, keys)
    np.testing.assert_array_equal(totals[0], mechanism.sum_messages(reports))


class Failing:
    """An engine that cannot train one client."""

    def __init__(self, engine, client):
        self.engine, self.client, self.model = engine, client, engine.model

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def train(self, calls):
        if any(self.client in call.cohort.clients for call in calls):
            raise ArithmeticError("of one client's data")
        return self.engine.train(calls)


def test_a_client_whose_training_fails_takes_nobody_else_out_of_the_sum(secure_federation, monkeypatch):
    agreed, daemons = secure_federation
    side = replace(agreed.side, engine=Failing(agreed.side.engine, 1))
    daemons[0].agreed = replace(agreed, side=side)
    senders = []
    mechanism = type(agreed.plan.mechanism)
    own = mechanism.sum_messages
    monkeypatch.setattr(
        mechanism, "sum_messages", lambda self, reports: senders.append(list(reports.client_ids)) or own(self, reports)
    )
    transport = Listening(daemons)
    next(rounds_over(transport, agreed))
    assert sorted(client for ids in senders for client in ids) == [client for client in range(60) if client != 1]
    assert not any(b"of one client" in content for *_, answers in transport.passed for content in answers.values())


def vanish(agreement, data, folder, stage_of, *, spoil=None):
    """One round from which members go silent at these stages, or send nonsense; exactness of the sum, and charges."""
    count = len(agreement.members)
    agreed, daemons = daemons_of(agreement, data, folder, engine="batched")
    gone = {stage: {place for place in range(count) if stage_of[place] == stage} for stage in STAGES}
    transport, sent, totals = Listening(daemons, gone=gone, spoil=spoil), {}, []
    mechanism, mask = type(agreed.plan.mechanism), SecureClient.mask
    with pytest.MonkeyPatch.context() as patch:
        release_sum = mechanism.release_sum

        def mask_and_keep(self, values, *, task_digest):
            sent[self.place] = values
            return mask(self, values, task_digest=task_digest)

        patch.setattr(SecureClient, "mask", mask_and_keep)
        patch.setattr(
            mechanism, "release_sum", lambda self, total: totals.append(total.total) or release_sum(self, total)
        )
        rounds = rounds_over(transport, agreed)
        masked = [place for place in range(count) if stage_of[place] not in STAGES[:3]]
        if len([stage for stage in stage_of if stage is None]) >= agreed.secure.terms.threshold:
            next(rounds)
            np.testing.assert_array_equal(totals[0], np.sum([sent[place] for place in masked], axis=0))
        else:
            with pytest.raises(RoundError):
                next(rounds)
    charged_stages = [stage for stage, _, _ in transport.passed if stage == "reveal"]
    assert len(charged_stages) <= 1  # once anybody was asked to reveal, there is no second attempt under one charge


@settings(max_examples=15, deadline=None)
@given(stage_of=st.lists(st.sampled_from((*STAGES, None)), min_size=3, max_size=3))
def test_members_may_vanish_in_any_stage(agreement, data, tmp_path_factory, stage_of):
    vanish(agreement, data, tmp_path_factory.mktemp("members"), stage_of)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(stage_of=st.lists(st.sampled_from((*STAGES, None, None, None, None)), min_size=5, max_size=5))
def test_the_sum_of_messages_and_shares_is_exact_for_200_patterns(five, data, tmp_path_factory, stage_of):
    vanish(five, data, tmp_path_factory.mktemp("members"), stage_of)


@pytest.fixture(scope="module")
def five():
    return agree(mode="secure", counts=(12, 12, 12, 12, 12), most_colluders=1, num_rounds=1)


def other_types(content):
    letter = decode(content, longest=10**9)
    return replace(letter, arrays={name: values.astype(np.float64) for name, values in letter.arrays.items()}).encode()


def more_rows(content):
    letter = decode(content, longest=10**9)
    arrays = {name: np.concatenate([values, values[:1]]) for name, values in letter.arrays.items()}
    return replace(letter, arrays=arrays).encode()


@pytest.mark.parametrize("spoil", [other_types, more_rows])
def test_a_member_that_answers_nonsense_is_left_out(agreement, data, tmp_path, spoil):
    for stage in STAGES:
        vanish(agreement, data, tmp_path / stage, [None, stage, None], spoil=spoil)


def test_an_attempt_that_fails_is_followed_by_another_with_new_keys_and_noise(secure_federation, recorded):
    """After their sums were sent: the server is not charged, since nobody was asked to reveal; the members are."""
    agreed, daemons = secure_federation
    transport = Listening(daemons, gone={"sign": {0, 1}})
    ask = transport.ask

    def fail_once(messages):
        answers = ask(messages)
        if transport.passed[-1][0] == "sign":
            transport.gone = {}
        return answers

    transport.ask = fail_once
    ledger, numbers = Ledger(secure=True, limit=2), iter(range(9))
    next(deployed_rounds(agreed, transport, next_attempt=lambda: next(numbers), ledger=ledger))
    stages = [stage for stage, *_ in transport.passed]
    assert stages == [*STAGES[:4], *STAGES]
    assert ledger.num_charged == 1
    assert [daemon.ledger.joined(agreed.agreement.digest) for daemon in daemons.values()] == [2, 2, 2]
    assert len({share.tobytes() for share in recorded}) == 6
    advertised = [
        content for stage, _, answers in transport.passed if stage == "advertise" for content in answers.values()
    ]
    keys = {decode(content, longest=10**4).arrays["mask key"].tobytes() for content in advertised}
    assert len(keys) == 6


def test_a_restarted_server_must_not_repeat_an_attempt(secure_federation, caplog):
    agreed, daemons = secure_federation
    next(rounds_over(Listening(daemons), agreed))
    collect = SecureCollect(agreed, Listening(daemons), most_attempts=1)
    with caplog.at_level(logging.WARNING), pytest.raises(RoundError, match="failed"):
        first_round(collect, agreed)
    assert "not later than the last one joined" in caplog.text
    next(rounds_over(Listening(daemons), agreed, attempt=1))


def first_round(collect, agreed):
    experiment = agreed.experiment
    server = make_server(
        model=experiment.model,
        method=experiment.method,
        plan=agreed.plan,
        settings=experiment.server,
        streams=experiment.streams,
    )
    return collect(server.tell(server.first_state()), Charge(Ledger(secure=True, limit=5), 0, agreed.plan))


def test_a_member_answers_neither_single_reports_nor_a_second_reveal_nor_other_rounds(secure_federation):
    agreed, daemons = secure_federation
    transport = Listening(daemons)
    next(rounds_over(transport, agreed))
    letters = {stage: decode(sent[0], longest=10**9) for stage, sent, _ in transport.passed}
    mask = letters["mask"]
    cases = {
        "single reports": replace(
            mask,
            name="train",
            arrays={
                **{n: v for n, v in mask.arrays.items() if n not in ("places", "envelopes")},
                "clients": np.arange(2),
            },
        ),
        "second reveal": letters["reveal"],
        "second mask": mask,
        "another attempt": replace(letters["sign"], facts={**letters["sign"].facts, "attempt": 9}),
        "changed settings": replace(letters["advertise"], facts={**letters["advertise"].facts, "federation": "ff"}),
        "mistyped": replace(letters["sign"], arrays={"survivors": np.array([0.5, 1.0])}),
    }
    for name, letter in cases.items():
        assert decode(daemons[0].answer(letter.encode()), longest=1000) == Letter("refused"), name


def test_the_ledger_ends_the_federation_for_its_member(secure_federation):
    """Others can unmask what a member has sent, so the ledger must stop it before it sends, not when it reveals."""
    agreed, daemons = secure_federation
    daemons[0].ledger.join(agreed.agreement.digest, 0, 0, limit=agreed.num_releases)  # an attempt that came to nothing
    transport = Listening(daemons)
    rounds = rounds_over(transport, agreed, attempt=1)
    next(rounds)
    next(rounds)  # the other two are enough
    masked = [answers for stage, _, answers in transport.passed if stage == "mask"]
    assert decode(masked[0][0], longest=10**9).name == "masked"
    assert decode(masked[1][0], longest=10**9) == Letter("refused")
    assert daemons[0].ledger.joined(agreed.agreement.digest) == agreed.num_releases


def test_planted_values_are_seen_nowhere(secure_federation):
    """A marker in one member's messages: in no word that leaves it."""
    agreed, daemons = secure_federation
    marker = 12_345_678
    transport = Listening(daemons)
    mechanism = agreed.plan.mechanism

    class Marked(type(mechanism)):
        def sum_messages(self, reports):
            return np.where(np.arange(self.message_width) < 8, marker, super().sum_messages(reports) * 0)

    marked = replace(
        agreed.secure,
        plan=replace(
            agreed.plan, mechanism=Marked(**{own.name: getattr(mechanism, own.name) for own in fields(mechanism)})
        ),
    )
    daemons[1].agreed = replace(agreed, secure=marked)
    next(rounds_over(transport, agreed))
    for _, _, answers in transport.passed:
        for content in answers.values():
            assert marker.to_bytes(4, "little") not in content


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"participation": "poisson"}, "use participation = everybody"),
        ({"secure": False}, "set secure: true"),
        ({"mechanism": "identifier", "participation": "poisson", "algorithm": "ifca"}, "mechanism = joint"),
        ({"participation": "schedule", "slots": 2}, "use participation = everybody"),
        ({"mechanism": "none", "secure": False}, "set secure: true"),
    ],
    ids=["sampled", "seeded", "identifier", "slots", "none"],
)
def test_plans_whose_claim_would_not_hold_are_refused(changes, text):
    with pytest.raises(PrivacyError, match=text):
        agree(mode="secure", **changes)


def test_another_population_and_too_many_clients_are_refused(agreement):
    plan = experiment_of(secure=True, participation="everybody").plan
    with pytest.raises(PrivacyError, match="for 60 clients and the roster has 61"):
        SecurePlan.build(plan, replace(agreement, members=members((20, 25, 16))))
    many = replace(plan, mechanism=replace(plan.mechanism, num_clients=3_000_000))
    with pytest.raises(ConfigError, match="do not fit 32 bits"):
        SecurePlan.build(many, replace(agreement, members=members((10**6,) * 3)))


def test_more_members_than_a_round_was_measured_with_are_refused(agreement):
    plan = AgreedRun.build(agreement).plan
    with pytest.raises(ConfigError, match="1001 members are more than the 1000 of mode = secure; let each host more"):
        SecurePlan.build(plan, SimpleNamespace(members=[None] * 1001, num_clients=1001))


def test_shares_are_for_those_that_must_be_honest(agreement):
    """At least `least_honest` shares have the plan's variance; all three have more."""
    secure = AgreedRun.build(agreement).secure
    std = secure.plan.mechanism.noise_std / secure.plan.mechanism.step
    assert 2 * secure.sigma**2 >= std**2
    assert 2 * (secure.sigma - 2) ** 2 < std**2


def test_what_operators_sign_is_what_shares_allow(agreement):
    """Zero-out, nothing amplified, and the delta of the plan; the numbers of the plan that daemons run."""
    agreed = AgreedRun.build(agreement)
    told = agreement.guarantee
    assert told["adjacency"] == "zero-out"
    assert agreed.plan.event.sample_rate == 1
    assert told["noise_share_sigma"] == agreed.secure.sigma
    assert told["num_releases"] == agreed.num_releases == 2
    assert told["least_survivors"] == agreed.secure.terms.least_survivors
    assert told["epsilon"] == pytest.approx(agreed.plan.epsilon_seen())
    assert "not the members" in told["towards"]  # nobody may collude, and a member knows its own noise
    half = replace(agreed.plan.event, noise_multiplier=agreed.plan.noise_multiplier / np.sqrt(2))
    assert told["epsilon_towards_members"] == pytest.approx(epsilon(half, num_rounds=2, delta=1e-3))
    some = agree((20, 20, 20, 20), mode="secure", most_colluders=1).guarantee
    assert some["towards"] == "everybody, the server included"
    assert some["epsilon_towards_members"] == some["epsilon"] == pytest.approx(told["epsilon"])


def test_the_released_noise_is_what_three_shares_make(secure_federation, monkeypatch):
    """Clients that send zero: what is released is noise, of the std that three shares of three members have."""
    agreed, daemons = secure_federation
    mechanism, width = agreed.plan.mechanism, agreed.secure.terms.width
    monkeypatch.setattr(type(mechanism), "sum_messages", lambda *_: np.zeros(width, dtype=np.int64))
    finished = next(rounds_over(Listening(daemons), agreed))
    noise = finished.release.cluster_sums / (mechanism.step * agreed.secure.sigma * np.sqrt(3))
    assert noise.std() == pytest.approx(1.0, rel=0.05)
