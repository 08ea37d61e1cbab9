"""From a config to the things that run: data, model, plan, engine. The only place that reads settings by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rrcluster.aggregate import ServerSettings
from rrcluster.clusters.schedule import check_schedule, default_rounds
from rrcluster.data.build import GENERATED, load_federated
from rrcluster.data.federated import IDS, FederatedData
from rrcluster.data.subset import at_most
from rrcluster.engine.pick_engine import pick_device, pick_engine
from rrcluster.engine.protocol import Engine, LocalSettings
from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import ConfigError
from rrcluster.experiments.config import RunConfig
from rrcluster.methods import ALGORITHMS, Algorithm, Oracle
from rrcluster.methods.compatibility import check_applies, check_init
from rrcluster.methods.coordinate_split import Split
from rrcluster.models import Model, make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams
from rrcluster.simulation.faults import Faults
from rrcluster.types import Coordinates

_USUAL_SAMPLES = 50  # of a client, where no setting says
POPULATION_SEED = 0  # public: deals a dataset out to simulated clients where the run itself has no seed


@dataclass(frozen=True)
class Experiment:
    """All that one run needs, made from one config."""

    config: RunConfig
    data: FederatedData
    model: Model
    algorithm: Algorithm
    plan: PrivacyPlan
    engine: Engine
    streams: StreamSource
    local: LocalSettings
    server: ServerSettings
    faults: Faults

    @property
    def split(self) -> Split:
        """Which coordinates are shared, clustered, personal."""
        return self.algorithm.split(self.model)


def make_experiment(
    config: RunConfig, *, data: FederatedData | None = None, engine: Callable[[Model], Engine] | None = None
) -> Experiment:
    """Load data, make the model, calibrate the noise. Everything that can be wrong is found out here.

    `data`: what an experiment with the same data settings and seed has loaded already. `engine`: what runs the clients,
    instead of what the config says.
    """
    config = config.settled()
    method = config.method
    check_applies(
        method.algorithm,
        config.privacy.mechanism,
        method.rebalance,
        method.min_cluster_size,
        identifier=config.privacy.identifier,
    )
    check_init(method.algorithm, method.init)
    server = server_settings(config)
    plan_for(config, Coordinates(0, 1))  # refuse a bad budget before any file is read
    data = data or load_population(config)
    algorithm = ALGORITHMS[method.algorithm]
    _check_evaluated(config, algorithm, data)
    if isinstance(algorithm, Oracle):
        algorithm = replace(algorithm, groups=data.groups)
    ids = data.input_dtype == IDS
    model = algorithm.adapt(
        make_model(method.model, input_shape=data.input_shape, num_classes=data.num_classes, ids=ids)
    )
    training = config.training
    plan = plan_for(config, algorithm.split(model).coordinates)
    samples = plan.sampler.expected_size * _public_size(config) * training.local_epochs
    return Experiment(
        config=config,
        data=data,
        model=model,
        algorithm=algorithm,
        plan=plan,
        engine=(engine or partial(engine_for, config, samples=samples))(model),
        streams=SecureStreams() if config.seed is None else Streams(config.seed),
        local=LocalSettings(training.local_lr, training.local_epochs, training.batch_size, training.proximal),
        server=server,
        faults=Faults(config.faults.dropout, config.faults.hostile),
    )


def _public_size(config: RunConfig) -> int:
    """About how many samples a client has, from settings alone: what is decided by it is written down."""
    return config.data.samples_per_client or config.data.max_samples or _USUAL_SAMPLES


def load_population(config: RunConfig) -> FederatedData:
    """The clients of a config: a function of its data settings and its seed."""
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


def _check_evaluated(config: RunConfig, algorithm: Algorithm, data: FederatedData) -> None:
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


def server_settings(config: RunConfig) -> ServerSettings:
    """How the server moves the models, with the initialisation's schedule checked against the run's rounds."""
    method, training = config.method, config.training
    k = ALGORITHMS[method.algorithm].num_clusters(method.num_clusters)
    usual = default_rounds(method.init, num_rounds=training.num_rounds, num_clusters=k)
    server = ServerSettings(
        server_lr=training.server_lr,
        server_momentum=training.server_momentum,
        memory=training.memory,
        average_last=training.average_last,
        exploration=training.exploration,
        init=method.init,
        init_rounds=usual if method.init_rounds is None else method.init_rounds,
    )
    check_schedule(server, num_rounds=training.num_rounds, num_clusters=k)
    return server


def plan_for(config: RunConfig, coordinates: Coordinates) -> PrivacyPlan:
    """The privacy plan of a config, ended where its `max_epsilon` says."""
    method, privacy, training = config.method, config.privacy, config.training
    plan = PrivacyPlan.build(
        coordinates=coordinates,
        num_clusters=ALGORITHMS[method.algorithm].num_clusters(method.num_clusters),
        num_clients=config.data.num_clients,
        sample_rate=training.sample_rate,
        num_rounds=training.num_rounds,
        update_clip=privacy.update_clip,
        mechanism=privacy.mechanism,
        epsilon=privacy.target_epsilon,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        count_weight=privacy.count_weight,
        rebalance=method.rebalance,
        min_cluster_size=method.min_cluster_size,
        size_floor=method.size_floor,
        identifier=privacy.identifier,
        identifier_share=privacy.identifier_share,
        identifier_loss_bound=privacy.identifier_loss_bound,
        accountant=privacy.accountant,
        sampling=privacy.sampling,
        adjacency=privacy.adjacency,
        private_evaluation=privacy.private_evaluation,
        evaluation_loss_bound=privacy.evaluation_loss_bound,
        secure=privacy.secure,
        reserve_rounds=privacy.reserve_rounds,
    )
    return plan.limited(privacy.max_epsilon)
