"""A server that does not follow the protocol asks real clients whatever they answer, and what it then knows is solved.

The lemma of docs/privacy.md: of honest clients' values it learns one sum at most, that of all survivors.
Shares are known where bytes that it has open them, and a seed also where a commitment gives it away.
"""

import random
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from protocol_lab import identities, public

from rrcluster.errors import ProtocolError
from rrcluster.federation.secagg import masks
from rrcluster.federation.secagg.masks import derive_key
from rrcluster.federation.secagg.secure_client import OF_KEY, OF_SEED, Attempt, SecureClient, open_share
from rrcluster.federation.secagg.terms import Terms


class Hostile:
    """Shows keys, hands out envelopes, some of them changed, tells tasks and names survivors as chance has it.

    Colluders work for it. What it shows of keys is signed: clients refuse a commitment that was exchanged.
    """

    def __init__(self, seed, terms, colluders):
        self.rng, self.terms, self.colluders = random.Random(seed), terms, colluders
        self.keys = identities(terms.num_clients)
        self.attempt = Attempt(terms, 0, 0)
        self.clients = [SecureClient(self.attempt, place, key) for place, key in enumerate(self.keys)]
        self.masks, self.told, self.signed, self.reveals = {}, {}, {}, {}

    def often(self, *chances):
        chance = self.rng.choice(chances)
        return lambda: self.rng.random() < chance

    def ask(self):
        """All stages; who refuses is left alone."""
        places = range(self.terms.num_clients)
        shown, handed, told_other = self.often(1, 1, 1, 0.95), self.often(1, 1, 0.9), self.often(0, 0, 0.2)
        listed, changed = self.often(1, 0.9, 0.8), self.often(0, 0, 0.02)
        advertised = {place: client.advertise() for place, client in enumerate(self.clients)}
        self.public = {own.commitment for own in advertised.values()}
        self.sent = {}
        for place, client in enumerate(self.clients):
            keys = {other: own for other, own in advertised.items() if place in self.colluders or shown()}
            self.attempted(self.sent, place, client.share, keys)
        for place in set(self.sent) - self.colluders:
            given = {other: own[place] for other, own in self.sent.items() if place in own and handed()}
            given = {other: own[::-1] if changed() else own for other, own in given.items()}
            self.told[place], values = bytes([told_other()]), np.zeros(self.terms.width, dtype=np.int64)
            opened = {}
            if self.attempted(opened, place, self.clients[place].open, given) and not opened[place]:
                self.clients[place].mask(values, task_digest=self.told[place])
                self.masks[place] = set(given) - {place}
        lists = [tuple(place for place in places if listed()) for _ in range(self.rng.choice([1, 2]))]
        asked = {place: self.rng.choice(lists) for place in self.masks if self.rng.random() < 0.85}
        for place, survivors in asked.items():
            self.attempted(self.signed, place, self.clients[place].sign, survivors)
        for place in self.signed:
            survivors = asked[place]
            signatures = {other: own for other, own in self.signed.items() if asked[other] == survivors}
            message = self.attempt.signed_survivors(survivors)
            signatures |= {other: self.keys[other].sign(message) for other in self.colluders}
            self.attempted(self.reveals, place, self.clients[place].reveal, signatures)
        return {asked[place] for place in self.reveals}

    def attempted(self, answers, place, stage, message):
        try:
            answers[place] = stage(message)
        except ProtocolError:
            return False
        return True

    def known(self, half):
        """Honest clients of whose seed or key the server has as many shares as it takes."""
        shares = Counter()
        for dealer, own in self.sent.items():
            shares[dealer] = sum(self.opens(dealer, holder, envelope[half]) for holder, envelope in own.items())
        return {place for place, count in shares.items() if count >= self.terms.threshold} - self.colluders

    def opens(self, dealer, holder, half):
        """Whether a share is known: a colluder holds it, or something that its holder revealed opens it."""
        revealed = self.reveals.get(holder)
        keys = [] if revealed is None else [own[dealer] for own in (revealed.seeds, revealed.keys) if dealer in own]
        known = any(self.attempted({}, holder, partial(open_share, key), half) for key in keys)
        return known or holder in self.colluders

    def committed_openly(self):
        """Honest clients whose commitment is their seed, or the key of its mask."""
        honest = {place: client._seed for place, client in enumerate(self.clients) if place not in self.colluders}
        masks = {place: self.attempt.expand_seed(place, seed)[1] for place, seed in honest.items()}
        return {place for place in honest if not self.public.isdisjoint((honest[place], masks[place]))}

    def unknown_parts(self):
        """Of each honest client's words, what they hold besides its values that the server cannot compute."""
        seeds, keys = self.known(OF_SEED) | self.committed_openly(), self.known(OF_KEY)
        assert not seeds & keys
        parts = {}
        for place, others in self.masks.items():
            pairs = [other for other in others if not {place, other} & (self.colluders | keys)]
            names = {other: self.attempt.mask_purpose(place, other, self.told[place]) for other in pairs}
            parts[place] = {names[other]: (1, -1)[place > other] for other in pairs}
            parts[place] |= {} if place in seeds else {("seed", place): 1}
        return parts


def combinations_without_unknowns(parts):
    """A basis of the ways to add up words such that everything unknown cancels, by elimination."""
    rows = [({**part}, {place: Fraction(1)}) for place, part in parts.items()]
    for unknown in {name for part in parts.values() for name in part}:
        pivot = next((row for row in rows if unknown in row[0]), None)
        rows = [row if pivot is None else without(unknown, row, pivot) for row in rows if row is not pivot]
    return [weights for _, weights in rows]


def without(unknown, row, pivot):
    """A row less as much of another one as takes the unknown out of it."""
    factor = row[0].get(unknown, 0) / Fraction(pivot[0][unknown])
    return tuple(minus(one, other, factor) for one, other in zip(row, pivot, strict=True))


def minus(one, other, factor):
    return {name: value for name in {*one, *other} if (value := one.get(name, 0) - factor * other.get(name, 0))}


def some_terms(rng):
    """A few clients on the complete graph, or a small ring on which every neighbourhood may hold all colluders."""
    count, reach = (rng.randint(3, 7), None) if rng.random() < 0.7 else (rng.randint(9, 15), rng.randint(3, 4))
    colluders = rng.randint(0, 1 if reach else (count - 2) // 2)
    terms = Terms(b"", public(identities(count)), 1, rng.randint(colluders + 2, count), colluders, reach)
    return terms, set(rng.sample(range(count), colluders))


def check_what_is_learnt(seed):
    terms, colluders = some_terms(random.Random(seed))
    server = Hostile(seed, terms, colluders)
    lists = server.ask()
    assert len(lists) <= 1
    learnt = combinations_without_unknowns(server.unknown_parts())
    assert len(learnt) <= 1
    for weights in learnt:
        assert set(weights) == set(*lists) - colluders
        assert set(weights.values()) == {1}
        assert len(weights) >= terms.least_survivors - terms.most_colluders
        assert len({server.told[place] for place in weights}) == 1
    return len(learnt)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_hostile_server_learns_one_sum_at_most(count):
    learnt = [check_what_is_learnt(seed) for seed in range(count)]
    assert sum(learnt) > count / 8  # it is not that nobody answers


@pytest.mark.parametrize(
    ("owner", "name", "weaker"),
    [
        (Terms, "quorum", property(lambda terms: terms.num_clients // 2)),
        (Terms, "check_survivors", lambda *_: None),
        (Attempt, "mask_purpose", lambda self, one, other, _: bytes(sorted((one, other)))),
        (Attempt, "expand_seed", lambda self, place, seed: (seed, seed[::-1])),
        (Attempt, "expand_seed", lambda self, place, seed: (seed[::-1], seed[::-1])),
        (masks, "derive_two_keys", lambda secret, *, purpose: (derive_key(secret, purpose=purpose),) * 2),
    ],
    ids=[
        "fewer signatures",
        "any survivors",
        "whatever was told",
        "seed shown",
        "mask shown",
        "one key for both halves",
    ],
)
def test_the_search_finds_what_a_weaker_protocol_gives_away(owner, name, weaker, monkeypatch):
    monkeypatch.setattr(owner, name, weaker)
    with pytest.raises(AssertionError):
        list(map(check_what_is_learnt, range(200)))
