"""How the server turns answers into facts: noisy sums, stage by stage. All of it is post-processing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rrcluster.mixed.answers import (
    FINE_GAIN_CLIP,
    GAIN_CLIP,
    GRADIENT_CLIP,
    LAST_GAIN_CLIP,
    MAP_SIDE,
    MOVE_CLIP,
    TableQuestion,
    from_upper,
)
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questions import AXES, CELLS, MOST_ACTIVE, SMALL, STAGES, AnswerPart, Form, Setting
from rrcluster.mixed.raw_columns import COARSE, FINE, LEAST_SHARE, LEAST_SIGMAS, Ranges, coarse_ranges
from rrcluster.types import Array, Models

LEAST_VARIANCE = 1e-3  # of a column within [-1, 1]; smaller ones count as this, so that rare values are not stretched
LEAST_EIGENVALUE = 0.02  # of the correlations; smaller ones count as this
# upper bounds on the loss's curvature: steps are one over it
CURVATURE = {"binary": 0.25, "classes": 0.25, "number": 1.0}
LONGEST_MOVE = 1.5  # bound on a model's step
FIRST_TAIL, SECOND_TAIL = 0.3, 0.5  # share of the last iterates that are averaged
LEAST_SPREAD = 0.05  # of clients along the first axis, relative to rows
LEAST_CLUSTER = 0.05  # share of the clients
PAYS = 3.0  # standard errors by which clusters must be better, and in two cases effects
PAYS_AGAIN = 2.0  # standard errors by which further training must improve on the initial models
LEAST_WITHIN = 0.1  # share of a direction's variance that lies within clusters: at least
SMALLEST_SHARE = 0.02  # lower bound on a cluster's share when sums are divided by it
RESTARTS, LLOYD_STEPS = 30, 40

_OWN_ARRAYS = ("total", "clients", "tail", "sizes", "penalty", "gain", "size_noise")


@dataclass(frozen=True)
class Questionnaire:
    """The state of a questionnaire: made of releases, hence public."""

    form: Form
    facts: Facts = field(default_factory=Facts)
    total: Array = field(default_factory=lambda: np.zeros(0))  # sum of the releases of this stage so far
    # sum of released counts, and the number of rounds in it
    clients: Array = field(default_factory=lambda: np.zeros(2))
    tail: Array = field(default_factory=lambda: np.zeros(0))  # running mean of the last models of a training
    sizes: Array = field(default_factory=lambda: np.zeros(0))  # shares of the clients in its clusters
    penalty: Array = field(default_factory=lambda: np.zeros(0))  # ridge penalties on the weights
    # mean loss less that of one model (or of the initial models), and the std of its noise
    gain: Array = field(default_factory=lambda: np.zeros(0))
    size_noise: Array = field(default_factory=lambda: np.zeros(0))  # std of each of the sizes

    @classmethod
    def going_on(cls, form: Form, models: Models) -> "Questionnaire":
        """The state of a run that starts from released models: it keeps their columns, centres and sizes."""
        facts = facts_of(form, models)
        choice = np.where(facts.chosen < 1.01 * SMALL, SMALL, facts.chosen)  # released sizes are rounded to float32
        start = np.concatenate([facts.first, facts.second])
        reach = np.repeat(np.clip(2 * facts.scale**2, 0, 1)[:, None], 2, axis=1)
        initial = replace(facts, density=np.ones(1), chosen=choice, start=start, middle=facts.centre, reach=reach)
        return cls(form, initial)

    def updated(
        self, round_index: int, released: Array, count: float, *, noise: float, count_noise: float, expected: float
    ) -> "Questionnaire":
        """The state after a round: `released` (width,) is the noisy sum of messages, `noise` the std of each number.

        `expected`: the number of clients in a round, computed from public constants.
        """
        stage = self.form.stage(round_index)
        now = replace(self, clients=self.clients + np.array([count, 1.0]))
        clients = now._num_clients(count_noise, expected)
        name = STAGES[stage][0]
        if "training" in name:
            return now._trained(stage, round_index, PartSums(self._parts(stage), released, noise, 1, clients))
        total = released if not self.total.size else self.total + released
        if round_index + 1 < self.form.ends[stage]:
            return replace(now, total=total)
        answers = PartSums(self._parts(stage), total, noise, self.form.rounds(stage), clients)
        facts = getattr(now, "_after_" + name.replace(" ", "_"))(answers)
        after = replace(now, facts=facts, total=np.zeros(0))
        if name == "last choice":
            after = replace(after, gain=np.array(now._least_gain(answers)[1:]))
        if name != "first choice":
            return after
        families = self.form.families_of(len(facts.active))
        return replace(after, penalty=facts.of_family(int(facts.chosen[0]), families, self.penalty))

    def tensors(self) -> dict[str, Array]:
        """The arrays by name, for the checkpoint."""
        arrays = {name: getattr(self, name) for name in _OWN_ARRAYS}
        return {f"questionnaire.{name}": np.asarray(value) for name, value in (arrays | self.facts.tensors()).items()}

    @classmethod
    def of(cls, form: Form, tensors: Mapping[str, Any]) -> "Questionnaire":
        """The inverse of `tensors`, under the form of the settings; an empty questionnaire where there are none."""
        if not tensors:
            return cls(form)
        arrays = {name.removeprefix("questionnaire."): value for name, value in tensors.items()}
        return cls(form, Facts.from_tensors(arrays), *(np.asarray(arrays.get(name, ())) for name in _OWN_ARRAYS))

    def question(self, round_index: int) -> TableQuestion:
        """The question of a round."""
        return TableQuestion(self.form, self.form.stage(round_index), self.facts)

    def _parts(self, stage: int) -> tuple[AnswerPart, ...]:
        return self.form.parts(stage, len(self.facts.active) if stage else None)

    def _num_clients(self, count_noise: float, expected: float) -> float:
        """Clients in a round: the expected number, unless released counts differ from it by three standard errors."""
        total, rounds = self.clients
        mean, noise = total / rounds, count_noise / math.sqrt(rounds)
        return float(expected if abs(mean - expected) <= 3 * noise else max(mean, 1.0))

    def _after_coarse_ranges(self, answers: "PartSums") -> Facts:
        form = self.form
        votes, noise = answers.sums("extremes", math.sqrt(2 * self._num_votes))
        ranges = coarse_ranges(votes.reshape(2, form.num_voted, COARSE), noise, answers.clients)
        density = np.clip(answers.means("zeros", 1.0)[0][0], 1 / form.num_columns, 1.0)
        active, reach = np.arange(form.num_columns), np.ones(form.num_columns)
        if form.buckets:
            votes, noise = answers.sums("texts", math.sqrt(2 * form.num_columns))
            enough = votes > max(LEAST_SIGMAS * noise, LEAST_SHARE * answers.clients)
            active = np.concatenate([active, form.num_columns + np.flatnonzero(enough)])[:MOST_ACTIVE]
            reach = np.concatenate([reach, votes[enough] / answers.clients])[:MOST_ACTIVE]
        facts = replace(
            self.facts,
            density=np.array([density]),
            active=active.astype(float),
            middle=np.zeros(len(active)),
            reach=np.repeat(np.clip(reach, 0, 1)[:, None], 2, axis=1),
        )
        return self._with_ranges(facts, ranges)

    def _after_fine_ranges(self, answers: "PartSums") -> Facts:
        form, facts = self.form, self.facts
        votes, noise = answers.sums("extremes", math.sqrt(2 * self._num_votes))
        places_of_ranges = np.r_[0, form.num_columns : form.num_ranges] if form.pooled else np.arange(form.num_ranges)
        coarse = Ranges(facts.low[places_of_ranges], facts.high[places_of_ranges], facts.knee[places_of_ranges])
        votes = votes.reshape(2, form.num_voted, FINE)
        refined = coarse.refined(votes, noise, answers.clients)
        facts = self._with_ranges(facts, refined)
        open_columns = np.flatnonzero(form.open[: form.num_columns])
        if form.pooled or not len(open_columns):
            return facts
        places, (middle, reach) = refined.bins_of(coarse)[open_columns], (facts.middle.copy(), facts.reach.copy())
        shares = votes[:, open_columns] / answers.clients
        middle[open_columns], reach[open_columns] = described_votes(shares, places, noise / answers.clients)
        return replace(facts, middle=middle, reach=reach)

    @property
    def _num_votes(self) -> int:
        """The number of ranges each client votes on, over which its votes are normalised."""
        return self.form.num_voted if self.form.pooled else max(int(self.form.open.sum()), 1)

    def _with_ranges(self, facts: Facts, voted: Ranges) -> Facts:
        """The facts with ranges: from votes, one for all columns where these are too many, and declared ones."""
        form, low, high, knee = self.form, voted.low, voted.high, voted.knee
        if form.pooled:  # centred on zero: with many columns, most numbers are zero
            largest = np.maximum(np.abs(low[0]), np.abs(high[0]))
            low, high = np.concatenate([[-largest], low[1:]]), np.concatenate([[largest], high[1:]])
            places = np.r_[np.zeros(form.num_columns, dtype=int), 1 : len(low)]
            low, high, knee = low[places], high[places], knee[places]
        declared = [(0.0, 0.0) if limits is None else limits for limits in form.declared] or [
            (0.0, 0.0)
        ] * form.num_ranges
        smallest, largest = np.array(declared).T
        low, high = np.where(form.open, low, smallest), np.where(form.open, high, largest)
        return replace(facts, low=low, high=high, knee=np.where(form.open, knee, 0.0))

    def _after_moments(self, answers: "PartSums") -> Facts:
        facts = self.facts
        if self.form.begun:
            return self._prepared(answers)
        moments = _full_moments(answers, facts) if facts.full else _diagonal_moments(answers, facts)
        if self.form.kind == "number":
            (mean, square), noise = answers.means("target", math.sqrt(2))
            spread = math.sqrt(max(square - mean**2, 4 * noise, LEAST_VARIANCE))
            moments["target"] = np.array([mean, spread])
        return replace(facts, **moments)

    def _prepared(self, answers: "PartSums") -> Facts:
        """The facts of a resumed run with its map to columns that are uncorrelated today.

        Second moments are taken about the initial means: where columns have drifted, they are larger and steps shorter.
        """
        facts, a = self.facts, len(self.facts.active)
        if not facts.full:
            return replace(facts, length=np.array([1.0 + a]))
        rows, noise = answers.means("rows", facts.moment_clips[0])
        second = from_upper(np.concatenate([[1.0], rows]), a + 1)
        away = facts.middle - facts.centre
        scaled = np.concatenate([away[:, None], np.eye(a)], axis=1) / facts.scale[:, None]
        whiten = _whitening(scaled @ second @ scaled.T, facts.scale, noise)
        mapped = replace(facts, whiten=whiten, length=np.array([1.0 + a]))
        first, second = np.split(mapped.uncorrelated(facts.start), 2)
        return replace(mapped, first=first, second=second)

    def _after_map(self, answers: "PartSums") -> Facts:
        families = self.form.clustered(len(self.facts.active))
        if not families:
            return self.facts
        counts, noise = answers.sums("cells", 1.0)
        sides = [(np.arange(n) + 0.5) / n * 2 * MAP_SIDE - MAP_SIDE for n in CELLS]
        cells = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(CELLS))
        weights = np.where(counts > 2 * noise, counts, 0.0)
        centres = np.concatenate([k_means(cells, weights, k) for k in families])
        return replace(self.facts, centres=np.pad(centres, ((0, 0), (0, AXES - len(CELLS)))))

    def _after_centres(self, answers: "PartSums") -> Facts:
        families = self.form.clustered(len(self.facts.active))
        centres = [self._moved_centres(k, families, answers) for k in families]
        first = np.zeros((1 + sum(families), self.form.num_outputs, len(self.facts.active) + 1))
        return replace(self.facts, centres=np.concatenate(centres) if centres else self.facts.centres, first=first)

    def _moved_centres(self, k: int, families: tuple[int, ...], answers: "PartSums") -> Array:
        """(k, r) centres moved by the mean distance of their clients; nearly empty clusters keep theirs."""
        old = self.facts.of_family(k, families, self.facts.centres)
        moves = answers.means(f"moves of {k}", MOVE_CLIP)[0].reshape(old.shape)
        shares = answers.means(f"counts of {k}", 1.0)[0][:, None]
        moves = np.clip(moves / np.maximum(shares, LEAST_CLUSTER), -MOVE_CLIP, MOVE_CLIP)
        return np.asarray(old + np.where(shares > LEAST_CLUSTER, moves, 0.0))

    def _trained(self, stage: int, round_index: int, answers: "PartSums") -> "Questionnaire":
        """The state after a round of training: models move by mean gradients; the last iterates are averaged."""
        name, begin, rounds = STAGES[stage][0], self.form.ends[stage] - self.form.rounds(stage), self.form.rounds(stage)
        first, since = name == "first training", round_index - begin + 1
        families = self.form.families_of(len(self.facts.active)) if first else (int(self.facts.chosen[0]),)
        models = self.facts.first if first else self.facts.second
        sizes = self.sizes if since > 1 else np.repeat(1 / np.array(families), families)
        penalty = np.zeros(len(models)) if first and since == 1 else self.penalty
        new_models, start, size_noise = models.copy(), 0, np.zeros(len(models))
        sizes, penalty = sizes.copy(), penalty.copy()
        for k in families:
            block, suffix = slice(start, start + k), f" of {k}" if first else ""
            if k > 1:
                counts, noise = answers.means(f"counts{suffix}", 1.0)
                size_noise[block] = noise / math.sqrt(since)
                sizes[block] += (counts[:k] - sizes[block]) / (since + 1)
            share = np.maximum(sizes[block], SMALLEST_SHARE)
            gradient, noise = answers.means(
                f"gradient{suffix}", GRADIENT_CLIP[self.form.kind] * math.sqrt(self.facts.length.item())
            )
            slopes = gradient[: models[block].size].reshape(models[block].shape) / share[:, None, None]
            if first and since == 1:
                penalty[block] = self._penalty(slopes, noise / share, rounds)
            anchor, moments = self._anchor(first, models[block]), self._cluster_moments(sizes[block])
            new_models[block] = _stepped(models[block], slopes, penalty[block], anchor, moments, self.form.kind)
            start += k
        tail_rounds = max(round((FIRST_TAIL if first else SECOND_TAIL) * rounds), 1)
        tail = self.tail if since > rounds - tail_rounds + 1 else np.zeros_like(new_models)
        tail = tail + new_models / tail_rounds if since > rounds - tail_rounds else tail
        facts = replace(self.facts, **{name.split()[0]: tail if since == rounds else new_models})
        return replace(self, facts=facts, sizes=sizes, penalty=penalty, tail=tail, size_noise=size_noise)

    def _penalty(self, slopes: Array, noise: Array, rounds: int) -> Array:
        """(k,) ridge penalties: the noise of the first slopes (k, l, p) against their signal.

        The prior variance of the weights is estimated as the variance of the slopes beyond their noise.
        """
        curvature, size = CURVATURE[self.form.kind], slopes[0].size
        excess = (slopes**2).sum() - size * (noise**2).sum()
        signal = max(float(excess) / slopes.size, 1e-4 * float((noise**2).mean()) + 1e-12)
        return np.minimum(noise**2 / rounds * curvature / signal, 100 * curvature)

    def _anchor(self, first: bool, models: Array) -> Array:
        """The point that penalised weights shrink to: zero, or the initial weights of a resumed run."""
        if not self.form.begun:
            return np.zeros_like(models)
        return np.split(self.facts.uncorrelated(self.facts.start), 2)[0 if first else 1]

    def _cluster_moments(self, sizes: Array) -> Array | None:
        """(k, p, p) second moments of the uncorrelated columns in each of several clusters, from centres and sizes.

        Columns that tell clusters apart vary little within one, where steps have to be longer.
        """
        facts, k, p = self.facts, len(sizes), 1 + len(self.facts.active)
        if k == 1 or not facts.whiten.size:
            return None
        places = facts.of_family(k, self.form.clustered(p - 1), facts.centres) / np.maximum(
            (facts.axes**2).sum(axis=0), 1e-12
        )
        means, shares = places @ facts.axes.T @ facts.whiten, np.maximum(sizes, SMALLEST_SHARE)
        apart = means - shares @ means / shares.sum()
        values, vectors = np.linalg.eigh(np.eye(p - 1) - apart.T @ (apart * shares[:, None]) / shares.sum())
        moments = np.concatenate([np.ones((k, 1)), means], axis=1)
        moments = moments[:, :, None] * moments[:, None, :]
        moments[:, 1:, 1:] += vectors @ np.diag(np.maximum(values, LEAST_WITHIN)) @ vectors.T
        return np.asarray(moments)

    def _after_first_choice(self, answers: "PartSums") -> Facts:
        settings = self.form.first_settings(len(self.facts.active))
        gains, noise = np.zeros(0), 0.0
        if len(settings) > 1:
            gains, noise = answers.means("gains", GAIN_CLIP * math.sqrt(len(settings)))
        gains = np.concatenate([[0.0], gains])
        k, intercept, slope = self._paying(settings, gains, noise)
        start = self.facts.of_family(k, self.form.families_of(len(self.facts.active)), self.facts.first)
        return replace(self.facts, chosen=np.array([k, intercept, slope]), second=start)

    def _paying(self, settings: tuple[Setting, ...], gains: Array, noise: float) -> Setting:
        """The setting of least loss; more clusters must be better by a margin, and effects in two cases.

        Where rows are ordered, noise alone would choose them; where columns are many, one model without effects is far
        from trained after the first training, so a wrong choice is dear.
        """
        best, sizes = 0, np.array([k for k, _, _ in settings])
        for k in np.unique(sizes).tolist():
            least = int(np.where(sizes == k, gains, np.inf).argmin())
            margin = PAYS if k > 1 or self.form.ordered or not self.facts.full else 0.0
            best = least if gains[least] < gains[best] - margin * noise else best
        return settings[best]

    def _after_last_choice(self, answers: "PartSums") -> Facts:
        best, gain, noise = self._least_gain(answers)
        margin = PAYS_AGAIN if self.form.begun else float(best != (1, SMALL, SMALL))
        if gain < -margin * noise:
            return replace(self.facts, chosen=np.array(best))
        if self.form.begun:  # the initial models, unchanged
            first, second = np.split(self.facts.start, 2)
            return replace(self.facts, whiten=np.zeros(0), first=first, second=second)
        return replace(self.facts, chosen=np.array([1, SMALL, SMALL]), second=self.facts.first[:1])

    def _least_gain(self, answers: "PartSums") -> tuple[Setting, float, float]:
        """The best setting of the last choice, its mean loss less the baseline's, and the std of the noise."""
        k, intercept, slope = self.facts.chosen.tolist()
        settings = self.form.last_settings(int(k), intercept, slope)
        gains, finer = answers.means("gains", FINE_GAIN_CLIP * math.sqrt(len(settings)))
        over, noise = answers.means("over what is there", LAST_GAIN_CLIP)
        best = int(gains[: len(settings)].argmin())
        if self.form.ordered and not self.form.begun and gains[best] > gains[0] - PAYS * math.sqrt(2) * finer:
            best = 0  # no effects
        return settings[best], float(gains[best] + over[0]), math.hypot(noise, finer)


def _stepped(models: Array, slopes: Array, penalty: Array, anchor: Array, moments: Array | None, kind: str) -> Array:
    """The models (k, l, p) after one step of Newton's method on a bound of the loss; intercepts are not penalised."""
    ridge = penalty[:, None, None] * (np.arange(models.shape[2]) > 0)
    step = slopes - ridge * (models - anchor)
    if moments is None:
        step = step / (CURVATURE[kind] + ridge)
    else:
        curvature = CURVATURE[kind] * moments + ridge * np.eye(models.shape[2])
        step = np.linalg.solve(curvature, step.transpose(0, 2, 1)).transpose(0, 2, 1)
    length = np.sqrt((step**2).sum(axis=(1, 2), keepdims=True))
    return np.asarray(models + step * (LONGEST_MOVE / np.maximum(length, LONGEST_MOVE)))


@dataclass(frozen=True)
class PartSums:
    """The noisy sum of a stage's messages over its rounds, by parts."""

    parts: tuple[AnswerPart, ...]
    total: Array
    noise: float  # std of each number in one round
    rounds: int
    clients: float  # per round

    def sums(self, name: str, clip: float) -> tuple[Array, float]:
        """(width,) the sum of a part over the clients of a round, on its own scale, and the std of its noise."""
        length, start = math.sqrt(sum(part.weight**2 for part in self.parts)), 0
        for part in self.parts:
            if part.name == name:
                scale = clip * length / part.weight / self.rounds
                return self.total[start : start + part.width] * scale, self.noise * scale * math.sqrt(self.rounds)
            start += part.width
        raise KeyError(name)

    def means(self, name: str, clip: float) -> tuple[Array, float]:
        """The same, as a mean over clients."""
        total, noise = self.sums(name, clip)
        return total / self.clients, noise / self.clients


def described_votes(shares: Array, places: Array, noise: float) -> tuple[Array, Array]:
    """((d,) middles, (d, 2) mean squares about them, of rows and of clients' means), estimated from votes on extremes.

    `shares` (2, d, bins) of the clients with their least and greatest number in each bin, `places` (d, bins) the bins
    in [-1, 1]. The squares err on the large side: extremes lie outside most rows, and their noise is added.
    """
    mean = (shares * places).sum(axis=2)  # (2, d)
    middle = np.clip(mean.mean(axis=0), -1, 1)
    apart = (places - middle[:, None]) ** 2
    squares = (shares * apart).sum(axis=2).mean(axis=0)
    spread = squares - ((mean[1] - mean[0]) / 2) ** 2
    error = noise * np.sqrt((apart**2).sum(axis=1) / 2)
    return middle, np.stack([np.clip(squares + error, 0.02, 1), np.clip(spread + error, 0.01, 1)], axis=1)


def _full_moments(answers: PartSums, facts: Facts) -> dict[str, Array]:
    a = len(facts.active)
    p, (of_rows, of_means) = a + 1, facts.moment_clips
    rows, noise = answers.means("rows", of_rows)
    between, _ = answers.means("means", of_means)
    second = from_upper(np.concatenate([[1.0], rows]), p)
    mean = second[0, 1:]
    covariance = second[1:, 1:] - np.outer(mean, mean)
    variance = np.diag(covariance)
    scale = np.sqrt(np.maximum(variance, max(2 * noise, LEAST_VARIANCE)))
    whiten = _whitening(covariance / np.outer(scale, scale), scale, noise)
    apart = (from_upper(between, a) - np.outer(mean, mean)) / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(apart)
    axes = np.zeros((a, AXES))
    axes[:, : min(AXES, a)] = vectors[:, ::-1][:, :AXES] / math.sqrt(max(values[-1], LEAST_SPREAD))
    return {
        "centre": facts.middle + mean,
        "scale": scale,
        "whiten": whiten,
        "length": np.array([float(p)]),
        "axes": axes,
    }


def _whitening(correlation: Array, scale: Array, noise: float) -> Array:
    """(a, a) map to uncorrelated columns; directions whose variance may be noise are not stretched further."""
    values, vectors = np.linalg.eigh(correlation)
    floor = max(2 * noise * math.sqrt(len(scale)) / float(np.median(scale**2)), LEAST_EIGENVALUE)
    return np.asarray(vectors @ np.diag(np.maximum(values, floor) ** -0.5) @ vectors.T)


def _diagonal_moments(answers: PartSums, facts: Facts) -> dict[str, Array]:
    a, clip = len(facts.active), facts.sparse_clip
    rows, noise = answers.means("rows", clip)
    means, _ = answers.means("means", clip)
    mean = rows[:a]
    variance = rows[a:] - mean**2
    scale = np.sqrt(np.maximum(variance, max(2 * noise, LEAST_VARIANCE)))
    between = (means - mean**2) / scale**2
    places = np.argsort(-between, kind="stable")[:AXES]
    axes = np.zeros((a, AXES))
    axes[places, np.arange(len(places))] = 1 / math.sqrt(max(between[places[0]], LEAST_SPREAD))
    length = 1 + float(np.clip(variance / scale**2, 0, 1).sum())
    return {"centre": facts.middle + mean, "scale": scale, "length": np.array([length]), "axes": axes}


def k_means(points: Array, weights: Array, k: int) -> Array:
    """(k, r) centres of weighted points (n, r): the best of several starts, drawn with a fixed seed."""
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


def handed_out(form: Form, facts: Facts) -> Models:
    """The models as released: in the order of `TableLinear`'s parameters, zero where not yet estimated."""
    encoded, r = form.num_encoded, AXES
    active = facts.active.astype(np.int64)
    has_columns = bool(facts.scale.size)
    centre, gain, axes = np.zeros(encoded), np.zeros(encoded), np.zeros((encoded, r))
    target, effects = np.zeros(2), np.full(2, SMALL)
    k = int(facts.chosen[0]) if facts.chosen.size else 1
    if has_columns:
        centre[active], gain[active], axes[active] = facts.centre, 1 / facts.scale, facts.axes
        target[: len(facts.target)] = facts.target
    ranges = [facts.low, facts.high, facts.knee] if facts.low.size else [np.zeros(form.num_ranges)] * 3
    if facts.chosen.size:
        effects = facts.chosen[1:]
    shared = np.concatenate([*ranges, centre, gain, axes.ravel(), target, effects])
    place, weights = np.zeros((k, r)), np.zeros((2, k, form.num_outputs, 1 + encoded))
    if k > 1:
        place[:] = facts.of_family(k, form.clustered(len(active)), facts.centres)
    columns = np.concatenate([[0], 1 + active])
    if facts.first.size:
        plain = facts.correlated(facts.of_family(k, form.families_of(len(active)), facts.first))
        base = facts.correlated(facts.second) if facts.second.size else plain
        weights[0][..., columns] = base if effects.max() <= SMALL else plain
        weights[1][..., columns] = base
    return Models(shared, np.concatenate([place, weights[0].reshape(k, -1), weights[1].reshape(k, -1)], axis=1))


def facts_of(form: Form, models: Models) -> Facts:
    """The facts that a client needs to use released models: all columns, standardised; weights are kept apart."""
    ranges, encoded = form.num_ranges, form.num_encoded
    sizes = [ranges, ranges, ranges, encoded, encoded, encoded * AXES, 2, 2]
    low, high, knee, centre, gain, axes, target, effects = np.split(models.shared, np.cumsum(sizes)[:-1])
    active = np.flatnonzero(gain)
    place, weights, base = np.split(models.clustered, [AXES, AXES + (models.clustered.shape[1] - AXES) // 2], axis=1)
    columns = np.concatenate([[0], 1 + active])
    first, second = (w.reshape(len(w), form.num_outputs, 1 + encoded)[..., columns] for w in (weights, base))
    return Facts(
        low=low,
        high=high,
        knee=knee,
        active=active.astype(float),
        centre=centre[active],
        scale=1 / gain[active],
        axes=axes.reshape(encoded, AXES)[active],
        target=target if form.kind == "number" else np.zeros(0),
        centres=place,
        first=first,
        second=second,
        chosen=np.array([len(place), *effects]),
    )
