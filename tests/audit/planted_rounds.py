"""Realistic mistakes around the mechanism: in the round, the ledger, the accountants, the rebalancing rule."""

from dataclasses import replace

import numpy as np

from rrcluster.clusters.rebalancing import coin_transition, flip_coins
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.events import FixedSize
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports
from rrcluster.server import server_round
from rrcluster.simulation import simulate as engine

own_epsilon = PrivacyPlan.epsilon


def coins_from_this_round(choices, transition, *, uniforms):
    raw = np.bincount(choices, minlength=len(transition))
    return flip_coins(choices, coin_transition(raw, min_cluster_size=6), uniforms=uniforms)


def charged_afterwards(state, *reports, ledger, plan, **rest):
    done = server_round(state, *reports, ledger=Ledger(), plan=plan, **rest)
    ledger.charge(state.round_index, plan.event)
    return done


def first_round_free(state, *reports, ledger, **rest):
    return server_round(state, *reports, ledger=ledger if state.round_index else Ledger(), **rest)


def released_twice(state, updates, choices, *, plan, destinations, client_ids, rng, **rest):
    plan.mechanism.release(Reports(updates, choices, destinations=destinations, client_ids=client_ids), rng=rng)
    return server_round(
        state, updates, choices, plan=plan, destinations=destinations, client_ids=client_ids, rng=rng, **rest
    )


def empty_round_skipped(state, updates, choices, **rest):
    if len(updates):
        return server_round(state, updates, choices, **rest)
    return replace(state, round_index=state.round_index + 1), None


def charged_cheaper(state, *reports, ledger, plan, **rest):
    cheaper = replace(plan.event, noise_multiplier=2 * plan.event.noise_multiplier)
    ledger.charge(state.round_index, cheaper)
    return server_round(state, *reports, ledger=Ledger(), plan=plan, **rest)


def one_round_less(plan, *, num_rounds=None, accountant=None):
    return own_epsilon(plan, num_rounds=(num_rounds or plan.num_rounds) - 1, accountant=accountant)


def updates_centred(state, updates, choices, **rest):
    return server_round(state, updates - updates.mean(axis=0), choices, **rest)


def raw_denominators(state, updates, choices, *, plan, **rest):
    after, release = server_round(state, updates, choices, plan=plan, **rest)
    raw = np.bincount(choices, minlength=plan.mechanism.num_clusters)
    return after, replace(release, denominators=np.maximum(raw, 1.0))


def step_by_cohort_size(state, updates, choices, *, server, **rest):
    lr = server.server_lr * len(updates) / 20
    return server_round(state, updates, choices, server=replace(server, server_lr=lr), **rest)


class OneStream:
    """Named streams that forget the round."""

    def __init__(self, streams):
        self.streams = streams

    def __call__(self, name, *key):
        return self.streams(name) if name == "release" else self.streams(name, *key)

    def client_key(self, *key):
        return self.streams.client_key(*key)


def simulate_with_one_stream(*, streams, **rest):
    return engine.simulate(streams=OneStream(streams), **rest)


ENGINE = "rrcluster.simulation.simulate."
# name -> (the check that must catch it, functions to replace, simulator)
ROUNDS = {
    "coins from this round's raw sizes": ("messages", {ENGINE + "flip_coins": coins_from_this_round}, None),
    "updates centred on the cohort's mean": ("messages", {ENGINE + "server_round": updates_centred}, None),
    "ledger charged after the release": ("ledger", {ENGINE + "server_round": charged_afterwards}, None),
    "first round not charged": ("ledger", {ENGINE + "server_round": first_round_free}, None),
    "two releases under one charge": ("ledger", {ENGINE + "server_round": released_twice}, None),
    "no release for an empty cohort": ("ledger", {ENGINE + "server_round": empty_round_skipped}, None),
    "charged for more noise than there is": ("ledger", {ENGINE + "server_round": charged_cheaper}, None),
    "one round too few accounted": (
        "ledger",
        {"rrcluster.privacy.plan.PrivacyPlan.epsilon": one_round_less},
        None,
    ),
    "server divides by raw counts": ("post-processing", {ENGINE + "server_round": raw_denominators}, None),
    "server step scaled by the cohort": ("post-processing", {ENGINE + "server_round": step_by_cohort_size}, None),
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
