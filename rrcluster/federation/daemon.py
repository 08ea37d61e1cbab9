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
from rrcluster.federation.wire import Letter, decode
from rrcluster.simulation.clients import ClientMemory
from rrcluster.types import Array

LONGEST_TASK = 2**31  # bytes of a message to a daemon


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
    remember: Callable[[ClientMemory], None] = field(default=lambda _: None)  # writes it to the member's disk

    def answer(self, content: bytes) -> bytes:
        """The answer to one message. It never raises, and says nothing of what went wrong."""
        try:
            letter = decode(content, longest=LONGEST_TASK)
            if letter.facts.get("federation") != self.agreement.digest.hex():
                raise ProtocolError("the message is of another federation, or settings or roster have changed.")
            return self._answers[letter.name](letter).encode()
        except Exception as error:
            logging.getLogger("rrcluster").warning("refused a message: %s", error)
            return Letter("refused").encode()

    @property
    def _answers(self) -> Mapping[str, Callable[[Letter], Letter]]:
        return {"hello": self._hello, "train": self._train}

    def _hello(self, _: Letter) -> Letter:
        consent = np.frombuffer(self.agreement.sign(self.identity), dtype=np.uint8)
        return Letter("here", {"member": self.place}, {"consent": consent})

    def _train(self, letter: Letter) -> Letter:
        """Plain mode: the reports of the clients that the server names, raw."""
        guidance, keys = read_task(letter, "train", self.side.mechanism, clients=("i8", (None,)))
        attempt = _whole(letter.facts, "attempt")
        self.ledger.join(self.agreement.digest, guidance.round_index, attempt)
        self.ledger.reveal(self.agreement.digest, guidance.round_index, attempt, limit=self.num_releases)
        ids = letter.arrays["clients"]
        clients = self.memory.recall(self._cohort(ids))
        keys = keys or ClientKeys.of_round(SecureStreams(), guidance.round_index)
        reports, remembered = self.side.answer(guidance, clients, keys)
        self.memory = self.memory.updated(ids, remembered)
        self.remember(self.memory)
        return report_letter(reports)

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
