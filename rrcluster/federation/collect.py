"""How the server asks the members of a federation: `collect` for `run_rounds`, over a transport."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np

from rrcluster.client import ClientKeys
from rrcluster.entropy import StreamSource
from rrcluster.errors import ConfigError, ProtocolError, RoundError
from rrcluster.federation import messages as wire
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.messages import Letter
from rrcluster.federation.secagg.secure_client import Attempt
from rrcluster.federation.secagg.secure_server import secure_sum
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.server.server import Charge, Guidance
from rrcluster.types import Array

_LOG = logging.getLogger("rrcluster")


class Transport(Protocol):
    """Carries messages to members and back."""

    def ask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The answers that arrived by the round's deadline."""

    def stayed(self) -> Collection[int]:
        """Members that stayed connected during the last question without answering it.

        They are still computing, or their answer cannot be read. Losing a connection is not their choice.
        """


@dataclass
class PlainCollect:
    """Plain mode: the server is trusted with raw reports, keeps them in memory only and releases by the mechanism.

    A member that does not answer, refuses, or sends anything else counts as if its clients had dropped out. An attempt
    in which fewer than the agreed `least_members` were connected is neither charged nor released, and the next one
    waits for them; RoundError where they do not come within `patience` seconds, or after `most_attempts`. Connection
    depends on the network and on refusals, which a daemon sends before it looks at its data: never on the data.
    """

    agreed: AgreedRun
    transport: Transport
    streams: StreamSource
    next_attempt: Callable[[], int] = field(default_factory=lambda: count().__next__)  # keeps growing after a restart
    patience: float = 0.0
    most_attempts: int = 5

    @property
    def plan(self) -> PrivacyPlan:
        """The plan of the rounds."""
        return self.agreed.plan

    @property
    def agreement(self) -> Agreement:
        """The agreement that all members signed."""
        return self.agreed.agreement

    def __call__(self, guidance: Guidance, charge: Charge) -> Reports:
        """Draw the cohort, ask the members until enough of them are connected, and charge the round."""
        t = guidance.round_index
        cohort = self.plan.sampler.draw(self.agreement.num_clients, rng=self.streams("cohort", t), round_index=t)
        hosted = self._hosted(cohort)
        for _ in range(self.most_attempts):
            messages = self._tasks(guidance, hosted)
            answers = self.transport.ask(messages | self._greetings(but=messages))
            connected = self._connected(answers)
            if len(connected) >= self.agreement.needed_members:
                parts = [self._checked(answers[place], hosted[place]) for place in sorted({*answers} & {*hosted})]
                charge()
                return self._reports([part for part in parts if part is not None])
            self._wait(t)
        raise self._too_few(t, connected)

    def _tasks(self, guidance: Guidance, hosted: Mapping[int, Array]) -> dict[int, bytes]:
        """The task of each member that hosts clients of the cohort, under a new attempt number."""
        keys = None if self.plan.secure else ClientKeys.of_round(self.streams, guidance.round_index)
        facts = {"federation": self.agreement.digest.hex(), "attempt": self.next_attempt()}
        return {
            place: wire.task("train", guidance, self.plan.mechanism, facts, keys=keys, clients=ids).encode()
            for place, ids in hosted.items()
        }

    def _greetings(self, *, but: Collection[int] = ()) -> dict[int, bytes]:
        """Greetings to all other members, so that the connection of members without cohort clients is known too."""
        hello = Letter("hello", {"federation": self.agreement.digest.hex()}).encode()
        return {place: hello for place in range(len(self.agreement.members)) if place not in but}

    def _connected(self, answers: Mapping[int, bytes]) -> set[int]:
        """Members that were connected during the last question and did not decline it."""
        return {place for place, content in answers.items() if not wire.declined(content)} | {*self.transport.stayed()}

    def _wait(self, round_index: int) -> None:
        """Wait until enough members are connected again."""
        _LOG.warning("round %d waits: fewer than %d members are connected", round_index, self.agreement.needed_members)
        deadline = time.monotonic() + self.patience
        while len(connected := self._connected(self.transport.ask(self._greetings()))) < self.agreement.needed_members:
            if time.monotonic() > deadline:
                raise self._too_few(round_index, connected)
            time.sleep(min(1.0, self.patience))

    def _too_few(self, round_index: int, connected: Collection[int]) -> RoundError:
        members = self.agreement.members
        away = ", ".join(member.name for place, member in enumerate(members) if place not in connected)
        return RoundError(
            f"round {round_index} was not charged: {len(connected)} of {len(members)} members take part, and "
            f"{self.agreement.needed_members} were agreed on (least_members); {away} are away, or refuse."
        )

    def _hosted(self, cohort: Array) -> dict[int, Array]:
        """The cohort's clients by the member that hosts them."""
        hosts = np.searchsorted(np.cumsum([m.num_clients for m in self.agreement.members]), cohort, side="right")
        order = np.argsort(hosts, kind="stable")
        places, firsts = np.unique(hosts[order], return_index=True)
        return dict(zip(places.tolist(), np.split(cohort[order], firsts[1:]), strict=bool(len(cohort))))

    def _checked(self, content: bytes, asked: Array) -> dict[str, Array] | None:
        """A member's report, if it is valid and covers only the clients it was asked for."""
        try:
            report = wire.read_report(wire.decode(content, longest=wire.LONGEST_LETTER), self.plan.mechanism)
        except ProtocolError:
            return None
        requested = np.isin(report["clients"], asked)
        return {name: values[requested] for name, values in report.items()}

    def _reports(self, parts: list[dict[str, Array]]) -> Reports:
        mechanism = self.plan.mechanism
        empty: dict[str, Array] = {"updates": np.zeros((0, mechanism.coordinates.width), dtype=np.float32)}
        empty |= {name: np.zeros(0, dtype=np.int64) for name in ("choices", "clients")}
        if mechanism.flips_coins:
            empty["destinations"] = np.zeros(0, dtype=np.int64)
        if mechanism.loss_bound is not None:
            empty["evaluations"] = np.zeros((0, 2))
        joined: dict[str, Any] = {}
        for name, values in empty.items():
            joined[name] = np.concatenate([values, *(part[name] for part in parts)])
        return Reports(client_ids=joined.pop("clients"), **joined)


@dataclass
class SecureCollect:
    """Secure mode: five stages over the transport; the server sees masked words and, at the end, one noisy sum.

    An attempt that leaves too few survivors is given up, uncharged, and the next one starts with new keys and noise.
    RoundError after `most_attempts` at one round, and for a sum that is impossible or cannot be unmasked: such a round
    is charged. Members that violate the protocol are named in the log and in `faults`, except those that add wrong
    numbers to a message, which nobody can detect under a mask.
    """

    agreed: AgreedRun
    transport: Transport
    next_attempt: Callable[[], int] = field(default_factory=lambda: count().__next__)  # keeps growing after a restart
    most_attempts: int = 5
    faults: list[str] = field(default_factory=list, init=False)  # sentences that name members
    left_out: set[int] = field(default_factory=set, init=False)  # members whose envelopes several others cannot open
    _accused: Counter[int] = field(default_factory=Counter, init=False)  # number of accusations in this attempt

    @property
    def secure(self) -> SecurePlan:
        """Terms and noise shares of the secure aggregation."""
        if self.agreed.secure is None:
            raise ConfigError("the agreement says mode = plain: the server sees single reports; use PlainCollect.")
        return self.agreed.secure

    def __call__(self, guidance: Guidance, charge: Charge) -> NoisySum:
        """The noisy sum of a round, charged before any member reveals its masks."""
        t, reason, before = guidance.round_index, "", len(self.faults)
        for _ in range(self.most_attempts):
            attempt = Attempt(self.secure.terms, t, self.next_attempt())
            ask = partial(self._ask, attempt, guidance)
            common = wire.task_digest(self._task(attempt, guidance, {}), *wire.ENVELOPES)
            self._accused.clear()
            try:
                total = secure_sum(attempt, ask, charge=charge, blame=self._blame, task_digest=common)
                return self.secure.checked_sum(total)
            except ProtocolError as error:
                reason = str(error)
            if charge.made:  # members may have revealed, so the sum may be known: this charge is spent
                break
            self._leave_out()
        faults = dict.fromkeys(self.faults[before:])
        raise RoundError(" ".join((f"round {t} failed: {reason}", *faults, "Check that the daemons run, then resume.")))

    def _blame(self, place: int, fault: str) -> None:
        """Name a member that violated the protocol to the server's operator, but not to the other members."""
        self.faults.append(f"{self.agreed.agreement.members[place].name} {fault}.")
        _LOG.warning(self.faults[-1])

    def _leave_out(self) -> None:
        """After a failed attempt, exclude the member whose envelopes most others cannot open, at least two of them.

        With only one accuser, sender and receiver are equally suspect.
        """
        for place, times in self._accused.most_common(1):
            if times > 1:
                self.left_out.add(place)
                self._blame(place, f"is not asked any more: {times} members cannot open what it sends")

    def _facts(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "federation": self.agreed.agreement.digest.hex(),
            "round": attempt.round_index,
            "attempt": attempt.number,
        }

    def _task(self, attempt: Attempt, guidance: Guidance, envelopes: Mapping[int, bytes]) -> Letter:
        """The message of stage `mask`: the same for everybody except for the envelopes."""
        mechanism = self.secure.plan.mechanism
        return wire.task("mask", guidance, mechanism, self._facts(attempt), keys=None, **wire.tell_envelopes(envelopes))

    def _ask(self, attempt: Attempt, guidance: Guidance, stage: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """One stage: send each member its message, and collect the valid answers."""
        facts = self._facts(attempt)
        tell: dict[str, Callable[[Any], Letter]] = {
            "advertise": lambda _: Letter("advertise", facts),
            "share": lambda keys: Letter("share", facts, wire.tell_keys(keys)),
            "mask": lambda sent: self._task(attempt, guidance, sent),
            "sign": lambda survivors: Letter("sign", facts, {"survivors": np.array(survivors, dtype=np.int64)}),
            "reveal": lambda signatures: Letter("reveal", facts, wire.tell_signatures(signatures)),
        }
        letters = {
            place: tell[stage](message).encode() for place, message in messages.items() if place not in self.left_out
        }
        answers = {}
        for place, content in self.transport.ask(letters).items():
            try:  # invalid: as if the member had not answered
                letter = wire.decode(content, longest=wire.LONGEST_LETTER)
                if letter.name == "unopened" and stage == "mask":
                    self._note_unopened(place, letter, messages[place])
                elif not wire.declined(content):
                    answers[place] = wire.READ_ANSWER[stage](letter, self.secure.terms.width)
            except ProtocolError:
                self._blame(place, f"sent an invalid answer to {stage}")
        return answers

    def _note_unopened(self, place: int, letter: Letter, envelopes: Mapping[int, bytes]) -> None:
        """Record that a member cannot open others' envelopes: either it or they violate the protocol."""
        senders = sorted(wire.read_unopened(letter) & set(envelopes))
        if not senders:
            raise ProtocolError("a member left although it can open all envelopes.")
        names = ", ".join(self.agreed.agreement.members[sender].name for sender in senders)
        self._blame(place, f"says that it cannot open what {names} sent it: either it or they are at fault")
        self._accused.update(senders)


@dataclass(frozen=True)
class InProcess:
    """Daemons in this process, for tests and rehearsals."""

    daemons: Mapping[int, Any]  # each answers messages as a daemon does
    gone: frozenset[int] = frozenset()  # members that do not answer

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers, one member after the other."""
        return {
            place: self.daemons[place].answer(content) for place, content in messages.items() if place not in self.gone
        }

    def stayed(self) -> set[int]:
        """No members: those that do not answer are gone."""
        return set()
