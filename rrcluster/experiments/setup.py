"""From a config to the things that run: data, model, plan, engine. The only place that reads settings by name.

On several ranks every rank makes the experiment from the same settings, and rank 0 runs it (`make_distributed`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from rrcluster import registry
from rrcluster.clusters.schedule import make_schedule
from rrcluster.data.arrays import at_most
from rrcluster.data.build import GENERATED, load_federated
from rrcluster.data.federated import IDS, FederatedData
from rrcluster.engine.distributed import DistributedEngine, PreparedRank, Ranks
from rrcluster.engine.pick_engine import pick_device, pick_engine
from rrcluster.engine.protocol import Engine
from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import ConfigError, PrivacyError, RankError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.fingerprint import fingerprint
from rrcluster.methods import ALGORITHMS, Method
from rrcluster.methods.compatibility import check_applies, check_init
from rrcluster.methods.coordinate_split import Split
from rrcluster.models import Model, from_module, make_model
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams
from rrcluster.server_state import ServerState
from rrcluster.settings import LocalSettings, ServerSettings
from rrcluster.simulation.clients import ClientMemory, Faults
from rrcluster.simulation.simulate import RoundRecord, check_memory, simulate
from rrcluster.types import Coordinates

_USUAL_SAMPLES = 50  # of a client, where no setting says
POPULATION_SEED = 0  # public: deals a dataset out to simulated clients where the run itself has no seed


@dataclass(frozen=True)
class Experiment:
    """All that one run needs, made from one config."""

    config: RunConfig
    data: FederatedData
    model: Model
    algorithm: Method
    plan: PrivacyPlan
    engine: Engine
    streams: StreamSource
    local: LocalSettings
    server: ServerSettings
    faults: Faults

    def rounds(
        self, *, state: ServerState | None = None, memory: ClientMemory | None = None, ledger: Ledger | None = None
    ) -> Iterator[RoundRecord]:
        """Simulate it, from the start or from where it was stopped."""
        return simulate(
            data=self.data,
            model=self.model,
            algorithm=self.algorithm,
            plan=self.plan,
            engine=self.engine,
            streams=self.streams,
            local=self.local,
            server=self.server,
            state=state,
            memory=memory,
            ledger=ledger,
            faults=self.faults,
        )

    @property
    def split(self) -> Split:
        """Which coordinates are shared, clustered, personal."""
        return self.algorithm.split(self.model)


def build_experiment(**settings: Any) -> Experiment:
    """The experiment of settings by name; `data`, `model` and `algorithm` may be objects of your own.

    An object is registered under its name, so that the run folder can say what ran; to resume the run in another
    process, register it there first. The number of clients follows from data of your own.
    """
    data, model, method = settings.get("data"), settings.get("model"), settings.get("algorithm")
    if isinstance(data, FederatedData):
        if settings.get("secure") and "num_clients" not in settings:
            raise ConfigError(
                "a secure run on data of your own needs num_clients, a public constant that you declare; counted from "
                "the data it would tell how many clients there are."
            )
        settings = {"num_clients": data.num_clients} | settings | {"data": data.name}
        registry.DATASETS.replace(registry.Entry(data.name, data, data.name, {"num_classes": data.num_classes}))
    if isinstance(model, (Model, nn.Module)):
        made = model if isinstance(model, Model) else from_module(model)
        settings |= {"model": made.name}
        registry.MODELS.replace(registry.Entry(made.name, lambda *_: made, made.name))
    if isinstance(method, Method):
        settings |= {"algorithm": method.name}
        facts = {"chooses_by_loss": method.chooses_by_loss}
        registry.METHODS.replace(registry.Entry(method.name, method, registry.METHODS.label(method.name), facts))
    return make_experiment(from_flat(settings, source="settings"))


def make_experiment(
    config: RunConfig, *, data: FederatedData | None = None, engine: Callable[[Model], Engine] | None = None
) -> Experiment:
    """Load data, make the model, calibrate the noise. Everything that can be wrong is found out here.

    `data`: what an experiment with the same data settings and seed has loaded already. `engine`: what runs the clients,
    instead of what the config says.
    """
    config = config.resolved()
    method = config.method
    algorithm = ALGORITHMS[method.algorithm]
    check_applies(algorithm, config.privacy.mechanism, method.min_cluster_size)
    check_init(algorithm, config.server.init)
    k = algorithm.num_clusters(method.num_clusters)
    make_schedule(config.server, num_rounds=config.privacy.num_rounds, num_clusters=k)
    plan = plan_for(config, Coordinates(0, 1))  # refuses a bad budget before any file is read
    data = data or load_population(config)
    algorithm = algorithm.for_population(algorithm, data)
    _check_evaluated(config, algorithm, data)
    ids = data.input_dtype == IDS
    model = algorithm.adapt(
        make_model(method.model, input_shape=data.input_shape, num_classes=data.num_classes, ids=ids)
    )
    plan = plan.with_coordinates(algorithm.split(model).coordinates)
    check_memory(algorithm, model, plan)
    samples = plan.sampler.expected_size * _public_size(config) * config.local.local_epochs
    return Experiment(
        config=config,
        data=data,
        model=model,
        algorithm=algorithm,
        plan=plan,
        engine=(engine or partial(engine_for, config, samples=samples))(model),
        streams=SecureStreams() if config.seed is None else Streams(config.seed),
        local=config.local,
        server=config.server,
        faults=Faults(config.faults),
    )


def _public_size(config: RunConfig) -> int:
    """About how many samples a client has, from settings alone: what is decided by it is written down."""
    return config.data.samples_per_client or config.data.max_samples or _USUAL_SAMPLES


def load_population(config: RunConfig) -> FederatedData:
    """The clients of a config: a function of its data settings and its seed."""
    given = registry.DATASETS.load(config.data.data)
    if isinstance(given, FederatedData):
        return _checked_population(given, config)
    data = load_federated(
        config.data.data,
        num_clients=config.data.num_clients,
        seed=POPULATION_SEED if config.seed is None else config.seed,
        partition=None if config.data.data in GENERATED else config.data.partition,
        samples_per_client=config.data.samples_per_client,
        concentration=config.data.concentration if config.data.partition == "dirichlet" else None,
        folder=config.data.data_folder,
    )
    return data if config.data.max_samples is None else at_most(data, config.data.max_samples)


def _checked_population(data: FederatedData, config: RunConfig) -> FederatedData:
    """Clients that were registered ready-made."""
    if data.num_clients != config.data.num_clients:
        raise ConfigError(
            f"num_clients = {config.data.num_clients} was declared but {config.data.data} has {data.num_clients}; "
            "declare that number, a public constant."
        )
    return data


def engine_for(config: RunConfig, model: Model, *, samples: float = 0.0) -> Engine:
    """The engine of a config; `samples` are those that a round trains on."""
    output = config.output
    return pick_engine(
        output.engine,
        model=model,
        device=pick_device(output.device),
        samples=samples,
        capacity=output.capacity,
        precision=output.precision,
    )


def _check_evaluated(config: RunConfig, algorithm: Method, data: FederatedData) -> None:
    """Refuse private evaluation where there is no accuracy, or no released model to judge."""
    if not config.privacy.private_evaluation:
        return
    if not data.num_classes:
        raise ConfigError(
            f"private_evaluation reports accuracies, and {config.data.data} is regression, which has none; set it to 0."
        )
    if algorithm.personal:
        raise ConfigError(
            f"private_evaluation judges released models, and algorithm = {algorithm.name} gives every client one of "
            "its own; set it to 0."
        )


def plan_for(config: RunConfig, coordinates: Coordinates) -> PrivacyPlan:
    """The privacy plan of a config."""
    method = config.method
    return PrivacyPlan.build(
        replace(config.privacy, epsilon=config.privacy.target_epsilon),
        coordinates=coordinates,
        num_clients=config.data.num_clients,
        num_clusters=ALGORITHMS[method.algorithm].num_clusters(method.num_clusters),
        min_cluster_size=method.min_cluster_size,
        size_floor=method.size_floor,
        server=config.server,
    )


_EQUAL_ON_ALL = ("config", "rrcluster", "torch", "numpy", "device", "engine")  # of the ranks' fingerprints


def make_distributed(config: RunConfig, ranks: Ranks) -> Experiment:
    """The experiment of a config, its clients shared among `ranks`.

    A secure run is refused: ranks exchange raw updates, unencrypted, and its privacy statement does not cover
    eavesdroppers.
    """
    if config.privacy.secure:
        raise PrivacyError(
            f"secure = true with {ranks.channel.size} ranks would send raw updates from process to process, "
            "unencrypted; run it in one process, without torchrun."
        )
    ranks.prepare(config.flat())
    experiment = make_experiment(config)
    machines = _machines(fingerprint(config, experiment.engine), ranks.fingerprints())
    return replace(experiment, engine=DistributedEngine(experiment.engine, ranks, machines, experiment.data))


def prepare_rank(settings: Mapping[str, Any]) -> PreparedRank:
    """What a rank other than 0 makes of the settings that rank 0 sends."""
    config = from_flat(dict(settings), source="rank 0")
    experiment = make_experiment(config)
    return PreparedRank(experiment.engine, experiment.data, fingerprint(config, experiment.engine))


def _machines(own: Mapping[str, Any], others: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The other ranks' machines; a `RankError` where their versions or devices differ from those of rank 0."""
    for rank, other in enumerate(others, start=1):
        for name in _EQUAL_ON_ALL:
            if other.get(name) != own[name]:
                raise RankError(
                    f"rank {rank} has {name} {other.get(name)}, rank 0 has {own[name]}; results would depend on which "
                    "rank computes a client. Give all ranks the same."
                )
    return tuple(f"{other['machine']}, {other['threads']} threads" for other in others)
