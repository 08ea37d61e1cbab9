"""A member's daemon: answers the server's messages with its clients' results on their own data.

The member's operator installs this program. It answers what the operator agreed to and nothing else: every message
carries the digest of the agreement. Whatever goes wrong, the server gets the word "refused"; only the operator sees the
reason.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster.client import ClientKeys
from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.entropy import SecureStreams
from rrcluster.errors import ProtocolError
from rrcluster.federation import messages as wire
from rrcluster.federation.agreed_run import AgreedRun, check_data
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.client_ledger import ClientLedger
from rrcluster.federation.messages import Letter
from rrcluster.federation.metrics import metrics_text
from rrcluster.federation.secagg.secure_client import Attempt, SecureClient
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.methods.method import Clients
from rrcluster.privacy.reports import Reports
from rrcluster.server.server import Guidance
from rrcluster.simulation.clients import ClientMemory
from rrcluster.types import Array, Models

_LOG = logging.getLogger("rrcluster")
_ASKED = ("hello", "train", "advertise", "share", "mask", "sign", "reveal", "released")  # one method each


@dataclass
class Daemon:
    """One member: its clients' data and memory, and its ledger. Its computation follows the agreement."""

    place: int  # in the agreement's list of members
    agreed: AgreedRun
    identity: Ed25519PrivateKey
    data: FederatedData  # the member's own clients
    ledger: ClientLedger
    memory: ClientMemory
    numbers: Array | None = None  # (n,) the member's number of each client of the data; None: in order
    withdrawn: Callable[[], Collection[int]] = field(default=lambda: ())  # numbers of clients that no longer take part
    # writes client memory to the member's disk
    remember: Callable[[ClientMemory], None] = field(default=lambda _: None)
    keep: Callable[[Models], None] = field(default=lambda _: None)  # writes released models to the member's disk

    def __post_init__(self) -> None:
        self._client: SecureClient | None = None  # the attempt under way, in memory only
        self._refused = 0
        check_data(self.data, self.agreed.agreement, self.place)

    @property
    def agreement(self) -> Agreement:
        """The agreement that the operator signed."""
        return self.agreed.agreement

    def answer(self, content: bytes) -> bytes:
        """The answer to one message. It never raises, and never says what went wrong."""
        try:
            letter = wire.decode(content, longest=wire.LONGEST_LETTER)
            if letter.facts.get("federation") != self.agreement.digest.hex():
                raise ProtocolError("the message is of another federation, or settings or roster have changed.")
            if letter.name not in _ASKED:
                raise ProtocolError("the server sent an unknown request.")
            answer: Letter = getattr(self, f"_{letter.name}")(letter)
            return answer.encode()
        except Exception as error:
            _LOG.warning("refused a message: %s", error)
            self._refused += 1
            return Letter("refused").encode()

    def figures(self) -> str:
        """Figures for the operator's monitoring; without participation counts where cohorts are secret."""
        plan, joined = self.agreed.plan, self.ledger.joined(self.agreement.digest)
        figures = {"up": 1.0, "rounds_planned": plan.num_rounds, "attempts_allowed": self.agreed.num_releases}
        public = {"attempts_joined": joined, "refused": self._refused} if plan.event.sample_rate == 1 else {}
        return metrics_text(figures | public)

    def _hello(self, _: Letter) -> Letter:
        consent = np.frombuffer(self.agreement.sign(self.identity), dtype=np.uint8)
        return Letter("here", {"member": self.place}, {"consent": consent})

    def _train(self, letter: Letter) -> Letter:
        """Plain mode: raw reports of the clients that the server names. Refused if the agreement allows only sums."""
        if self.agreed.secure is not None:
            raise ProtocolError("the server asks for single reports, but the agreement allows only sums.")
        guidance, keys = self._task(letter, clients=("i8", (None,)))
        if keys is not None and self.agreed.plan.secure:
            raise ProtocolError("the server sends seeded keys, but the agreement is not a seeded run.")
        self._join(guidance.round_index, _whole(letter.facts, "attempt"))
        keys = keys or ClientKeys.of_round(SecureStreams(), guidance.round_index)
        return wire.report_letter(self._reports(guidance, letter.arrays["clients"], keys))

    def _task(self, letter: Letter, **more: Any) -> tuple[Guidance, ClientKeys | None]:
        """The server's instructions to clients in a round, from which its permitted requests follow."""
        stage = self.agreed.survey_stage(_whole(letter.facts, "round"))
        form = self.agreed.form
        return wire.read_task(letter, letter.name, self.agreed.plan.mechanism, stage=stage, form=form, **more)

    def _advertise(self, letter: Letter) -> Letter:
        """Start an attempt; all state of an earlier one is discarded."""
        plan = self._secure_plan
        attempt = Attempt(plan.terms, _whole(letter.facts, "round"), _whole(letter.facts, "attempt"))
        self._client = SecureClient(attempt, self.place, self.identity)
        return wire.keys_letter(self._client.advertise())

    def _share(self, letter: Letter) -> Letter:
        return Letter("envelopes", {}, wire.tell_envelopes(self._attempting(letter).share(wire.read_keys(letter))))

    def _mask(self, letter: Letter) -> Letter:
        """Train all clients, add up their clipped messages and the member's noise share, and mask the sum.

        The ledger comes first: others can unmask this message without this member's help. A member that cannot open an
        envelope leaves before that, and names the sender.
        """
        client, plan = self._attempting(letter), self._secure_plan
        guidance, keys = self._task(letter, **wire.ENVELOPES)
        if keys is not None:
            raise ProtocolError("the server sends seeded keys, but the agreement is not a seeded run.")
        attempt = client.attempt
        if guidance.round_index != attempt.round_index:
            raise ProtocolError("the models are of another round than the keys.")
        if unopened := client.open(wire.read_envelopes(letter)):
            return wire.unopened_letter(unopened)
        self._join(attempt.round_index, attempt.number)
        ids = self.agreement.first_client(self.place) + self._numbers
        reports = self._reports(guidance, ids, ClientKeys.of_round(SecureStreams(), guidance.round_index))
        mechanism: Any = plan.plan.mechanism
        values = mechanism.sum_messages(reports) + plan.noise_share()
        words = client.mask(values, task_digest=wire.task_digest(letter, *wire.ENVELOPES))
        return Letter("masked", {}, {"words": words})

    def _sign(self, letter: Letter) -> Letter:
        survivors = letter.expect("sign", survivors=wire.PLACES).arrays["survivors"].tolist()
        signature = self._attempting(letter).sign(survivors)
        return Letter("signature", {}, {"signature": np.frombuffer(signature, dtype=np.uint8)})

    def _reveal(self, letter: Letter) -> Letter:
        return wire.shares_letter(self._attempting(letter).reveal(wire.read_signatures(letter)))

    def _released(self, letter: Letter) -> Letter:
        """The released models: the same for everybody. The server learns nothing from their use."""
        coordinates, k = self.agreed.experiment.split.coordinates, self.agreed.num_models
        arrays = letter.expect(
            "released", shared=("f4", (coordinates.shared,)), clustered=("f4", (k, coordinates.clustered))
        ).arrays
        if not all(np.isfinite(values).all() for values in arrays.values()):
            raise ProtocolError("the released models contain values that are not finite.")
        self.keep(Models(arrays["shared"], arrays["clustered"]))
        return Letter("kept")

    def _join(self, round_index: int, attempt: int) -> None:
        """Record the attempt in the member's ledger, before anything that depends on data leaves."""
        if round_index >= self.agreed.plan.num_rounds:
            raise ProtocolError("the round is beyond the last one of the agreement.")
        limit, repeats = self.agreed.num_releases, self.agreed.secure is None
        self.ledger.join(self.agreement.digest, round_index, attempt, limit=limit, repeats=repeats)
        _LOG.info("round %d: joined attempt %d", round_index + 1, attempt)

    @property
    def _secure_plan(self) -> SecurePlan:
        if self.agreed.secure is None:
            raise ProtocolError("the agreement is not for secure mode.")
        return self.agreed.secure

    @cached_property
    def _numbers(self) -> Array:
        return np.arange(self.data.num_clients) if self.numbers is None else self.numbers

    def _attempting(self, letter: Letter) -> SecureClient:
        """The attempt of a message: it must be the last one advertised."""
        client = self._client
        attempt_id = _whole(letter.facts, "round"), _whole(letter.facts, "attempt")
        if client is None or attempt_id != (client.attempt.round_index, client.attempt.number):
            raise ProtocolError("the message belongs to an attempt unknown to this member.")
        return client

    def _reports(self, guidance: Guidance, ids: Array, keys: ClientKeys) -> Reports:
        """Reports of these clients; those that are absent, withdrawn, unusable or failing send nothing.

        If the member refused instead, one client's data would take all of its clients out of the sum, and the server
        counts members that refuse as absent, which data must not decide.
        """
        reports, rows = self.agreed.side.answer_singly(guidance, self._present(ids), self._clients, keys)
        self.memory = self.memory.updated(np.asarray(reports.client_ids), rows)
        self.remember(self.memory)
        return reports

    def _present(self, ids: Array) -> Array:
        """The member's clients among the ids that can answer; ProtocolError for ids of other members."""
        local = ids - self.agreement.first_client(self.place)
        most = self.agreement.members[self.place].num_clients
        if len(np.unique(ids)) < len(ids) or (len(ids) and not 0 <= local.min() <= local.max() < most):
            raise ProtocolError("the server asks for clients that this member does not host.")
        ids = ids[np.isin(local, self._numbers) & ~np.isin(local, list(self.withdrawn()))]
        return ids[self.data.usable(self._rows(ids))]

    def _rows(self, ids: Array) -> Array:
        """(n,) row numbers of these clients in the data."""
        order = np.argsort(self._numbers)
        local = ids - self.agreement.first_client(self.place)
        return np.asarray(order[np.searchsorted(self._numbers, local, sorter=order)], dtype=np.int64)

    def _clients(self, ids: Array) -> Clients:
        """These clients under their numbers in the federation, which determine their random draws."""
        cohort = self.data.cohort(self._rows(ids))
        return self.memory.recall(Cohort(ids, cohort.sizes, cohort.stack))


def _whole(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if type(value) is not int or value < 0:
        raise ProtocolError(f"the message has no {name}.")
    return value
