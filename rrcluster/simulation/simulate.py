"""The simulator: computes the clients' half of a round, and yields one record per round."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rrcluster.client import ClientKeys, ClientSide
from rrcluster.data.federated import FederatedData
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.entropy import StreamSource
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Method
from rrcluster.models.model import Model
from rrcluster.privacy.correlation import PastNoise
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import Reports
from rrcluster.server import Charge, Guidance, Server, run_rounds
from rrcluster.server_state import ServerState
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.clients import ClientMemory, Faults, Incidents
from rrcluster.simulation.early_noise import EarlyNoise
from rrcluster.types import Array, Models, Release


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
    reports: Reports | None = field(default=None, repr=False)  # raw: for diagnostics, and not kept by a secure run
    past: PastNoise | None = field(default=None, repr=False)  # private: the noise that later rounds build on


@dataclass
class SimulatedClients:
    """The clients of a simulation. `collect` is the clients' half of a round, all of them in one process.

    With seeded `streams` every draw is keyed by (seed, stream, round, client), so that nobody's report depends on who
    else takes part.
    """

    data: FederatedData
    model: Model
    algorithm: Method
    plan: PrivacyPlan
    engine: Engine
    streams: StreamSource
    local: LocalSettings
    faults: Faults
    memory: ClientMemory  # what the clients remember, after the last round collected
    incidents: Incidents = field(default_factory=Incidents)  # of the last round collected
    reports: Reports | None = None  # of the last round collected, before hostile clients changed theirs

    @cached_property
    def split(self) -> Split:
        """Which coordinates are shared, clustered, personal."""
        return self.algorithm.split(self.model)

    def remember_with(self, ledger: Ledger, round_index: int) -> None:
        """Write clients' memory down with a drawn round, and restore that of one which is not collected again."""
        drawn = ledger.noise.drawn
        if self.plan.secure and drawn is not None and drawn.round_index == round_index:
            self.memory = ClientMemory.from_tensors(drawn.memory)
        ledger.noise.memory = lambda: self.memory.tensors()

    def collect(self, guidance: Guidance, charge: Charge) -> Reports:
        """Draw the cohort, let every client choose, train and report, and charge the round."""
        t, streams = guidance.round_index, self.streams
        names = self.data.clients if self.plan.mechanism.slots.count > 1 else ()  # by which they are in slots
        named = {"names": names} if names else {}
        sampled = self.plan.sampler.draw(self.data.num_clients, round_index=t, rng=streams("cohort", t), **named)
        ids = self.faults.remaining(sampled, streams=streams, round_index=t)  # nobody replaces those who are gone
        if self.plan.secure:  # a client whose samples cannot be used sends nothing, and no error names it
            ids = ids[self.data.usable(ids)]
        honest, self.memory = self._answers(guidance, ids) if self.plan.secure else self._compute(guidance, ids)
        k = guidance.models.num_clusters
        reports, lying = self.faults.tampered(honest, num_clusters=k, streams=streams, round_index=t)
        self.incidents = Incidents(dropped=len(sampled) - len(ids), hostile=lying)
        self.reports = None if self.plan.secure else honest
        charge()
        if not names:
            return reports
        return replace(reports, client_ids=[names[client] for client in reports.client_ids.tolist()])

    def _compute(self, guidance: Guidance, ids: Array) -> tuple[Reports, ClientMemory]:
        """What these clients report, and what all clients remember afterwards."""
        side = ClientSide(self.algorithm, self.split, self.engine, self.local, self.plan.mechanism)
        keys = ClientKeys.of_round(self.streams, guidance.round_index)
        reports, remembered = side.answer(guidance, self.memory.recall(self.data.cohort(ids)), keys)
        return reports, self.memory.updated(ids, remembered)

    def _answers(self, guidance: Guidance, ids: Array) -> tuple[Reports, ClientMemory]:
        """As `_compute`, in a secure run: a client whose computation fails sends nothing, and the round goes on.

        A round that one client's data can abort would show that client's presence, uncharged.
        """
        try:
            return self._compute(guidance, ids)
        except Exception:  # whatever it was; if it was no single client's doing, it fails again below
            able = [client for client in ids.tolist() if self._can_answer(guidance, client)]
        return self._compute(guidance, np.array(able, dtype=np.int64))

    def _can_answer(self, guidance: Guidance, client: int) -> bool:
        try:
            self._compute(guidance, np.array([client]))
        except Exception:
            return False
        return True


def make_server(
    *, model: Model, algorithm: Method, plan: PrivacyPlan, settings: ServerSettings, streams: StreamSource
) -> Server:
    """The server for a method: its first models are the model's own, and it explores if clients choose by loss."""

    def first_models() -> Models:
        return algorithm.init(model, num_clusters=plan.mechanism.num_clusters, rng=streams("init"))

    return Server(plan, settings, algorithm.chooses_by_loss, first_models)


def simulate(
    *,
    data: FederatedData,
    model: Model,
    algorithm: Method,
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
    with seeded `streams` the rounds that follow are the same as if it had never stopped. `ledger` is charged before
    each release. `faults` makes some clients drop out or lie. A secure plan needs `SecureStreams`.
    """
    check_memory(algorithm, model, plan)
    check_parts(data, model, algorithm, plan, engine)
    clients = SimulatedClients(
        data=data,
        model=model,
        algorithm=algorithm,
        plan=plan,
        engine=engine,
        streams=streams,
        local=local or LocalSettings(),
        faults=faults or Faults(),
        memory=memory or ClientMemory(algorithm.memory_width(model)),
    )
    on_device = getattr(getattr(engine, "device", None), "type", "cpu") != "cpu"
    ledger = ledger or Ledger(secure=plan.secure, limit=plan.num_releases, stored=plan.stores_rounds)
    clients.remember_with(ledger, 0 if state is None else state.round_index)
    made = make_server(
        model=model, algorithm=algorithm, plan=plan, settings=server or ServerSettings(), streams=streams
    )
    rounds = run_rounds(
        made,
        clients.collect,
        state=state or made.first_state(),
        ledger=ledger,
        streams=EarlyNoise(streams) if on_device and not plan.secure else streams,
    )
    began = time.perf_counter()
    for done in rounds:
        seconds = time.perf_counter() - began
        private = clients.incidents, clients.memory, clients.reports, done.past
        yield RoundRecord(done.round_index, done.state, done.release, seconds, *private)
        began = time.perf_counter()


def check_parts(data: FederatedData, model: Model, algorithm: Method, plan: PrivacyPlan, engine: Engine) -> None:
    """Refuse parts that were made for another population or model, as after replacing one of them."""
    plan.sampler.check_population(data.num_clients)
    own, reported = algorithm.split(model).coordinates, plan.mechanism.coordinates
    if own != reported:
        raise ConfigError(
            f"the plan is for {reported.shared} shared and {reported.clustered} clustered coordinates, and model "
            f"{model.name} under {algorithm.name} has {own.shared} and {own.clustered}; use plan.with_coordinates."
        )
    runs = getattr(getattr(engine, "own", engine), "model", model)
    if runs is not model and runs.signature != model.signature:
        raise ConfigError(
            f"the engine runs model {runs.name} ({runs.num_parameters} parameters), and the model given is "
            f"{model.name} ({model.num_parameters}); make the engine from the model that is trained."
        )
    if plan.secure and model.own and not isinstance(engine, ReferenceEngine):
        raise PrivacyError(
            f"the engine computes clients of {model.name} with one copy of the network and the loss, which may keep "
            "something of a client for the next; give a secure plan ReferenceEngine(model)."
        )


def check_memory(algorithm: Method, model: Model, plan: PrivacyPlan) -> None:
    """Refuse memory where the guarantee does not cover it (docs/privacy.md, "Limit"), whoever wrote the algorithm."""
    if plan.private and not plan.mechanism.covers_memory and algorithm.memory_width(model) > 0:
        raise PrivacyError(
            f"algorithm {algorithm.name} keeps memory on the clients, which the guarantee of mechanism = "
            f"{plan.mechanism.name} does not cover; use mechanism = joint, or a method whose clients remember "
            "nothing, such as fesem-memoryless, fedper-memoryless or ifca."
        )
