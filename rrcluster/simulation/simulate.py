"""The simulator: the clients' half of a round around the server's own. It yields one record per round."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rrcluster.aggregate import ServerSettings, ServerState
from rrcluster.clusters.choice import guided_scores
from rrcluster.clusters.rebalancing import flip_coins
from rrcluster.clusters.schedule import check_schedule, opened
from rrcluster.data.federated import FederatedData
from rrcluster.engine.protocol import Engine, LocalSettings
from rrcluster.entropy import StreamSource
from rrcluster.errors import PrivacyError
from rrcluster.methods.method import Algorithm, Tools
from rrcluster.models.model import Model
from rrcluster.privacy.events import REPLACE_ONE
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import client_uniforms
from rrcluster.server import guidance, server_round
from rrcluster.simulation.faults import Faults, Incidents, Sent
from rrcluster.simulation.memory import ClientMemory
from rrcluster.simulation.private_evaluation import own_evaluations
from rrcluster.simulation.scoring import check_scores, told_scores, with_projections
from rrcluster.types import Release


@dataclass(frozen=True)
class RoundRecord:
    """One finished round: the release and the state made of releases, which are public; the rest is not.

    How long the round took and how many clients failed in it depend on who took part; what clients remember is theirs,
    and so is what they reported.
    """

    round_index: int
    state: ServerState  # after the round
    release: Release
    seconds: float
    incidents: Incidents
    memory: ClientMemory = field(repr=False)  # private to the clients: for the checkpoint alone
    reports: Sent | None = field(default=None, repr=False)  # raw: for diagnostics alone, and not kept by a secure run


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
    memory: ClientMemory | None = None,
    ledger: Ledger | None = None,
    faults: Faults | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until the plan's last one, or until the ledger affords no more, yielding a record after each.

    `model` is the one the algorithm adapted (`algorithm.adapt`). `state` and `memory` continue an earlier simulation:
    with seeded `streams` every draw is keyed by (seed, stream, round, client), so the rounds that follow are the same
    as if it had never stopped. `ledger` is charged before each release. `faults` makes some clients drop out or lie. A
    secure plan needs `SecureStreams`.
    """
    local, server = local or LocalSettings(), server or ServerSettings()
    ledger = ledger or Ledger(secure=plan.secure, limit=plan.num_releases)
    faults = faults or Faults()
    _check_memory(algorithm, model, plan)
    check_scores(algorithm, plan.mechanism)
    if not algorithm.explores:
        server = replace(server, exploration=0.0)
    split = algorithm.split(model)
    k = plan.mechanism.num_clusters
    memory = memory or ClientMemory(algorithm.memory_width(model))
    check_schedule(server, num_rounds=plan.num_rounds, num_clusters=k)
    state = state or first_state(model=model, algorithm=algorithm, num_clusters=k, streams=streams)
    while state.round_index < plan.num_rounds and ledger.affords(state.round_index):
        began, t = time.perf_counter(), state.round_index
        state = opened(state, server, fresh=lambda: algorithm.init(model, num_clusters=k, rng=streams("warm start")))
        sampled = plan.sampler.draw(data.num_clients, rng=streams("cohort", t))
        ids = faults.remaining(sampled, streams=streams, round_index=t)  # nobody replaces those who are gone
        tools = Tools(split, engine, local, key=streams.client_key("batches", t), centres=state.centres)
        clients = with_projections(memory.recall(data.cohort(ids)), algorithm, plan.mechanism, tools=tools)
        told = guidance(state, plan=plan, server=server)
        uniforms = client_uniforms(streams.client_key("choice", t), ids, k if told.by_chance else 0)
        scores = guided_scores(algorithm.scores(state.models, clients, tools=tools), told, uniforms=uniforms)
        choices = scores.argmin(axis=1)
        destinations = None
        if plan.rebalance == "coin":
            uniforms = client_uniforms(streams.client_key("coin", t), ids)[:, 0]
            destinations = flip_coins(choices, told.transition, uniforms=uniforms)
        evaluations = own_evaluations(
            state.average, clients.cohort, mechanism=plan.mechanism, algorithm=algorithm, tools=tools
        )
        trained = algorithm.local(state.models, clients, choices if destinations is None else destinations, tools=tools)
        memory = memory.updated(ids, trained.memory)
        told_to_mechanism = told_scores(scores, clients, plan.mechanism)
        honest = Sent(trained.updates, choices, destinations, ids, evaluations, told_to_mechanism)
        sent, lying = faults.tampered(honest, num_clusters=k, streams=streams, round_index=t)
        state, release = server_round(
            state,
            sent.updates,
            sent.choices,
            destinations=sent.destinations,
            client_ids=sent.client_ids,
            evaluations=sent.evaluations,
            scores=sent.scores,
            plan=plan,
            server=server,
            ledger=ledger,
            rng=streams("release", t),
        )
        incidents = Incidents(dropped=len(sampled) - len(ids), hostile=lying)
        raw = None if plan.secure else honest
        yield RoundRecord(t, state, release, time.perf_counter() - began, incidents, memory, raw)


def _check_memory(algorithm: Algorithm, model: Model, plan: PrivacyPlan) -> None:
    """Refuse memory under fixed-size sampling, whoever wrote the algorithm (docs/privacy.md, "Limit")."""
    if plan.private and plan.event.adjacency == REPLACE_ONE and algorithm.memory_width(model) > 0:
        raise PrivacyError(
            f"algorithm {algorithm.name} keeps memory on the clients, which the guarantee of mechanism = "
            f"{plan.mechanism.name} does not cover; use mechanism = joint."
        )
