"""The server's half of a round. The simulator and a deployment call these same functions."""

from dataclasses import replace
from typing import Any

from rrcluster.aggregate import ServerSettings, ServerState, advance, remember, shrink, smooth_sizes
from rrcluster.clusters.choice import PRICE, TEMPERATURE, Guidance, crowding_prices, fading
from rrcluster.clusters.rebalancing import coin_transition
from rrcluster.clusters.schedule import held_still, opening
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Rng
from rrcluster.types import Release


def guidance(state: ServerState, *, plan: PrivacyPlan, server: ServerSettings) -> Guidance:
    """What this round's clients are told beside the models: crowding prices and coins, from sizes released earlier.

    Prices are zero and nobody moves before the first release; coins only ever move under `rebalance = coin`. In the
    rounds of an initialisation it is the schedule of clusters/schedule.py instead, from the round's number alone.
    """
    k, t = plan.mechanism.num_clusters, state.round_index
    if t < server.init_rounds:
        return opening(server, t, k)
    strength = server.exploration * fading(t, plan.num_rounds)
    if state.sizes.empty:
        return replace(Guidance.plain(k), temperature=TEMPERATURE * strength)
    sizes, least = state.sizes.mean, plan.mechanism.min_cluster_size if plan.rebalance == "coin" else 0
    return Guidance(
        prices=PRICE * strength * crowding_prices(sizes),
        temperature=TEMPERATURE * strength,
        transition=coin_transition(sizes, min_cluster_size=least),
    )


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
    evaluations: Any = None,
    scores: Any = None,
) -> tuple[ServerState, Release]:
    """Charge the ledger, release, and move the models. `updates` and `choices` are raw; nothing returned is.

    `destinations` are where the coins of `guidance(state, ...)` sent the clients, under coin rebalancing;
    `evaluations` (n, 2) what clients say about the released models, where the plan has private evaluation; `scores`
    what identifiers read beside the choice, where they do (raw too).
    """
    transition = guidance(state, plan=plan, server=server).transition
    ledger.charge(state.round_index, plan.event if plan.private else None)
    release = plan.mechanism.release(  # the only line that sees raw values
        updates,
        choices,
        destinations=destinations,
        client_ids=client_ids,
        evaluations=evaluations,
        rng=rng,
        **({} if scores is None else {"scores": scores, "centres": state.centres}),
    )
    state = remember(state, release, memory=server.memory, sums=plan.rebalance == "shrinkage")
    if release.size_noise_std > 0:
        least = max(plan.mechanism.size_floor, plan.mechanism.min_cluster_size)
        release = smooth_sizes(release, state.sizes, transition, least=least, size_floor=plan.mechanism.size_floor)
    if plan.rebalance == "shrinkage" and state.round_index >= server.init_rounds:
        release = shrink(release, state.sums, memory=server.memory)
    release = held_still(release, server, state.round_index)
    return advance(state, release, server=server, num_rounds=plan.num_rounds), release


def release(
    updates: Any,
    choices: Any,
    *,
    plan: PrivacyPlan,
    rng: Rng,
    destinations: Any = None,
    client_ids: Any = None,
    evaluations: Any = None,
    scores: Any = None,
    centres: Any = None,
) -> Release:
    """The private release of one round, for a federated system that has its own server: arrays in, `Release` out.

    `updates` (n, d_s + d_c) and `choices` (n,) are the raw reports of a cohort drawn by `plan.sampler`; numpy or torch.
    `evaluations` (n, 2) are pairs (accuracy, share of the loss bound), for plans with `private_evaluation`. `scores`
    (n, plan.mechanism.score_width) are what identifiers by loss or by projection read; `centres` those of projections
    released earlier (Release.projections holds each round's statistics).
    Charge your own budget first: one call costs one `plan.event`. A secure plan draws its noise from the operating
    system and needs `rng=rrcluster.entropy.secure_rng()`; calling it twice on one round is two releases.
    """
    return plan.mechanism.release(
        updates,
        choices,
        rng=rng,
        destinations=destinations,
        client_ids=client_ids,
        evaluations=evaluations,
        **({} if scores is None else {"scores": scores, "centres": centres}),
    )
