"""Members that answer what they like, over messages: named where that can be, and no sum is released that cannot be."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from federation_lab import agree, daemons_of, deal_falsely, deployed_rounds, experiment_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_secure_rounds import STAGES, first_round, more_rows, other_types

from rrcluster.errors import ProtocolError, RoundError
from rrcluster.federation.collect import InProcess, SecureCollect
from rrcluster.federation.messages import READ_ANSWER, Letter, decode, read_unopened
from rrcluster.federation.secagg.masks import PRIME
from rrcluster.federation.secagg.secure_client import ENVELOPE_BYTES, SecureClient
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.ledger import Ledger

COUNTS = (15, 15, 15, 15)


@pytest.fixture(scope="module")
def data():
    return experiment_of().data


@pytest.fixture(scope="module")
def four():
    return agree(mode="secure", counts=COUNTS, most_colluders=1, num_rounds=1, reserve_rounds=2)


@pytest.fixture(scope="module")
def six():
    return agree(mode="secure", counts=(10,) * 6, most_colluders=1, num_rounds=1, reserve_rounds=2)


@pytest.fixture
def members(four, data, tmp_path):
    return daemons_of(four, data, tmp_path, engine="batched")


def altered(content, change):
    letter = decode(content, longest=10**9)
    return replace(letter, arrays={name: change(values) for name, values in letter.arrays.items()}).encode()


def bits(content):
    """All bytes of all arrays but places."""
    return altered(content, lambda values: values if values.dtype == np.int64 else ~values)


def fewer_rows(content):
    return altered(content, lambda values: values[:-1])


def rows_that_do_not_match(content):
    letter = decode(content, longest=10**9)
    arrays = {name: values[:-1] if name.startswith("places") or name.endswith("of") else values
              for name, values in letter.arrays.items()}  # fmt: skip
    return replace(letter, arrays=arrays).encode()


def other_places(content):
    return altered(content, lambda values: values + 1000 if values.dtype == np.int64 else values)


def another_seed(content):
    """Were these shares of seeds, those of the members 0 to 2 would give the next seed: 3 is the first one's weight."""
    moved, letter = pow(3, -1, PRIME), decode(content, longest=10**9)
    seeds = letter.arrays["seeds"]
    numbers = [(int.from_bytes(row.tobytes()) + moved) % PRIME % 256 ** seeds.shape[1] for row in seeds]
    rows = [np.frombuffer(number.to_bytes(seeds.shape[1]), dtype=np.uint8) for number in numbers]
    return replace(letter, arrays={**letter.arrays, "seeds": np.stack(rows)}).encode()


NONSENSE = {
    "no bytes": lambda _: b"",
    "zeros": lambda _: bytes(1000),
    "cut off": lambda content: content[: len(content) // 2],
    "a header of nothing": lambda _: (2**20 - 1).to_bytes(8, "little") + b"[" * 2**20,
    "another letter": lambda _: Letter("kept").encode(),
    "another stage": lambda _: Letter("masked", {}, {"words": np.zeros(3, dtype=np.uint32)}).encode(),
    "other types": other_types,
    "rows too many": more_rows,
}


class Lying:
    """Daemons of which some lie in a stage: `lies` maps (stage, place) to what becomes of the answer."""

    def __init__(self, daemons, lies):
        self.inner, self.lies, self.asked = InProcess(daemons), lies, []

    def ask(self, messages):
        (stage,) = {decode(content, longest=10**9).name for content in messages.values()} or {None}
        self.asked.append((stage, set(messages)))
        answers = self.inner.ask(messages)
        lies = {place: self.lies.get((stage, place), bytes) for place in answers}
        return {place: lies[place](content) for place, content in answers.items()}


@pytest.fixture
def values(monkeypatch):
    """What each member adds to the sum, by place; of its last attempt."""
    sent, mask = {}, SecureClient.mask

    def keep(self, own, *, task_digest):
        sent[self.place] = own
        return mask(self, own, task_digest=task_digest)

    monkeypatch.setattr(SecureClient, "mask", keep)
    return sent


def total_of(members, lies):
    agreed, daemons = members
    collect = SecureCollect(agreed, Lying(daemons, lies))
    return first_round(collect, agreed).total, collect


def sum_without(values, *places):
    return np.sum([own for place, own in values.items() if place not in places], axis=0)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_any_stage_is_named_and_the_round_saved(members, values, stage, name):
    total, collect = total_of(members, {(stage, 2): NONSENSE[name]})
    left_out = () if stage in ("sign", "reveal") else (2,)
    np.testing.assert_array_equal(total, sum_without(values, *left_out))
    assert collect.faults == [f"member-2 sent an invalid answer to {stage}."]


@pytest.mark.parametrize("liar", range(4))
@pytest.mark.parametrize("change", [bits, fewer_rows, rows_that_do_not_match, other_places, another_seed])
def test_a_member_that_reveals_something_else_is_named_and_the_round_saved(members, values, liar, change, caplog):
    with caplog.at_level(logging.WARNING):
        total, collect = total_of(members, {("reveal", liar): change})
    np.testing.assert_array_equal(total, sum_without(values))
    (fault,) = collect.faults
    assert fault.startswith(f"member-{liar} ")
    assert fault in caplog.text


@pytest.mark.parametrize(("stage", "left_out"), [("advertise", (1,)), ("sign", ())])
def test_a_member_whose_signatures_do_not_hold_is_named_and_the_round_saved(members, values, stage, left_out):
    total, collect = total_of(members, {(stage, 1): bits})
    np.testing.assert_array_equal(total, sum_without(values, *left_out))
    (fault,) = collect.faults
    assert fault.startswith("member-1 ")


def garbled(*receivers):
    """Envelopes that these receivers cannot open."""

    def lie(content):
        letter = decode(content, longest=10**9)
        wrong = np.isin(letter.arrays["places"], receivers)
        envelopes = np.where(wrong[:, None], ~letter.arrays["envelopes"], letter.arrays["envelopes"])
        return replace(letter, arrays={**letter.arrays, "envelopes": envelopes}).encode()

    return lie


@pytest.mark.parametrize(
    ("receivers", "attempts", "left_out", "joined"),
    [
        ((0,), 1, (0,), [0, 1, 1, 1]),  # who cannot open one leaves, and the three others are enough
        ((0, 1), 2, (2,), [1, 1, 1, 2]),
        ((0, 1, 3), 2, (2,), [1, 1, 1, 1]),
    ],
)
def test_envelopes_that_cannot_be_opened_cost_nobody_an_attempt_who_cannot_open_them(
    four, members, values, receivers, attempts, left_out, joined
):
    agreed, daemons = members
    total, collect = total_of(members, {("share", 2): garbled(*receivers)})
    np.testing.assert_array_equal(total, sum_without(values, *left_out))
    assert [stage for stage, _ in collect.transport.asked].count("advertise") == attempts
    assert [daemons[place].ledger.joined(four.digest) for place in range(4)] == joined
    assert collect.left_out == ({2} if attempts == 2 else set())
    named = [f"member-{place} says that it cannot open what member-2 sent it" for place in receivers]
    named += ["member-2 is not asked any more"] if attempts == 2 else []
    assert [fault.split(":")[0] for fault in collect.faults] == named
    assert agreed.secure.terms.threshold == 3


@pytest.mark.parametrize(
    ("lies", "left_out", "attempts"),
    [
        ({("reveal", 1): another_seed, ("reveal", 4): other_places}, (), 1),
        ({("reveal", 0): bits, ("sign", 5): bits}, (), 1),
        ({("advertise", 2): bits, ("reveal", 3): fewer_rows}, (2,), 1),
        ({("mask", 1): NONSENSE["other types"], ("share", 4): NONSENSE["zeros"]}, (1, 4), 1),
        ({("share", 0): garbled(*range(6)), ("reveal", 5): bits}, (0,), 2),
        ({("share", 2): garbled(*range(6)), ("share", 3): garbled(*range(6))}, (2, 3), 3),
    ],
)
def test_two_liars_of_six_are_named_and_the_round_saved(six, data, tmp_path, values, lies, left_out, attempts):
    """Of six members, one of whom may collude, four are enough."""
    agreed, daemons = daemons_of(six, data, tmp_path, engine="batched")
    assert agreed.secure.terms.threshold == 4
    total, collect = total_of((agreed, daemons), lies)
    np.testing.assert_array_equal(total, sum_without(values, *left_out))
    assert [stage for stage, _ in collect.transport.asked].count("advertise") == attempts
    assert all(any(f"member-{place} " in fault for fault in collect.faults) for _, place in lies)
    honest = set(range(6)) - {place for _, place in lies}
    assert not any(
        fault.startswith(f"member-{place} ") and "says" not in fault for place in honest for fault in collect.faults
    )
    assert all(daemons[place].ledger.joined(six.digest) == 1 for place in honest)


def test_after_a_complaint_a_member_answers_nothing_more_of_the_attempt(members):
    _, daemons = members
    transport = Keeping(daemons, {("share", 2): garbled(0)})
    first_round(SecureCollect(members[0], transport), members[0])
    mask = transport.sent["mask"][0]
    assert decode(transport.answers["mask"][0], longest=10**4).name == "unopened"
    for message in (mask, transport.sent["mask"][1], transport.sent["sign"][1], transport.sent["reveal"][1]):
        assert decode(daemons[0].answer(message), longest=10**4) == Letter("refused")


class Keeping(Lying):
    """Keeps what passes, by stage."""

    def __init__(self, daemons, lies):
        super().__init__(daemons, lies)
        self.sent, self.answers = {}, {}

    def ask(self, messages):
        answers = super().ask(messages)
        stage, _ = self.asked[-1]
        self.sent[stage], self.answers[stage] = messages, answers
        return answers


def test_a_member_that_says_falsely_that_it_cannot_open_an_envelope_is_out_alone(members, values):
    wrong = Letter("unopened", {}, {"senders": np.array([0, 1, 3, 77])}).encode()
    total, collect = total_of(members, {("mask", 2): lambda _: wrong})
    np.testing.assert_array_equal(total, sum_without(values, 2))
    assert collect.left_out == set()
    none = Letter("unopened", {}, {"senders": np.array([77])}).encode()
    agreed, daemons = members
    again = SecureCollect(agreed, Lying(daemons, {("mask", 2): lambda _: none}), iter(range(5, 9)).__next__)
    first_round(again, agreed)
    assert again.faults == ["member-2 sent an invalid answer to mask."]


def test_a_dealer_of_false_shares_is_named_and_the_round_is_charged_once(members, monkeypatch, caplog):
    agreed, daemons = members
    deal_falsely(monkeypatch, 3)
    ledger, transport = Ledger(secure=True, limit=3), Lying(daemons, {})
    with caplog.at_level(logging.WARNING), pytest.raises(RoundError, match="member-3 sent its neighbours shares that"):
        next(deployed_rounds(agreed, transport, ledger=ledger))
    assert ledger.num_charged == 1
    assert [stage for stage, _ in transport.asked] == list(STAGES)
    assert "member-3 sent its neighbours shares" in caplog.text
    assert not any(f"member-{place} " in caplog.text for place in range(3))


def test_a_list_of_more_places_than_any_federation_has_is_refused():
    with pytest.raises(ProtocolError, match="number more than 1048576"):
        read_unopened(Letter("unopened", {}, {"senders": np.arange(2**20 + 1)}))
    arrays = {"places": np.arange(2**20 + 1), "envelopes": np.zeros((2**20 + 1, ENVELOPE_BYTES), dtype=np.uint8)}
    with pytest.raises(ProtocolError, match="number more than 1048576"):
        READ_ANSWER["share"](Letter("envelopes", {}, arrays), 1)


def adds(number, where=slice(None)):
    """Adds a number to the words that it sends, modulo 2^32: what the mask is does not matter."""

    def lie(content):
        letter = decode(content, longest=10**9)
        words = letter.arrays["words"].copy()
        words[where] += np.uint32(number % 2**32)
        return replace(letter, arrays={"words": words}).encode()

    return lie


def random_words(content):
    shape = decode(content, longest=10**9).arrays["words"].shape
    return Letter(
        "masked", {}, {"words": np.random.default_rng(0).integers(2**32, size=shape, dtype=np.uint32)}
    ).encode()


SIZES = slice(-4, -2)
IMPOSSIBLE = {
    "2^28 on all words": adds(2**28),
    "-2^28 on all words": adds(-(2**28)),
    "2^31 on one word": adds(2**31, slice(5, 6)),
    "a size far below zero": adds(-(2**26), SIZES),
    "a size above all clients": adds(2**26, SIZES),
    "accuracies where none were asked for": adds(2**27, slice(-2, None)),
    "random words": random_words,
    "other masks": bits,
    "a little on all words": adds(10_000_000),  # each of them possible, their norm is not
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_sum_that_cannot_be_is_charged_and_not_released(members, name):
    agreed, daemons = members
    ledger = Ledger(secure=True, limit=3)
    with pytest.raises(RoundError, match="the noisy sum is impossible for 60 clients and the noise of 4 members"):
        next(deployed_rounds(agreed, Lying(daemons, {("mask", 1): IMPOSSIBLE[name]}), ledger=ledger))
    assert ledger.num_charged == 1


def test_sums_at_the_bounds_are_released(members):
    """All clients in one cluster and noise of 15 standard deviations; of 17 it is refused."""
    secure = members[0].secure
    mechanism, std = secure.plan.mechanism, secure.sigma * np.sqrt(4)
    total = np.zeros(mechanism.message_width, dtype=np.int64)
    total[-4] = 60 * mechanism.count_units + 15 * std
    total[-3] = -15 * std
    total[0] = 60 * mechanism.update_clip / mechanism.step + 15 * std
    np.testing.assert_array_equal(secure.checked_sum(total).total, total)
    for place, sign in ((-4, 1), (-3, -1), (0, 1)):
        beyond = total.copy()
        beyond[place] += sign * 2 * std
        with pytest.raises(RoundError):
            secure.checked_sum(beyond)


KINDS = {
    **NONSENSE,
    **IMPOSSIBLE,
    "fewer rows": fewer_rows,
    "rows that do not match": rows_that_do_not_match,
    "other places": other_places,
    "another seed": another_seed,
    "envelopes that nobody opens": garbled(0, 1, 2, 3),
    "an envelope that one cannot open": garbled(1),
}


def lying_round(agreement, data, folder, lies):
    """One round with these lies. What is released is possible, and was charged."""
    agreed, daemons = daemons_of(agreement, data, folder, engine="batched")
    mechanism, n = agreed.plan.mechanism, agreement.num_clients
    ledger = Ledger(secure=True, limit=3)

    def lie(kind):
        def told(content):
            try:
                return kind(content)
            except Exception:  # this lie is about another stage
                return bits(content)

        return told

    transport = Lying(daemons, {where: lie(KINDS[name]) for where, name in lies.items()})
    try:
        finished = next(deployed_rounds(agreed, transport, ledger=ledger))
    except RoundError as error:
        if "withheld" in str(error):
            pytest.fail("the server failed at what a member sent")
        return
    release, deviations = finished.release, 16 * agreed.secure.sigma * mechanism.step * np.sqrt(4)
    assert ledger.num_charged == 1
    assert (release.sizes > -deviations / mechanism.count_weight - 1e-6).all()
    assert (release.sizes < n * 1.001 + deviations / mechanism.count_weight).all()
    assert (np.abs(release.cluster_sums) < n * mechanism.update_clip * 1.001 + deviations).all()


LIES = st.dictionaries(
    st.tuples(st.sampled_from(STAGES), st.integers(0, 3)), st.sampled_from(sorted(KINDS)), min_size=1, max_size=3
)


@settings(max_examples=40, deadline=None)
@given(lies=LIES)
def test_a_released_sum_is_never_one_that_cannot_be(four, data, tmp_path_factory, lies):
    lying_round(four, data, tmp_path_factory.mktemp("members"), lies)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(lies=LIES)
def test_a_released_sum_is_never_one_that_cannot_be_400_times(four, data, tmp_path_factory, lies):
    lying_round(four, data, tmp_path_factory.mktemp("members"), lies)


def test_a_training_goes_on_without_a_member_that_was_named(members, monkeypatch):
    """As an operator does with `serve --without`: the round is charged anew, and the three others are enough."""
    agreed, daemons = members
    deal_falsely(monkeypatch, 3)
    ledger, numbers = Ledger(secure=True, limit=3), iter(range(9))
    with pytest.raises(RoundError):
        next(deployed_rounds(agreed, Lying(daemons, {}), ledger=ledger, next_attempt=numbers.__next__))
    without = InProcess(daemons, gone=frozenset({3}))
    next(deployed_rounds(agreed, without, ledger=ledger, next_attempt=numbers.__next__))
    assert ledger.num_charged == 2
    assert isinstance(agreed.plan.mechanism, JointMechanism)
