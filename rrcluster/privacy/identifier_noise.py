"""How one client's choice of a cluster is made private under `identifier`: two kinds, each with its own theorem.

Both read the choice alone. An invalid report always gets a uniform draw.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rrcluster import checks
from rrcluster.privacy.events import FOLDED, Choice, KaryChoice
from rrcluster.privacy.profiles import keep_probability
from rrcluster.privacy.relation import identifier_sensitivity
from rrcluster.rng import Rng
from rrcluster.types import Array


class Identifier(Protocol):
    """Privatises one cluster choice per client, and says what that costs."""

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,); an invalid report gets a uniform draw."""

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:
        """(noise multiplier of the whole round, what the choice costs beside it), given that of the updates."""

    def describe(self) -> dict[str, Any]:
        """For the statement: its kind and its noise."""


@dataclass(frozen=True)
class NoIdentifier:
    """For one cluster: there is no choice to privatise."""

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:  # noqa: ARG002
        """Everybody is in the first cluster."""
        return np.zeros(len(choices), dtype=np.int64)

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:  # noqa: ARG002
        """The choice costs nothing."""
        return update_multiplier, FOLDED

    def describe(self) -> dict[str, Any]:
        """For the statement."""
        return {"kind": "none needed"}


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
        return self.noise_multiplier / identifier_sensitivity()

    def assign(self, choices: Array, valid: Array, *, num_clusters: int, rng: Rng) -> Array:
        """Noisy assignment (n,)."""
        identifiers = np.eye(num_clusters)[choices] * valid[:, None]
        noisy_identifiers = identifiers + self.noise_multiplier * rng.standard_normal(identifiers.shape)
        return np.asarray(noisy_identifiers.argmax(axis=1))

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:  # noqa: ARG002
        """Two Gaussian releases on one cohort fold into one: 1/z^2 = 1/z_s^2 + 1/z_theta^2."""
        return (self.effective_multiplier**-2 + update_multiplier**-2) ** -0.5, FOLDED

    def describe(self) -> dict[str, Any]:
        """For the statement: its kind and its noise."""
        return {"kind": "GaussianIdentifier", "noise_multiplier": self.noise_multiplier}


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

    def cost(self, update_multiplier: float, num_clusters: int) -> tuple[float, Choice]:
        """A randomised response before the updates' Gaussian."""
        return update_multiplier, KaryChoice(self.keep_probability, num_clusters)

    def describe(self) -> dict[str, Any]:
        """For the statement: its kind and its probability."""
        return {"kind": "KaryIdentifier", "keep_probability": self.keep_probability}


def split_budget(whole_round: float, *, identifier_share: float) -> tuple[float, float]:
    """(sigma_s, sigma_theta) whose fold is `whole_round`: 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2.

    `identifier_share` of 1/z^2 goes to the identifiers; 0.5 is the equal split.
    """
    checks.fraction(identifier_share=identifier_share)
    sensitivity = identifier_sensitivity()
    identifier = math.inf if identifier_share == 0 else sensitivity * whole_round / math.sqrt(identifier_share)
    return identifier, whole_round / math.sqrt(1 - identifier_share)


def _kary(sigma_s: float, num_clusters: int) -> KaryIdentifier:
    """Keeps a choice as often as Gaussian noise of std `sigma_s` does."""
    return KaryIdentifier(keep_probability(sigma_s, num_clusters))


IDENTIFIERS: dict[str, Callable[[float, int], Identifier]] = {
    "gaussian": lambda sigma_s, _: GaussianIdentifier(sigma_s),
    "kary": _kary,
}
