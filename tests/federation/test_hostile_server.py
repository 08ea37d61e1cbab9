"""A server that sends what it likes: other models for every member, guidance made to amplify one client's data."""

from dataclasses import replace

import numpy as np
import pytest
from federation_lab import KEYS, SECURE, agree, daemons_of, deployed_rounds, experiment_of, members

import rrcluster as rr
from rrcluster.client import ClientKeys
from rrcluster.entropy import SecureStreams
from rrcluster.errors import ConfigError, PrivacyError, ProtocolError, RoundError
from rrcluster.federation.agreed_run import AgreedRun, close
from rrcluster.federation.agreement import Agreement, SampleShape
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.collect import InProcess
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.messages import Letter, decode, read_task, task
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.server.server import Guidance
from rrcluster.simulation.simulate import make_server
from rrcluster.types import Models

OWN = {"data": "members", "num_clusters": 2, "noise_multiplier": 1.0, "delta": 1e-3, "local_epochs": 1, **SECURE}
OWN |= {"model": "edges"}  # computed together, its features depend on who else is there
SHAPE, CLIENTS = (1, 28, 28), 16


@pytest.fixture(scope="module")
def real():
    """An agreement on members' own data."""
    return close(Agreement("real", OWN, SampleShape(SHAPE, 10), members((CLIENTS,) * 3), "secure", least_honest=2))


def patients(*, without=()):
    """Clients of one member; each one's samples are its own whoever else is there."""
    rngs = {client: np.random.default_rng([client]) for client in range(CLIENTS) if client not in without}
    sizes = {client: int(rng.integers(5, 30)) for client, rng in rngs.items()}
    inputs = [rng.normal(size=(sizes[client], *SHAPE)).astype(np.float32) for client, rng in rngs.items()]
    targets = [rng.integers(10, size=sizes[client]) for client, rng in rngs.items()]
    return rr.from_arrays(inputs, targets, num_classes=10), np.array(list(rngs))


def first_guidance(agreed):
    experiment = agreed.experiment
    server = make_server(
        model=experiment.model,
        method=experiment.method,
        plan=experiment.plan,
        settings=experiment.server,
        streams=experiment.streams,
    )
    return server.tell(server.first_state())


def tied(guidance: Guidance, factor: float) -> Guidance:
    """Two models between which a client's losses differ in their last bits alone."""
    one = (factor * guidance.models.clustered[0]).astype(np.float32)
    other = one.copy()
    other[::7] = np.nextafter(other[::7], np.float32(np.inf))
    rules = replace(guidance.rules, temperature=0.0, prices=np.zeros(2))
    return replace(guidance, models=Models(guidance.models.shared, np.stack([one, other])), rules=rules)


def test_nobodys_message_depends_on_who_else_is_there_whatever_the_server_sends(real, tmp_path):
    agreed = AgreedRun.build(real)
    keys = ClientKeys.of_round(SecureStreams(), 0)
    daemons = []
    for name, (data, numbers) in {"all": patients(), "without": patients(without=[3])}.items():
        ledger = ClientLedger(tmp_path / f"{name}.jsonl")
        daemons.append((Daemon(0, agreed, KEYS[0], data, ledger, agreed.first_memory(), numbers=numbers), numbers))
    for factor in (1e3, 3e3, 1e4, 3e4, 1e5):  # one pair of models may have no ties
        guidance = tied(first_guidance(agreed), factor)
        whole, without = (daemon._reports(guidance, numbers, keys) for daemon, numbers in daemons)
        others = np.asarray(whole.client_ids) != 3
        for part in ("choices", "updates"):
            np.testing.assert_array_equal(np.asarray(getattr(whole, part))[others], getattr(without, part))


def test_real_clients_are_not_computed_together(real):
    with pytest.raises(ConfigError, match="for clients that compute alone"):
        AgreedRun.build(real, engine="batched")


@pytest.fixture(scope="module")
def rehearsal():
    return agree(mode="secure"), experiment_of().data


@pytest.fixture
def rehearsed(rehearsal, tmp_path):
    return daemons_of(*rehearsal, tmp_path, engine="batched")


class TwoModels:
    """A server's transport that sends one member other models than the rest: theirs give nothing to add up."""

    def __init__(self, daemons, change):
        self.inner, self.change, self.shares = InProcess(daemons), change, 0

    def ask(self, messages):
        letters = {place: decode(content, longest=10**9) for place, content in messages.items()}
        for place, letter in letters.items():
            if letter.name == "mask" and place != 1:
                arrays = {**letter.arrays, "clustered": self.change(letter.arrays["clustered"])}
                messages = {**messages, place: replace(letter, arrays=arrays).encode()}
        answers = self.inner.ask(messages)
        self.shares += sum(decode(content, longest=10**9).name == "shares" for content in answers.values())
        return answers


def test_a_member_that_was_sent_other_models_cannot_be_singled_out(rehearsed, monkeypatch):
    """The others' updates vanish under such models, and their sum would be one member's; the masks do not cancel."""
    agreed, daemons = rehearsed
    totals, own = [], type(agreed.plan.mechanism).release_sum
    monkeypatch.setattr(
        type(agreed.plan.mechanism), "release_sum", lambda self, noisy: totals.append(noisy.total) or own(self, noisy)
    )
    wide = 20 * agreed.secure.sigma + 60 * 2**21  # noise and messages
    next(deployed_rounds(agreed, TwoModels(daemons, lambda models: models)))
    assert (np.abs(totals[0]) < wide).all()
    checked = SecurePlan.checked_sum
    monkeypatch.setattr(SecurePlan, "checked_sum", lambda self, total: totals.append(total) or checked(self, total))
    transport = TwoModels(daemons, lambda models: models + np.float32(1e-3))
    with pytest.raises(RoundError, match="not released"):
        next(deployed_rounds(agreed, transport, next_attempt=iter(range(10, 99)).__next__))
    assert transport.shares == 3, "the protocol went through to its end"
    assert (np.abs(totals[1]) > wide).any()


@pytest.mark.parametrize("method", ["fedper", "fesem", "mr-mtl", "fedcam-fesem"])
def test_members_that_remember_could_be_told_apart_and_are_refused(method):
    """What one member was told in an attempt that failed would be in its clients' next messages, under common masks."""
    with pytest.raises(PrivacyError, match="clients have memory"):
        agree(mode="secure", algorithm=method)
    agree(mode="plain", algorithm=method)


@pytest.mark.parametrize(
    ("facts", "arrays"),
    [
        ({}, {"clustered": np.nan}),
        ({}, {"clustered": np.inf}),
        ({}, {"prices": -np.inf}),
        ({}, {"transition": -1.0}),
        ({}, {"transition": 0.25}),
        ({"temperature": float("nan")}, {}),
        ({"temperature": -1.0}, {}),
        ({"num_open": 0}, {}),
        ({"num_open": 3}, {}),
    ],
)
def test_guidance_that_no_server_makes_costs_no_attempt(rehearsed, facts, arrays):
    agreed, _ = rehearsed
    mechanism = agreed.plan.mechanism
    letter = task("mask", first_guidance(agreed), mechanism, {"round": 0}, keys=None)
    read_task(letter, "mask", mechanism)
    odd = {name: np.full_like(letter.arrays[name], value) for name, value in arrays.items()}
    with pytest.raises(ProtocolError, match="that the agreed settings cannot produce"):
        read_task(Letter("mask", {**letter.facts, **facts}, {**letter.arrays, **odd}), "mask", mechanism)


def test_models_that_are_no_numbers_are_refused_before_the_charge(rehearsed):
    agreed, daemons = rehearsed
    transport = TwoModels(daemons, lambda models: models * np.float32(np.nan))
    with pytest.raises(RoundError):
        next(deployed_rounds(agreed, transport))
    assert [daemon.ledger.joined(agreed.agreement.digest) for daemon in daemons.values()] == [0, 2, 0]
    letter = Letter("released", {"federation": agreed.agreement.digest.hex()}, {
        "shared": np.zeros(agreed.plan.mechanism.coordinates.shared, np.float32),
        "clustered": np.full((2, agreed.plan.mechanism.coordinates.clustered), np.nan, np.float32),
    })  # fmt: skip
    assert decode(daemons[0].answer(letter.encode()), longest=10**4).name == "refused"
