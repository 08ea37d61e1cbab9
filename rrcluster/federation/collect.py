"""The server's way of asking the members of a federation: `collect` for `run_rounds`, over a transport."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np

from rrcluster.client import ClientKeys
from rrcluster.entropy import StreamSource
from rrcluster.errors import ConfigError, ProtocolError, RoundError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.round_letters import read_report, task, task_digest
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.federation.stage_letters import ENVELOPES, READ_ANSWER, tell_envelopes, tell_keys, tell_signatures
from rrcluster.federation.wire import LONGEST_LETTER, Letter, decode
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.secagg.secure_client import Attempt
from rrcluster.secagg.secure_server import secure_sum
from rrcluster.server import Charge, Guidance
from rrcluster.types import Array


class Transport(Protocol):
    """Carries messages to members and back."""

    def ask(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """The answers of those members that gave one by the round's deadline; nobody replaces the others."""


@dataclass
class PlainCollect:
    """Plain mode: the server is trusted with raw reports, keeps them in memory only and releases by the mechanism.

    A member that does not answer, refuses, or answers with something else is as if its clients had dropped out.
    """

    agreed: AgreedRun
    transport: Transport
    streams: StreamSource
    next_attempt: Callable[[], int] = field(default_factory=lambda: count().__next__)  # larger after every restart

    @property
    def plan(self) -> PrivacyPlan:
        """Of the rounds."""
        return self.agreed.plan

    @property
    def agreement(self) -> Agreement:
        """What all members signed."""
        return self.agreed.agreement

    def __call__(self, guidance: Guidance, charge: Charge) -> Reports:
        """Draw the cohort, ask the members that host it, and charge the round."""
        t = guidance.round_index
        cohort = self.plan.sampler.draw(self.agreement.num_clients, rng=self.streams("cohort", t), round_index=t)
        keys = None if self.plan.secure else ClientKeys.of_round(self.streams, t)
        facts = {"federation": self.agreement.digest.hex(), "attempt": self.next_attempt()}
        messages = {
            place: task("train", guidance, self.plan.mechanism, facts, keys=keys, clients=ids).encode()
            for place, ids in self._hosted(cohort).items()
        }
        answers = self.transport.ask(messages)
        parts = [self._checked(place, answers[place], cohort) for place in sorted(answers)]
        charge()
        return self._reports([part for part in parts if part is not None])

    def _hosted(self, cohort: Array) -> dict[int, Array]:
        """The sampled clients of each member that hosts any."""
        firsts = [self.agreement.first_client(place) for place in range(len(self.agreement.members))]
        hosts = np.searchsorted(firsts, cohort, side="right") - 1
        return {int(place): cohort[hosts == place] for place in np.unique(hosts)}

    def _checked(self, place: int, content: bytes, cohort: Array) -> dict[str, Array] | None:
        """A member's report, if it is one and about its own clients of this cohort."""
        try:
            report = read_report(decode(content, longest=LONGEST_LETTER), self.plan.mechanism)
        except ProtocolError:
            return None
        asked = self._hosted(cohort)[place]
        known = np.isin(report["clients"], asked)
        return {name: values[known] for name, values in report.items()}

    def _reports(self, parts: list[dict[str, Array]]) -> Reports:
        mechanism = self.plan.mechanism
        empty: dict[str, Array] = {"updates": np.zeros((0, mechanism.coordinates.width), dtype=np.float32)}
        empty |= {name: np.zeros(0, dtype=np.int64) for name in ("choices", "clients")}
        if mechanism.flips_coins:
            empty["destinations"] = np.zeros(0, dtype=np.int64)
        if mechanism.loss_bound is not None:
            empty["evaluations"] = np.zeros((0, 2))
        whole = {name: np.concatenate([values, *(part[name] for part in parts)]) for name, values in empty.items()}
        return Reports(
            whole["updates"], whole["choices"], whole.get("destinations"), whole["clients"], whole.get("evaluations")
        )


@dataclass
class SecureCollect:
    """Secure mode: five stages over the transport; the server sees masked words and, at the end, one noisy sum.

    An attempt that leaves too few survivors is given up, uncharged, and the next one starts with new keys and noise.
    RoundError after `most_attempts` at one round.
    """

    agreed: AgreedRun
    transport: Transport
    next_attempt: Callable[[], int] = field(default_factory=lambda: count().__next__)  # larger after every restart
    most_attempts: int = 5

    @property
    def secure(self) -> SecurePlan:
        """Terms and shares."""
        if self.agreed.secure is None:
            raise ConfigError("mode = plain was agreed on, in which the server sees single reports; use PlainCollect.")
        return self.agreed.secure

    def __call__(self, guidance: Guidance, charge: Charge) -> NoisySum:
        """The noisy sum of a round, charged before anybody reveals."""
        for _ in range(self.most_attempts):
            attempt = Attempt(self.secure.terms, guidance.round_index, self.next_attempt())
            try:
                common = task_digest(self._task(attempt, guidance, {}), *ENVELOPES)
                ask = partial(self._ask, attempt, guidance)
                return NoisySum(secure_sum(attempt, ask, charge=charge, task_digest=common))
            except ProtocolError:
                if charge.made:  # members may have revealed: the sum may be known, and this charge is spent
                    break
        raise RoundError(
            f"round {guidance.round_index} failed: too few members answered. Check that the daemons run, then resume."
        )

    def _facts(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "federation": self.agreed.agreement.digest.hex(),
            "round": attempt.round_index,
            "attempt": attempt.number,
        }

    def _task(self, attempt: Attempt, guidance: Guidance, envelopes: Mapping[int, bytes]) -> Letter:
        """Stage `mask`: the same for everybody but for the envelopes."""
        mechanism = self.secure.plan.mechanism
        return task("mask", guidance, mechanism, self._facts(attempt), keys=None, **tell_envelopes(envelopes))

    def _ask(self, attempt: Attempt, guidance: Guidance, stage: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """One stage: each member's message as a letter, and the answers that are what they should be."""
        facts = self._facts(attempt)
        tell: dict[str, Callable[[Any], Letter]] = {
            "advertise": lambda _: Letter("advertise", facts),
            "share": lambda keys: Letter("share", facts, tell_keys(keys)),
            "mask": lambda sent: self._task(attempt, guidance, sent),
            "sign": lambda survivors: Letter("sign", facts, {"survivors": np.array(survivors, dtype=np.int64)}),
            "reveal": lambda signatures: Letter("reveal", facts, tell_signatures(signatures)),
        }
        letters = {place: tell[stage](message).encode() for place, message in messages.items()}
        answers = {}
        for place, content in self.transport.ask(letters).items():
            with contextlib.suppress(ProtocolError):  # nonsense: as if the member had not answered
                answers[place] = READ_ANSWER[stage](decode(content, longest=LONGEST_LETTER), self.secure.terms.width)
        return answers


@dataclass(frozen=True)
class InProcess:
    """Daemons in this process, for tests and rehearsals."""

    daemons: Mapping[int, "Answering"]
    gone: frozenset[int] = frozenset()  # members that do not answer

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers, one member after the other."""
        return {
            place: self.daemons[place].answer(content) for place, content in messages.items() if place not in self.gone
        }


class Answering(Protocol):
    """Whatever answers messages as a daemon does."""

    def answer(self, content: bytes) -> bytes:
        """The answer to one message."""
