"""Realistic mistakes around the mechanism: in the round, the ledger, the accountants, the rebalancing rule."""

from dataclasses import replace

import numpy as np

from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import FixedSize
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.rebalancing import coin_transition, flip_coins
from rrcluster.server.server import Charge, RoundServer, run_rounds
from rrcluster.simulation.hosts import Host, collected, parts_of
from rrcluster.simulation.simulate import simulate

own_epsilon, own_finish, own_answers, own_charge = (
    PrivacyPlan.epsilon,
    RoundServer.finish,
    Host._answers,
    Charge.__call__,
)


def coins_from_this_round(choices, transition, *, uniforms):
    raw = np.bincount(choices, minlength=len(transition))
    return flip_coins(choices, coin_transition(raw, min_cluster_size=6), uniforms=uniforms)


def updates_centred(host, task, part):
    reports, rows = own_answers(host, task, part)
    return replace(reports, updates=reports.updates - reports.updates.mean(axis=0)), rows


def counted_twice(answers):
    answers = list(answers)
    return collected([*answers, answers[0]])


def left_out(answers):
    return collected(list(answers)[1:])


def handed_out_twice(ids, memory, size):
    parts = parts_of(ids, memory, size)
    return [*parts, parts[0]]


def short_part_dropped(ids, memory, size):
    return parts_of(ids[: len(ids) - len(ids) % size], memory, size)


def charged_afterwards(server, collect, *, state, ledger, streams):
    for done in run_rounds(server, collect, state=state, ledger=Ledger(), streams=streams):
        ledger.charge(done.round_index, server.plan.event)
        yield done


def first_round_free(charge):
    if charge._round_index == 0:
        charge.made = True
    own_charge(charge)


def charged_cheaper(charge):
    event = charge._event
    charge._ledger.charge(charge._round_index, replace(event, noise_multiplier=2 * event.noise_multiplier))
    charge.made = True


def released_twice(server, state, guidance, exact, *, rng):
    server.plan.mechanism.release_total(exact, rng=rng)
    return own_finish(server, state, guidance, exact, rng=rng)


def empty_round_skipped(server, state, guidance, exact, *, rng):
    if exact.total.any():
        return own_finish(server, state, guidance, exact, rng=rng)
    return replace(state, round_index=state.round_index + 1), None


def raw_sizes(mechanism, exact):
    """How many clients chose each cluster: the count row of an exact sum."""
    counts = exact.total[-2 - mechanism.num_clusters : -2]
    return counts / mechanism.count_units


def one_round_less(plan, *, num_rounds=None, accountant=None):
    return own_epsilon(plan, num_rounds=(num_rounds or plan.num_rounds) - 1, accountant=accountant)


def raw_denominators(server, state, guidance, exact, *, rng):
    after, release = own_finish(server, state, guidance, exact, rng=rng)
    return after, replace(release, denominators=np.maximum(raw_sizes(server.plan.mechanism, exact), 1.0))


def step_by_cohort_size(server, state, guidance, exact, *, rng):
    size = max(raw_sizes(server.plan.mechanism, exact).sum(), 1.0)
    scaled = replace(server, settings=replace(server.settings, server_lr=server.settings.server_lr * size / 20))
    return own_finish(scaled, state, guidance, exact, rng=rng)


class OneStream:
    """Named streams that forget the round."""

    def __init__(self, streams):
        self.streams = streams

    def __call__(self, name, *key):
        return self.streams(name) if name == "release" else self.streams(name, *key)

    def client_key(self, *key):
        return self.streams.client_key(*key)


def simulate_with_one_stream(*, streams, **rest):
    return simulate(streams=OneStream(streams), **rest)


CLIENTS, SERVER = "rrcluster.simulation.simulate.", "rrcluster.server.server."
# name -> (the check that must catch it, functions to replace, simulator)
ROUNDS = {
    "coins from this round's raw sizes": ("messages", {"rrcluster.client.flip_coins": coins_from_this_round}, None),
    "updates centred on the cohort's mean": (
        "messages",
        {"rrcluster.simulation.hosts.Host._answers": updates_centred},
        None,
    ),
    "a part counted twice": ("parts", {CLIENTS + "collected": counted_twice}, None),
    "a part handed out twice": ("parts", {CLIENTS + "parts_of": handed_out_twice}, None),
    "a part left out": ("parts", {CLIENTS + "collected": left_out}, None),
    "a part shorter than the others left out": ("parts", {CLIENTS + "parts_of": short_part_dropped}, None),
    "ledger charged after the release": ("ledger", {CLIENTS + "run_rounds": charged_afterwards}, None),
    "first round not charged": ("ledger", {SERVER + "Charge.__call__": first_round_free}, None),
    "two releases under one charge": ("ledger", {SERVER + "RoundServer.finish": released_twice}, None),
    "no release for an empty cohort": ("ledger", {SERVER + "RoundServer.finish": empty_round_skipped}, None),
    "charged for more noise than there is": ("ledger", {SERVER + "Charge.__call__": charged_cheaper}, None),
    "one round too few accounted": (
        "ledger",
        {"rrcluster.privacy.plan.PrivacyPlan.epsilon": one_round_less},
        None,
    ),
    "server divides by raw counts": ("post-processing", {SERVER + "RoundServer.finish": raw_denominators}, None),
    "server step scaled by the cohort": ("post-processing", {SERVER + "RoundServer.finish": step_by_cohort_size}, None),
    "noise stream not keyed by the round": ("noise of rounds", {}, simulate_with_one_stream),
}


def off_by_one(event, *, num_rounds, delta, accountant):
    return epsilon(event, num_rounds=num_rounds - 1, delta=delta, accountant=accountant)


def conversion_without_delta(event, *, num_rounds, delta, accountant):
    """The printed conversion: log(1/delta) / (order - 1) is left out of the RDP bound."""
    return epsilon(event, num_rounds=num_rounds, delta=0.5 if accountant == "rdp" else delta, accountant=accountant)


def sampled_twice(event, *, num_rounds, delta, accountant):
    if isinstance(event, FixedSize):
        return epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    twice = replace(event, sample_rate=event.sample_rate**2)
    return epsilon(twice, num_rounds=num_rounds, delta=delta, accountant=accountant)


def multiplier_squared(event, *, num_rounds, delta, accountant):
    squared = replace(event, noise_multiplier=event.noise_multiplier**2)
    return epsilon(squared, num_rounds=num_rounds, delta=delta, accountant=accountant)


def zero_out_sensitivity(event, *, num_rounds, delta, accountant):
    """Replace-one accounted with the multiplier relative to C instead of 2C."""
    if isinstance(event, FixedSize):
        event = replace(event, noise_multiplier=2 * event.noise_multiplier)
    return epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)


ACCOUNTANTS = {
    "one round too few composed": ("closed forms", off_by_one),
    "conversion drops log(1/delta)": ("RDP above PLD", conversion_without_delta),
    "amplification applied twice": ("closed forms", sampled_twice),
    "multiplier squared": ("closed forms", multiplier_squared),
    "multiplier relative to C under replace-one": ("published values", zero_out_sensitivity),
}
