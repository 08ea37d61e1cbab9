"""Clients that do not follow the protocol: they are named, nobody else is, and the sum is exact or refused."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_lab import Lab, identities, terms_for, values_for

from rrcluster.errors import ProtocolError
from rrcluster.federation.secagg.masks import KEY_BYTES, PRIME, SECRET_BYTES, agree, derive_key, expand, split_secret
from rrcluster.federation.secagg.secure_client import OF_KEY, OF_SEED, RevealedShares, close_shares, open_share


def changed(content):
    return bytes([content[0] ^ 1]) + content[1:]


def sign_again(client, keys):
    """Signed by its owner, whatever it is."""
    message = client.attempt.signed_keys(client.place, keys.mask_key, keys.envelope_key, keys.commitment)
    return replace(keys, signature=identities(client.place + 1)[-1].sign(message))


def reveal_changed(client, shares, places=None):
    """What opens the shares of some dealers, or of all, is something else."""
    wrong = {place: bytes(KEY_BYTES) for place in places or range(client.attempt.terms.num_clients)}
    parts = [{**own, **{place: wrong[place] for place in own if place in wrong}} for own in (shares.seeds, shares.keys)]
    return RevealedShares(*parts)


def deal(client, envelopes, secrets, *, holders):
    """Other shares for some holders, in envelopes that they can open."""
    points, t = [place + 1 for place in envelopes], client.attempt.terms.threshold
    seeds, keys = (split_secret(secret, points, threshold=t) for secret in secrets)
    made = {
        place: close_shares(client._envelope_keys(client.place, place), (seeds[place + 1], keys[place + 1]))
        for place in envelopes
    }
    return {place: made[place] if place in holders else own for place, own in envelopes.items()}


# name: stage, what a liar makes of its own answer, whether its values are in the sum all the same
NAMED = {
    "a signature that is none": ("advertise", lambda c, own: replace(own, signature=bytes(64)), False),
    "a commitment exchanged": ("advertise", lambda c, own: replace(own, commitment=bytes(32)), False),
    "a mask key that nobody can use": (
        "advertise",
        lambda c, own: sign_again(c, replace(own, mask_key=bytes(32))),
        False,
    ),
    "a short commitment": ("advertise", lambda c, own: sign_again(c, replace(own, commitment=b"")), False),
    "no envelope for itself": ("share", lambda c, own: {to: one for to, one in own.items() if to != c.place}, False),
    "no envelope for somebody": ("share", lambda c, own: dict(list(own.items())[1:]), False),
    "an envelope for a stranger": ("share", lambda c, own: {**own, 99: own[c.place]}, False),
    "words of another length": ("mask", lambda c, own: own[1:], False),
    "words of another type": ("mask", lambda c, own: own.astype(np.int64), False),
    "another list signed": ("sign", lambda c, own: c._identity.sign(c.attempt.signed_survivors((0, 1))), True),
    "no signature": ("sign", lambda c, own: b"", True),
    "wrong keys for all": ("reveal", reveal_changed, True),
    "a wrong key for one": ("reveal", lambda c, own: reveal_changed(c, own, [min(own.seeds)]), True),
    "a wrong key for itself": ("reveal", lambda c, own: reveal_changed(c, own, [c.place]), True),
    "keys of other lengths": ("reveal", lambda c, own: RevealedShares(dict.fromkeys(own.seeds, b""), own.keys), True),
    "nothing at all": ("reveal", lambda c, own: RevealedShares({}, {}), True),
    "one key changed by a bit": (
        "reveal",
        lambda c, own: RevealedShares({**own.seeds, max(own.seeds): changed(own.seeds[max(own.seeds)])}, own.keys),
        True,
    ),
    "what opens the other half": (
        "reveal",
        lambda c, own: RevealedShares({p: c._envelope_keys(p, c.place)[1] for p in own.seeds}, own.keys),
        True,
    ),
    "keys of others' envelopes": (
        "reveal",
        lambda c, own: RevealedShares(dict(zip(own.seeds, reversed(own.seeds.values()), strict=True)), own.keys),
        True,
    ),
}


class Liars(Lab):
    """`lies` maps a place to the stage in which it lies and what it makes of its answer."""

    def __init__(self, terms, values, lies, **more):
        super().__init__(terms, values, **more)
        self.lies = lies

    def answer(self, stage, place, message):
        own = super().answer(stage, place, message)
        lying, lie = self.lies.get(place, (None, None))
        return lie(self.clients[place], own) if stage == lying else own


@pytest.mark.parametrize("liar", range(4))
@pytest.mark.parametrize("name", NAMED)
def test_one_liar_of_four_is_named_and_the_round_saved(name, liar):
    (stage, lie, in_sum), values = NAMED[name], values_for(4)
    lab = Liars(terms_for(4), values, {liar: (stage, lie)})
    total = lab.total()
    np.testing.assert_array_equal(total, values.sum(axis=0) - (0 if in_sum else values[liar]))
    assert set(lab.blamed) == {liar}
    assert lab.charged == [4]


def test_nobody_is_named_where_all_follow_the_protocol():
    for gone in ({}, {"mask": {1}}, {"share": {2}}, {"sign": {3}}, {"reveal": {0}}):
        lab = Liars(terms_for(5), values_for(5), {}, gone=gone)
        lab.total()
        assert lab.blamed == {}


@pytest.mark.parametrize("liars", [(0, 1), (1, 4), (3, 5)])
@pytest.mark.parametrize("colluders", [0, 1])
def test_two_liars_of_six_are_named_and_the_round_saved(liars, colluders):
    terms, values = terms_for(6, colluders=colluders), values_for(6)
    assert terms.threshold == 4
    lab = Liars(terms, values, dict.fromkeys(liars, ("reveal", reveal_changed)))
    np.testing.assert_array_equal(lab.total(), values.sum(axis=0))
    assert set(lab.blamed) == set(liars)


def test_a_liar_about_the_keys_of_the_missing_is_named():
    terms, values = terms_for(6), values_for(6)
    lie = ("reveal", lambda c, own: RevealedShares(own.seeds, {place: bytes(32) for place in own.keys}))
    lab = Liars(terms, values, {1: lie}, gone={"mask": {4}})
    np.testing.assert_array_equal(lab.total(), np.delete(values, 4, axis=0).sum(axis=0))
    assert set(lab.blamed) == {1}


def test_where_too_few_are_honest_all_liars_are_named_and_there_is_no_sum():
    lab = Liars(terms_for(6), values_for(6), dict.fromkeys((0, 2, 5), ("reveal", reveal_changed)))
    with pytest.raises(ProtocolError, match="3 shares are fewer than the 4 needed"):
        lab.total()
    assert set(lab.blamed) == {0, 2, 5}
    assert lab.charged == [4]


def test_liars_on_a_ring_are_named_and_the_round_saved():
    """Every neighbourhood of 13 needs 9: four of them may lie."""
    terms, values = terms_for(40, colluders=1, reach=6), values_for(40)
    assert (terms.neighbourhood_size, terms.threshold) == (13, 9)
    liars = [int(place) for place in terms.ring[[0, 1, 2, 20, 21, 22, 23]]]
    gone = {"mask": {int(terms.ring[10])}}
    lab = Liars(terms, values, dict.fromkeys(liars, ("reveal", reveal_changed)), gone=gone)
    np.testing.assert_array_equal(lab.total(), np.delete(values, list(gone["mask"]), axis=0).sum(axis=0))
    assert set(lab.blamed) == set(liars)


def other_secrets(*_):
    return bytes(range(32)), bytes(range(32, 64))


DEALT = {
    "other secrets for all": lambda c, own: deal(c, own, other_secrets(), holders=own),
    "other secrets for some": lambda c, own: deal(c, own, other_secrets(), holders=sorted(own)[:2]),
    "shares that are no elements of the field": lambda c, own: {
        place: close_shares(c._envelope_keys(c.place, place), (PRIME + 5, PRIME + 6)) for place in own
    },
}


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", DEALT)
def test_a_dealer_of_false_shares_is_named_and_no_holder_is(name, missing):
    """The sum is lost, and the round is charged: whether shares are true is known when they are opened."""
    gone = {"mask": {2}} if missing else {}
    lab = Liars(terms_for(5), values_for(5), {2: ("share", DEALT[name])}, gone=gone)
    with pytest.raises(ProtocolError, match="shares of 1 clients contradict their commitment"):
        lab.total()
    assert set(lab.blamed) == {2}
    assert lab.charged == [4]


@pytest.mark.parametrize("copied", [False, True])
def test_a_false_commitment_is_named_also_one_that_is_somebody_elses(copied):
    commitments = {}

    def lie(client, own):
        commitments[3] = commitments.get(0, bytes(KEY_BYTES)) if copied else bytes(KEY_BYTES)
        return sign_again(client, replace(own, commitment=commitments[3]))

    def note(_, own):
        commitments[0] = own.commitment
        return own

    lab = Liars(terms_for(5), values_for(5), {0: ("advertise", note), 3: ("advertise", lie)})
    with pytest.raises(ProtocolError, match="contradict their commitment"):
        lab.total()
    assert set(lab.blamed) == {3}
    assert (commitments[3] == commitments[0]) == copied


def test_what_one_client_reveals_opens_one_half_of_one_envelope():
    lab = Lab(terms_for(6), values_for(6), gone={"mask": {4}})
    lab.total()
    sent, revealed = dict(lab.said)["share"], dict(lab.said)["reveal"]
    for half, kind, expected in ((OF_SEED, "seeds", {0, 1, 2, 3, 5}), (OF_KEY, "keys", {4})):
        keys = [(holder, dealer, key) for holder in revealed for dealer, key in getattr(revealed[holder], kind).items()]
        assert {dealer for _, dealer, _ in keys} == expected
        for holder, dealer, key in keys:
            opened = [(to, by, part) for by in sent for to in sent[by] for part in (OF_SEED, OF_KEY)
                      if opens(key, sent[by][to][part])]  # fmt: skip
            assert opened == [(holder, dealer, half)]


def opens(key, half):
    try:
        open_share(key, half)
    except ProtocolError:
        return False
    return True


def test_a_dealer_whose_shares_give_another_small_secret_is_named():
    """Shares of another polynomial fit together, and give 32 bytes: only the commitment tells."""
    attack = lambda c, own: deal(c, own, (bytes(SECRET_BYTES), c._mask_key.private_bytes_raw()), holders=own)  # noqa: E731
    lab = Liars(terms_for(4), values_for(4), {1: ("share", attack)})
    with pytest.raises(ProtocolError, match="commitment"):
        lab.total()
    assert set(lab.blamed) == {1}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_sum_is_exact_or_refused_whoever_lies(data):
    """Random lies of every kind by any number of clients: no honest one is named, and no sum is wrong."""
    count = data.draw(st.integers(4, 7), label="clients")
    terms, values = terms_for(count), values_for(count, seed=count)
    places = data.draw(st.sets(st.integers(0, count - 1), max_size=3), label="liars")
    kinds = NAMED | {name: ("share", lie, True) for name, lie in DEALT.items()}
    lies = {place: kinds[data.draw(st.sampled_from(sorted(kinds)))] for place in places}
    lab = Liars(terms, values, {place: (stage, lie) for place, (stage, lie, _) in lies.items()})
    try:
        total = lab.total()
    except ProtocolError:
        assert places, "nobody lied"
    else:
        left_out = [place for place, (_, _, in_sum) in lies.items() if not in_sum]
        np.testing.assert_array_equal(total, np.delete(values, left_out, axis=0).sum(axis=0))
    assert set(lab.blamed) <= places


def test_nothing_public_takes_the_mask_off():
    """Whatever 32 bytes a server sees before anybody reveals, expanded, are no client's own mask."""
    lab = Lab(terms_for(4, width=50), np.zeros((4, 50), dtype=np.int64))
    lab.total()
    said = dict(lab.said)
    advertised = [part for keys in said["advertise"].values() for part in astuple(keys)]
    envelopes = [envelope for own in said["share"].values() for envelope in own.values()]
    public = {part[at : at + KEY_BYTES] for part in advertised + envelopes for at in range(len(part) - KEY_BYTES + 1)}
    own_masks = {place: own_mask(lab, place, said) for place in range(4)}
    for mask in own_masks.values():
        assert not any(np.array_equal(expand(key, 50), mask) for key in public)


def own_mask(lab, place, said):
    """Of a client that adds zeros: its words less the masks that it has with others."""
    client, words = lab.clients[place], said["mask"][place].copy()
    for other in set(range(4)) - {place}:
        secret = agree(client._mask_key, said["advertise"][other].mask_key)
        pair = expand(derive_key(secret, purpose=lab.attempt.mask_purpose(place, other, b"models")), 50)
        (np.subtract if place < other else np.add)(words, pair, out=words)
    return words


def test_a_commitment_is_of_one_seed_of_one_client_in_one_attempt():
    """And it is neither the seed, nor the key of its mask, nor in any other way of use to unmask."""
    lab, again = Lab(terms_for(4), values_for(4)), Lab(terms_for(4), values_for(4), number=1)
    seed = bytes(range(32))
    of = {
        "it": lab.attempt.expand_seed(0, seed),
        "another seed": lab.attempt.expand_seed(0, changed(seed)),
        "another client": lab.attempt.expand_seed(1, seed),
        "another attempt": again.attempt.expand_seed(0, seed),
    }
    assert len({seed, *(part for both in of.values() for part in both)}) == 9
