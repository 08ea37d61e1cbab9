"""A member's daemon: answers the server's messages with what its clients compute on their own data.

It is a program that the member's operator installs. It answers what the operator agreed to and nothing else: every
message carries the digest of the agreement. Whatever goes wrong, the server gets the word "refused"; the reason is for
the operator alone.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.client import ClientKeys, ClientSide
from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.entropy import SecureStreams
from rrcluster.errors import ProtocolError
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.round_letters import read_task, report_letter
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.federation.stage_letters import (
    ENVELOPES,
    PLACES,
    keys_letter,
    read_envelopes,
    read_keys,
    read_signatures,
    shares_letter,
    tell_envelopes,
)
from rrcluster.federation.wire import LONGEST_LETTER, Letter, decode
from rrcluster.privacy.reports import Reports
from rrcluster.secagg.secure_client import Attempt, SecureClient
from rrcluster.server import Guidance
from rrcluster.simulation.clients import ClientMemory
from rrcluster.types import Array


@dataclass
class Daemon:
    """One member: its clients' data, what they remember, and its ledger."""

    place: int  # in the agreement's list of members
    agreement: Agreement
    identity: Ed25519PrivateKey
    data: FederatedData  # of the member's own clients
    side: ClientSide
    ledger: ClientLedger
    num_releases: int  # that the plan allows
    memory: ClientMemory
    secure: SecurePlan | None = None  # where the server may see sums alone: then no single report leaves
    remember: Callable[[ClientMemory], None] = field(default=lambda _: None)  # writes it to the member's disk

    def __post_init__(self) -> None:
        self._client: SecureClient | None = None  # of the attempt under way, in memory alone

    def answer(self, content: bytes) -> bytes:
        """The answer to one message. It never raises, and says nothing of what went wrong."""
        try:
            letter = decode(content, longest=LONGEST_LETTER)
            if letter.facts.get("federation") != self.agreement.digest.hex():
                raise ProtocolError("the message is of another federation, or settings or roster have changed.")
            return self._answers[letter.name](letter).encode()
        except Exception as error:
            logging.getLogger("rrcluster").warning("refused a message: %s", error)
            return Letter("refused").encode()

    @property
    def _answers(self) -> Mapping[str, Callable[[Letter], Letter]]:
        return {
            "hello": self._hello,
            "train": self._train,
            "advertise": self._advertise,
            "share": self._share,
            "mask": self._mask,
            "sign": self._sign,
            "reveal": self._reveal,
        }

    def _hello(self, _: Letter) -> Letter:
        consent = np.frombuffer(self.agreement.sign(self.identity), dtype=np.uint8)
        return Letter("here", {"member": self.place}, {"consent": consent})

    def _train(self, letter: Letter) -> Letter:
        """Plain mode: the raw reports of the clients that the server names. Refused where sums alone were agreed on."""
        if self.secure is not None:
            raise ProtocolError("the server asks for single reports, and sums alone were agreed on.")
        guidance, keys = read_task(letter, "train", self.side.mechanism, clients=("i8", (None,)))
        attempt = _whole(letter.facts, "attempt")
        self.ledger.join(self.agreement.digest, guidance.round_index, attempt, limit=self.num_releases)
        keys = keys or ClientKeys.of_round(SecureStreams(), guidance.round_index)
        return report_letter(self._reports(guidance, letter.arrays["clients"], keys))

    def _advertise(self, letter: Letter) -> Letter:
        """Start an attempt; whatever was left of another one is forgotten."""
        plan = self._secure_plan
        attempt = Attempt(plan.terms, _whole(letter.facts, "round"), _whole(letter.facts, "attempt"))
        self._client = SecureClient(attempt, self.place, self.identity)
        return keys_letter(self._client.advertise())

    def _share(self, letter: Letter) -> Letter:
        return Letter("envelopes", {}, tell_envelopes(self._attempting(letter).share(read_keys(letter))))

    def _mask(self, letter: Letter) -> Letter:
        """Train all clients, add up their clipped messages and the member's noise share, and hide the sum.

        It is in the ledger first: others can unmask what is sent here without this member's help.
        """
        client, plan = self._attempting(letter), self._secure_plan
        guidance, _ = read_task(letter, "mask", plan.plan.mechanism, **ENVELOPES)
        attempt = client.attempt
        if guidance.round_index != attempt.round_index:
            raise ProtocolError("the models are of another round than the keys.")
        self.ledger.join(self.agreement.digest, attempt.round_index, attempt.number, limit=self.num_releases)
        ids = self.agreement.first_client(self.place) + np.arange(self.data.num_clients)
        reports = self._reports(guidance, ids, ClientKeys.of_round(SecureStreams(), guidance.round_index))
        mechanism: Any = plan.plan.mechanism
        values = mechanism.sum_messages(reports) + plan.noise_share()
        return Letter("masked", {}, {"words": client.mask(read_envelopes(letter), values)})

    def _sign(self, letter: Letter) -> Letter:
        survivors = letter.expect("sign", survivors=PLACES).arrays["survivors"].tolist()
        signature = self._attempting(letter).sign(survivors)
        return Letter("signature", {}, {"signature": np.frombuffer(signature, dtype=np.uint8)})

    def _reveal(self, letter: Letter) -> Letter:
        return shares_letter(self._attempting(letter).reveal(read_signatures(letter)))

    @property
    def _secure_plan(self) -> SecurePlan:
        if self.secure is None:
            raise ProtocolError("this federation was not agreed on as a secure one.")
        return self.secure

    def _attempting(self, letter: Letter) -> SecureClient:
        """The attempt that a message belongs to: the last one advertised."""
        client = self._client
        asked = _whole(letter.facts, "round"), _whole(letter.facts, "attempt")
        if client is None or asked != (client.attempt.round_index, client.attempt.number):
            raise ProtocolError("the message is of an attempt that this member does not know.")
        return client

    def _reports(self, guidance: Guidance, ids: Array, keys: ClientKeys) -> Reports:
        """What these clients report; one whose samples cannot be used or whose computation fails sends nothing.

        A member that refused instead would take all of its clients out of the sum because of one client's data.
        """
        self._cohort(ids)  # refuses strangers
        ids = ids[self.data.usable(ids - self.agreement.first_client(self.place))]
        try:
            reports, remembered = self._compute(guidance, ids, keys)
        except Exception:  # whatever it was; if it was no single client's doing, it fails again below
            ids = np.array([client for client in ids.tolist() if self._can_answer(guidance, client, keys)], np.int64)
            reports, remembered = self._compute(guidance, ids, keys)
        self.memory = self.memory.updated(ids, remembered)
        self.remember(self.memory)
        return reports

    def _compute(self, guidance: Guidance, ids: Array, keys: ClientKeys) -> tuple[Reports, Array]:
        return self.side.answer(guidance, self.memory.recall(self._cohort(ids)), keys)

    def _can_answer(self, guidance: Guidance, client: int, keys: ClientKeys) -> bool:
        try:
            self._compute(guidance, np.array([client]), keys)
        except Exception:
            return False
        return True

    def _cohort(self, ids: Array) -> Cohort:
        """The data of these clients under their numbers in the federation, which decide their draws."""
        local = ids - self.agreement.first_client(self.place)
        if len(np.unique(ids)) < len(ids) or (len(ids) and not 0 <= local.min() <= local.max() < self.data.num_clients):
            raise ProtocolError("the server asks for clients that this member does not host.")
        own = self.data.cohort(local)
        return Cohort(ids, own.sizes, own.stack)


def _whole(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if type(value) is not int or value < 0:
        raise ProtocolError(f"the message has no {name}.")
    return value
