"""A server that does not follow the protocol asks real clients whatever they answer, and what it then knows is solved.

The lemma of docs/secure-aggregation.md: of honest clients' values it learns one sum at most, that of all survivors.
"""

import random
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from protocol_lab import identities, public

from rrcluster.errors import ProtocolError
from rrcluster.secagg.secure_client import Attempt, SecureClient
from rrcluster.secagg.terms import Terms


class Hostile:
    """Shows keys, hands out envelopes, tells tasks and names survivors as chance has it; colluders work for it."""

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
        listed = self.often(1, 0.9, 0.8)
        advertised = {place: client.advertise() for place, client in enumerate(self.clients)}
        self.sent = {}
        for place, client in enumerate(self.clients):
            keys = {other: own for other, own in advertised.items() if place in self.colluders or shown()}
            self.attempted(self.sent, place, client.share, keys)
        for place in set(self.sent) - self.colluders:
            given = {other: own[place] for other, own in self.sent.items() if place in own and handed()}
            self.told[place], values = bytes([told_other()]), np.zeros(self.terms.width, dtype=np.int64)
            mask = partial(self.clients[place].mask, values=values, task_digest=self.told[place])
            if self.attempted({}, place, mask, given):
                self.masks[place] = set(given)
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

    def known(self, kind):
        """Honest clients of whose seed or key the server has as many shares as it takes."""
        shares = Counter(place for revealed in self.reveals.values() for place in getattr(revealed, kind))
        shares.update(place for place, own in self.sent.items() for other in own if other in self.colluders)
        return {place for place, count in shares.items() if count >= self.terms.threshold} - self.colluders

    def unknown_parts(self):
        """Of each honest client's words, what they hold besides its values that the server cannot compute."""
        seeds, keys = self.known("seeds"), self.known("keys")
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
    ],
    ids=["fewer signatures", "any survivors", "whatever was told"],
)
def test_the_search_finds_what_a_weaker_protocol_gives_away(owner, name, weaker, monkeypatch):
    monkeypatch.setattr(owner, name, weaker)
    with pytest.raises(AssertionError):
        list(map(check_what_is_learnt, range(200)))
