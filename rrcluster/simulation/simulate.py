"""The simulator: computes the clients' half of a round, and yields one record per round.

Noise of a seeded round, drawn by a thread from the round's beginning on: it depends on no report.

The numbers are those of the run's own streams, in the same order. A device computes the clients meanwhile, and the main
thread launches its work; numpy draws normal numbers without holding Python's lock.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rrcluster.client import ClientKeys, ClientSide
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.federated import FederatedData
from rrcluster.engine.protocol import Engine
from rrcluster.entropy import StreamSource
from rrcluster.errors import ConfigError, PrivacyError, RoundError
from rrcluster.methods.method import Method
from rrcluster.models.model import Model
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import MessageSum, Reports
from rrcluster.privacy.slots import PastNoise
from rrcluster.rng import Rng
from rrcluster.server.server import Charge, Guidance, RoundServer, run_rounds
from rrcluster.server.slotted_rounds import SlottedRounds, StoredNoise
from rrcluster.server.state import ServerState
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.clients import ClientMemory, Faults
from rrcluster.simulation.hosts import Collection, Host, Hosts, RoundTask, collected, parts_of
from rrcluster.types import Array, Models, Release


class EarlyNoise:
    """The streams of a run. The noise of a seeded round is drawn by a thread from the round's beginning.

    The number of normal draws is known from the previous round: the first round draws when it needs them. The noise
    depends on no report, and its numbers are those of the run's own streams, in the same order. A device computes the
    clients meanwhile; numpy draws normal numbers without holding Python's lock.
    """

    def __init__(self, streams: StreamSource) -> None:
        """Start without draws."""
        self._streams, self._pool = streams, ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._key: tuple[int, ...] | None = None
        self._rng: _EarlyRng | None = None

    def __call__(self, name: str, *key: int) -> Rng:
        """The stream called `name` at position `key`."""
        if name != "release":
            return self._streams(name, *key)
        if self._rng is None or key != self._key or self._rng.used:
            count = None if self._rng is None else self._rng.first
            self._key, self._rng = key, _EarlyRng(lambda: self._streams(name, *key), count, self._pool)
        return cast(Rng, self._rng)

    def client_key(self, name: str, round_index: int) -> tuple[int, int]:
        """The key under which every client of this round draws for the purpose `name`."""
        return self._streams.client_key(name, round_index)


class _EarlyRng:
    """A generator whose first draw, of `count` normal numbers, is made ahead; any other first draw restarts it."""

    def __init__(self, make: Callable[[], Rng], count: int | None, pool: ThreadPoolExecutor) -> None:
        self._make, self._count, self.first = make, count, count
        self._rng: Rng | None = None
        self._ahead: Future[tuple[Rng, Array]] | None = None if count is None else pool.submit(self._draw, count)

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return self._rng is not None

    def standard_normal(self, size: Any = None) -> Any:
        """Normal draws, as of the generator itself."""
        if self._rng is None and self._ahead is not None and size == self._count:
            self._rng, values = self._ahead.result()
            return values
        if self._rng is None and isinstance(size, int):
            self.first = size
        return self._generator.standard_normal(size)

    def __getattr__(self, name: str) -> Any:
        """All other methods, in the generator's current state."""
        return getattr(self._generator, name)

    @property
    def _generator(self) -> Rng:
        if self._rng is None:
            self._rng = self._make()
        return self._rng

    def _draw(self, count: int) -> tuple[Rng, Array]:
        rng = self._make()
        return rng, rng.standard_normal(count)


@dataclass(frozen=True)
class RoundRecord:
    """One finished round: the release and the state made of releases, which are public; the rest is not.

    The round's duration and failures depend on who took part; clients' memory and reports are private.
    """

    round_index: int
    state: ServerState  # after the round
    release: Release
    seconds: float
    collection: Collection = field(repr=False)  # raw: for diagnostics, and empty in a secure run
    memory: ClientMemory = field(repr=False)  # private to the clients: for the checkpoint alone
    past: PastNoise | None = field(default=None, repr=False)  # private: the basis of later rounds' noise


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a stopped simulation continues."""

    state: ServerState | None = None  # made of releases; None: from the start
    memory: ClientMemory | None = None  # private
    noise: StoredNoise | None = None  # private: the noise from which a plan with slots resumes


@dataclass
class SimulatedClients:
    """The clients of a simulation. `collect` is the clients' half of a round, computed by hosts.

    With seeded `streams` every draw is keyed by (seed, stream, round, client), so that nobody's report depends on who
    else takes part.
    """

    hosts: Hosts
    plan: PrivacyPlan
    streams: StreamSource
    memory: ClientMemory  # the clients' memory after the last collected round
    last: Collection = field(default_factory=Collection)

    def collect(self, guidance: Guidance, charge: Charge) -> MessageSum | Reports:
        """Draw the cohort, have hosts compute its parts, and charge the round."""
        t, streams, host = guidance.round_index, self.streams, self.hosts.host
        slotted = self.plan.mechanism.slots.count > 1  # clients in slots are identified by name, where they have one
        named = {"names": host.data.clients} if slotted and host.data.clients else {}
        sampled = self.plan.sampler.draw(host.data.num_clients, round_index=t, rng=streams("cohort", t), **named)
        ids = host.faults.remaining(sampled, streams=streams, round_index=t)  # dropouts are not replaced
        task = RoundTask(guidance, ClientKeys.of_round(streams, t), host.faults.keys(streams, t))
        answers = self.hosts.map(Host.answer, task, parts_of(ids, self.memory, host.side.engine.part))
        sent, raw, remembered = collected(answers)
        if len(ids) and not raw.num_reports and not self.plan.secure:
            raise RoundError(
                f"round {t}: processes ended for every client; run with processes = 1 to see why, or give the machine "
                "more memory."
            )
        self.memory = self.memory.merged(remembered)
        incidents = replace(raw.incidents, dropped=len(sampled) - raw.num_reports)
        self.last = Collection(incidents=incidents) if self.plan.secure else replace(raw, incidents=incidents)
        charge()
        return sent


def make_server(
    *, model: Model, method: Method, plan: PrivacyPlan, settings: ServerSettings, streams: StreamSource
) -> RoundServer:
    """The server for a method: its first models are the model's own, and it explores if clients choose by loss."""

    def first_models() -> Models:
        return method.init(model, num_clusters=plan.mechanism.num_clusters, rng=streams("init"))

    return RoundServer(plan, settings, method.chooses_by_loss, first_models, method.form(model))


def simulate(
    *,
    data: FederatedData,
    model: Model,
    method: Method,
    plan: PrivacyPlan,
    engine: Engine,
    streams: StreamSource,
    local: LocalSettings | None = None,
    server: ServerSettings | None = None,
    checkpoint: Checkpoint | None = None,
    ledger: Ledger | None = None,
    faults: Faults | None = None,
    hosts: Hosts | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until the plan's last one, or until the ledger allows no more, yielding a record after each.

    `model` is the one adapted by the method (`method.adapt`). `checkpoint` continues an earlier simulation: with seeded
    `streams` the following rounds are the same as if it had never stopped. `ledger` is charged before each release.
    `faults` makes some clients drop out or lie. A secure plan needs `SecureStreams`. `hosts` compute the clients;
    without them, this process does.
    """
    check_memory(method, model, plan)
    check_parts(data, model, method, plan, engine)
    side = ClientSide(method, method.split(model), engine, local or LocalSettings(), plan.mechanism)
    host = Host(data, side, faults or Faults(), discreet=plan.secure)
    if hosts is not None:
        check_hosts(hosts.host, host)
    settings = server or ServerSettings()
    made = make_server(model=model, method=method, plan=plan, settings=settings, streams=streams)
    ledger = ledger or Ledger(secure=plan.secure, limit=plan.num_releases, stored=plan.stores_rounds)
    saved = checkpoint or Checkpoint()
    state, memory, noise = saved.state, saved.memory, saved.noise or StoredNoise()
    drawn = noise.drawn_at(0 if state is None else state.round_index) if plan.stores_rounds else None
    if drawn is not None:  # its clients are not asked again, and a secure run cannot redraw its first models
        memory = ClientMemory.from_tensors(drawn.memory)
        state = ServerState.fresh(drawn.models) if drawn.round_index == 0 else state
    memory = memory or ClientMemory(method.memory_width(model))
    clients = SimulatedClients(hosts or Hosts(host), plan, streams, memory)
    slotted = None
    if plan.mechanism.slots.count > 1:
        slotted = SlottedRounds(plan, ledger, streams, clients.collect, lambda: clients.memory.tensors(), noise)
    rounds = run_rounds(
        made,
        slotted or clients.collect,
        state=state or made.first_state(),
        ledger=ledger,
        streams=EarlyNoise(streams) if engine.device.type != "cpu" and not plan.secure else streams,
    )
    began = time.perf_counter()
    for done in rounds:
        seconds = time.perf_counter() - began
        past = None if slotted is None else slotted.past
        yield RoundRecord(done.round_index, done.state, done.release, seconds, clients.last, clients.memory, past)
        began = time.perf_counter()


def check_parts(data: FederatedData, model: Model, method: Method, plan: PrivacyPlan, engine: Engine) -> None:
    """Refuse parts built for another population or model, as after replacing one of them."""
    plan.sampler.check_population(data.num_clients)
    if plan.secure:
        refuse_undeclared(data)
    check_names(data, secure=plan.secure, num_slots=plan.mechanism.slots.count)
    shape, reported = method.coordinates(model), plan.mechanism.coordinates
    if shape != reported:
        raise ConfigError(
            f"the plan is for {reported.shared} shared and {reported.clustered} clustered coordinates, and model "
            f"{model.name} under {method.name} has {shape.shared} and {shape.clustered}; use plan.with_coordinates."
        )
    runs = engine.model
    if runs is not model and runs.signature != model.signature:
        raise ConfigError(
            f"the engine runs model {runs.name} ({runs.num_parameters} parameters), and the model given is "
            f"{model.name} ({model.num_parameters}); make the engine from the model that is trained."
        )
    if plan.secure and model.own and not engine.isolates:
        raise PrivacyError(
            f"the engine computes clients of {model.name} with one copy of the network and the loss, which may keep "
            "something of a client for the next; give a secure plan ReferenceEngine(model)."
        )


def undeclared(data: FederatedData) -> dict[str, str]:
    """Constants that should be declared but were taken from the data, each with a sentence on it."""
    taken = {
        "types": "types were taken from the table",
        "regression": "regression was chosen by the labels",
        "features": "features were taken from the header",
    }
    phrases = {name: taken.get(name, f"{name} were counted in the labels") for name in data.counted}
    return {
        name: f"{phrases[name]} of {data.name}, which no guarantee covers; {fix}" for name, fix in data.counted.items()
    }


def refuse_undeclared(data: FederatedData) -> None:
    """Refuse constants that were taken from the data."""
    for text in undeclared(data).values():
        raise ConfigError(f"{text}: a secure run reads nothing from the clients' data outside its budget.")


def check_names(data: FederatedData, *, secure: bool, num_slots: int) -> None:
    """Refuse a secure schedule of a user's clients without names: their positions are not ids."""
    if secure and num_slots > 1 and not data.clients and data.name not in SOURCES:
        raise PrivacyError(
            f"participation = schedule assigns clients to slots by name, but those of {data.name} have none: "
            "slots by position would shift when a client joins or leaves. Give names=[...] to from_arrays or "
            "from_rows, or use participation = everybody."
        )


def check_hosts(given: Host, due: Host) -> None:
    """Refuse hosts of another plan or population: their sums would not match the noise."""
    others = {
        "data": given.data is not due.data,
        "engine": given.side.engine is not due.side.engine,
        "mechanism": given.side.mechanism != due.side.mechanism,
        "secrecy": due.discreet and not given.discreet,
    }
    for name in (name for name, other in others.items() if other):
        raise PrivacyError(
            f"hosts were made for a different {name} than this run's; leave hosts out, or make new ones."
        )


def check_memory(method: Method, model: Model, plan: PrivacyPlan) -> None:
    """Refuse memory where the guarantee does not cover it (docs/privacy.md, "Limit"), in any method."""
    if plan.private and not plan.mechanism.covers_memory and method.memory_width(model) > 0:
        raise PrivacyError(
            f"method {method.name} keeps memory on the clients, which the guarantee of mechanism = "
            f"{plan.mechanism.name} does not cover; use mechanism = joint, or a method whose clients remember "
            "nothing, such as fesem-memoryless, fedper-memoryless or ifca."
        )
