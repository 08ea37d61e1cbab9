"""The sum is exact whoever drops out, and nobody answers what was not agreed."""

import math
from copy import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_lab import WIDTH, Lab, identities, public, terms_for, values_for

from rrcluster.errors import PrivacyError, ProtocolError
from rrcluster.federation.secagg.masks import PRIME, combine_shares, split_secret
from rrcluster.federation.secagg.secure_client import ENVELOPE_BYTES, Attempt, SecureClient
from rrcluster.federation.secagg.terms import Terms

STAGES = ("advertise", "share", "mask", "sign", "reveal")


@pytest.mark.parametrize("reach", [None, 6])
def test_the_sum_of_everybody_is_exact(reach):
    terms = terms_for(16, colluders=1, reach=reach)
    values = values_for(16)
    lab = Lab(terms, values)
    np.testing.assert_array_equal(lab.total(), values.sum(axis=0))
    assert lab.charged == [4]  # after four stages, before the fifth


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_sum_is_that_of_the_survivors_for_any_pattern_of_dropouts(data):
    count = data.draw(st.integers(4, 9), label="clients")
    terms = terms_for(count, colluders=data.draw(st.integers(0, 1), label="colluders"))
    stage_of = data.draw(st.lists(st.sampled_from((*STAGES, None, None, None)), min_size=count, max_size=count))
    gone = {stage: {place for place in range(count) if stage_of[place] == stage} for stage in STAGES}
    values = values_for(count, seed=count)
    lab = Lab(terms, values, gone=gone)
    masked = [place for place in range(count) if stage_of[place] not in STAGES[:3]]
    revealing = [place for place in masked if stage_of[place] is None]
    try:
        total = lab.total()
    except ProtocolError:
        assert len(revealing) < max(terms.threshold, terms.quorum), "a sum that could be had was refused"
        return
    np.testing.assert_array_equal(total, values[masked].sum(axis=0))
    assert len(masked) >= terms.least_survivors


def test_sums_are_read_with_their_sign_and_wrap_at_32_bits():
    values = np.full((4, WIDTH), -5)
    np.testing.assert_array_equal(Lab(terms_for(4), values).total(), np.full(WIDTH, -20))
    values[0] = 2**31 - 1
    assert Lab(terms_for(4), values).total()[0] == 2**31 - 16
    values[1:] = 1
    assert Lab(terms_for(4), values).total()[0] == -(2**31) + 2  # why the width of sums is checked beforehand


def test_words_look_random_and_never_repeat():
    values = np.zeros((4, 4000), dtype=np.int64)
    seen = []
    for number in range(2):
        lab = Lab(terms_for(4, width=4000), values, number=number)
        lab.total()
        seen += list(dict(lab.said)["mask"].values())
    words = np.array(seen, dtype=np.float64) / 2**32
    assert abs(words.mean() - 0.5) < 0.02
    assert max(abs(np.corrcoef(words)[np.triu_indices(8, 1)])) < 0.1


def test_every_attempt_has_masks_of_its_own():
    """Fresh secrets in every attempt; and even under the same secrets, another attempt or round has other masks."""
    terms, (identity, *_) = terms_for(4), identities(4)
    attempts = [Attempt(terms, 0, 0), Attempt(terms, 0, 1), Attempt(terms, 1, 0)]
    clients = [SecureClient(attempt, 0, identity) for attempt in attempts]
    assert len({client._seed for client in clients}) == 3
    assert len({client.advertise().mask_key for client in clients}) == 3
    assert len({attempt.mask_purpose(0, 1, b"models") for attempt in attempts}) == 3
    assert len({attempt.envelope_purpose(0, 1) for attempt in attempts}) == 3


def test_a_list_of_survivors_that_differs_from_the_others_gets_nothing():
    """The server tells half of the clients that client 7 is gone, to have both of its secrets."""
    terms = terms_for(8, colluders=1)
    lab = Lab(terms, values_for(8))
    keys = lab.ask("advertise", dict.fromkeys(range(8)))
    sent = lab.ask("share", dict.fromkeys(keys, keys))
    lab.ask("mask", {place: {s: e[place] for s, e in sent.items() if place in e} for place in sent})
    everybody, fewer = tuple(range(8)), tuple(range(7))
    signatures = {place: lab.clients[place].sign(everybody if place < 4 else fewer) for place in range(7)}
    for place in range(7):
        with pytest.raises(ProtocolError, match=r"signed the list that this client signed, not 5\."):
            lab.clients[place].reveal(signatures)


def test_a_second_list_and_a_second_reveal_are_refused():
    lab = Lab(terms_for(6), values_for(6))
    lab.total()
    signatures = dict(lab.said)["sign"]
    for stage, message in (("reveal", signatures), ("sign", tuple(range(5))), ("reveal", signatures)):
        with pytest.raises(ProtocolError, match="out of order or repeated"):
            getattr(lab.clients[0], stage)(message)


def test_a_stage_that_failed_cannot_be_tried_again():
    lab = Lab(terms_for(6, survivors=5), values_for(6))
    keys = lab.ask("advertise", dict.fromkeys(range(6)))
    sent = lab.ask("share", dict.fromkeys(keys, keys))
    lab.ask("mask", {place: {s: e[place] for s, e in sent.items() if place in e} for place in sent})
    with pytest.raises(ProtocolError, match=r"4 survivors are fewer than the 5 agreed on\."):
        lab.clients[0].sign((0, 1, 2, 3))
    with pytest.raises(ProtocolError, match="out of order"):
        lab.clients[0].sign((0, 1, 2, 3, 4))


@pytest.mark.parametrize("swap", ["mask_key", "envelope_key", "commitment", "signature"])
def test_keys_that_somebody_exchanged_are_refused(swap):
    lab = Lab(terms_for(5), values_for(5))
    keys = dict(lab.ask("advertise", dict.fromkeys(range(5))))
    other = Lab(terms_for(5), values_for(5), number=1).clients[3].advertise()
    keys[3] = replace(keys[3], **{swap: getattr(other, swap)})
    with pytest.raises(ProtocolError, match="keys of client 3 are not signed by its identity"):
        lab.clients[0].share(keys)


def test_keys_of_another_attempt_round_or_federation_are_refused():
    terms = terms_for(5)
    others = {
        "attempt": Attempt(terms, 0, 1),
        "round": Attempt(terms, 1, 0),
        "settings": Attempt(replace(terms, settings=b"changed"), 0, 0),
    }
    for name, attempt in others.items():
        lab = Lab(terms, values_for(5))
        keys = dict(lab.ask("advertise", dict.fromkeys(range(5))))
        keys[2] = SecureClient(attempt, 2, identities(5)[2]).advertise()
        with pytest.raises(ProtocolError, match="not signed by its identity for this attempt"):
            lab.clients[0].share(keys)
        assert name


def test_a_client_that_cannot_open_an_envelope_leaves_and_says_whose_it_was():
    lab = Lab(terms_for(5), values_for(5))
    keys = lab.ask("advertise", dict.fromkeys(range(5)))
    sent = lab.ask("share", dict.fromkeys(keys, keys))
    envelopes = {sender: sent[sender][0] for sender in range(1, 5)}
    envelopes[2] = envelopes[2][:-1] + bytes([envelopes[2][-1] ^ 1])
    assert lab.clients[0].open(envelopes) == (2,)
    with pytest.raises(ProtocolError, match="out of order"):
        lab.clients[0].mask(values_for(5)[0], task_digest=b"models")


@pytest.mark.parametrize("known", [False, True], ids=["alone", "with the sender's envelope key"])
def test_envelopes_open_as_those_of_their_sender_for_their_receiver_alone(known):
    """Also where client 3 advertises client 2's keys as its own, so that both share one secret with everybody."""
    lab = Lab(terms_for(5), values_for(5))
    keys = dict(lab.ask("advertise", dict.fromkeys(range(5))))
    if known:
        theirs = keys[2]
        message = lab.attempt.signed_keys(3, theirs.mask_key, theirs.envelope_key, theirs.commitment)
        keys[3] = replace(theirs, signature=identities(5)[3].sign(message))
    sent = lab.ask("share", dict.fromkeys(keys, keys))
    own = {sender: sent[sender][0] for sender in (1, 2, 4)}
    wrong = {
        "of another sender": {**own, 3: sent[2][0]},
        "for another receiver": {**own, 2: sent[2][1]},
        "for its sender": {**own, 2: sent[2][2]},
        "halves exchanged": {**own, 2: sent[2][0][ENVELOPE_BYTES // 2 :] + sent[2][0][: ENVELOPE_BYTES // 2]},
        "halves of two": {**own, 2: sent[2][0][: ENVELOPE_BYTES // 2] + sent[1][0][ENVELOPE_BYTES // 2 :]},
        "longer": {**own, 2: sent[2][0] + b"0"},
        "cut off": {**own, 2: sent[2][0][:-1]},
        "empty": {**own, 2: b""},
        "of another attempt": {**own, 2: Lab(terms_for(5), values_for(5), number=1).clients[2].advertise().signature},
    }
    for name, envelopes in wrong.items():
        client = copy(lab.clients[0])  # as it was before it was asked
        client._held = dict(client._held)
        assert client.open(envelopes) == ((3,) if name == "of another sender" else (2,)), name
        with pytest.raises(ProtocolError, match="out of order"):
            client.open(own)
    assert lab.clients[0].open(own) == ()


def test_an_envelope_of_nobody_who_could_send_one_is_refused():
    lab = Lab(terms_for(5), values_for(5))
    keys = dict(lab.ask("advertise", dict.fromkeys(range(5))))
    sent = lab.ask("share", dict.fromkeys(keys, keys))
    with pytest.raises(ProtocolError, match="a client that is not a neighbour, or advertised no keys"):
        lab.clients[0].open({7: sent[1][0]})


@pytest.mark.parametrize("gone", [{}, {"sign": {3}}, {"mask": {4}}])
def test_clients_that_were_told_different_things_have_no_sum(gone):
    """Also where the one who was told something else is called a survivor and never asked to sign."""
    values = values_for(5)
    left = [place for place in range(5) if place not in gone.get("mask", ())]
    np.testing.assert_array_equal(Lab(terms_for(5), values, gone=gone).total(), values[left].sum(axis=0))
    total = Lab(terms_for(5), values, gone=gone, told={3: b"other models"}).total()
    assert (np.abs(total - values[left].sum(axis=0)) > 2**24).any()  # words without meaning


@pytest.mark.parametrize("stage", ["advertise", "sign"])
def test_one_client_with_wrong_signatures_takes_nobody_else_out(stage):
    terms, values = terms_for(5), values_for(5)
    lab = Lab(terms, values)
    own = lab.answer

    def answer(asked, place, message):
        given = own(asked, place, message)
        if asked != stage or place != 2:
            return given
        return replace(given, signature=bytes(64)) if stage == "advertise" else bytes(64)

    lab.answer = answer
    expected = values.sum(axis=0) - (values[2] if stage == "advertise" else 0)
    np.testing.assert_array_equal(lab.total(), expected)


def key_of_low_order(client, name):
    """Keys signed by their owner, one of which nobody can agree on a secret with."""
    keys = replace(client.advertise(), **{name: bytes(32)})
    message = client.attempt.signed_keys(client.place, keys.mask_key, keys.envelope_key, keys.commitment)
    return replace(keys, signature=identities(5)[client.place].sign(message))


@pytest.mark.parametrize("name", ["mask_key", "envelope_key"])
def test_one_client_with_an_unusable_key_takes_nobody_else_out(name):
    values, lab = values_for(5), Lab(terms_for(5), values_for(5))
    own = lab.answer
    lab.answer = lambda stage, place, message: (
        key_of_low_order(lab.clients[2], name) if (stage, place) == ("advertise", 2) else own(stage, place, message)
    )
    np.testing.assert_array_equal(lab.total(), np.delete(values, 2, axis=0).sum(axis=0))
    assert not any(2 in answers for stage, answers in lab.said if stage != "advertise")


def test_a_client_that_keeps_an_envelope_back_is_left_out():
    """Passed on, one's words would hold the mask of a pair that the other's lack, and the sum would be nonsense."""
    values, lab = values_for(6), Lab(terms_for(6), values_for(6))
    own = lab.answer

    def answer(stage, place, message):
        given = own(stage, place, message)
        return {to: sent for to, sent in given.items() if to != 4} if (stage, place) == ("share", 2) else given

    lab.answer = answer
    np.testing.assert_array_equal(lab.total(), np.delete(values, 2, axis=0).sum(axis=0))


def test_a_client_that_is_not_enrolled_cannot_take_a_place():
    with pytest.raises(ProtocolError, match="not the one enrolled for client 2"):
        SecureClient(Attempt(terms_for(5), 0, 0), 2, identities(6)[5])


def test_values_of_another_length_or_kind_are_refused():
    for values in (np.zeros(WIDTH + 1, dtype=np.int64), np.zeros(WIDTH)):
        lab = Lab(terms_for(4), [values] * 4)
        with pytest.raises(ProtocolError, match="values must be 7 whole numbers"):
            lab.total()


def test_words_of_another_type_are_left_out():
    lab = Lab(terms_for(6), values_for(6))
    honest = lab.answer
    lab.answer = lambda stage, place, message: (
        honest(stage, place, message).astype(np.int64)
        if (stage, place) == ("mask", 3)
        else honest(stage, place, message)
    )
    np.testing.assert_array_equal(lab.total(), np.delete(values_for(6), 3, axis=0).sum(axis=0))


def test_fewer_survivors_than_agreed_on_are_never_unmasked():
    lab = Lab(terms_for(6, survivors=6), values_for(6), gone={"mask": {2}})
    with pytest.raises(ProtocolError, match="5 survivors are fewer than the 6 agreed on"):
        lab.total()
    assert lab.charged == []


def test_nothing_is_charged_where_too_few_signed():
    lab = Lab(terms_for(6), values_for(6), gone={"sign": {0, 1, 2}})
    with pytest.raises(ProtocolError, match="3 survivors signed"):
        lab.total()
    assert lab.charged == []


def test_both_secrets_of_an_honest_client_need_one_honest_holder_to_answer_twice():
    """By counting, for every size and number of colluders: the lemma's first half."""
    for count in range(4, 40, 5):
        for colluders in range(count // 3):
            terms = terms_for(count, colluders=colluders)
            honest = count - colluders
            assert 2 * (terms.threshold - colluders) > honest
            assert 2 * (terms.quorum - colluders) > honest


def connected(places, neighbourhoods):
    reached, frontier = set(), {min(places)}
    while frontier:
        reached |= frontier
        frontier = {other for place in frontier for other in neighbourhoods[place]} & places - reached
    return reached == places


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_honest_survivors_of_a_ring_stay_connected_whatever_the_server_drops(data):
    """The lemma's second half: arcs of the ring are gone or collude, and the rule of survivors holds."""
    terms = terms_for(60, colluders=2, reach=12)
    starts = data.draw(st.lists(st.tuples(st.integers(0, 59), st.integers(1, 12)), max_size=5))
    gone = {int(terms.ring[(start + step) % 60]) for start, length in starts for step in range(length)}
    alive = tuple(place for place in range(60) if place not in gone)
    try:
        terms.check_survivors(alive)
    except ProtocolError:
        return
    colluders = set(data.draw(st.lists(st.sampled_from(alive), max_size=2)))
    assert connected(set(alive) - colluders, terms.neighbourhoods)


def test_a_ring_cut_in_two_is_refused():
    """Dropping `reach` clients in a row at two places would give the sum of either half."""
    terms = terms_for(60, colluders=2, reach=12)
    gone = {int(terms.ring[place]) for place in (*range(12), *range(30, 42))}
    alive = set(range(60)) - gone
    assert not connected(alive, terms.neighbourhoods)
    with pytest.raises(ProtocolError, match=r"fewer than 16 surviving neighbours"):
        terms.check_survivors(tuple(sorted(alive)))


@pytest.mark.parametrize("count", [101, 300, 1000])
def test_a_large_federation_gets_a_ring_with_room_for_dropouts(count):
    terms = Terms.for_clients(
        public(identities(count)), settings=b"", width=1, least_survivors=count // 2, most_colluders=count // 20
    )
    assert terms.reach is not None
    assert terms.neighbourhood_size < count
    assert terms.threshold <= 0.75 * terms.neighbourhood_size
    hoods = terms.neighbourhoods
    assert all(len(hood) == terms.neighbourhood_size and place in hood for place, hood in enumerate(hoods))
    assert all(place in hoods[other] for place, hood in enumerate(hoods) for other in hood)  # a graph


def test_the_ring_has_few_colluders_everywhere_for_most_orders():
    """At a failure probability that can be seen: the bound on colluders per neighbourhood is about right."""
    terms = Terms.for_clients(public(identities(300)), settings=b"", width=1, least_survivors=200, most_colluders=15)
    rng = np.random.default_rng(0)
    worst = []
    for _ in range(200):
        colluders = set(rng.choice(300, size=15, replace=False).tolist())
        worst.append(max(len(colluders.intersection(hood)) for hood in terms.neighbourhoods))
    assert max(worst) <= terms.local_colluders < 15 + 1


def test_the_ring_allows_for_a_server_that_tries_many_agreements():
    """Whoever writes the digest last decides the order: the tail is that of 2^64 orders, by exact arithmetic."""
    terms = Terms.for_clients(public(identities(500)), settings=b"", width=1, least_survivors=400, most_colluders=50)
    others, size, most = 499, 2 * terms.reach, terms.most_colluders
    beyond = [math.comb(most, x) * math.comb(others - most, size - x) for x in range(terms.local_colluders, most + 1)]
    allowed = Fraction(1, 2**104 * 500)
    assert (
        Fraction(sum(beyond[1:]), math.comb(others, size)) <= allowed < Fraction(sum(beyond), math.comb(others, size))
    )


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"least_survivors": 2}, PrivacyError, "leaves fewer than two honest clients"),
        ({"least_survivors": 9}, ProtocolError, "8 clients cannot give 9 survivors"),
        ({"most_colluders": 8, "least_survivors": 10}, ProtocolError, "allow fewer colluders"),
        ({"width": 0}, ValueError, "width"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(changes, error, text):
    with pytest.raises(error, match=text):
        replace(terms_for(8), **changes)


def test_terms_differ_by_their_digest():
    terms = terms_for(8)
    changed = [
        replace(terms, settings=b"other"),
        replace(terms, least_survivors=4),
        replace(terms, most_colluders=0),
        replace(terms, width=8),
        replace(terms, identities=terms.identities[::-1]),
    ]
    assert len({terms.digest, *(other.digest for other in changed)}) == 6


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (2, 3), (5, 9), (67, 100)])
def test_a_secret_comes_back_from_any_threshold_of_shares(threshold, holders):
    secret = bytes(range(200, 232))
    shares = split_secret(secret, range(1, holders + 1), threshold=threshold)
    last = dict(list(shares.items())[-threshold:])
    assert combine_shares(shares, threshold=threshold) == combine_shares(last, threshold=threshold) == secret
    if threshold > 1:
        with pytest.raises(ProtocolError, match="fewer than the threshold"):
            combine_shares(dict(list(shares.items())[1:threshold]), threshold=threshold)


def test_a_wrong_share_is_noticed():
    shares = split_secret(bytes(32), range(1, 6), threshold=3)
    shares[1] = (shares[1] + PRIME // 7) % PRIME
    with pytest.raises(ProtocolError, match="are inconsistent"):
        combine_shares(shares, threshold=3)


def test_fewer_shares_than_the_threshold_say_nothing():
    """Two shares of a threshold of three: uniform, whatever the secret; the top byte of each over many sharings."""
    tops = [split_secret(bytes(32), range(1, 4), threshold=3)[1] >> 513 for _ in range(2000)]
    counts = np.bincount(np.array(tops) // 32, minlength=8)
    assert counts.sum() == 2000
    assert abs(counts - 250).max() < 110  # seven standard deviations
