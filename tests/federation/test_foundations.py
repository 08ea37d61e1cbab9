"""What a federation rests on: messages that execute nothing, a signed agreement, a ledger of the client's own."""

import json
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federation_lab import agree

from rrcluster.errors import ConfigError, DataError, PrivacyError, ProtocolError, RunFolderError
from rrcluster.federation import member_daemon
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement, Member, SampleShape
from rrcluster.federation.client_ledger import ClientLedger, TrainingCost, agree_to, cost_together
from rrcluster.federation.collect import PlainCollect
from rrcluster.federation.federation_folder import FederationFolder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.federation.messages import Letter, decode
from rrcluster.privacy.ledger import describe
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams
from rrcluster.simulation.simulate import make_server
from rrcluster.types import Coordinates

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 5)]
MEMBERS = tuple(
    Member(name, key.public_key().public_bytes_raw(), 100 + place)
    for place, (name, key) in enumerate(zip(("north", "east", "south", "west"), KEYS, strict=True))
)
AGREEMENT = Agreement(
    "lab", {"epsilon": 4, "num_rounds": 10}, SampleShape((7,), 2), MEMBERS, "secure", least_honest=2, most_colluders=1
)
FEDERATION = AGREEMENT.digest


def letter():
    return Letter("train", {"round": 3, "keys": [1, 2]}, {"models": np.arange(6, dtype=np.float32).reshape(2, 3)})


def test_a_message_comes_back_as_it_was_sent():
    sent = letter()
    received = decode(sent.encode(), longest=10_000)
    assert (received.name, received.facts) == (sent.name, sent.facts)
    np.testing.assert_array_equal(received.arrays["models"], sent.arrays["models"])
    assert decode(Letter("hello").encode(), longest=1000).arrays == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 64,
        b"\x05\x00\x00\x00\x00\x00\x00\x00hello",
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        (2**40).to_bytes(8, "little") + b"{}",
        b"\x80\x04\x95.",  # a pickle
    ],
)
def test_bytes_that_are_no_message_are_refused_without_a_word_of_them(content):
    with pytest.raises(ProtocolError, match="a message cannot be read") as error:
        decode(content, longest=1000)
    assert error.value.__context__ is None or error.value.__suppress_context__ or "hello" not in str(error.value)


def test_every_cut_of_a_message_is_refused():
    content = letter().encode()
    for length in range(len(content)):
        with pytest.raises(ProtocolError):
            decode(content[:length], longest=10_000)


def test_a_message_that_is_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(ProtocolError, match=r"longer than the 100 that it may have"):
        decode(letter().encode(), longest=100)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("share", {"models": ("f4", (2, 3))}),
        ("train", {"models": ("f8", (2, 3))}),
        ("train", {"models": ("f4", (2, 4))}),
        ("train", {"models": ("f4", (6,))}),
        ("train", {}),
        ("train", {"models": ("f4", (2, 3)), "average": ("f4", (2, 3))}),
    ],
)
def test_a_message_of_another_name_type_or_shape_is_refused(name, wanted):
    letter().expect("train", models=("f4", (None, 3)))
    with pytest.raises(ProtocolError):
        letter().expect(name, **wanted)


def test_a_letter_shows_nothing_of_its_content():
    assert "models" not in repr(letter())


def test_everything_agreed_on_is_in_the_digest():
    others = [
        replace(AGREEMENT, settings={"epsilon": 5, "num_rounds": 10}),
        replace(AGREEMENT, least_honest=3),
        replace(AGREEMENT, most_colluders=0),
        replace(AGREEMENT, members=MEMBERS[::-1]),
        replace(AGREEMENT, members=(replace(MEMBERS[0], num_clients=1), *MEMBERS[1:])),
        replace(AGREEMENT, members=(replace(MEMBERS[0], identity=bytes(32)), *MEMBERS[1:])),
        replace(AGREEMENT, members=(replace(MEMBERS[0], name="north-east"), *MEMBERS[1:])),
        replace(AGREEMENT, authority="ab" * 32),
    ]
    assert len({AGREEMENT.digest, *(other.digest for other in others)}) == 9
    assert replace(AGREEMENT, settings={"num_rounds": 10, "epsilon": 4}).digest == AGREEMENT.digest  # order is nothing


def test_consent_is_one_members_to_one_agreement():
    signature = AGREEMENT.sign(KEYS[1])
    AGREEMENT.check_consent(1, signature)
    with pytest.raises(ProtocolError, match="north has not signed these settings"):
        AGREEMENT.check_consent(0, signature)
    with pytest.raises(ProtocolError, match="east has not signed these settings"):
        replace(AGREEMENT, settings={"epsilon": 400}).check_consent(1, signature)
    with pytest.raises(ProtocolError):
        AGREEMENT.check_consent(1, b"short")


def test_clients_have_numbers_of_their_own():
    assert [AGREEMENT.first_client(place) for place in range(4)] == [0, 100, 201, 303]
    assert AGREEMENT.num_clients == 406


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"members": MEMBERS[:2]}, "need 3 members, and 2 are enrolled"),
        ({"least_honest": 1}, "least_honest"),
        ({"members": (*MEMBERS, MEMBERS[0])}, "two members have the same"),
    ],
)
def test_agreements_that_cannot_be_kept_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        replace(AGREEMENT, **changes)


@pytest.mark.parametrize(("name", "identity"), [("", bytes(32)), ("a\x1b[2J", bytes(32)), ("ok", bytes(31))])
def test_members_with_odd_names_or_keys_are_refused(name, identity):
    with pytest.raises(ConfigError):
        Member(name, identity, 10)


def test_the_ledger_refuses_a_replay_and_survives_a_restart(tmp_path):
    path = tmp_path / "own" / "ledger.jsonl"
    ledger = ClientLedger(path)
    ledger.join(FEDERATION, 0, 0, limit=9)
    ledger.join(FEDERATION, 1, 0, limit=9)  # and here the daemon dies, its secrets with it
    for opened in (ledger, again := ClientLedger(path)):
        for round_index, attempt in ((1, 0), (0, 0), (0, 5)):
            with pytest.raises(ProtocolError, match="not later than the last one joined"):
                opened.join(FEDERATION, round_index, attempt, limit=9)
        assert opened.joined(FEDERATION) == 2
    again.join(FEDERATION, 1, 1, limit=9)
    again.join(b"another federation", 0, 0, limit=9)
    assert ClientLedger(path).joined(FEDERATION) == 3


def test_two_daemons_of_a_member_share_one_ledger(tmp_path):
    one, other = (ClientLedger(tmp_path / "ledger.jsonl") for _ in range(2))
    one.join(b"a", 0, 0, limit=2)
    with pytest.raises(ProtocolError, match="not later"):
        other.join(b"a", 0, 0, limit=2)
    other.join(b"a", 0, 1, limit=2)
    with pytest.raises(PrivacyError, match="all 2 attempts"):
        one.join(b"a", 1, 0, limit=2)


def test_the_ledger_ends_where_the_plan_does(tmp_path):
    ledger = ClientLedger(tmp_path / "ledger.jsonl")
    ledger.join(FEDERATION, 0, 0, limit=2)
    ledger.join(FEDERATION, 0, 1, limit=2)  # an attempt that failed is spent too
    for opened in (ledger, ClientLedger(tmp_path / "ledger.jsonl")):
        with pytest.raises(PrivacyError, match="all 2 attempts of the agreement"):
            opened.join(FEDERATION, 1, 2, limit=2)


def test_a_torn_line_is_dropped_and_a_damaged_ledger_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ClientLedger(path).join(FEDERATION, 0, 0, limit=9)
    whole = path.read_text()
    path.write_text(whole + '{"federation": "ab')
    with pytest.raises(ProtocolError):
        ClientLedger(path).join(FEDERATION, 0, 0, limit=9)
    path.write_text("nonsense\n" + whole)
    with pytest.raises(RunFolderError, match="the spent budget is unknown"):
        ClientLedger(path)
    path.write_text(json.dumps({"federation": "x", "round": 1.5}) + "\n")
    with pytest.raises(RunFolderError, match="the spent budget is unknown"):
        ClientLedger(path)


def test_a_ledger_that_lost_attempts_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = ClientLedger(path)
    for attempt in range(3):
        ledger.join(FEDERATION, 0, attempt, limit=3)
    path.write_text(path.read_text().split("\n")[0] + "\n")  # an old copy, while the daemon runs
    with pytest.raises(RunFolderError, match="fewer attempts than before"):
        ledger.join(FEDERATION, 0, 3, limit=3)
    path.unlink()
    with pytest.raises(RunFolderError, match="fewer attempts than before"):
        ledger.join(FEDERATION, 0, 3, limit=3)
    with pytest.raises(RunFolderError, match="no line of the training that was signed"):
        ClientLedger(path).check_signed(FEDERATION)


def test_looking_at_a_ledger_cuts_off_no_line_that_is_being_written(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ClientLedger(path).join(FEDERATION, 0, 0, limit=9)
    line, before = json.dumps({"federation": FEDERATION.hex(), "round": 0, "attempt": 1}) + "\n", path.read_text()
    with ClientLedger(path)._locked():  # as a daemon that joins
        path.write_text(before + line[:20])
        looking = threading.Thread(target=ClientLedger, args=(path,))
        looking.start()
        looking.join(0.3)
        with path.open("a") as file:
            file.write(line[20:])
    looking.join()
    assert ClientLedger(path).joined(FEDERATION) == 2


@pytest.mark.parametrize("colluders", [0, 1])
def test_the_lifetime_budget_counts_what_other_members_learn(tmp_path, colluders):
    agreed = AgreedRun.draft(agree((20, 25, 15), mode="secure", least_honest=2, most_colluders=colluders))
    guarantee = agreed.guarantee()
    server, members = guarantee["epsilon"], guarantee["epsilon_towards_members"]
    assert (members > 1.2 * server) == (colluders == 0), "who may collude has the noise made larger"
    folder = MemberFolder.create(tmp_path / "m", name="m", num_clients=3, lifetime=None)
    assert agree_to(folder, agreed) == pytest.approx(max(server, members), rel=1e-3)
    folder.change_settings(lifetime_epsilon=0.99 * members)
    with pytest.raises(PrivacyError, match="above the lifetime budget"):
        agree_to(folder, agreed)


def test_trainings_add_up_to_the_lifetime_budget(tmp_path):
    """At signing, and again when a training is joined: another one may have been joined since."""
    plan = PrivacyPlan.build(
        coordinates=Coordinates(0, 1),
        num_clients=100,
        num_clusters=1,
        num_rounds=5,
        noise_multiplier=4.0,
        delta=1e-3,
        participation="everybody",
        secure=True,
    )
    cost = TrainingCost("one", describe(plan.event), plan.num_participations, "zero-out", 1e-3)
    once, twice = cost_together([cost]), cost_together([cost, cost])
    assert once == pytest.approx(plan.epsilon())
    assert once < twice < 2 * once
    path = tmp_path / "ledger.jsonl"
    ledger = ClientLedger(path, lifetime=twice * 0.99)
    assert ledger.agree(b"first", cost) == ledger.agree(b"second", cost) == once  # neither has been joined yet
    ledger.join(b"first", 0, 0, limit=5)
    with pytest.raises(PrivacyError, match=r"above the lifetime budget of"):
        ledger.join(b"second", 0, 0, limit=5)
    with pytest.raises(PrivacyError, match="above the lifetime budget"):
        ClientLedger(path, lifetime=twice * 0.99).agree(b"third", cost)
    with pytest.raises(PrivacyError, match="sign it first"):
        ledger.join(b"never signed", 0, 0, limit=5)
    more = ClientLedger(path, lifetime=twice * 1.01)
    more.join(b"second", 0, 0, limit=5)
    assert more.agree(b"second", cost) == twice
    plain = replace(cost, adjacency="add-remove")
    with pytest.raises(PrivacyError, match="do not add up"):
        more.agree(b"plain", plain)
    before_costs = ClientLedger(tmp_path / "old.jsonl")
    before_costs.join(b"unknown", 0, 0, limit=5)
    for lifetime in (100.0, None):
        with pytest.raises(PrivacyError, match="the spent budget is unknown"):
            ClientLedger(tmp_path / "old.jsonl", lifetime=lifetime).agree(b"next", cost)


@pytest.mark.parametrize("lock", ["ledger.lock", "attempts.lock"])
def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path, lock):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "server").mkdir()
    folder = tmp_path if lock.startswith("ledger") else tmp_path / "server"
    take = FederationFolder(tmp_path).next_attempt
    if lock.startswith("ledger"):
        take = partial(ClientLedger, tmp_path / "ledger.jsonl")
    (folder / lock).symlink_to(precious)
    with pytest.raises(RunFolderError, match="a link, which is not followed"):
        take()
    assert precious.read_text() == "kept"
    (folder / lock).unlink()
    (folder / lock).write_text("kept, too")
    assert FederationFolder(tmp_path).next_attempt() == 0
    assert ClientLedger(tmp_path / "ledger.jsonl").joined(b"x") == 0
    assert (folder / lock).read_text() == "kept, too"


@pytest.mark.parametrize("loss", ["lost", "old copy", "of an older version"])
def test_clients_whose_numbers_are_lost_are_not_numbered_anew(tmp_path, loss):
    folder = MemberFolder.create(tmp_path / "m", name="m", num_clients=5, lifetime=None)
    path = folder.path / "clients.json"
    assert folder.numbers(["a", "b"], most=5).tolist() == [0, 1]
    early = path.read_bytes()
    assert folder.numbers(["c", "b"], most=5).tolist() == [2, 1]
    if loss == "old copy":
        path.write_bytes(early)
    else:
        path.unlink()
    if loss == "of an older version":
        settings = {name: value for name, value in folder.settings().items() if name != "numbered"}
        (folder.path / "member.json").write_text(json.dumps(settings))
        ledger = ClientLedger(folder.path / "ledger.jsonl")
        ledger.join(b"one", 0, 0, limit=3)
    with pytest.raises(RunFolderError, match="would count as one; restore it"):
        folder.numbers(["b", "c"], most=5)


@pytest.mark.parametrize("expanded", [False, True])
def test_an_npz_file_that_expands_to_far_more_is_refused(tmp_path, monkeypatch, expanded):
    monkeypatch.setattr(member_daemon, "_SMALL", 2**20, raising=False)
    arrays = {"inputs": np.zeros((40_000, 50), np.float32), "targets": np.zeros(40_000, np.int64)}
    arrays["clients"] = np.arange(40_000) % 7
    (np.savez_compressed if expanded else np.savez)(tmp_path / "data.npz", **arrays)
    agreement = SimpleNamespace(samples=SimpleNamespace(num_classes=2, ids=False))
    if expanded:
        with pytest.raises(DataError, match=r"expand to 8, more than 32 times as much; .*np\.savez, uncompressed"):
            member_daemon._from_npz(tmp_path / "data.npz", agreement)
        return
    data = member_daemon._from_npz(tmp_path / "data.npz", agreement)
    assert data.clients == tuple("0123456")
    assert data.sizes.tolist() == [5715] * 2 + [5714] * 5


class Instant:
    """Members that answer with nothing wrong and nothing to say."""

    def __init__(self, mechanism):
        arrays = {"updates": np.zeros((0, mechanism.coordinates.width), np.float32)}
        arrays |= {name: np.zeros(0, np.int64) for name in ("choices", "clients")}
        self.letter = Letter("report", {}, arrays).encode()

    def ask(self, messages):
        return dict.fromkeys(messages, self.letter)

    def stayed(self):
        return set()


def test_a_plain_round_of_four_times_as_many_members_takes_about_four_times_as_long():
    seconds = []
    for count in (250, 1000):
        members = tuple(Member(f"m{place}", place.to_bytes(32, "big"), 1) for place in range(count))
        agreed = AgreedRun.draft(agree((20, 25, 15), model="pooled-linear", num_clusters=1, algorithm="fedavg"))
        plan = replace(agreed.plan, mechanism=replace(agreed.plan.mechanism, num_clients=count, sample_rate=1.0))
        several = replace(agreed, agreement=replace(agreed.agreement, members=members))
        several = replace(several, experiment=replace(several.experiment, plan=plan))
        server = make_server(
            model=agreed.experiment.model, method=agreed.experiment.method, plan=plan,
            settings=agreed.experiment.server, streams=Streams(0),
        )  # fmt: skip
        collect = PlainCollect(several, Instant(plan.mechanism), Streams(0))
        guidance = server.tell(server.first_state())
        times = []
        for _ in range(3):
            began = time.process_time()
            collect(guidance, lambda: None)
            times.append(time.process_time() - began)
        seconds.append(min(times))
    assert seconds[1] < 10 * seconds[0], seconds  # by the square it would be 16, by the cube 64
