"""The server's side of a federation as an experiment: the rounds, ledger and run folder of a simulation.

Only `collect` differs (rrcluster/server/server.py): it asks the members over a transport.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rrcluster.errors import PrivacyError, ProtocolError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.collect import PlainCollect, SecureCollect, Transport
from rrcluster.federation.messages import Letter, decode
from rrcluster.privacy.cost import risk_text
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.statement import TRUST
from rrcluster.runs.experiment import Experiment
from rrcluster.server.server import Collect, run_rounds
from rrcluster.server.slotted_rounds import SlottedRounds, StoredNoise
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.hosts import Collection
from rrcluster.simulation.simulate import Checkpoint, RoundRecord, make_server
from rrcluster.types import Models

_LONGEST_WORD = 10_000  # bytes of a short answer
_LEVEL = (
    "Noise is made by the members. A member that is absent takes its share of the noise with it, so epsilon is under "
    "zero-out, not under add-remove: that somebody takes part is not hidden, what it contributes is. A sum of h shares "
    "is one discrete Gaussian up to a factor of 1 +- 8 h exp(-40000) on every probability (docs/privacy.md)."
)
_SAME_LOSS = (
    "The event below is the accountants': one Gaussian to which everybody contributes, whose loss is the same under "
    "add-remove and zero-out. Only the latter is claimed."
)


@dataclass(frozen=True)
class Deployment:
    """Runs the rounds of an experiment over a transport."""

    agreed: AgreedRun
    transport: Transport
    next_attempt: Callable[[], int]  # on disk before the number is used
    patience: float = 0.0  # seconds that a plain round waits for members

    def experiment(self) -> Experiment:
        """The experiment that `rrcluster.runs.run` starts and resumes."""
        return replace(self.agreed.experiment, deployed=self)

    @property
    def digest(self) -> str:
        """The agreement's digest."""
        return self.agreed.agreement.digest.hex()

    def rounds(self, experiment: Experiment, *, checkpoint: Checkpoint, ledger: Ledger) -> Iterator[RoundRecord]:
        """Ask the members, round after round.

        A seeded round that was charged before a crash is refused: other clients might answer this time, and the same
        noise on another sum would reveal their difference. A secure round has fresh noise and is charged again.
        """
        plan, streams = experiment.plan, experiment.streams
        model, method, settings = experiment.model, experiment.method, experiment.server
        server = make_server(model=model, method=method, plan=plan, settings=settings, streams=streams)
        first = checkpoint.state or server.first_state()
        if not plan.secure and ledger.charged(first.round_index):
            raise PrivacyError(
                f"round {first.round_index} of this rehearsal was charged before a crash, and members may "
                "answer differently now: the same noise on another sum would reveal the difference. Start a "
                "new rehearsal, or use secure: true, whose noise is fresh."
            )
        began, nothing = time.perf_counter(), ClientMemory(0)
        collect, slotted = self._collect(experiment), None
        if plan.mechanism.slots.count > 1:
            collect = slotted = SlottedRounds(
                plan, ledger, streams, collect, nothing.tensors, checkpoint.noise or StoredNoise()
            )
        for done in run_rounds(server, collect, state=first, ledger=ledger, streams=streams):
            seconds, past = time.perf_counter() - began, None if slotted is None else slotted.past
            yield RoundRecord(done.round_index, done.state, done.release, seconds, Collection(), nothing, past)
            began = time.perf_counter()

    def _collect(self, experiment: Experiment) -> Collect:
        if self.agreed.secure is not None:
            return SecureCollect(self.agreed, self.transport, self.next_attempt)
        return PlainCollect(self.agreed, self.transport, experiment.streams, self.next_attempt, self.patience)

    def stated(self, statement: dict[str, Any]) -> dict[str, Any]:
        """The statement of a federation: who sees what, and in secure mode the adjacency relation."""
        agreement, secure = self.agreed.agreement, self.agreed.secure
        about: dict[str, Any] = {
            "name": agreement.name,
            "digest": self.digest,
            "mode": agreement.mode,
            "num_members": len(agreement.members),
            "towards": self.agreed.guarantee()["towards"],
        }
        if secure is None:
            return statement | {"federation": about}
        guarantee = self.agreed.guarantee()
        about |= {"assumed": secure.assumed} | {name: guarantee[name] for name in ("noise_share_sigma", "grid_bits")}
        about |= {"least_honest": agreement.least_honest, "most_colluders": agreement.most_colluders}
        notes = [f"The server sees masked sums alone. Assumed: {secure.assumed}.", _LEVEL, _SAME_LOSS]
        everybody = {"who": about["towards"], "neighbours": "zero-out", "epsilon": statement["epsilon"]}
        towards_members = secure.epsilon_towards_members()
        member = {"who": "a member, which knows its own noise", "neighbours": "zero-out", "epsilon": towards_members}
        risk = self.agreed.risk(secure.event_towards_members)
        return statement | {
            "adjacency": "zero-out",
            "risk": risk,
            "risk_in_words": risk_text(risk, "zero-out", sampled=False),
            "participation": statement["participation"] | {"towards": [everybody, member]},
            "delta": secure.delta,
            "federation": about,
            "notes": [*notes, *(note for note in statement["notes"] if note != TRUST[0])],
        }


def greet(agreement: Agreement, transport: Transport) -> dict[int, bytes]:
    """The signature on this agreement of each member that answers with its consent."""
    hello = Letter("hello", {"federation": agreement.digest.hex()}).encode()
    answers = transport.ask(dict.fromkeys(range(len(agreement.members)), hello))
    consents = {place: _shown(agreement, place, content) for place, content in answers.items()}
    return {place: consent for place, consent in consents.items() if consent is not None}


def _shown(agreement: Agreement, place: int, content: bytes) -> bytes | None:
    try:
        letter = decode(content, longest=_LONGEST_WORD).expect("here", consent=("u1", (None,)))
        signature = letter.arrays["consent"].tobytes()
        agreement.check_consent(place, signature)
    except ProtocolError:
        return None
    return signature


def hand_out(
    agreement: Agreement,
    transport: Transport,
    models: Models,
    *,
    patience: float,
    without: frozenset[int] = frozenset(),
) -> set[int]:
    """Send everybody the models, retrying for `patience` seconds; returns the places of members that have them.

    Members in `without` are not waited for.
    """
    arrays = {"shared": models.shared.astype(np.float32), "clustered": models.clustered.astype(np.float32)}
    letter = Letter("released", {"federation": agreement.digest.hex()}, arrays).encode()
    everybody, deadline = frozenset(range(len(agreement.members))), time.monotonic() + patience
    have: set[int] = set()
    while True:
        answers = transport.ask(dict.fromkeys(sorted(everybody - have), letter))
        have |= {place for place, content in answers.items() if _kept(content)}
        if everybody - without <= have or time.monotonic() > deadline:
            return have
        time.sleep(min(1.0, patience))


def _kept(content: bytes) -> bool:
    try:
        return decode(content, longest=_LONGEST_WORD).name == "kept"
    except ProtocolError:
        return False
