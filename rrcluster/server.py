"""The server's half of a round. The simulator and a deployment call these same two functions."""

from typing import Any

import numpy as np

from rrcluster.aggregate import ServerSettings, ServerState, advance, remember, shrink, smooth_sizes
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rebalance import coin_transition
from rrcluster.rng import Rng
from rrcluster.types import Array, Release


def coins(state: ServerState, plan: PrivacyPlan) -> Array:
    """(k, k) public moving probabilities for this round's clients, from sizes released in earlier rounds.

    The identity before the first release, and whenever the plan does not rebalance by coins.
    """
    if plan.rebalance != "coin" or state.sizes.empty:
        return np.eye(plan.mechanism.num_clusters)
    return coin_transition(state.sizes.mean, min_cluster_size=plan.mechanism.min_cluster_size)


def server_round(
    state: ServerState,
    updates: Any,
    choices: Any,
    *,
    plan: PrivacyPlan,
    server: ServerSettings,
    ledger: Ledger,
    rng: Rng,
    destinations: Any = None,
    client_ids: Any = None,
) -> tuple[ServerState, Release]:
    """Charge the ledger, release, and move the models. `updates` and `choices` are raw; nothing returned is.

    `destinations` are where the coins of `coins(state, plan)` sent the clients, under coin rebalancing.
    """
    transition = coins(state, plan)
    ledger.charge(state.round_index, plan.event if plan.private else None)
    release = plan.mechanism.release(  # the only line that sees raw values
        updates, choices, destinations=destinations, client_ids=client_ids, rng=rng
    )
    state = remember(state, release, memory=server.memory)
    if release.size_noise_std > 0:
        least = max(plan.mechanism.size_floor, plan.mechanism.min_cluster_size)
        release = smooth_sizes(release, state.sizes, transition, least=least, size_floor=plan.mechanism.size_floor)
    if plan.rebalance == "shrinkage":
        release = shrink(release, state.sums, memory=server.memory)
    return advance(state, release, server=server, num_rounds=plan.num_rounds), release


def release(
    updates: Any,
    choices: Any,
    *,
    plan: PrivacyPlan,
    rng: Rng,
    destinations: Any = None,
    client_ids: Any = None,
) -> Release:
    """The private release of one round, for a federated system that has its own server: arrays in, `Release` out.

    `updates` (n, d_s + d_c) and `choices` (n,) are the raw reports of a cohort drawn by `plan.sampler`; numpy or torch.
    Charge your own budget first: one call costs one `plan.event`.
    """
    return plan.mechanism.release(updates, choices, rng=rng, destinations=destinations, client_ids=client_ids)
