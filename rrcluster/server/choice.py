"""A client's choice of a cluster from its scores, and the exploration of early rounds.

Plain methods choose the least score. From random first models, two groups of clients often settle on one model and stay
there. *Exploration* puts a price on crowded clusters, by sizes released in earlier rounds, and softens the choice by
the client's own random draw; both fade to nothing halfway through the run, after which the choice is plain again. At
strength 0 it is the base method from the first round on.

Privacy: a choice is a function of the client's own data, of earlier releases and of its own coins, as Theorem 1 of
docs/privacy.md requires (and the soundness of `identifier` too). Exploration costs nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.rebalancing import flip_coins
from rrcluster.rng import Rng
from rrcluster.types import Array

PRICE, TEMPERATURE = 2.0, 0.5  # at strength 1, in units of the score (nats of cross-entropy for IFCA)
FADE_OUT = 0.5  # part of the run after which choices are plain
FAR = 1e12  # a score beyond any other, and finite


@dataclass(frozen=True)
class ChoiceRules:
    """Public rules of a round: how clients turn scores into a choice, and where their coins send them.

    Made of sizes released earlier, the round's number and settings.
    """

    prices: Array  # (k,) added to a client's scores
    temperature: float  # scale of the client's own Gumbel draw
    transition: Array  # (k, k) where the rebalancing coin sends a client
    num_open: int | None = None  # only the first so many clusters are open; None: all of them

    @property
    def uses_chance(self) -> bool:
        """Whether a choice reads the client's own draws."""
        return self.temperature > 0

    @classmethod
    def plain(cls, num_clusters: int) -> "ChoiceRules":
        """Rules for choosing the least score and staying there."""
        return cls(np.zeros(num_clusters), 0.0, np.eye(num_clusters))

    def choose(self, losses: Any, *, rng: Rng) -> tuple[Array, Array]:
        """(n,) choices and (n,) destinations of clients, from the loss (n, k) of every model on each one's own data.

        The choice is the least loss after the round's prices and softening; the destination follows from the client's
        rebalancing coin. A client trains the model of its destination, and reports both. `rng` is the clients' own:
        each may call this alone, with its own row.
        """
        scores, k = np.asarray(losses, dtype=np.float64), len(self.prices)
        if scores.ndim != 2 or scores.shape[1] != k:
            raise ConfigError(f"losses must be (clients, {k}), one column per cluster; found {scores.shape}.")
        draws = np.clip(rng.random((len(scores), k + 1)), 2.0**-53, 1 - 2.0**-53)
        choices = choose(scores, self, uniforms=draws[:, 1:])
        return choices, flip_coins(choices, self.transition, uniforms=draws[:, 0])

    def to_json(self) -> str:
        """The rules as text for clients."""
        return json.dumps({name: np.asarray(value).tolist() for name, value in vars(self).items()})

    @classmethod
    def from_json(cls, text: str) -> "ChoiceRules":
        """The rules in a text from the server."""
        sent = json.loads(text)
        return cls(**sent | {name: np.array(sent[name]) for name in ("prices", "transition")})


def crowding_prices(sizes: Array) -> Array:
    """(k,) relative crowding of each cluster, from released sizes: 0 when all are equal, up to k - 1, at least -1."""
    natural = np.maximum(np.asarray(sizes, dtype=np.float64), 0.0)
    total = natural.sum()
    return natural * (len(natural) / total) - 1.0 if total > 0 else np.zeros(len(natural))


def fading(round_index: int, num_rounds: int) -> float:
    """1 in the first round, falling linearly to 0 after `FADE_OUT` of the run."""
    return max(0.0, 1.0 - round_index / (FADE_OUT * num_rounds))


def choose(scores: Array, rules: ChoiceRules, *, uniforms: Array) -> Array:
    """(n,) the cluster of least score among the open ones, priced and softened; the lowest index among equals.

    `scores` (n, k): less is better. `uniforms` (n, k) are each client's own draws in (0, 1). Without prices and at
    temperature 0 the plain scores decide, whatever the draws. Clusters that are not open are far from everybody.
    """
    k = scores.shape[1]
    count = rules.num_open or k
    priced = scores + rules.prices
    if rules.temperature > 0:
        priced = priced + rules.temperature * np.log(-np.log(uniforms))
    if count < k:
        priced = np.where(np.arange(k) < count, priced, FAR)
    return np.asarray(priced.argmin(axis=1))
