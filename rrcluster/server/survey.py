"""Surveys and initialisation: how the k models come to differ in the first rounds, without extra releases.

- `independent`: all k random models compete from the first round on.
- `survey`: for `init_rounds` rounds clients answer how their updates differ, before any model is trained; then as many
  clusters open as groups were found, k at most.
- `auto`: a survey where it applies and noise leaves it enough to find groups, else `independent`.

Privacy: the rounds of a survey are rounds of the plan, released by the same mechanism and charged the same event, so
they count towards T and cost nothing extra. What is asked in a round follows from its number; what a client does is a
function of its own data, of released models and of its own coins, which is all that Theorem 1 of docs/privacy.md asks
for (and the soundness of `identifier`). Holding closed clusters still is post-processing of releases.

In a survey all clients train from one and the same model. The direction of a client's update tells its group: clients
of one group pull the same way. A *sketch* of that direction, `WIDTH` numbers in place of thousands, keeps angles well
enough, and a sum of few numbers carries little noise. So early rounds ask for sums of functions of sketches, always of
their *direction within the subspace that is looked at*, x of length 1: what lies outside is mostly a client's own
chance, and without it the same message says more.

- *spread*, x x^T: the directions in which clients differ. Fewer directions mean less noise, so the weakest are dropped
  in three steps, from `WIDTH` to `CANDIDATES`, or k if it is more.
- *skew*, x x x: where groups lie in that space. In coordinates in which the spread is the same in all directions, the
  centres of groups are perpendicular, and the third moment has them as its eigenvectors (Anandkumar, Ge, Hsu, Kakade,
  Telgarsky 2014: tensor decompositions for learning latent variable models).
- *centres*: each client adds x to the centre that points most its way, and centres move to the mean (Lloyd, on a
  sphere). Then centres that are nearly empty are dropped, and those no farther apart than clients of one group are one.
- *start*: as many clusters are open as centres are left. Clients choose the nearest centre, and train.

Afterwards choices are plain. k is the *largest* number of clusters; the others stay closed. Where the clients of what
would be the largest group do not pull the same way, first updates cannot tell groups: then all k clusters compete, as
without a survey.

Privacy: an answer is a function of the client's own data and of earlier releases, and it travels as the client's
update, under the same clip, in the same message: Theorem 1 of docs/privacy.md covers it, nothing is added to the
release. What the server makes of sums is post-processing.

The clients' half of a survey (server/survey.py): what is asked, and the answer to it.

An answer is a function of the client's own update and of what the server has told, of length at most the clip.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.settings import ServerSettings
from rrcluster.types import Array, Release

COUNT_WEIGHT = 0.7  # weight of the count beside a centre's sum


@dataclass(frozen=True)
class SurveyQuestion:
    """The question of a survey round. Public."""

    stage: str  # a name of PARTS
    start: Array  # (d_c,) the model from which all clients train
    basis: Array  # (m, r) directions of sketches in use
    centres: Array  # (g, r)
    scale: float  # length of the longest answer: the clip

    def arrays(self) -> dict[str, Array]:
        """The arrays that are sent to remote clients."""
        return {"start": self.start.astype(np.float32), "basis": self.basis, "centres": self.centres}

    def answer(self, updates: Array) -> tuple[Array, Array | None]:
        """(n,) choices and (n, length) answers of clients whose updates from `start` are (n, d_c); None: train."""
        sketches = sketch(updates, len(self.basis))
        points = np.zeros((len(sketches), self.basis.shape[1]))
        for client, own in enumerate(sketches):  # one by one: a product of several rows is rounded differently
            points[client] = own @ self.basis
        points = directions(points)
        nearest = np.zeros(len(points), dtype=np.int64)
        if self.stage in ("centres", "start"):
            nearest = (points[:, None] * directions(self.centres)[None]).sum(axis=2).argmax(axis=1)
        if self.stage == "start":
            return nearest, None
        answers = (
            _counted(points, nearest, len(self.centres)) if self.stage == "centres" else _MOMENTS[self.stage](points)
        )
        # the mechanism turns it into the zero message, count included
        answers[~np.isfinite(updates).all(axis=1)] = np.nan
        return np.zeros_like(nearest), self.scale * answers


def sketch(updates: Array, width: int) -> Array:
    """(n, width) sketches of length 1: each coordinate of an update is added, with a sign, to one of the numbers.

    The number and the sign of each coordinate are fixed and public (a count sketch). The sketch of zero is zero.
    """
    order, signs = _hashes(updates.shape[1], width)
    values = np.nan_to_num(np.asarray(updates, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    # so that squares do not overflow
    values = values / np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0), 1e-300)
    signed = np.zeros((len(values), -(-values.shape[1] // width) * width))
    signed[:, : values.shape[1]] = values[:, order] * signs
    return directions(signed.reshape(len(values), signed.shape[1] // width, width).sum(axis=1))


def directions(vectors: Array) -> Array:
    """(n, r) of length 1; zero stays zero."""
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-12))


@cache
def _hashes(num_coordinates: int, width: int) -> tuple[Array, Array]:
    """An order of the coordinates, every width-th of which goes to one number, and their signs."""
    if num_coordinates <= width:  # few coordinates are their own sketch
        return np.arange(num_coordinates), np.ones(num_coordinates)
    rng = np.random.default_rng([num_coordinates, width])
    return rng.permutation(num_coordinates), rng.choice([-1.0, 1.0], size=num_coordinates)


def _spread(points: Array) -> Array:
    first, second, weights = pairs(points.shape[1])
    return np.asarray(points[:, first] * points[:, second] * weights)


def _skew(points: Array) -> Array:
    places, weights = triples(points.shape[1])
    return np.asarray(np.prod([points[:, place] for place in places.T], axis=0) * weights)


def _counted(points: Array, nearest: Array, num_centres: int) -> Array:
    """(n, g (1 + r)) a count of one and the client's point, in the block of its nearest centre; zero elsewhere."""
    one = np.full((len(points), 1), COUNT_WEIGHT)
    answers = np.zeros((len(points), num_centres, 1 + points.shape[1]))
    answers[np.arange(len(points)), nearest] = np.concatenate([one, points], axis=1) / math.hypot(1, COUNT_WEIGHT)
    return answers.reshape(len(points), num_centres * (1 + points.shape[1]))


_MOMENTS = {"spread": _spread, "skew": _skew}  # of length at most 1, like the answers about centres


@cache
def pairs(r: int) -> tuple[Array, Array, Array]:
    """Places of a symmetric (r, r) array on and above the diagonal, and weights that keep its length."""
    first, second = np.triu_indices(r)
    return first, second, np.where(first == second, 1.0, math.sqrt(2))


@cache
def triples(r: int) -> tuple[Array, Array]:
    """The same for a symmetric (r, r, r) array."""
    places = np.array(list(combinations_with_replacement(range(r), 3)))
    return places, np.sqrt([len(set(permutations(place))) for place in places.tolist()])


WIDTH = 48  # numbers in a sketch
CANDIDATES = 8  # initial centres, and remaining directions, where k is smaller
# and their share of the rounds
PARTS = (("spread", 3), ("spread", 3), ("spread", 2), ("skew", 3), ("centres", 5), ("start", 6))
SHARE = 0.22  # by default the largest share of a run's rounds for a survey
USUAL_LEAST = 9  # by default the fewest rounds, where that share allows
LEAST_ROUNDS = 4  # the fewest rounds in short runs, which ask for the spread once
SHORTEST_RUN = 10  # rounds; shorter runs have no survey by default
SMALL_GROUP_SHARE, CLEAR_SIGNAL = 0.1, 0.95  # target: the signal to noise of a group of this share of the clients
GROUP_PART = 0.5  # approximate share of an update's squared length that its group explains
CENTRE_MEMORY = 0.8  # weight of a centre's earlier rounds
LEAST_SHARE, LEAST_SIGMAS = 0.04, 3.0  # centres below this share of the clients, or so many noise stds, are dropped
SAME_GROUP = 3.2  # centres closer than this, in standard deviations within a group, are merged (halves: 1.6)


def survey_size(num_coordinates: int, num_clusters: int) -> tuple[int, int]:
    """Sizes of the sketch and of the final subspace for which answers fit; ConfigError if the model is too small."""
    directions = max(CANDIDATES, num_clusters)
    if _longest_answer(directions) > num_coordinates:
        directions = num_clusters
    width = min(max(WIDTH, directions), num_coordinates)
    while width * (width + 1) // 2 > num_coordinates:
        width -= 1
    if width < directions or _longest_answer(directions) > num_coordinates:
        raise ConfigError(
            f"init = survey needs more than {num_coordinates} parameters per cluster to find {num_clusters} groups; "
            "lower num_clusters, or use init = independent."
        )
    return width, directions


def _longest_answer(directions: int) -> int:
    """Length of the longest answer, on skew or centres."""
    return max(math.comb(directions + 2, 3), directions * (1 + directions))


def least_agreement(directions: int) -> float:
    """Squared length of the largest group's mean direction below which its clients have too little in common.

    As many perpendicular groups as there are directions have a mean of 1
    directions.
    """
    return min(2 / directions, 0.6)


def survey_signal(num_rounds: int, *, clients: float, noise: float, width: int) -> float:
    """Signal to noise of a group of `clients` in the spread of a survey of `num_rounds`.

    `noise` is the std of each released number, relative to the clip.
    """
    asked = sum(place_of(t, num_rounds).stage == "spread" for t in range(num_rounds))
    return clients * GROUP_PART * math.sqrt(asked / (2 * width)) / noise if noise else math.inf


@dataclass(frozen=True)
class Survey:
    """The server's estimates so far. Made of releases, hence public."""

    start: Array  # (d_c,)
    basis: Array  # (m, r)
    spread: Array  # (r, r) sum of x x^T
    within: float  # variation within a group, per direction, relative to the spread; 0 before it is estimated
    skew: Array  # (r, r, r) sum of x x x
    centres: Array  # (g, r)
    sums: Array  # decayed counts and sums of the centres
    rounds: int  # rounds of the spread, or of the centres, so far

    @classmethod
    def begin(cls, start: Array, num_clusters: int) -> "Survey":
        """The state before the first question."""
        width, _ = survey_size(len(start), num_clusters)
        return cls._in_basis(start, np.eye(width), np.zeros((width, width)), 0.0, 0)

    @classmethod
    def _in_basis(cls, start: Array, basis: Array, spread: Array, within: float, rounds: int) -> "Survey":
        r = basis.shape[1]
        return cls(start, basis, spread, within, np.zeros((r, r, r)), np.zeros((0, r)), np.zeros((0, 1 + r)), rounds)

    @property
    def num_groups(self) -> int:
        """Centres so far; at the end, the groups found, or 0 where updates could not tell."""
        return len(self.centres)

    def question(self, stage: str, scale: float) -> SurveyQuestion:
        """The question of a stage."""
        return SurveyQuestion(stage, self.start, self.basis, self.centres, scale)

    def updated(self, place: "Place", total: Array, *, noise: float, num_clusters: int) -> "Survey":
        """The state after a round of answers: `total` (d_c,) is their released sum, in units of their scale.

        `noise` is the std of each number in it.
        """
        if place.stage == "spread":
            return self._with_spread(total, place, survey_size(len(self.start), num_clusters)[1])
        if place.stage == "skew":
            return self._with_skew(total, place, noise)
        moved = self._with_centres(total, noise)
        return moved._distinct(num_clusters, noise) if place.last else moved

    def _with_spread(self, total: Array, place: "Place", directions: int) -> "Survey":
        width, r = self.basis.shape
        first, second, weights = pairs(r)
        products = np.zeros((r, r))
        products[first, second] = products[second, first] = total[: len(first)] / weights
        spread, rounds = self.spread + products, self.rounds + 1
        if not place.last:
            return replace(self, spread=spread, rounds=rounds)
        eigenvalues, vectors = np.linalg.eigh(spread)
        left = min(round(width * (directions / width) ** ((place.part + 1) / 3)), r)
        chosen, explained = vectors[:, ::-1][:, :left], max(eigenvalues[::-1][:left].sum(), 1e-9)
        rest = max(eigenvalues.sum() - explained, 0.0) / max(r - left, 1)
        return self._in_basis(self.start, self.basis @ chosen, chosen.T @ spread @ chosen, rest / explained, rounds)

    def _with_skew(self, total: Array, place: "Place", noise: float) -> "Survey":
        places, weights = triples(self.basis.shape[1])
        skew = self.skew.copy()
        for triple, value in zip(places.tolist(), total[: len(places)] / weights, strict=True):
            for entry in set(permutations(triple)):
                skew[entry] += value
        grown = replace(self, skew=skew)
        if not place.last:
            return grown
        centres = grown._first_centres(noise)
        return replace(grown, centres=centres, sums=np.zeros((len(centres), 1 + len(skew))), rounds=0)

    def _first_centres(self, noise: float) -> Array:
        """(r, r) one centre per row: eigenvectors of the third moment, by the power method, the clearest first.

        Variation within groups is assumed equal in all directions, and removed from both moments. Directions that noise
        alone would explain are not stretched.
        """
        width, r = self.basis.shape
        clients = max(float(np.trace(self.spread)), 1e-9)  # each client adds 1 to the trace
        eigenvalues, vectors = np.linalg.eigh(self.spread / clients)
        loudest = noise * math.sqrt(2 * self.rounds * width) / clients  # the largest eigenvalue of pure noise
        lengths = np.sqrt(np.maximum(eigenvalues - self.within, loudest + 1e-3))
        mean = np.einsum("ijj->i", self.skew)  # of x, because x.x = 1
        own = np.einsum("i,jk->ijk", mean, self.within * np.eye(r))
        skew = self.skew - own - own.transpose(1, 0, 2) - own.transpose(1, 2, 0)
        whiten = vectors / lengths
        skew = np.einsum("abc,ai,bj,ck->ijk", skew, whiten, whiten, whiten)
        centres, left = [], np.eye(r)
        for _ in range(r):
            direction = _power_method(np.einsum("abc,ai,bj,ck->ijk", skew, left, left, left))
            left = left - np.outer(direction, direction)  # the others are perpendicular to it
            centres.append(vectors @ (lengths * direction))
        return np.array(centres)

    def _with_centres(self, total: Array, noise: float) -> "Survey":
        g, r = self.centres.shape
        weights = np.array([COUNT_WEIGHT, *[1.0] * r]) / math.hypot(1, COUNT_WEIGHT)
        fresh = total[: g * (1 + r)].reshape(g, 1 + r) / weights
        moved = replace(self, sums=CENTRE_MEMORY * self.sums + fresh, rounds=self.rounds + 1)
        counts = moved.sums[:, :1]
        known = counts > max(2 * moved._sum_noise(noise) / COUNT_WEIGHT, 1e-9)
        means = moved.sums[:, 1:] / np.maximum(counts, 1e-9)
        return replace(moved, centres=np.where(known, means, self.centres))

    def _sum_noise(self, noise: float) -> float:
        """Std of each number of the centres' decayed sums."""
        rounds = (1 - CENTRE_MEMORY ** (2 * self.rounds)) / (1 - CENTRE_MEMORY**2)
        return noise * math.hypot(1, COUNT_WEIGHT) * math.sqrt(rounds)

    def _distinct(self, num_clusters: int, noise: float) -> "Survey":
        """Without nearly empty centres, and with those merged that are no farther apart than clients of one group.

        Without any where the clients of the largest group have too little in common.
        """
        r, sum_noise = self.basis.shape[1], self._sum_noise(noise)
        counts = np.maximum(self.sums[:, 0], 1e-9)
        least = max(LEAST_SHARE * counts.sum(), LEAST_SIGMAS * sum_noise / COUNT_WEIGHT)
        groups = [
            (count, centre)
            for count, centre in zip(counts, self.centres, strict=True)
            if count >= min(least, counts.max())
        ]

        def distance(first: int, second: int) -> float:
            """Squared distance in units of variation within a group plus noise."""
            (n, a), (m, b) = groups[first], groups[second]
            apart = a - b
            within = self._within(groups, apart, sum_noise)
            by_chance = r * (within * (1 / n + 1 / m) + sum_noise**2 * (1 / n**2 + 1 / m**2))
            return float(apart @ apart / max(SAME_GROUP**2 * within + by_chance, 1e-12))

        while len(groups) > 1:
            nearest, first, second = min((distance(i, j), i, j) for i in range(len(groups)) for j in range(i))
            if nearest > 1 and len(groups) <= num_clusters:
                break
            (n, a), (m, b) = groups.pop(first), groups.pop(second)  # second is the smaller place
            groups.append((n + m, (n * a + m * b) / (n + m)))
        groups.sort(key=lambda group: -group[0])
        most, largest = groups[0]
        agreement = largest @ largest - r * (sum_noise / most) ** 2
        centres = [centre for _, centre in groups] if agreement >= least_agreement(r) else []
        return replace(self, centres=np.array(centres).reshape(-1, r))

    def _within(self, groups: list[tuple[float, Array]], way: Array, sum_noise: float) -> float:
        """Variance within a group along `way`: the part of the spread that groups do not explain.

        At least the mean over directions, from counts and means: points have length 1, so a mean is shorter the more
        they differ (and noise lengthens it).
        """
        r, total = len(way), sum(count for count, _ in groups)
        differ = sum(count * (1 - centre @ centre) + r * sum_noise**2 / count for count, centre in groups) / total
        direction = way / max(float(np.linalg.norm(way)), 1e-12)
        between = sum(count * float(centre @ direction) ** 2 for count, centre in groups) / total
        along = float(direction @ self.spread @ direction) / max(float(np.trace(self.spread)), 1e-9) - between
        return max(along, float(differ) / max(r - 1, 1), 0.0)

    def tensors(self) -> dict[str, Array]:
        """The arrays for the checkpoint."""
        return {f"survey.{name}": np.asarray(value, dtype=np.float64) for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "Survey | None":
        """The inverse of `tensors`; None if the checkpoint has none."""
        own = {name.removeprefix("survey."): value for name, value in tensors.items() if name.startswith("survey.")}
        if not own:
            return None
        numbers = {name: np.asarray(own[name]).item() for name in ("within", "rounds")}
        return cls(**own | numbers | {"rounds": int(numbers["rounds"])})


@dataclass(frozen=True)
class Place:
    """The position of a round in a survey."""

    part: int  # index in PARTS
    last: bool  # whether the part ends with this round

    @property
    def stage(self) -> str:
        """The stage of its question."""
        return PARTS[self.part][0]

    @property
    def asks(self) -> bool:
        """Whether clients answer instead of training."""
        return self.stage != "start"


def place_of(round_index: int, num_rounds: int) -> Place:
    """The position of a round in a survey of `num_rounds`.

    Every part has at least one round, except that short surveys skip the steps that narrow the spread.
    """
    left_out = max(len(PARTS) - num_rounds, 0)
    shares = np.cumsum([share for _, share in PARTS[left_out:]])
    ends = np.maximum(np.round(shares * num_rounds / shares[-1]), 1).astype(int)
    for part in range(1, len(ends)):
        ends[part] = max(ends[part], ends[part - 1] + 1)
    ends = np.minimum(ends, num_rounds - np.arange(len(ends))[::-1])
    part = int(np.searchsorted(ends, round_index, side="right"))
    return Place(left_out + part, round_index + 1 == ends[part])


def _power_method(third: Array) -> Array:
    """The eigenvector of the largest eigenvalue of a symmetric (r, r, r) array that is nearly orthogonal."""
    starts = np.random.default_rng(0).normal(size=(30, len(third)))
    directions = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    for _ in range(50):
        moved = np.einsum("ijk,sj,sk->si", third, directions, directions)
        directions = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-300)
    values = np.einsum("ijk,si,sj,sk->s", third, directions, directions, directions)
    return np.asarray(directions[int(values.argmax())])


AUTO_GROUP_SHARE, AUTO_LEAST_SIGNAL = 0.25, 1.2  # `auto`: a survey if a group of this share has this signal to noise


@dataclass(frozen=True)
class Schedule:
    """The initial rounds of a run: those of a survey, or none."""

    survey_rounds: int = 0

    def place(self, round_index: int) -> Place | None:
        """The position of a round in the survey; None outside of one."""
        return place_of(round_index, self.survey_rounds) if round_index < self.survey_rounds else None

    def asks(self, round_index: int) -> bool:
        """Whether clients answer a survey's question in a round instead of training."""
        place = self.place(round_index)
        return place is not None and place.asks

    @cached_property
    def num_questions(self) -> int:
        """Rounds with answers instead of training."""
        return sum(map(self.asks, range(self.survey_rounds)))


def freeze_closed(release: Release, num_open: int) -> Release:
    """The release for the models: closed clusters do not move, not even by noise."""
    closed = np.arange(release.num_clusters) >= num_open
    if not closed.any():
        return release
    return replace(release, cluster_sums=np.where(closed[:, None], 0.0, release.cluster_sums))


def resolve_init(settings: ServerSettings, plan: PrivacyPlan, *, survey_applies: bool) -> ServerSettings:
    """The settings with `init = auto` resolved, and with the rounds of a survey. Reads the plan alone."""
    init, rounds = settings.init, settings.init_rounds
    if init == "auto":
        wanted = survey_applies and settings.exploration > 0 and settings.start_from is None
        init = "survey" if wanted and usual_signal(plan, AUTO_GROUP_SHARE) >= AUTO_LEAST_SIGNAL else "independent"
    if init == "survey":
        usual, _ = _usual_survey(plan)  # refuses a model that is too small
        rounds = usual if rounds is None else rounds
    return replace(settings, init=init, init_rounds=rounds)


def usual_signal(plan: PrivacyPlan, share: float) -> float:
    """Signal to noise of a group of this share of the clients in a survey of default length; 0: none is possible."""
    if plan.mechanism.num_clusters == 1 or plan.num_rounds < SHORTEST_RUN:
        return 0.0
    try:
        rounds, signal = _usual_survey(plan)
    except ConfigError:
        return 0.0
    return signal(rounds, share)


def _usual_survey(plan: PrivacyPlan) -> tuple[int, Callable[[int, float], float]]:
    """The rounds that a survey takes by default, and the signal that a share of the clients has after so many rounds.

    As few rounds as small groups need; a fifth of the run, where that does not suffice for them.
    """
    mechanism, cohort = plan.mechanism, plan.sampler.expected_size
    width, _ = survey_size(mechanism.coordinates.clustered, mechanism.num_clusters)
    noise = mechanism.noise_std / mechanism.update_clip

    def signal(num_rounds: int, share: float) -> float:
        return survey_signal(num_rounds, clients=share * cohort, noise=noise, width=width)

    most = max(int(plan.num_rounds * SHARE), LEAST_ROUNDS)
    few = range(min(USUAL_LEAST, most), most)
    return next((n for n in few if signal(n, SMALL_GROUP_SHARE) >= CLEAR_SIGNAL), most), signal


def make_schedule(settings: ServerSettings, *, num_rounds: int) -> Schedule:
    """The schedule of a run; ConfigError for one that does not fit into it.

    A survey takes the rounds that `resolve_init` chose: at most a fifth of the run, or four rounds if that is more.
    """
    if settings.init != "survey":
        if settings.init_rounds:
            raise ConfigError(
                f"init_rounds = {settings.init_rounds} with init = {settings.init}, which takes no rounds by itself; "
                "remove init_rounds, or use init = survey."
            )
        return Schedule()
    usual = min(max(int(num_rounds * SHARE), LEAST_ROUNDS), num_rounds)
    rounds = usual if settings.init_rounds is None else settings.init_rounds
    if not LEAST_ROUNDS <= rounds < max(num_rounds, 1):
        raise ConfigError(
            f"init_rounds = {rounds} must be at least {LEAST_ROUNDS} for init = survey and less than num_rounds = "
            f"{num_rounds}, which includes them; change either."
        )
    return Schedule(rounds)
