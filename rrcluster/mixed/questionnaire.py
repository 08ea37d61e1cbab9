"""What the server makes of the answers: facts from noisy sums, stage by stage. All of it is post-processing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rrcluster.mixed.answers import (
    GRADIENT_CLIP,
    GAIN_CLIP,
    MAP_SIDE,
    MEANS_CLIP,
    MOVE_CLIP,
    ROWS_CLIP,
    from_upper,
)
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questions import AXES, CELLS, SMALL, STAGES, Form
from rrcluster.mixed.raw_columns import COARSE, FINE, LEAST_SHARE, LEAST_SIGMAS, Ranges, coarse_ranges
from rrcluster.types import Array

LEAST_VARIANCE = 1e-3  # of a column within [-1, 1]: rarer ones are not stretched further
LEAST_EIGENVALUE = 0.02  # of the correlations, likewise
CURVATURE = {"binary": 0.25, "classes": 0.25, "number": 1.0}  # of the loss, most: steps are one over it
LONGEST_MOVE = 1.5  # of a model in one step
FIRST_TAIL, SECOND_TAIL = 0.3, 0.5  # share of the last iterates whose mean is kept
LEAST_CLUSTER = 0.05  # of the clients
PAYS = 3.0  # sigmas by which more than one cluster must be better
SMALLEST_SHARE = 0.02  # of a cluster, that sums are divided by
RESTARTS, LLOYD_STEPS = 30, 40


@dataclass(frozen=True)
class Questionnaire:
    """The state of a questionnaire. Made of releases, hence public."""

    form: Form
    facts: Facts = field(default_factory=Facts)
    total: Array = field(default_factory=lambda: np.zeros(0))  # sum of the releases of this stage so far
    clients: Array = field(default_factory=lambda: np.zeros(2))  # sum of released counts, and of how many rounds
    tail: Array = field(default_factory=lambda: np.zeros(0))  # of a training: mean of its last models so far
    sizes: Array = field(default_factory=lambda: np.zeros(0))  # shares of the clients in its clusters
    penalty: Array = field(default_factory=lambda: np.zeros(0))  # on its weights

    def updated(self, round_index: int, released: Array, count: float, *, noise: float, count_noise: float, expected: float) -> "Questionnaire":
        """After a round: `released` (width,) is the noisy sum of messages, `noise` the std of each number.

        `expected` is how many clients a round is expected to have by public constants.
        """
        stage = self.form.stage(round_index)
        now = replace(self, clients=self.clients + [count, 1.0])
        clients = now._num_clients(count_noise, expected)
        name = STAGES[stage][0]
        if "training" in name:
            return now._trained(stage, round_index, Release(self._parts(stage), released, noise, 1, clients))
        total = released if not self.total.size else self.total + released
        if round_index + 1 < self.form.ends[stage]:
            return replace(now, total=total)
        told = Release(self._parts(stage), total, noise, self.form.rounds(stage), clients)
        facts = getattr(now, "_after_" + name.replace(" ", "_"))(told)
        kept = replace(now, facts=facts, total=np.zeros(0))
        if name != "first choice":
            return kept
        families = self.form.families_of(len(facts.active))
        return replace(kept, penalty=facts.of_family(int(facts.chosen[0]), families, self.penalty))

    def _parts(self, stage: int) -> Any:
        return self.form.parts(stage, len(self.facts.active) if stage > 1 else None)

    def _num_clients(self, count_noise: float, expected: float) -> float:
        """Clients of a round: as expected, unless the released counts say otherwise by three sigmas."""
        total, rounds = self.clients
        mean, noise = total / rounds, count_noise / math.sqrt(rounds)
        return float(expected if abs(mean - expected) <= 3 * noise else max(mean, 1.0))

    def _after_coarse_ranges(self, told: "Release") -> Facts:
        form = self.form
        votes, noise = told.sums("extremes", math.sqrt(2 * form.votes_alone))
        ranges = coarse_ranges(votes.reshape(2, form.votes_alone, COARSE), noise, told.clients)
        if form.votes_alone < form.num_ranges:
            ranges = _shared(ranges, form.num_columns)
        density = np.clip(told.means("zeros", 1.0)[0][0], 1 / form.num_columns, 1.0)
        active = np.arange(form.num_columns)
        if form.buckets:
            votes, noise = told.sums("texts", math.sqrt(2 * form.num_columns))
            enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * told.clients)
            active = np.concatenate([active, form.num_columns + np.flatnonzero(enough)])
        return replace(
            self.facts, low=ranges.low, high=ranges.high, knee=ranges.knee, density=np.asarray(density),
            active=active.astype(float),
        )

    def _after_fine_ranges(self, told: "Release") -> Facts:
        form, ranges = self.form, self.facts.ranges
        votes, noise = told.sums("extremes", math.sqrt(2 * form.votes_alone))
        votes = votes.reshape(2, form.votes_alone, FINE)
        if form.votes_alone < form.num_ranges:
            chosen = np.r_[0, form.num_columns : form.num_ranges]
            own = Ranges(ranges.low[chosen], ranges.high[chosen], ranges.knee[chosen])
            ranges = _shared(own.refined(votes, noise, told.clients), form.num_columns)
        else:
            ranges = ranges.refined(votes, noise, told.clients)
        return replace(self.facts, low=ranges.low, high=ranges.high)

    def _after_moments(self, told: "Release") -> Facts:
        facts, a = self.facts, len(self.facts.active)
        if facts.full:
            learnt = _full_moments(told, a)
        else:
            learnt = _diagonal_moments(told, a, float(facts.density))
        if self.form.kind == "number":
            (mean, square), noise = told.means("target", math.sqrt(2))
            spread = math.sqrt(max(square - mean**2, 4 * noise, LEAST_VARIANCE))
            learnt["target"] = np.array([mean, spread])
        return replace(facts, **learnt)

    def _after_map(self, told: "Release") -> Facts:
        families = [k for k in self.form.families_of(len(self.facts.active)) if k > 1]
        if not families:
            return self.facts
        counts, noise = told.sums("cells", 1.0)
        sides = [(np.arange(n) + 0.5) / n * 2 * MAP_SIDE - MAP_SIDE for n in CELLS]
        cells = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(CELLS))
        weights = np.where(counts > 2 * noise, counts, 0.0)
        centres = np.concatenate([k_means(cells, weights, k) for k in families])
        axes = self.facts.axes.shape[1]
        padded = np.zeros((len(centres), axes))
        padded[:, : centres.shape[1]] = centres[:, :axes]
        return replace(self.facts, centres=padded)

    def _after_centres(self, told: "Release") -> Facts:
        families = [k for k in self.form.families_of(len(self.facts.active)) if k > 1]
        moved, r = [], self.facts.centres.shape[1]
        for k in families:
            old = self.facts.of_family(k, tuple(families), self.facts.centres)
            moves, noise = told.means(f"moves of {k}", MOVE_CLIP)
            counts, _ = told.means(f"counts of {k}", 1.0)
            moves = moves[: k * r].reshape(k, r) / np.maximum(counts, LEAST_CLUSTER)[:, None]
            moved.append(old + np.where(counts[:, None] > LEAST_CLUSTER, np.clip(moves, -MOVE_CLIP, MOVE_CLIP), 0.0))
        empty = np.zeros((1 + sum(families), self.form.num_outputs, len(self.facts.active) + 1))
        return replace(self.facts, centres=np.concatenate(moved) if families else np.zeros((0, 0)), first=empty)

    def _trained(self, stage: int, round_index: int, told: "Release") -> "Questionnaire":
        """After a round of training: every model moves by its mean gradient, and the last iterates are averaged."""
        name, begin, rounds = STAGES[stage][0], self.form.ends[stage] - self.form.rounds(stage), self.form.rounds(stage)
        first, since = name == "first training", round_index - begin + 1
        families = self.form.families_of(len(self.facts.active)) if first else (int(self.facts.chosen[0]),)
        models = self.facts.first if first else self.facts.second
        sizes = self.sizes if since > 1 else np.repeat(1 / np.array(families), families)
        penalty = np.zeros(len(models)) if first and since == 1 else self.penalty
        moved, start = models.copy(), 0
        sizes, penalty = sizes.copy(), penalty.copy()
        for k in families:
            block, suffix = slice(start, start + k), f" of {k}" if first else ""
            if k > 1:
                counts, _ = told.means(f"counts{suffix}", 1.0)
                sizes[block] += (counts[:k] - sizes[block]) / (since + 1)
            share = np.maximum(sizes[block], SMALLEST_SHARE)
            gradient, noise = told.means(f"gradient{suffix}", GRADIENT_CLIP[self.form.kind] * math.sqrt(self.facts.length))
            slopes = gradient[: models[block].size].reshape(models[block].shape) / share[:, None, None]
            if first and since == 1:
                penalty[block] = self._penalty(slopes, noise / share, rounds)
            moved[block] = self._stepped(models[block], slopes, penalty[block])
            start += k
        kept = max(round((FIRST_TAIL if first else SECOND_TAIL) * rounds), 1)
        tail = self.tail if since > rounds - kept + 1 else np.zeros_like(moved)
        tail = tail + moved / kept if since > rounds - kept else tail
        facts = replace(self.facts, **{name.split()[0]: tail if since == rounds else moved})
        return replace(self, facts=facts, sizes=sizes, penalty=penalty, tail=tail)

    def _penalty(self, slopes: Array, noise: Array, rounds: int) -> Array:
        """(k,) ridge penalties: the larger, the less of the first slopes (k, l, p) noise leaves to be seen.

        Weights are taken for random with the variance that the slopes have beyond their noise.
        """
        curvature, size = CURVATURE[self.form.kind], slopes[0].size
        seen = (slopes**2).sum() - size * (noise**2).sum()
        signal = max(float(seen) / slopes.size, 1e-4 * float((noise**2).mean()) + 1e-12)
        return np.minimum(noise**2 / rounds * curvature / signal, 100 * curvature)

    def _stepped(self, models: Array, slopes: Array, penalty: Array) -> Array:
        """The models (k, l, p) after one step along their slopes; the intercept is not penalised."""
        ridge = penalty[:, None, None] * (np.arange(models.shape[2]) > 0)
        step = (slopes - ridge * models) / (CURVATURE[self.form.kind] + ridge)
        length = np.sqrt((step**2).sum(axis=(1, 2), keepdims=True))
        return models + step * (LONGEST_MOVE / np.maximum(length, LONGEST_MOVE))

    def _after_first_choice(self, told: "Release") -> Facts:
        settings = self.form.first_settings(len(self.facts.active))
        gains, noise = np.zeros(0), 0.0
        if len(settings) > 1:
            gains, noise = told.means("gains", GAIN_CLIP * math.sqrt(len(settings)))
        gains = np.concatenate([[0.0], gains])
        k, intercept, slope = self._paying(settings, gains, PAYS * noise)
        start = self.facts.of_family(k, self.form.families_of(len(self.facts.active)), self.facts.first)
        return replace(self.facts, chosen=np.array([k, intercept, slope]), second=start)

    def _paying(self, settings: Any, gains: Array, margin: float) -> tuple[int, float, float]:
        """The setting of least loss; more clusters only where they are better than fewer by a margin."""
        least: dict[int, int] = {}
        for place, (k, _, _) in enumerate(settings):
            least[k] = place if k not in least or gains[place] < gains[least[k]] else least[k]
        best = least[1]
        for k in sorted(least):
            best = least[k] if gains[least[k]] < gains[best] - margin else best
        return settings[best]

    def _after_last_choice(self, told: "Release") -> Facts:
        k, intercept, slope = self.facts.chosen.tolist()
        settings = self.form.last_settings(int(k), intercept, slope)
        gains, noise = told.means("gains", GAIN_CLIP * math.sqrt(len(settings) + 1))
        best = int(gains[: len(settings)].argmin())
        if gains[best] < -noise:
            return replace(self.facts, chosen=np.array(settings[best]))
        return replace(self.facts, chosen=np.array([1, SMALL, SMALL]), second=self.facts.first[:1])


@dataclass(frozen=True)
class Release:
    """The noisy sum of a stage's messages over its rounds, by parts."""

    parts: Any
    total: Array
    noise: float  # std of each number of one round
    rounds: int
    clients: float  # of a round

    def sums(self, name: str, clip: float) -> tuple[Array, float]:
        """(width,) a part's sum over the clients of a round, on its own scale, and the std of its noise."""
        length, start = math.sqrt(sum(part.weight**2 for part in self.parts)), 0
        for part in self.parts:
            if part.name == name:
                scale = clip * length / part.weight / self.rounds
                return self.total[start : start + part.width] * scale, self.noise * scale * math.sqrt(self.rounds)
            start += part.width
        raise KeyError(name)

    def means(self, name: str, clip: float) -> tuple[Array, float]:
        """The same as a mean over clients."""
        total, noise = self.sums(name, clip)
        return total / self.clients, noise / self.clients


def _shared(ranges: Ranges, num_columns: int) -> Ranges:
    """Ranges in which all columns have the first one; what follows it is the target's."""
    places = np.r_[np.zeros(num_columns, dtype=int), 1 : len(ranges.low)]
    return Ranges(ranges.low[places], ranges.high[places], ranges.knee[places])


def _full_moments(told: Release, a: int) -> dict[str, Array]:
    p = a + 1
    rows, noise = told.means("rows", ROWS_CLIP * p)
    between, between_noise = told.means("means", MEANS_CLIP * p)
    second = from_upper(np.concatenate([[1.0], rows]), p)
    mean = second[0, 1:]
    covariance = second[1:, 1:] - np.outer(mean, mean)
    variance = np.diag(covariance)
    scale = np.sqrt(np.maximum(variance, max(2 * noise, LEAST_VARIANCE)))
    correlation = covariance / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    least = max(2 * noise * math.sqrt(a) / float(np.median(scale**2)), LEAST_EIGENVALUE)
    whiten = vectors @ np.diag(np.maximum(values, least) ** -0.5) @ vectors.T
    apart = (from_upper(between, a) - np.outer(mean, mean)) / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(apart)
    r = min(AXES, a)
    spread = np.sqrt(np.maximum(values[::-1][:r], 0.05))
    return {
        "centre": mean, "scale": scale, "whiten": whiten, "length": np.asarray(1 + float(np.maximum(values, 0).size)),
        "axes": vectors[:, ::-1][:, :r] / spread,
    }


def _diagonal_moments(told: Release, a: int, density: float) -> dict[str, Array]:
    clip = 1.5 * math.sqrt(max(a * density, 1.0))
    rows, noise = told.means("rows", clip)
    means, _ = told.means("means", clip)
    mean = rows[:a]
    variance = rows[a:] - mean**2
    scale = np.sqrt(np.maximum(variance, max(2 * noise, LEAST_VARIANCE)))
    between = (means - mean**2) / scale**2
    places = np.argsort(-between, kind="stable")[:AXES]
    axes = np.zeros((a, len(places)))
    axes[places, np.arange(len(places))] = 1 / np.sqrt(np.maximum(between[places], 0.05))
    length = 1 + float(np.clip(variance / scale**2, 0, 1).sum())
    return {"centre": mean, "scale": scale, "length": np.asarray(length), "axes": axes}


def k_means(points: Array, weights: Array, k: int) -> Array:
    """(k, r) centres of weighted points (n, r): the best of some starts, drawn by a fixed seed."""
    if (weights > 0).sum() <= k:
        spread = np.zeros((k, points.shape[1]))
        spread[:, 0] = np.linspace(-1, 1, k)
        return spread
    rng, best, least = np.random.default_rng(0), np.zeros((k, points.shape[1])), np.inf
    points, weights = points[weights > 0], weights[weights > 0]
    for _ in range(RESTARTS):
        centres = points[rng.choice(len(points), size=k, replace=False, p=weights / weights.sum())]
        for _ in range(LLOYD_STEPS):
            apart = ((points[:, None] - centres) ** 2).sum(axis=2)
            member = (apart.argmin(axis=1)[:, None] == np.arange(k)) * weights[:, None]
            sizes = member.sum(axis=0)
            moved = np.where(sizes[:, None] > 0, member.T @ points / np.maximum(sizes, 1e-9)[:, None], centres)
            if (moved == centres).all():
                break
            centres = moved
        within = float((apart.min(axis=1) * weights).sum())
        if within < least:
            best, least = centres, within
    return best
