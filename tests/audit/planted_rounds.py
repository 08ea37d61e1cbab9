"""Realistic mistakes around the mechanism: in the round, the ledger, the accountants, the rebalancing rule."""

from dataclasses import replace

import numpy as np

from rrcluster.clusters.rebalancing import coin_transition, flip_coins
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import FixedSize
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.server import Charge, Server, run_rounds
from rrcluster.simulation.simulate import SimulatedClients, simulate

own_epsilon, own_finish, own_collect, own_charge = (
    PrivacyPlan.epsilon,
    Server.finish,
    SimulatedClients.collect,
    Charge.__call__,
)


def coins_from_this_round(choices, transition, *, uniforms):
    raw = np.bincount(choices, minlength=len(transition))
    return flip_coins(choices, coin_transition(raw, min_cluster_size=6), uniforms=uniforms)


def updates_centred(clients, guidance, charge):
    reports = own_collect(clients, guidance, charge)
    return replace(reports, updates=reports.updates - reports.updates.mean(axis=0))


def charged_afterwards(server, collect, *, state, ledger, streams):
    for done in run_rounds(server, collect, state=state, ledger=Ledger(), streams=streams):
        ledger.charge(done.round_index, server.plan.event)
        yield done


def first_round_free(charge):
    if charge._round_index == 0:
        charge.made = True
    own_charge(charge)


def charged_cheaper(charge):
    event = charge._plan.event
    charge._ledger.charge(charge._round_index, replace(event, noise_multiplier=2 * event.noise_multiplier))
    charge.made = True


def released_twice(server, state, guidance, reports, *, rng):
    server.plan.mechanism.release(reports, rng=rng)
    return own_finish(server, state, guidance, reports, rng=rng)


def empty_round_skipped(server, state, guidance, reports, *, rng):
    if len(reports.updates):
        return own_finish(server, state, guidance, reports, rng=rng)
    return replace(state, round_index=state.round_index + 1), None


def one_round_less(plan, *, num_rounds=None, accountant=None):
    return own_epsilon(plan, num_rounds=(num_rounds or plan.num_rounds) - 1, accountant=accountant)


def raw_denominators(server, state, guidance, reports, *, rng):
    after, release = own_finish(server, state, guidance, reports, rng=rng)
    raw = np.bincount(reports.choices, minlength=release.num_clusters)
    return after, replace(release, denominators=np.maximum(raw, 1.0))


def step_by_cohort_size(server, state, guidance, reports, *, rng):
    lr = server.settings.server_lr * len(reports.updates) / 20
    scaled = replace(server, settings=replace(server.settings, server_lr=lr))
    return own_finish(scaled, state, guidance, reports, rng=rng)


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


CLIENTS, SERVER = "rrcluster.simulation.simulate.", "rrcluster.server."
# name -> (the check that must catch it, functions to replace, simulator)
ROUNDS = {
    "coins from this round's raw sizes": ("messages", {"rrcluster.client.flip_coins": coins_from_this_round}, None),
    "updates centred on the cohort's mean": (
        "messages",
        {CLIENTS + "SimulatedClients.collect": updates_centred},
        None,
    ),
    "ledger charged after the release": ("ledger", {CLIENTS + "run_rounds": charged_afterwards}, None),
    "first round not charged": ("ledger", {SERVER + "Charge.__call__": first_round_free}, None),
    "two releases under one charge": ("ledger", {SERVER + "Server.finish": released_twice}, None),
    "no release for an empty cohort": ("ledger", {SERVER + "Server.finish": empty_round_skipped}, None),
    "charged for more noise than there is": ("ledger", {SERVER + "Charge.__call__": charged_cheaper}, None),
    "one round too few accounted": (
        "ledger",
        {"rrcluster.privacy.plan.PrivacyPlan.epsilon": one_round_less},
        None,
    ),
    "server divides by raw counts": ("post-processing", {SERVER + "Server.finish": raw_denominators}, None),
    "server step scaled by the cohort": ("post-processing", {SERVER + "Server.finish": step_by_cohort_size}, None),
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
