"""Rounds of a plan with slots: each round's noise builds on that of earlier rounds, which a crash must not lose.

In a secure run a round is on disk, privately, before its charge, and a round drawn before a crash is not drawn again:
with fresh noise it would show the messages of the b - 1 rounds before a second time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from rrcluster.entropy import StreamSource
from rrcluster.errors import PrivacyError
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, NoisySum, Reports
from rrcluster.privacy.slots import PastNoise
from rrcluster.privacy.slotted import SlottedMechanism
from rrcluster.server.server import Charge, Collect, Guidance
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class DrawnRound:
    """A round's noisy sum, and the state that the run needs to continue after it. Private."""

    round_index: int
    total: Array = field(repr=False)
    past: PastNoise = field(repr=False)  # the basis of the next round's noise
    # the models that clients trained: a secure run's first ones cannot be drawn again
    models: Models = field(repr=False)
    memory: Mapping[str, Array] = field(default_factory=dict, repr=False)  # clients' memory after the round

    def tensors(self) -> dict[str, Array]:
        """As named arrays, for the private part of a run folder."""
        round_and_sum = {"round": np.array([self.round_index]), "total": self.total}
        models = {"models.shared": self.models.shared, "models.clustered": self.models.clustered}
        return round_and_sum | models | self.past.tensors() | dict(self.memory)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "DrawnRound":
        """The inverse of `tensors`."""
        past = PastNoise.from_tensors(tensors)
        if past is None:
            raise ValueError("a drawn round without its noise")
        memory = {name: values for name, values in tensors.items() if name.startswith("memory.")}
        models = Models(tensors["models.shared"], tensors["models.clustered"])
        return cls(int(tensors["round"][0]), tensors["total"], past, models, memory)


@dataclass(frozen=True)
class StoredNoise:
    """The noise from which a plan with slots resumes, and the function that saves rounds. Private."""

    past: PastNoise | None = None  # from the checkpoint, the basis of the next round's noise
    drawn: DrawnRound | None = None  # the last round that was saved before its release
    write: Callable[[DrawnRound], None] = lambda _: None  # saves to disk

    def drawn_at(self, round_index: int) -> DrawnRound | None:
        """The round as drawn before a crash, if it was."""
        return self.drawn if self.drawn is not None and self.drawn.round_index == round_index else None


@dataclass
class SlottedRounds:
    """A `collect` that returns noisy sums, wrapped around one that returns exact sums."""

    plan: PrivacyPlan
    ledger: Ledger
    streams: StreamSource
    collect: Collect  # of exact sums
    remembered: Callable[[], Mapping[str, Array]]  # clients' current memory, as named arrays
    stored: StoredNoise = StoredNoise()

    def __post_init__(self) -> None:
        self.past = self.stored.past

    def __call__(self, guidance: Guidance, charge: Charge) -> NoisySum:
        """Collect, add noise and charge; a round drawn before a crash is charged and released as drawn."""
        drawn = self.recall(guidance.round_index)
        if drawn is None and not self.plan.stores_rounds:
            noisy_sum, self.past = self._noisy_sum(guidance, charge)
            return noisy_sum
        if drawn is None:
            noisy_sum, past = self._noisy_sum(guidance, _Uncharged())
            drawn = DrawnRound(guidance.round_index, noisy_sum.total, past, guidance.models, self.remembered())
            self.stored = replace(self.stored, drawn=drawn)
            self.stored.write(drawn)
        charge()
        self.past = drawn.past
        return NoisySum(drawn.total)

    def recall(self, round_index: int) -> DrawnRound | None:
        """The round as drawn before a crash, if it was; PrivacyError if it was charged but its draw is missing."""
        if not self.plan.stores_rounds:
            return None
        drawn = self.stored.drawn_at(round_index)
        if drawn is None and self.ledger.charged(round_index):
            raise PrivacyError(
                f"round {round_index} was charged, and the noise that it was or may have been released with is lost "
                "from checkpoint/. Repeating it with fresh noise would also show messages of the rounds before a "
                "second time, which epsilon does not cover; start a new run."
            )
        return drawn

    def _noisy_sum(self, guidance: Guidance, charge: Charge) -> tuple[NoisySum, PastNoise]:
        mechanism, t = cast(SlottedMechanism, self.plan.mechanism), guidance.round_index
        past = mechanism.first_past() if t == 0 else mechanism.check_past(self.past, t)
        exact = self.collect(guidance, charge)
        if isinstance(exact, Reports):  # of a plain federation
            exact = MessageSum(mechanism.sum_messages(exact, round_index=t))
        if not isinstance(exact, MessageSum):
            raise PrivacyError(
                "noise made by clients cannot be correlated over rounds: they do not store that of earlier "
                "rounds. Use participation = poisson or everybody."
            )
        return mechanism.noisy_sum(exact, past, rng=self.streams("release", t))


class _Uncharged(Charge):
    """Does nothing: the round is charged once it is on disk."""

    def __init__(self) -> None:
        self.made = False

    def __call__(self) -> None:
        pass
