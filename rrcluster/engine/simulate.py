"""The simulator: the clients' half of a round around the server's own. It yields one record per round."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rrcluster.aggregate import ServerSettings, ServerState
from rrcluster.algorithms.algorithm import Algorithm
from rrcluster.choice import choose
from rrcluster.contract import Engine, LocalSettings
from rrcluster.data.federated import FederatedData
from rrcluster.entropy import StreamSource
from rrcluster.models.model import Model
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rebalancing import flip_coins
from rrcluster.rng import client_uniforms
from rrcluster.server import guidance, server_round
from rrcluster.types import Release


@dataclass(frozen=True)
class RoundRecord:
    """One finished round: only public values (the release, and the state made of releases), and the time it took."""

    round_index: int
    state: ServerState  # after the round
    release: Release
    seconds: float


def first_state(*, model: Model, algorithm: Algorithm, num_clusters: int, streams: StreamSource) -> ServerState:
    """The state before the first round, from random numbers alone."""
    return ServerState.fresh(algorithm.init(model, num_clusters=num_clusters, rng=streams("init")))


def simulate(
    *,
    data: FederatedData,
    model: Model,
    algorithm: Algorithm,
    plan: PrivacyPlan,
    engine: Engine,
    streams: StreamSource,
    local: LocalSettings | None = None,
    server: ServerSettings | None = None,
    state: ServerState | None = None,
    ledger: Ledger | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until the plan's last one, or until the ledger affords no more, yielding a record after each.

    `state` continues an earlier simulation: with seeded `streams` every draw is keyed by (seed, stream, round, client),
    so the rounds that follow are the same as if it had never stopped. `ledger` is charged before each release. A secure
    plan needs `SecureStreams`.
    """
    local, server = local or LocalSettings(), server or ServerSettings()
    ledger = ledger or Ledger(secure=plan.secure, limit=plan.num_releases)
    split = algorithm.split(model)
    k = plan.mechanism.num_clusters
    state = state or first_state(model=model, algorithm=algorithm, num_clusters=k, streams=streams)
    while state.round_index < plan.num_rounds and ledger.affords(state.round_index):
        began, t = time.perf_counter(), state.round_index
        clients = plan.sampler.draw(data.num_clients, rng=streams("cohort", t))
        cohort = data.cohort(clients)
        told = guidance(state, plan=plan, server=server)
        scores = algorithm.scores(state.models, cohort, split=split, engine=engine)
        choices = choose(scores, told, uniforms=client_uniforms(streams.client_key("choice", t), clients, k))
        destinations = None
        if plan.rebalance == "coin":
            uniforms = client_uniforms(streams.client_key("coin", t), clients)[:, 0]
            destinations = flip_coins(choices, told.transition, uniforms=uniforms)
        updates = algorithm.local(
            state.models,
            cohort,
            choices if destinations is None else destinations,
            split=split,
            engine=engine,
            local=local,
            key=streams.client_key("batches", t),
        )
        state, release = server_round(
            state,
            updates,
            choices,
            destinations=destinations,
            client_ids=clients,
            plan=plan,
            server=server,
            ledger=ledger,
            rng=streams("release", t),
        )
        yield RoundRecord(t, state, release, time.perf_counter() - began)
