"""How the k models come to differ: a schedule of the first rounds, not a release of its own.

- `independent`: all k random models compete from the first round on.
- `warm`: for `init_rounds` rounds one cluster is open and everybody trains it, which is FedAvg. Then all k models
  become copies of it, each with a small random change, and clustering begins.
- `kmeans++`: over `init_rounds` rounds clusters open one after another, and clients badly served by the open ones try
  the new one. Then all compete.

Privacy: the rounds of an initialisation are rounds of the plan, released by the same mechanism and charged the same
event, so epsilon does not know about it and T includes them. What clients are told follows from the round's number;
what a client does is a function of its own data, of released models and of its own coins, which is all that Theorem 1
of docs/privacy.md asks for (and the soundness of `identifier`). Copying models and holding closed ones still is
post-processing of releases; the random change is public. The state is a function of releases and of the round's
number, so a run stopped in the middle goes on as if it had never been.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rrcluster import checks
from rrcluster.aggregate import RunningMean, ServerSettings, ServerState
from rrcluster.clusters.choice import Guidance
from rrcluster.errors import ConfigError
from rrcluster.types import Models, Release

INITS = ("independent", "kmeans++", "warm")
NEWCOMER_POWER = 2.0  # how sharply a client's loss decides whether it tries a new cluster
PERTURBATION = 0.1  # how far each copy of the warm model is drawn towards a random model of its own


def default_rounds(init: str, *, num_rounds: int, num_clusters: int) -> int:
    """How many rounds an initialisation takes unless told: a tenth of the run; kmeans++ at least one per cluster."""
    if init == "independent":
        return 0
    least = num_clusters if init == "kmeans++" else 1
    return min(max(num_rounds // 10, least), num_rounds)


def check_schedule(server: ServerSettings, *, num_rounds: int, num_clusters: int) -> None:
    """Refuse a schedule that does not fit into the run."""
    checks.one_of(INITS, init=server.init)
    least = {"independent": 0, "warm": 1, "kmeans++": num_clusters}[server.init]
    checks.count(init_rounds=server.init_rounds, at_least=0)
    if server.init == "independent" and server.init_rounds:
        raise ConfigError(
            f"init_rounds = {server.init_rounds} with init = independent, which takes no rounds; leave init_rounds out."
        )
    if not least <= server.init_rounds < max(num_rounds, 1):
        raise ConfigError(
            f"init_rounds = {server.init_rounds} must be at least {least} for init = {server.init} and less than "
            f"num_rounds = {num_rounds}, which includes them; change either."
        )


def num_open(server: ServerSettings, round_index: int, num_clusters: int) -> int:
    """How many clusters, the first so many, may be chosen in a round."""
    if round_index >= server.init_rounds:
        return num_clusters
    return 1 if server.init == "warm" else 1 + round_index * num_clusters // server.init_rounds


def opening(server: ServerSettings, round_index: int, num_clusters: int) -> Guidance:
    """What clients are told in a round of the initialisation: which clusters are open, no prices, no coins."""
    return replace(
        Guidance.plain(num_clusters),
        num_open=num_open(server, round_index, num_clusters),
        newcomer_power=NEWCOMER_POWER if server.init == "kmeans++" else 0.0,
    )


def held_still(release: Release, server: ServerSettings, round_index: int) -> Release:
    """The release as the models take it: clusters that are not open yet do not move, not by noise either."""
    closed = np.arange(release.num_clusters) >= num_open(server, round_index, release.num_clusters)
    return (
        replace(release, cluster_sums=np.where(closed[:, None], 0.0, release.cluster_sums)) if closed.any() else release
    )


def opened(state: ServerState, server: ServerSettings, *, fresh: Callable[[], Models]) -> ServerState:
    """The state as a round begins: where clusters open now, their models are made and the sizes so far forgotten.

    At the end of a warm phase every cluster gets a copy of the warm model, drawn a little towards its own of the k
    random models that `fresh` gives (public randomness; called at most once in a run). Sizes and sums released while
    clusters were closed say nothing about crowding. Nothing else changes, in no other round.
    """
    t, k = state.round_index, state.models.num_clusters
    if t == 0 or num_open(server, t, k) == num_open(server, t - 1, k):
        return state
    forgotten = replace(state, sizes=RunningMean(np.zeros(k)), sums=RunningMean(np.zeros_like(state.models.clustered)))
    if server.init != "warm":
        return forgotten
    warm, towards = state.models.clustered[:1], fresh().clustered
    models = Models(state.models.shared, (1 - PERTURBATION) * warm + PERTURBATION * towards)
    velocity = Models(state.velocity.shared, np.zeros_like(towards))
    return replace(forgotten, models=models, velocity=velocity, average=models, num_averaged=0)
