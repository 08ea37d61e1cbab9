"""Mistakes planted in slots and correlated noise are caught by the check that is said to catch them."""

from dataclasses import replace

import numpy as np
import pytest
from some_fast import some_fast

from rrcluster.audit import cohorts as checks
from rrcluster.audit.targets import failures
from rrcluster.privacy.sampling import PoissonSampler
from rrcluster.privacy.slots import Correlation, Slots
from rrcluster.privacy.slotted import SlottedMechanism
from rrcluster.simulation.simulate import SimulatedClients

JOINT, SLOTTED = "rrcluster.privacy.joint.", "rrcluster.privacy.slotted."
FRESH, NEXT = SLOTTED + "SlottedMechanism.fresh_noise_std", "rrcluster.privacy.slots.Correlation.next_noise"
own_noise, own_fresh = Correlation.next_noise, SlottedMechanism.fresh_noise_std.fget
own_draw, own_collect = PoissonSampler.draw, SimulatedClients.collect


def scaled(factor):
    return property(lambda mechanism: factor * own_fresh(mechanism))


def band_dropped(correlation, fresh, past):
    shorter = replace(past, vectors=(*past.vectors[:-1], 0 * past.vectors[-1]))
    return own_noise(correlation, fresh, shorter)


def same_draw_every_round():
    first = {}

    def noise(correlation, fresh, past):
        return own_noise(correlation, first.setdefault(len(fresh), fresh).copy(), past)

    return noise


def uncorrelated(correlation, fresh, past):
    return fresh


def by_order_of_enrolment(slots, population, round_index):
    """Everybody's slot depends on how many clients there are."""
    return np.flatnonzero((population - np.arange(population)) % slots.count == round_index % slots.count)


def endless(slots, population, round_index):
    return Slots.eligible(replace(slots, num_rounds=10**6), population, round_index)


def twice_within_b_rounds(sampler, population, *, rng, round_index=0, **named):
    here = own_draw(sampler, population, rng=rng, round_index=round_index, **named)
    before = own_draw(sampler, population, rng=rng, round_index=max(round_index - 1, 0), **named)
    return np.union1d(here, before[:1])


def schedule_by_data(clients, guidance, charge):
    """Clients whose samples are dark wait for a later round."""
    data, honest = clients.hosts.host.data, clients.plan
    dark = [c for c in range(data.num_clients) if float(np.mean(data.store.client(c)[0])) < 0]

    class ByData:
        def draw(self, population, *, rng, round_index=0, **named):
            return np.setdiff1d(honest.sampler.draw(population, rng=rng, round_index=round_index, **named), dark)

    clients.plan = replace(honest, mechanism=WithSampler(honest.mechanism, ByData()))
    reports = own_collect(clients, guidance, charge)
    clients.plan = honest
    return reports


class WithSampler:
    def __init__(self, mechanism, sampler):
        self._mechanism, self.sampler = mechanism, sampler

    def __getattr__(self, name):
        return getattr(self._mechanism, name)


PLANTED = {
    "noise at 0.9 of its scale": ("correlation, seeded", {FRESH: scaled(0.9)}),
    "noise at 1.1 of its scale": ("correlation, seeded", {FRESH: scaled(1.1)}),
    "exact noise at 0.9 of its scale": ("correlation, exact", {FRESH: scaled(0.9)}),
    "a band dropped": ("correlation, seeded", {NEXT: band_dropped}),
    "a band of exact noise dropped": ("correlation, exact", {NEXT: band_dropped}),
    "a reused draw": ("correlation, seeded", {NEXT: same_draw_every_round()}),
    "no correlation at all": ("correlation, seeded", {NEXT: uncorrelated}),
    "slots by order of enrolment": ("slots", {"rrcluster.privacy.slots.Slots.eligible": by_order_of_enrolment}),
    "a client twice within b rounds": (
        "slots",
        {"rrcluster.privacy.sampling.PoissonSampler.draw": twice_within_b_rounds},
    ),
    "reports of other slots counted": ("own slot", {SLOTTED + "only_from_slot": lambda reports, slots, t: reports}),
    "half the noise": ("canary in all its rounds", {FRESH: scaled(0.5)}),
    "a clip that is twice as long": ("blocks", {JOINT + "clip_to_grid": None}),
    "a schedule by the clients' data": (
        "trained cohorts",
        {"rrcluster.simulation.simulate.SimulatedClients.collect": schedule_by_data},
    ),
}


def twice_as_long(updates, *, update_clip, known):
    from rrcluster.privacy.clip import clip_to_grid

    return 2 * clip_to_grid(updates, update_clip=update_clip, known=known)


RUN = {
    "slots": lambda rng: checks.check_cohorts(checks.slotted_plan, rng=rng),
    "own slot": lambda rng: checks.check_own_slot(checks.slotted_plan),
    "blocks": lambda rng: checks.check_blocks(checks.slotted_plan),
    "correlation, seeded": lambda rng: checks.check_whiteness(checks.slotted_plan, secure=False, rng=rng),
    "correlation, exact": lambda rng: checks.check_whiteness(checks.slotted_plan, secure=True, rng=rng),
    "canary in all its rounds": lambda rng: checks.check_canary(checks.slotted_plan, rng=rng),
    "trained cohorts": lambda rng: checks.check_trained_cohorts(checks.slotted_plan, seed=0),
}


@pytest.mark.parametrize("name", some_fast(PLANTED, one_in=4))
def test_a_planted_mistake_is_caught(name, monkeypatch, rng):
    check, patches = PLANTED[name]
    for place, function in patches.items():
        monkeypatch.setattr(place, function or twice_as_long)
    assert RUN[check](rng).holds is False


def test_the_honest_mechanism_passes():
    findings = checks.check_participation(seed=1)
    assert {finding.check for finding in findings} == set(RUN)
    assert failures(findings) == []
