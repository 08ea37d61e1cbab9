"""The private side of the write-ahead ledger, for noise that is correlated over rounds.

A round of a secure plan with slots is repeated exactly after a crash: its noisy sum, and the noise that later rounds
build on, are on disk, privately, before the round is charged and released. A charged round whose draw is lost is
refused. With fresh noise it would show the same sums twice: not one more participation of its own clients only, but a
second look at the messages of the b - 1 rounds before, which are in its noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rrcluster.errors import PrivacyError

if TYPE_CHECKING:  # the ledger is read without numpy
    from rrcluster.privacy.correlation import PastNoise
    from rrcluster.types import Array, Models


@dataclass(frozen=True)
class DrawnRound:
    """A round's noisy sum, and what the run needs to go on after it. Private."""

    round_index: int
    total: "Array" = field(repr=False)
    past: "PastNoise" = field(repr=False)  # what the next round builds on
    models: "Models" = field(repr=False)  # that clients trained from: a secure run's first ones cannot be drawn again
    memory: "Mapping[str, Array]" = field(default_factory=dict, repr=False)  # what clients remember after the round


class NoiseStore:
    """What a run resumes with, and where a drawn round is put. In memory, unless `write` puts it on a disk."""

    def __init__(
        self,
        past: "PastNoise | None" = None,
        drawn: DrawnRound | None = None,
        write: Callable[[DrawnRound], None] | None = None,
    ) -> None:
        """`past` is the checkpoint's, `drawn` the last round that was written before its release."""
        self.past, self.drawn, self._write = past, drawn, write
        self.memory: Callable[[], Mapping[str, Array]] = dict  # what clients remember now; the simulator's to say

    def keep(self, round_index: int, total: "Array", past: "PastNoise", models: "Models") -> DrawnRound:
        """Write a round down before it is charged."""
        self.drawn = DrawnRound(round_index, total, past, models, self.memory())
        if self._write is not None:
            self._write(self.drawn)
        return self.drawn

    def recall(self, round_index: int, *, charged: bool) -> DrawnRound | None:
        """The round as it was drawn before a crash; None if it was not; PrivacyError if it was, and is lost."""
        if self.drawn is not None and self.drawn.round_index == round_index:
            return self.drawn
        if charged:
            raise PrivacyError(
                f"round {round_index} was charged, and the noise that it was or may have been released with is lost "
                "from checkpoint/. Repeating it with fresh noise would also show messages of the rounds before a "
                "second time, which epsilon does not cover; start a new run."
            )
        return None
