"""Federations: masked sums are exact or refused, members add the noise, and stated costs hold towards them too.

Members, their daemons and the server are in this process; the only files are members' ledgers, in a temporary folder.
Clients have one sample each, so that their messages involve no randomness and the audit can add them up itself.
"""

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.audit.accountants import gaussian_epsilon
from rrcluster.audit.statistics import SIGNIFICANCE, scale_p_value
from rrcluster.audit.targets import Finding, refused
from rrcluster.client import ClientKeys
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.entropy import SecureStreams
from rrcluster.errors import PrivacyError, ProtocolError, RoundError
from rrcluster.federation.agreed_run import AgreedRun, close
from rrcluster.federation.agreement import Agreement, Member, SampleShape
from rrcluster.federation.client_ledger import ClientLedger, agree_to
from rrcluster.federation.collect import InProcess, PlainCollect, SecureCollect
from rrcluster.federation.daemon import Daemon
from rrcluster.federation.secagg.secure_client import Attempt, SecureClient
from rrcluster.federation.secagg.secure_server import secure_sum
from rrcluster.federation.secagg.terms import Terms
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.reports import NoisySum
from rrcluster.server.server import Charge, Guidance, run_rounds
from rrcluster.simulation.simulate import make_server
from rrcluster.types import Array

SUBJECT = "federation"
MEMBERS, CLIENTS, SHAPE, ROUNDS, WIDTH = 4, 3, (5,), 2, 64
_KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, MEMBERS + 1)]
_IDENTITIES = tuple(key.public_key().public_bytes_raw() for key in _KEYS)
_SETTINGS: dict[str, Any] = {
    "data": "members",
    "model": "linear",
    "algorithm": "ifca",
    "init": "independent",
    "exploration": 0.0,
    "num_clusters": 2,
    "num_rounds": ROUNDS,
    "noise_multiplier": 1.0,
    "participation": "everybody",
    "delta": 1e-2,
    "secure": True,
}
STAGES = ("advertise", "share", "mask", "sign", "reveal")


@dataclass
class Aggregation:
    """One attempt among clients in this process. `gone` stop answering from a stage on; `spoil` changes one answer."""

    terms: Terms
    number: int = 0
    gone: tuple[str, frozenset[int]] | None = None
    spoil: tuple[str, int] | None = None
    log: list[str] = field(default_factory=list)
    words: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attempt = Attempt(self.terms, 0, self.number)
        self.clients = [SecureClient(self.attempt, place, key) for place, key in enumerate(_KEYS)]
        self._left: set[int] = set()
        self.blamed: set[int] = set()

    def ask(self, stage: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """The answers of all clients that are still present."""
        self.log.append(stage)
        if self.gone is not None and self.gone[0] == stage:
            self._left |= self.gone[1]
        there = messages.keys() - self._left
        answers = {place: self._answer(stage, place, messages[place]) for place in sorted(there)}
        if stage == "mask":
            self.words = answers
        return answers

    def _answer(self, stage: str, place: int, message: Any) -> Any:
        client = self.clients[place]
        if stage == "mask":
            client.open(message)
            answer: Any = client.mask(values()[place], task_digest=b"told")
        else:
            answer = client.advertise() if stage == "advertise" else getattr(client, stage)(message)
        return _spoiled(answer) if self.spoil == (stage, place) else answer

    def total(self) -> Array:
        """The sum that the server obtains."""
        return secure_sum(
            self.attempt,
            self.ask,
            charge=lambda: self.log.append("charge"),
            blame=lambda place, _: self.blamed.add(place),
            task_digest=b"told",
        )


def _spoiled(answer: Any) -> Any:
    """An answer of the right form with a wrong byte; words and envelopes with another number."""
    if isinstance(answer, np.ndarray):
        return answer[:-1]
    if isinstance(answer, bytes):
        return answer[:-1] + bytes([answer[-1] ^ 1])
    if isinstance(answer, Mapping):
        return dict(list(answer.items())[1:])
    first = next(part.name for part in fields(answer) if getattr(answer, part.name))
    return replace(answer, **{first: _spoiled(getattr(answer, first))})


def values() -> Array:
    """(members, WIDTH) the value that each member hides."""
    return np.random.default_rng(5).integers(-(2**20), 2**20, size=(MEMBERS, WIDTH))


def _terms(*, colluders: int = 0) -> Terms:
    return Terms(b"audit", _IDENTITIES, WIDTH, 2 + colluders, colluders)


def check_secure_sums() -> list[Finding]:
    """Sums of four members: exact with all, with one gone and with one liar in any stage, who is named.

    Deterministic but for keys. The charge comes before any member reveals its masks; too few survivors or signatures
    leave no sum and no charge; words of one attempt reveal nothing of another's.
    """
    wrong = _exact() or _charged_first() or _too_few()
    claim = "a sum is refused, or exact, of enough members and charged before it is known"
    findings = [Finding(SUBJECT, "secure sums", claim, wrong or "holds, in every stage", not wrong)]
    masked = _masked()
    return [*findings, Finding(SUBJECT, "masks", "words of an attempt look random", masked or "holds", not masked)]


def _exact() -> str:
    cases = [(stage, place) for stage in STAGES for place in (0, 3)]
    labs = {f"one member gone in {case}": Aggregation(_terms(), gone=(case[0], frozenset({case[1]}))) for case in cases}
    labs |= {f"a liar in {case}": Aggregation(_terms(), spoil=case) for case in cases}
    for how, lab in {"all members": Aggregation(_terms()), **labs}.items():
        try:
            total = lab.total()
        except ProtocolError:
            return f"no sum with {how}"
        counted = [place for place, words in sorted(lab.words.items()) if words.shape == (WIDTH,)]
        if not np.array_equal(total, values()[counted].sum(axis=0)):
            return f"another sum with {how}"
        if lab.spoil is not None and lab.blamed != {lab.spoil[1]}:
            return f"{how} is not named, or another member is"
    return ""


def _charged_first() -> str:
    lab = Aggregation(_terms())
    lab.total()
    return "" if lab.log == [*STAGES[:4], "charge", "reveal"] else f"wrong order: {', '.join(lab.log)}"


def _too_few() -> str:
    """With one colluder three of four members must survive, and three sign; nobody signs two lists."""
    for gone in (frozenset({2, 3}), frozenset({0, 1})):
        for stage in ("mask", "sign"):
            lab = Aggregation(_terms(colluders=1), gone=(stage, gone))
            if not refused(lab.total, ProtocolError) or "charge" in lab.log:
                return f"a sum of two members is charged or unmasked, where one may collude ({stage})"
    lab = Aggregation(_terms(), gone=("reveal", frozenset(range(MEMBERS))))
    if not refused(lab.total, ProtocolError):
        return "a sum is known before any member reveals its masks"
    return "" if refused(lambda: lab.clients[0].sign((0, 1, 2)), ProtocolError) else "a member signs two lists"


def _masked() -> str:
    """Words of equal values: uniform, and unrelated between attempts, alone and as sums of any two members."""
    labs = [Aggregation(_terms(), number=number) for number in (0, 1)]
    for lab in labs:
        lab.total()
    one, two = (np.array([lab.words[place] for place in range(MEMBERS)], dtype=np.uint32) for lab in labs)
    if any(own._seed == other._seed for own, other in zip(*(lab.clients for lab in labs), strict=True)):
        return "a seed that is revealed in one attempt masks the next one too"
    for number in range(1, 2**MEMBERS):
        part = [place for place in range(MEMBERS) if number >> place & 1]
        sums = [words[part].sum(axis=0, dtype=np.uint32) for words in (one, two)]
        plain = values()[part].sum(axis=0).astype(np.uint32)
        for words in (sums[0], sums[0] - plain, sums[0] - sums[1]):
            if abs(words.astype(np.int32).astype(float)).mean() < 2.0**29:  # 2^30 on average, of 64 words
                return f"words of {len(part)} members show their values"
    return ""


def _agreement(*, colluders: int = 0, mode: str = "secure", **settings: Any) -> Agreement:
    roster = tuple(Member(f"m{place}", identity, CLIENTS) for place, identity in enumerate(_IDENTITIES))
    honest: dict[str, Any] = {"least_honest": 3, "most_colluders": colluders}
    more = honest if mode == "secure" else {"least_members": 3}
    return close(Agreement("audit", _SETTINGS | settings, SampleShape(SHAPE, 3), roster, mode, **more))


def check_noise_shares() -> Finding:
    """Three honest shares hold at least the plan's noise, and little more; impossible sums are refused."""
    wrong = ""
    for colluders in (0, 1):
        agreed = AgreedRun.build(_agreement(colluders=colluders))
        secure: Any = agreed.secure
        mechanism, honest = secure.plan.mechanism, 3
        clip, weight = mechanism.update_clip, mechanism.count_weight
        required = mechanism.event.noise_multiplier * math.hypot(clip, weight) / mechanism.step
        shares = np.concatenate([secure.noise_share() for _ in range(40)])
        if not 1 <= secure.sigma * math.sqrt(honest) / required <= 1.001:
            wrong = wrong or f"{honest} shares of {secure.sigma} steps, for noise of {required:.6g}"
        if scale_p_value(shares, secure.sigma) < SIGNIFICANCE:
            wrong = wrong or "shares have another std than stated"
        if (secure.terms.least_survivors, secure.terms.most_colluders) != (honest + colluders, colluders):
            wrong = wrong or f"{secure.terms.least_survivors} survivors are enough for {honest} honest ones"
        wrong = wrong or _impossible(secure)
    claim = "the honest members' shares are the plan's noise"
    return Finding(SUBJECT, "noise shares", claim, wrong or "holds", not wrong)


def _impossible(secure: SecurePlan) -> str:
    mechanism: Any = secure.plan.mechanism
    width, weight = mechanism.message_width, mechanism.count_units
    std, clip = secure.sigma * math.sqrt(MEMBERS), mechanism.update_clip / mechanism.step
    odd = {"a negative size": (-4, -50 * std), "more clients than there are": (-4, 20 * std + 100 * weight)}
    odd |= {"a long update": (0, MEMBERS * CLIENTS * clip + 50 * std), "a wrapped word": (1, 2.0**30)}
    for what, (place, value) in odd.items():
        total = np.zeros(width, dtype=np.int64)
        total[place] = int(value)
        if not refused(lambda total=total: secure.checked_sum(total), RoundError):  # type: ignore[misc]
            return f"a sum with {what} is released"
    secure.checked_sum(np.zeros(width, dtype=np.int64))
    return ""


def check_federated_cost() -> Finding:
    """The signed cost, against the audit's own formula: towards the server, members, and over a lifetime."""
    wrong = ""
    for colluders in (0, 1):
        agreed = AgreedRun.build(_agreement(colluders=colluders))
        guarantee, secure = agreed.guarantee(), agreed.secure
        noise = agreed.plan.event.noise_multiplier / math.sqrt(ROUNDS)
        remaining = 1.0 if colluders else math.sqrt(2 / 3)  # of three noise shares a member can subtract its own
        multipliers = {"epsilon": noise, "epsilon_towards_members": noise * remaining}
        for name, multiplier in multipliers.items():
            if guarantee[name] < gaussian_epsilon(multiplier, guarantee["delta"]) - 1e-6:
                wrong = wrong or f"{name} = {guarantee[name]:.4g} with {colluders} colluders"
        if guarantee["adjacency"] != "zero-out" or secure is None or guarantee["delta"] < agreed.plan.delta:
            wrong = wrong or f"{guarantee['adjacency']} at delta = {guarantee['delta']:g}"
        with tempfile.TemporaryDirectory() as folder:
            member: Any = SimpleNamespace(path=Path(folder), settings=dict)
            if agree_to(member, agreed) < gaussian_epsilon(noise * remaining, guarantee["delta"]) - 1e-6:
                wrong = wrong or "a member books less than the cost towards other members"
        false = replace(agreed.agreement, guarantee=guarantee | {"epsilon": guarantee["epsilon"] / 2})
        if not refused(lambda false=false: AgreedRun.build(false), PrivacyError):  # type: ignore[misc]
            wrong = wrong or "an agreement with a wrong epsilon is accepted"
    sampled: dict[str, Any] = {"participation": "poisson", "sample_rate": 0.5}
    if not refused(lambda: _agreement(**sampled)):
        wrong = wrong or "amplification is claimed towards a server that sees cohorts"
    claim = "signed costs cover what each party sees"
    return Finding(SUBJECT, "signed cost", claim, wrong or "holds", not wrong)


def _population(place: int) -> FederatedData:
    rng = np.random.default_rng([7, place])
    inputs = [rng.standard_normal((1, *SHAPE)) for _ in range(CLIENTS)]
    return from_arrays(inputs, [np.array([int(x.sum() > 0)]) for x in inputs], num_classes=3)


@dataclass(frozen=True)
class _NotedShares(SecurePlan):
    """A plan that records the noise shares it draws."""

    drawn: list[Array] = field(default_factory=list)

    def noise_share(self) -> Array:
        """A noise share, recorded."""
        self.drawn.append(super().noise_share())
        return self.drawn[-1]


def _noting(agreed: AgreedRun) -> AgreedRun:
    secure: Any = agreed.secure
    return replace(agreed, secure=_NotedShares(secure.plan, secure.terms, secure.sigma)) if secure else agreed


def _daemons(agreed: AgreedRun, folder: Path) -> dict[int, Daemon]:
    return {
        place: Daemon(
            place, agreed, key, _population(place), ClientLedger(folder / f"{place}.jsonl"), agreed.first_memory()
        )
        for place, key in enumerate(_KEYS)
    }


def _rounds(agreed: AgreedRun, collect: Callable[[Guidance, Charge], Any], ledger: Ledger) -> Iterator[Any]:
    one = agreed.experiment
    server = make_server(
        model=one.model, method=one.method, plan=agreed.plan, settings=one.server, streams=SecureStreams()
    )
    return run_rounds(server, collect, state=server.first_state(), ledger=ledger, streams=SecureStreams())


def check_federated_rounds() -> Finding:
    """Rounds among daemons: the sum is clients' messages and one share per member, and members count it.

    Exact, in whole numbers. In plain mode a round that fewer members answer than agreed is neither charged nor
    released; a member answers no attempt twice, nor more attempts than it signed.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        wrong = _secure_rounds(Path(folder) / "secure") or _thin_rounds(Path(folder) / "plain")
    claim = "released = messages + shares; charged only with enough members; nothing twice"
    return Finding(SUBJECT, "federated rounds", claim, wrong or "holds, exactly", not wrong)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of refusals that these checks provoke."""
    log = logging.getLogger("rrcluster")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _secure_rounds(folder: Path) -> str:
    agreed = _noting(AgreedRun.build(_agreement()))
    daemons, ledger, wrong = _daemons(agreed, folder), Ledger(secure=True, limit=ROUNDS), []
    collect, transport = SecureCollect(agreed, InProcess(daemons)), InProcess(daemons)
    shares: list[Array] = agreed.secure.drawn  # type: ignore[union-attr]

    def noted(guidance: Guidance, charge: Charge) -> NoisySum:
        shares.clear()
        noisy = collect(guidance, charge)
        expected = np.sum(shares, axis=0) + _messages(agreed, guidance)
        if len(shares) != MEMBERS or not np.array_equal(noisy.total, expected):
            wrong.append("the sum is not the clients' messages plus one share per member")
        return noisy

    num_rounds = sum(1 for _ in _rounds(agreed, noted, ledger))
    joined = {daemon.ledger.joined(agreed.agreement.digest) for daemon in daemons.values()}
    if (num_rounds, ledger.num_charged, joined) != (ROUNDS, ROUNDS, {ROUNDS}):
        wrong.append(f"{num_rounds} rounds, {ledger.num_charged} charged, {joined} in members' ledgers")
    if not refused(lambda: list(_rounds(agreed, SecureCollect(agreed, transport), Ledger(secure=True))), RoundError):
        wrong.append("a member answers more attempts than it signed")
    again = ClientLedger(folder / "again.jsonl")
    for attempt in (0, 1):
        again.join(b"audit", 0, attempt, limit=9)
    if again.joined(b"audit") != 2 or not refused(lambda: again.join(b"audit", 0, 1, limit=9), ProtocolError):
        wrong.append("a member answers one attempt twice, or counts two as one")
    return wrong[0] if wrong else ""


def _messages(agreed: AgreedRun, guidance: Guidance) -> Array:
    """The sum of all clients' messages, one by one."""
    mechanism: Any = agreed.plan.mechanism
    total, keys = np.zeros(mechanism.message_width, dtype=np.int64), ClientKeys.of_round(SecureStreams(), 0)
    for place in range(MEMBERS):
        data = _population(place)
        for client in range(CLIENTS):
            clients = agreed.first_memory().recall(data.cohort(np.array([client])))
            reports, _ = agreed.side.answer(guidance, clients, keys)
            total += mechanism.message(reports.updates[0], reports.choices[0])
    return total


def _thin_rounds(folder: Path) -> str:
    agreed = AgreedRun.build(_agreement(mode="plain"))
    for gone, due in (((), ROUNDS), ((0,), ROUNDS), ((0, 2), 0)):
        ledger, daemons = Ledger(secure=True, limit=ROUNDS), _daemons(agreed, folder / str(len(gone)))
        collect = PlainCollect(agreed, InProcess(daemons, frozenset(gone)), SecureStreams(), most_attempts=1)
        ended = refused(lambda: list(_rounds(agreed, collect, ledger)), RoundError)  # noqa: B023
        if (ledger.num_charged, ended) != (due, not due):
            return f"{ledger.num_charged} rounds are charged, with {len(gone)} of {MEMBERS} members gone"
    return ""
