"""Survey: the first rounds find how many groups of clients there are, and where, before any model is trained.

All clients train from one and the same model. The direction of a client's update tells its group: clients of one group
pull the same way. A *sketch* of that direction, `WIDTH` numbers in place of thousands, keeps angles well enough, and
a sum of few numbers carries little noise. So early rounds ask for sums of functions of sketches x:

- *spread*, x x^T: the directions in which clients differ. Fewer directions mean less noise, so the weakest are dropped
  in three steps, from `WIDTH` to at most k.
- *skew*, x x x: where groups lie in that space. In coordinates in which the spread is the same in all directions, the
  centres of groups are perpendicular, and the third moment has them as its eigenvectors (Anandkumar, Ge, Hsu, Kakade,
  Telgarsky 2014: tensor decompositions for learning latent variable models).
- *centres*: each client sends its sketch to the nearest centre, and centres move to the mean (Lloyd). Then centres that
  are nearly empty are dropped, and those no farther apart than clients of one group are one.
- *start*: as many clusters are open as centres are left. Clients choose the nearest centre, and train.

Afterwards choices are plain. k is the *largest* number of clusters; the others stay closed.

Privacy: an answer is a function of the client's own data and of earlier releases, and it travels as the client's
update, under the same clip, in the same message: Theorem 1 of docs/privacy.md covers it, nothing is added to the
release. What the server makes of sums is post-processing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.types import Array

WIDTH = 48  # numbers in a sketch
PARTS = (("spread", 4), ("spread", 3), ("spread", 2), ("skew", 3), ("centres", 4), ("start", 6))  # share of the rounds
SHARE = 0.22  # of a run's rounds, by default
SIGNIFICANT = 0.8  # of the largest eigenvalue that noise alone would have: a direction above it is kept
MEAN_WEIGHT, COUNT_WEIGHT = 0.5, 0.7  # of the mean beside the skew, and of the count beside a centre's sum
CENTRE_MEMORY = 0.7  # weight of a centre's earlier rounds
LEAST_SHARE, LEAST_SIGMAS = 0.02, 3.0  # a centre is dropped below this share of the clients, or this many noise stds
SAME_GROUP = 2.6  # centres nearer than this, in standard deviations of clients within a group, are one (halves: 1.6)


@dataclass(frozen=True)
class SurveyQuestion:
    """What clients are asked in a round of a survey. Public."""

    stage: str  # a name of PARTS
    start: Array  # (d_c,) the model that all train from
    basis: Array  # (m, r) directions of sketches that are looked at
    centres: Array  # (g, r)
    scale: float  # length of the longest answer: the clip

    def answer(self, updates: Array) -> tuple[Array, Array | None]:
        """(n,) choices and (n, length) answers of clients whose updates from `start` are (n, d_c); None: train."""
        sketches = sketch(updates, len(self.basis))
        points = np.zeros((len(sketches), self.basis.shape[1]))
        for client, own in enumerate(sketches):  # one by one: a product of several rows is rounded differently
            points[client] = own @ self.basis
        nearest = np.zeros(len(points), dtype=np.int64)
        if self.stage in ("centres", "start"):
            nearest = ((points[:, None] - self.centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        if self.stage == "start":
            return nearest, None
        answers = self.scale * _ANSWERS[self.stage](points)
        answers[~np.isfinite(updates).all(axis=1)] = np.nan  # the mechanism makes it the zero message, count included
        return nearest, answers


def sketch(updates: Array, width: int) -> Array:
    """(n, width) of norm at most 1: every coordinate of an update's direction is added, with a sign, to one number.

    Which number and which sign is fixed and public (a count sketch). The sketch of zero is zero.
    """
    order, signs = _hashes(updates.shape[1], width)
    values = np.nan_to_num(np.asarray(updates, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    values = values / np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0), 1e-300)  # squares fit
    signed = np.zeros((len(values), -(-values.shape[1] // width) * width))
    signed[:, : values.shape[1]] = values[:, order] * signs
    sums = signed.reshape(len(values), signed.shape[1] // width, width).sum(axis=1)
    lengths = np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300)
    sums = sums / lengths
    return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1.0))


@cache
def _hashes(num_coordinates: int, width: int) -> tuple[Array, Array]:
    """An order of the coordinates, every width-th of which goes to one number, and their signs."""
    if num_coordinates <= width:  # few coordinates are their own sketch
        return np.arange(num_coordinates), np.ones(num_coordinates)
    rng = np.random.default_rng([num_coordinates, width])
    return rng.permutation(num_coordinates), rng.choice([-1.0, 1.0], size=num_coordinates)


def _spread(points: Array) -> Array:
    first, second, weights = _pairs(points.shape[1])
    return np.asarray(points[:, first] * points[:, second] * weights)


def _skew(points: Array) -> Array:
    triples, weights = _triples(points.shape[1])
    cubes = np.prod([points[:, place] for place in triples.T], axis=0) * weights
    return np.asarray(np.concatenate([cubes, MEAN_WEIGHT * points], axis=1) / math.hypot(1, MEAN_WEIGHT))


def _counted(points: Array) -> Array:
    counts = np.full((len(points), 1), COUNT_WEIGHT)
    return np.concatenate([counts, points], axis=1) / math.hypot(1, COUNT_WEIGHT)


_ANSWERS = {
    "spread": _spread,
    "skew": _skew,
    "centres": _counted,
}  # each of norm at most 1 for points of norm at most 1


@cache
def _pairs(r: int) -> tuple[Array, Array, Array]:
    first, second = np.triu_indices(r)
    return first, second, np.where(first == second, 1.0, math.sqrt(2))


@cache
def _triples(r: int) -> tuple[Array, Array]:
    triples = np.array(list(combinations_with_replacement(range(r), 3)))
    return triples, np.sqrt([len(set(permutations(triple))) for triple in triples.tolist()])


def sketch_width(num_coordinates: int, num_clusters: int) -> int:
    """The widest sketch, up to WIDTH, whose answers fit into an update; ConfigError if the model is too small."""
    width = min(max(WIDTH, num_clusters), num_coordinates)
    while width * (width + 1) // 2 > num_coordinates:
        width -= 1
    if width < num_clusters or math.comb(num_clusters + 2, 3) + num_clusters > num_coordinates:
        raise ConfigError(
            f"init = survey needs more than {num_coordinates} parameters per cluster to find {num_clusters} groups; "
            "lower num_clusters, or use init = independent."
        )
    return width


@dataclass(frozen=True)
class Survey:
    """What the server has learnt so far. Made of releases, hence public."""

    start: Array  # (d_c,)
    basis: Array  # (m, r)
    spread: Array  # (r, r) sum of x x^T
    spread_rounds: int  # that it is summed over
    skew: Array  # (r, r, r) sum of x x x
    mean: Array  # (r,) sum of x beside it
    skew_rounds: int
    centres: Array  # (g, r)
    sums: Array  # (g, 1 + r) counts and sums of the centres, as remembered

    @classmethod
    def begin(cls, start: Array, num_clusters: int) -> "Survey":
        """Nothing is known yet."""
        width = sketch_width(len(start), num_clusters)
        return cls._in_basis(start, np.eye(width), np.zeros((width, width)), 0)

    @classmethod
    def _in_basis(cls, start: Array, basis: Array, spread: Array, spread_rounds: int) -> "Survey":
        r = basis.shape[1]
        no_skew, no_centres = (np.zeros((r, r, r)), np.zeros(r), 0), (np.zeros((0, r)), np.zeros((0, 1 + r)))
        return cls(start, basis, spread, spread_rounds, *no_skew, *no_centres)

    @property
    def num_groups(self) -> int:
        """Centres so far; at the end, the groups that were found."""
        return len(self.centres)

    def question(self, stage: str, scale: float) -> SurveyQuestion:
        """What clients are asked in a round."""
        return SurveyQuestion(stage, self.start, self.basis, self.centres, scale)

    def updated(self, place: "Place", sums: Array, *, noise: float, cohort: float, num_clusters: int) -> "Survey":
        """After a round that asked: `sums` (k, d_c) are the released sums of answers, in units of their scale.

        `noise` is the std of each number in them, and `cohort` the expected number of clients of a round.
        """
        if place.stage == "spread":
            return self._with_spread(sums[0], place, noise, cohort, num_clusters)
        if place.stage == "skew":
            return self._with_skew(sums[0], place, cohort)
        moved = self._with_centres(sums, noise)
        return moved._distinct(num_clusters, noise, cohort) if place.last else moved

    def _with_spread(self, total: Array, place: "Place", noise: float, cohort: float, num_clusters: int) -> "Survey":
        width, r = self.basis.shape
        first, second, weights = _pairs(r)
        products = np.zeros((r, r))
        products[first, second] = products[second, first] = total[: len(first)] / weights
        spread, rounds = self.spread + products, self.spread_rounds + 1
        if not place.last:
            return replace(self, spread=spread, spread_rounds=rounds)
        eigenvalues, vectors = np.linalg.eigh(spread)
        eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
        kept = min(round(width * (num_clusters / width) ** ((place.part + 1) / 3)), r)
        if PARTS[place.part + 1][0] == "skew":  # the last step: keep what noise does not explain
            rest = _rest(eigenvalues[:kept], width, rounds * cohort) * _sampling(width, rounds * cohort)
            edge = SIGNIFICANT * noise * math.sqrt(2 * rounds * kept)
            kept = max(1, int((eigenvalues[:kept] > rest + edge).sum()))
        chosen = vectors[:, :kept]
        return self._in_basis(self.start, self.basis @ chosen, chosen.T @ spread @ chosen, rounds)

    def _with_skew(self, total: Array, place: "Place", cohort: float) -> "Survey":
        r = self.basis.shape[1]
        triples, weights = _triples(r)
        values = total[: len(triples) + r] * math.hypot(1, MEAN_WEIGHT)
        skew = np.zeros((r, r, r))
        for triple, value in zip(triples.tolist(), values[: len(triples)] / weights, strict=True):
            for entry in set(permutations(triple)):
                skew[entry] = value
        mean = self.mean + values[len(triples) :] / MEAN_WEIGHT
        grown = replace(self, skew=self.skew + skew, mean=mean, skew_rounds=self.skew_rounds + 1)
        if not place.last:
            return grown
        centres = grown._first_centres(cohort)
        return replace(grown, centres=centres, sums=np.zeros((len(centres), 1 + r)))

    def _first_centres(self, cohort: float) -> Array:
        """(r, r) one centre per row: the eigenvectors of the third moment, by the power method, the clearest first.

        How clients of one group differ is taken to be alike in all directions, and removed from both moments.
        """
        width, r = self.basis.shape
        eigenvalues, vectors = np.linalg.eigh(self.spread / (self.spread_rounds * cohort))
        rest = _rest(eigenvalues, width, 1.0)
        lengths = np.sqrt(np.maximum(eigenvalues - rest, 1e-3))
        within = np.einsum("i,jk->ijk", self.mean, rest * np.eye(r))
        skew = self.skew - within - within.transpose(1, 0, 2) - within.transpose(1, 2, 0)
        whiten = vectors / lengths
        skew = np.einsum("abc,ai,bj,ck->ijk", skew / (self.skew_rounds * cohort), whiten, whiten, whiten)
        centres, left = [], np.eye(r)
        for _ in range(r):
            value, direction = _power_method(np.einsum("abc,ai,bj,ck->ijk", skew, left, left, left))
            left = left - np.outer(direction, direction)  # the others are perpendicular to it
            centres.append(vectors @ (max(value, 1.0) * lengths * direction))
        return np.array(centres)

    def _with_centres(self, sums: Array, noise: float) -> "Survey":
        g, r = self.centres.shape
        fresh = sums[:g, : 1 + r] * math.hypot(1, COUNT_WEIGHT) / np.array([COUNT_WEIGHT, *[1.0] * r])
        remembered = CENTRE_MEMORY * self.sums + fresh
        counts = remembered[:, :1]
        known = counts > max(2 * noise * math.hypot(1, COUNT_WEIGHT) / COUNT_WEIGHT, 1e-9)
        means = remembered[:, 1:] / np.maximum(counts, 1e-9)
        return replace(self, centres=np.where(known, means, self.centres), sums=remembered)

    def _distinct(self, num_clusters: int, noise: float, cohort: float) -> "Survey":
        """Without centres that are nearly empty, and with those that are no farther apart than clients of one group."""
        width, r = self.basis.shape
        counts = np.maximum(self.sums[:, 0], 1e-9)
        sum_noise = noise * math.hypot(1, COUNT_WEIGHT) / math.sqrt(1 - CENTRE_MEMORY**2)
        least = max(LEAST_SHARE * counts.sum(), LEAST_SIGMAS * sum_noise / COUNT_WEIGHT)
        clients = self.spread_rounds * cohort
        within = _rest(np.linalg.eigvalsh(self.spread) / clients, width, 1.0) * _sampling(width, clients)
        groups = [
            (count, centre)
            for count, centre in zip(counts, self.centres, strict=True)
            if count >= min(least, counts.max())
        ]

        def distance(first: int, second: int) -> float:
            """Squared, in units of what one group's clients and noise would explain."""
            (n, a), (m, b) = groups[first], groups[second]
            explained = SAME_GROUP**2 * within + r * sum_noise**2 * (1 / n**2 + 1 / m**2)
            return float(((a - b) ** 2).sum() / max(explained, 1e-12))

        while len(groups) > 1:
            nearest, first, second = min((distance(i, j), i, j) for i in range(len(groups)) for j in range(i))
            if nearest > 1 and len(groups) <= num_clusters:
                break
            (n, a), (m, b) = groups.pop(first), groups.pop(second)  # second is the smaller place
            groups.append((n + m, (n * a + m * b) / (n + m)))
        groups.sort(key=lambda group: -group[0])
        return replace(self, centres=np.array([centre for _, centre in groups]))

    def tensors(self) -> dict[str, Array]:
        """As arrays, for the checkpoint."""
        return {f"survey.{name}": np.asarray(value, dtype=np.float64) for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "Survey | None":
        """Back from the checkpoint; None where it has none."""
        own = {name.removeprefix("survey."): value for name, value in tensors.items() if name.startswith("survey.")}
        rounds = {name: int(np.asarray(value).item()) for name, value in own.items() if name.endswith("_rounds")}
        return cls(**own | rounds) if own else None


@dataclass(frozen=True)
class Place:
    """Where in a survey a round is."""

    part: int  # of PARTS
    last: bool  # whether the part ends with this round

    @property
    def stage(self) -> str:
        """What is asked."""
        return PARTS[self.part][0]

    @property
    def asks(self) -> bool:
        """Whether clients answer instead of training."""
        return self.stage != "start"


def place_of(round_index: int, num_rounds: int) -> Place:
    """Where a round is in a survey of `num_rounds`, at least one for each part."""
    shares = np.cumsum([share for _, share in PARTS])
    ends = np.round(shares * num_rounds / shares[-1]).astype(int)
    for part in range(1, len(PARTS)):
        ends[part] = max(ends[part], ends[part - 1] + 1)
    ends = np.minimum(ends, num_rounds - np.arange(len(PARTS))[::-1])
    part = int(np.searchsorted(ends, round_index, side="right"))
    return Place(part, round_index + 1 == ends[part])


def _rest(eigenvalues: Array, width: int, total: float) -> float:
    """What is left of the squared length of sketches, `total`, for each of the directions that were dropped."""
    return float(max(total - eigenvalues.sum(), 0.0) / max(width - len(eigenvalues), 1))


def _sampling(width: int, num_clients: float) -> float:
    """How much the largest of equal variances in `width` directions looks larger in a sample (Marchenko, Pastur)."""
    return (1 + math.sqrt(width / num_clients)) ** 2


def _power_method(third: Array) -> tuple[float, Array]:
    """The largest eigenvalue of a symmetric (r, r, r) array that is nearly orthogonal, and its eigenvector."""
    starts = np.random.default_rng(0).normal(size=(30, len(third)))
    directions = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    for _ in range(50):
        moved = np.einsum("ijk,sj,sk->si", third, directions, directions)
        directions = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-300)
    values = np.einsum("ijk,si,sj,sk->s", third, directions, directions, directions)
    best = int(values.argmax())
    return float(values[best]), directions[best]
