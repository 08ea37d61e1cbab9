"""The questions of each round: a public list, fixed before the first release, and the form of an answer.

An answer consists of parts. A client clips each part to its own clip, scales it to the part's weight w_i, divides all
by S = sqrt(sum of w_i^2), and clips the result to 1: whatever a server asks, no message is longer than 1. Answers
travel as updates, padded with zeros to one width.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.mixed.raw_columns import COARSE, FINE, MOST_FULL, MOST_VOTED
from rrcluster.types import Array

STAGES = (  # each with its share of the rounds
    ("coarse ranges", 2),
    ("fine ranges", 2),
    ("moments", 4),
    ("map", 2),
    ("centres", 2),
    ("first training", 10),
    ("first choice", 3),
    ("second training", 12),
    ("last choice", 3),
)
_ASKED = {
    "coarse ranges": "votes for the bins, by factors of 4, of a client's least and greatest number of each column; "
    "the share of its cells that are not zero; votes for missing cells and buckets of texts that it has",
    "fine ranges": "the same votes, for equal bins of the interval that the first ones gave",
    "moments": "second moments of a client's rows within the ranges, and of its mean row",
    "map": "one vote for where a client's mean row lies on a map of the directions in which clients differ",
    "centres": "how far a client's mean row lies from the nearest centre, for every number of clusters, and a count",
    "first training": "the mean gradient of a client's rows, for every number of clusters, and a count",
    "first choice": "how much less a client loses with each size of random effects and each number of clusters",
    "second training": "the mean gradient of a client's rows at the model with its own random effects, and a count",
    "last choice": "how much less a client loses with sizes near the first choice, or near those that the run goes on "
    "from; and by how much less than with one model and no effects, or than with the models that the run goes on from",
}
_AGAIN = (0, 0, 3, 0, 0, 6, 0, 8, 3)  # shares of the stages in a run that starts from released models
FAMILIES = (1, 2, 3, 4, 6)  # candidate numbers of clusters
USUAL_ROUNDS = sum(share for _, share in STAGES)
FEWEST_ROUNDS = 2 * len(STAGES)
COUNT_WEIGHT = 0.25  # weight of cluster counts, relative to the sums they belong to
AXES, CELLS = 3, (12, 12)  # directions that describe clients; cells of the map of the first two
MOST_CLUSTERED, MOST_ACTIVE = 100, 5000  # most columns with clusters, and without
CLUSTERED_WEIGHT = 0.6  # weight of training with several clusters, relative to one model
SMALL = 0.01  # random effects of this size count as none
INTERCEPTS, SLOPES = (SMALL, 0.5, 1.5), (SMALL, 0.2, 0.7)  # sizes of random effects in the first choice
CLUSTERED_SIZES = ((SMALL, SMALL), (0.5, SMALL), (0.5, 0.2), (1.5, 0.7))  # with more than one cluster
FINER = 1.7  # ratio of neighbouring sizes in the last choice

Setting = tuple[int, float, float]  # clusters, size of random intercepts, size of random slopes


@dataclass(frozen=True)
class AnswerPart:
    """One part of an answer."""

    name: str
    width: int
    weight: float


@dataclass(frozen=True)
class Form:
    """The public part of a questionnaire, fixed before it begins by settings and declared columns alone."""

    num_columns: int  # d, raw
    buckets: int  # H; 0: numbers alone, no codes
    num_outputs: int  # l: 1 for two classes and for numbers
    kind: str  # binary, classes or number
    declared: tuple[tuple[float, float] | None, ...] = ()  # declared ranges of columns and target
    num_rounds: int = USUAL_ROUNDS
    most_clusters: int = max(FAMILIES)
    personal: bool = True
    ordered: bool = False  # whether rows are in order of time: choices are then made on the newest
    begun: int = 0  # clusters of the released models that a resumed run keeps; 0: a fresh run

    def __post_init__(self) -> None:
        if self.num_rounds < FEWEST_ROUNDS:
            raise ConfigError(
                f"num_rounds = {self.num_rounds} is too few for the questions of mixed-effects; take at least "
                f"{FEWEST_ROUNDS} ({USUAL_ROUNDS} is usual)."
            )

    @property
    def num_encoded(self) -> int:
        """The most columns a model may have: values, indicators of missing cells, and buckets."""
        return self.num_columns * (2 + self.buckets if self.buckets else 1)

    @property
    def num_ranges(self) -> int:
        """Columns with a range: those of the table, and a numeric target."""
        return self.num_columns + (self.kind == "number")

    @property
    def families(self) -> tuple[int, ...]:
        """The candidate numbers of clusters."""
        if self.begun:
            return (self.begun,)
        return tuple(k for k in FAMILIES if k <= self.most_clusters) if self.num_columns <= MOST_CLUSTERED else (1,)

    @property
    def ends(self) -> Array:
        """The first round after each stage; a skipped stage ends where the one before it does."""
        weights = np.array(_AGAIN if self.begun else [share for _, share in STAGES])
        shares = np.cumsum(weights[weights > 0])
        ends = np.maximum(np.round(shares * self.num_rounds / shares[-1]).astype(int), 1)
        for stage in range(1, len(ends)):
            ends[stage] = max(ends[stage], ends[stage - 1] + 1)
        ends = np.minimum(ends, self.num_rounds - np.arange(len(shares))[::-1])
        return np.concatenate([[0], ends])[np.cumsum(weights > 0)]

    def stage(self, round_index: int) -> int:
        """The place in STAGES of a round's stage."""
        return int(np.searchsorted(self.ends, round_index, side="right"))

    def rounds(self, stage: int) -> int:
        """The number of rounds of a stage."""
        return int(np.diff(self.ends, prepend=0)[stage])

    @property
    def open(self) -> Array:
        """(num_ranges,) bool: columns without a declared range, which clients vote on."""
        return np.array([self.declared[j] is None if self.declared else True for j in range(self.num_ranges)])

    @property
    def pooled(self) -> bool:
        """Whether there are too many columns for votes on each: all then share one range."""
        return self.num_columns > MOST_VOTED

    @property
    def num_voted(self) -> int:
        """Ranges that clients vote on: each column's or the shared one, and the target's."""
        return 1 + (self.kind == "number") if self.pooled else self.num_ranges

    def parts(self, stage: int, active: int | None = None) -> tuple[AnswerPart, ...]:
        """The parts of a stage's answers, for `active` columns of the model (default: the most possible)."""
        a = min(self.num_encoded, MOST_ACTIVE) if active is None else active
        return tuple(self._parts(STAGES[stage][0], a))

    def _parts(self, name: str, a: int) -> Iterator[AnswerPart]:
        p, choices = a + 1, len(self.first_settings(a)) - 1
        clustered = self.clustered(a)
        if name == "coarse ranges":
            yield AnswerPart("extremes", 2 * self.num_voted * COARSE, 1.0)
            yield AnswerPart("zeros", 1, 0.2)
            if self.buckets:
                yield AnswerPart("texts", self.num_columns * (1 + self.buckets), 0.7)
        elif name == "fine ranges":
            yield AnswerPart("extremes", 2 * self.num_voted * FINE, 1.0)
        elif name == "moments":
            full = a <= MOST_FULL
            yield AnswerPart("rows", p * (p + 1) // 2 - 1 if full else 2 * a, 1.0)
            yield AnswerPart("means", a * p // 2 if full else a, 0.5)
            if self.kind == "number":
                yield AnswerPart("target", 2, 0.3)
        elif name == "map":
            yield AnswerPart("cells", math.prod(CELLS) if clustered else 1, 1.0)
        elif name == "centres":
            for k in clustered:
                yield AnswerPart(f"moves of {k}", k * AXES, 1.0)
                yield AnswerPart(f"counts of {k}", k, COUNT_WEIGHT)
            if not clustered:
                yield AnswerPart("nothing", 1, 1.0)
        elif name == "first training":
            for k in self.families_of(a):
                yield AnswerPart(f"gradient of {k}", k * self.num_outputs * p, 1.0 if k == 1 else CLUSTERED_WEIGHT)
                if k > 1:
                    yield AnswerPart(f"counts of {k}", k, COUNT_WEIGHT * CLUSTERED_WEIGHT)
        elif name == "second training":
            k = max((1, *clustered))
            yield AnswerPart("gradient", k * self.num_outputs * p, 1.0)
            yield AnswerPart("counts", k, COUNT_WEIGHT)
        elif name == "first choice":
            yield AnswerPart("gains", choices, 1.0)
        else:
            yield AnswerPart("gains", 16, 1.0)
            yield AnswerPart("over what is there", 1, 0.5)

    def families_of(self, active: int) -> tuple[int, ...]:
        """The candidate numbers of clusters, given the number of columns: clusters only where columns are few."""
        return self.families if self.begun or active <= MOST_CLUSTERED else (1,)

    def clustered(self, active: int) -> tuple[int, ...]:
        """The candidates with more than one cluster."""
        return tuple(k for k in self.families_of(active) if k > 1)

    def first_settings(self, active: int) -> tuple[Setting, ...]:
        """(k, size of intercepts, size of slopes) of the first choice; the first entry is one model."""
        sizes = [(a, s) for a in INTERCEPTS for s in SLOPES] if self.personal else [(SMALL, SMALL)]
        more = CLUSTERED_SIZES if self.personal else CLUSTERED_SIZES[:1]
        return tuple((1, *size) for size in sizes) + tuple((k, *size) for k in self.clustered(active) for size in more)

    def last_settings(self, k: int, intercept: float, slope: float) -> tuple[Setting, ...]:
        """The same for the last choice, around the first; the baseline is the one model of the first training."""
        if not self.personal:
            return ((k, SMALL, SMALL),)
        near = [
            (SMALL, least, 2.5 * least, 5 * least)
            if size <= SMALL
            else sorted({SMALL, max(size / FINER, SMALL), size, max(size * FINER, least)})
            for size, least in ((intercept, 0.2), (slope, 0.08))
        ]
        return tuple((k, a, s) for a in near[0] for s in near[1])[:16]

    def describe(self) -> list[dict[str, Any]]:
        """The list of questions for the statement: the content, rounds and message parts of each."""
        described = []
        for stage, (name, _) in enumerate(STAGES):
            if not self.rounds(stage):
                continue
            parts = self.parts(stage, min(self.num_encoded, MOST_CLUSTERED))
            length = math.sqrt(sum(part.weight**2 for part in parts))
            described.append(
                {
                    "question": name,
                    "asks": _ASKED[name],
                    "rounds": self.rounds(stage),
                    "longest_message": 1.0,
                    "parts": [
                        {"part": part.name, "numbers": part.width, "longest": round(part.weight / length, 6)}
                        for part in parts
                    ],
                }
            )
        return described

    @property
    def width(self) -> int:
        """Width of the longest answer, to which all are padded."""
        counts = {0, *(min(self.num_encoded, most) for most in (MOST_FULL, MOST_CLUSTERED, MOST_ACTIVE))}
        return max(sum(part.width for part in self.parts(stage, a)) for stage in range(len(STAGES)) for a in counts)


def packed(
    parts: tuple[AnswerPart, ...], answers: Mapping[str, tuple[Array, float]], *, count: int, width: int
) -> Array:
    """(n, width) messages of norm at most 1, from each part's (n, ...) answers and its clip.

    Where a client's part is not finite, the client sends zeros for that part.
    """
    total = math.sqrt(sum(part.weight**2 for part in parts))
    messages, start = np.zeros((count, width)), 0
    for part in parts:
        if part.name in answers:
            values, clip = answers[part.name]
            flat = np.ascontiguousarray(values.reshape(count, -1))  # contiguous, so that sums over rows have one order
            norms = np.sqrt((flat * flat).sum(axis=1))
            shrunk = part.weight / total / np.maximum(norms, clip) if clip > 0 else np.zeros(count)
            shrunk = np.where(np.isfinite(norms), shrunk, 0.0)
            messages[:, start : start + flat.shape[1]] = np.nan_to_num(flat, posinf=0.0, neginf=0.0) * shrunk[:, None]
        start += part.width
    norms = np.sqrt((messages * messages).sum(axis=1, keepdims=True))
    return np.asarray(messages / np.maximum(norms, 1.0))
