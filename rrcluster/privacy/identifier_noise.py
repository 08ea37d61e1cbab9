"""How one client's choice of a cluster is made private under `identifier`: five kinds, each with its own theorem.

`gaussian` and `kary` read the choice, `exponential` and `permute-and-flip` the losses it was made from, `projection` a
few numbers about the client's data. An invalid report always gets a uniform draw, or the noise alone.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rrcluster import checks
from rrcluster.privacy import mixture
from rrcluster.privacy.by_loss import clear_choice_kept
from rrcluster.privacy.clip import clip_to_grid, grid_step
from rrcluster.privacy.events import LOSS_RULES, REPLACE_ONE
from rrcluster.privacy.profiles import keep_probability
from rrcluster.privacy.relation import identifier_sensitivity, projection_sensitivity
from rrcluster.privacy.sums import grid_noise
from rrcluster.rng import Rng
from rrcluster.types import Array

PROJECTION_CLIP = 1.0  # clients send directions


class Identifier(Protocol):
    """Privatises one cluster choice per client."""

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,); an invalid report gets a uniform draw."""


@dataclass(frozen=True)
class GaussianIdentifier:
    """argmax of the one-hot choice plus N(0, noise_multiplier^2) per entry (Algorithm 2 of the paper).

    `noise_multiplier` is relative to the one-hot's length 1 (the paper's sigma_s; its clip C_s scales both and
    cancels). Replace-one: RDP order / sigma_s^2, since the sensitivity is sqrt(2). An invalid report is the zero
    vector.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(identifier_noise_multiplier=self.noise_multiplier)

    @property
    def effective_multiplier(self) -> float:
        """Noise std / sensitivity under replace-one."""
        return self.noise_multiplier / identifier_sensitivity(adjacency=REPLACE_ONE)

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        identifiers = np.eye(num_clusters)[choices] * valid[:, None]
        noisy_identifiers = identifiers + self.noise_multiplier * rng.standard_normal(identifiers.shape)
        return np.asarray(noisy_identifiers.argmax(axis=1))


@dataclass(frozen=True)
class KaryIdentifier:
    """k-ary randomised response: the true choice with probability p, each other one with (1 - p) / (k - 1).

    Equals the exponential mechanism with 0/1 utility, and the law of `GaussianIdentifier`'s output at equal p
    (Theorem 3 of docs/privacy.md). An invalid report is a uniform draw, a mixture of valid ones.
    """

    keep_probability: float

    def __post_init__(self) -> None:
        checks.rate(keep_probability=self.keep_probability)

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        keep = rng.random(len(choices)) < self.keep_probability
        others = rng.integers(1, num_clusters, size=len(choices)) if num_clusters > 1 else np.zeros_like(choices)
        uniform = rng.integers(num_clusters, size=len(choices))
        responses = np.where(keep, choices, (choices + others) % num_clusters)
        return np.asarray(np.where(valid, responses, uniform))


@dataclass(frozen=True)
class ByLossIdentifier:
    """A private choice among the client's own losses: the exponential mechanism, or permute-and-flip.

    Each loss above the client's least is clipped to `loss_bound` and divided by it; what is left, c in [0, 1]^k, makes
    cluster j exp(-epsilon c_j / 2) times as good as the best. Replace-one may change all of c; what that costs is
    Theorem 5 of docs/privacy.md, exactly, and never more than pure `epsilon`. An invalid report counts as k equal
    losses: a uniform draw.
    """

    rule: str
    epsilon: float
    loss_bound: float = 1.0

    def __post_init__(self) -> None:
        checks.one_of(LOSS_RULES, rule=self.rule)
        checks.positive(identifier_epsilon=self.epsilon)
        checks.positive(loss_bound=self.loss_bound)

    def assign(self, losses: Array, valid: Array, *, rng: Rng) -> Array:
        """Noisy assignment (n,) from losses (n, k)."""
        goodness = np.exp(-self.epsilon / 2 * self._clipped(losses, valid))
        if self.rule == "exponential":
            upto = np.cumsum(goodness, axis=1)
            draws = rng.random(len(losses))[:, None] * upto[:, -1:]
            return np.asarray((draws >= upto[:, :-1]).sum(axis=1))
        order, said_yes = rng.random(losses.shape), rng.random(losses.shape) < goodness  # the best always says yes
        return np.asarray(np.where(said_yes, order, np.inf).argmin(axis=1))

    def _clipped(self, losses: Array, valid: Array) -> Array:
        with np.errstate(over="ignore"):
            above = losses - losses.min(axis=1, keepdims=True, initial=np.inf)
            return np.asarray(np.where(valid[:, None], np.minimum(above, self.loss_bound) / self.loss_bound, 0.0))


@dataclass(frozen=True)
class ProjectionIdentifier:
    """`width` numbers about a client, clipped to length 1, plus Gaussian noise; the server clusters the noisy ones.

    `noise_multiplier` is noise std / sensitivity: replace-one moves one client's row by at most 2, so the rows are one
    Gaussian release on the cohort and clustering them is post-processing (R-DPCFL, docs/methods/r-dpcfl.md). An invalid
    report is the zero row, noise included.
    """

    noise_multiplier: float
    width: int = 8

    def __post_init__(self) -> None:
        checks.positive(identifier_noise_multiplier=self.noise_multiplier)
        checks.count(projection_width=self.width)

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of every row."""
        return self.noise_multiplier * projection_sensitivity(projection_clip=PROJECTION_CLIP, adjacency=REPLACE_ONE)

    def noisy(self, projections: Array, *, exact: bool, rng: Rng) -> Array:
        """(n, width) clipped rows plus noise."""
        step = grid_step(PROJECTION_CLIP)
        rows = clip_to_grid(projections, update_clip=PROJECTION_CLIP)
        noise = grid_noise(rows.size, noise_std=self.noise_std, step=step, exact=exact, rng=rng)
        return np.asarray((rows + noise.reshape(rows.shape)) * step)

    def cluster(self, noisy: Array, centres: Array | None, *, num_clusters: int, rng: Rng) -> tuple[Array, Array]:
        """(n,) assignment and (k, width + 1) statistics, from noisy rows and the centres released so far alone."""
        if centres is None:
            found = mixture.fit(noisy, num_clusters=num_clusters, noise_std=self.noise_std, rng=rng)
        else:
            found = mixture.from_centres(centres, noisy, noise_std=self.noise_std)
        return found.assign(noisy), found.statistics(noisy)


AnyIdentifier = GaussianIdentifier | KaryIdentifier | ByLossIdentifier | ProjectionIdentifier


def clear_choice_probability(identifier: AnyIdentifier, num_clusters: int) -> float:
    """Probability that a choice as clear as can be is kept: what `identifier_share = auto` weighs.

    By loss: a loss lower than all others by the whole bound. By projection: k directions at right angles.
    """
    if isinstance(identifier, KaryIdentifier):
        return identifier.keep_probability
    if isinstance(identifier, ByLossIdentifier):
        return clear_choice_kept(identifier.rule, identifier.epsilon, num_clusters)
    if isinstance(identifier, ProjectionIdentifier):
        return keep_probability(identifier.noise_std, num_clusters)
    return keep_probability(identifier.noise_multiplier, num_clusters)
