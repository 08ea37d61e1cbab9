"""Build an experiment from a config: data, model, plan, engine. The only module that reads settings by name."""

import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from rrcluster import registry
from rrcluster.client import ClientSide
from rrcluster.data.arrays import at_most, without_newcomers
from rrcluster.data.build import GENERATED, load_federated
from rrcluster.data.catalogue import SOURCES
from rrcluster.data.federated import IDS, FederatedData
from rrcluster.data.frames import from_frame, is_frame, load_table
from rrcluster.data.sources import table_file
from rrcluster.engine.pick_engine import pick_device, pick_engine
from rrcluster.engine.protocol import Engine
from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import ConfigError, DataError, NotDeclared, PrivacyError, RunFolderError
from rrcluster.methods import METHODS, Method, allows_survey, check_applies, check_init
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.mixed_effects import form_for
from rrcluster.mixed.questionnaire import Questionnaire
from rrcluster.models import Model, fitted, from_module, make_model
from rrcluster.privacy.composition import HOLDS_IF, account_together, check_composable, one_relation
from rrcluster.privacy.cost import Part, epsilon_text, folder_cost
from rrcluster.privacy.ledger import Ledger, describe
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.statement import OWN_DATA, statement, trust_in
from rrcluster.processes import cores
from rrcluster.rng import Streams
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.runs.fingerprint import keyed_digest, own_code
from rrcluster.runs.load import load
from rrcluster.server.state import ServerState
from rrcluster.server.survey import make_schedule, resolve_init
from rrcluster.settings import FIELDS, ColumnSettings, DataSettings, LocalSettings, ServerSettings, names_file
from rrcluster.simulation.clients import Faults
from rrcluster.simulation.hosts import Host, Hosts
from rrcluster.simulation.simulate import (
    Checkpoint,
    RoundRecord,
    check_memory,
    check_names,
    refuse_undeclared,
    simulate,
    undeclared,
)
from rrcluster.storage import WAY_OUT, read_mapping
from rrcluster.types import Models


@dataclass(frozen=True)
class Start:
    """The first models of a run, and the releases behind them."""

    run: str  # as in the setting
    models: Models
    parts: tuple[Part, ...]  # events of the run, and of the runs it started from
    summary: Mapping[str, Any] = field(default_factory=dict)  # of the run: released values
    size_noise: float = 0.0  # std of each released size

    def epsilon_with(self, plan: PrivacyPlan) -> float | None:
        """The total cost of the start's releases and those of `plan`, for a client that took part in all of them."""
        rows = account_together((*self.parts, (plan.event, plan.num_participations)), delta=plan.delta)
        return min((row.epsilon for row in rows if row.epsilon is not None), default=None)

    def describe(self, plan: PrivacyPlan) -> dict[str, Any]:
        """The entry of the privacy statement."""
        if not plan.private:
            return {}
        total = self.epsilon_with(plan)
        cost = "no finite epsilon" if total is None else f"epsilon = {epsilon_text(total)} at delta = {plan.delta:g}"
        return {
            "run": self.run,
            "what": (
                "The first models were released by another run. For a client that took part in both, the "
                f"releases of both count: {cost} together. The epsilon stated above is that of this run's "
                "releases alone."
            ),
            "epsilon_together": total,
            "earlier": [{"event": describe(event), "num_releases": count} for event, count in self.parts],
        }


def load_start(run: str, *, method: Method, network: Model, num_clusters: int, plan: PrivacyPlan) -> Start:
    """The models of `run`, if they fit and this run's statement can include their cost."""
    trained = load(run, model=network)
    if trained.method.name != method.name or (trained.num_clusters != num_clusters and not method.asks):
        raise ConfigError(
            f"start_from = {run} trained {trained.num_clusters} models by {trained.method.name}, and this run "
            f"trains {num_clusters} by {method.name}; use the same method and num_clusters."
        )
    file = Path(run) / "summary.json"
    summary = read_mapping(file) if file.exists() else {}
    if not plan.private:
        return Start(run, trained.models, (), summary)
    cost = folder_cost(Path(run))
    if cost is None:
        raise PrivacyError(
            f"start_from = {run} is a run without privacy: its models are raw, and no noise added later would protect "
            "its clients. Start from a private run; models trained on public data are given as a module's weights."
        )
    if plan.secure and not cost.secure:
        raise PrivacyError(
            f"start_from = {run} is a seeded run, for research only; a secure run cannot build on it. Make that run "
            "with --secure too."
        )
    if cost.selected:
        raise PrivacyError(
            f"start_from = {run} is the outcome of a private selection, whose cost cannot be composed with this run's."
        )
    parts = (*cost.earlier, cost.part)
    check_composable([*parts, (plan.event, plan.num_participations)])
    one_relation({cost.adjacency, plan.event.adjacency})
    noise = read_mapping(Path(run) / "privacy.json")["noise"]
    if noise.get("count_weight") and "noise_std" not in noise:
        raise RunFolderError(f"{run}/privacy.json: states no noise_std; the file is damaged. {WAY_OUT}")
    size_noise = noise["noise_std"] / noise["count_weight"] if noise.get("count_weight") else 0.0
    return Start(run, trained.models, parts, summary, size_noise)


def full_statement(plan: PrivacyPlan, start: Start | None) -> dict[str, Any]:
    """The plan's statement, with the total cost including the run whose models it starts from."""
    document = statement(plan)
    if start is None:
        return document
    earlier = start.describe(plan)
    if earlier:  # of a client that took part in both, the releases of both tell more
        risk = document["risk_in_words"].replace("all that was released,", "all that this run alone released,")
        document = document | {"risk_in_words": risk}
    return document | {
        "started_from": earlier,
        "notes": [*([earlier["what"], HOLDS_IF] if earlier else []), *document["notes"]],
    }


_USUAL_SAMPLES = 50  # of a client, where no setting says
_WORK_TO_REPAY = 2e10  # samples of all rounds times parameters above which other processes repay their start
COLUMNS = tuple(name for name, section in FIELDS.items() if section == "columns")
POPULATION_SEED = 0  # public: deals a dataset out to simulated clients if the run itself has no seed


class Deployed(Protocol):
    """Runs the rounds of an experiment whose real clients are elsewhere (rrcluster/federation/)."""

    def rounds(self, experiment: "Experiment", *, checkpoint: Checkpoint, ledger: Ledger) -> Iterator[RoundRecord]:
        """As `simulate`: a record after each round."""

    def stated(self, statement: dict[str, Any]) -> dict[str, Any]:
        """The privacy statement, extended by what each party of the deployment sees."""

    @property
    def digest(self) -> str:
        """The digest of the members' agreement."""


@dataclass(frozen=True)
class Experiment:
    """The parts of one run, made from one config."""

    config: RunConfig
    data: FederatedData
    model: Model
    method: Method
    plan: PrivacyPlan
    engine: Engine
    streams: StreamSource
    local: LocalSettings
    server: ServerSettings
    faults: Faults
    start: Start | None = None  # first models from another run, if any
    deployed: Deployed | None = None  # real clients; `data` then has no samples
    executor: Executor | None = field(default=None, compare=False)  # its workers compute the clients

    @cached_property
    def hosts(self) -> Hosts:
        """The hosts that compute its clients."""
        side = ClientSide(self.method, self.split, self.engine, self.local, self.plan.mechanism)
        host = Host(self.data, side, self.faults, discreet=self.plan.secure)
        load = None
        if self.executor is not None and (self.config.data.from_file or not self.owns_data):
            key = secrets.token_hex(16)
            load = partial(same_population, self.config, key, keyed_digest(self.data, key))
        return Hosts(host, processes=processes_for(self), executor=self.executor, load=load)

    def rounds(self, *, checkpoint: Checkpoint | None = None, ledger: Ledger | None = None) -> Iterator[RoundRecord]:
        """Simulate it, from the start or from a checkpoint."""
        checkpoint = checkpoint or Checkpoint()
        if checkpoint.state is None:
            checkpoint = replace(checkpoint, state=self.first_state)
        if self.deployed is not None:
            assert ledger is not None
            return self.deployed.rounds(self, checkpoint=checkpoint, ledger=ledger)
        return simulate(
            data=self.data,
            model=self.model,
            method=self.method,
            plan=self.plan,
            engine=self.engine,
            streams=self.streams,
            local=self.local,
            server=self.server,
            checkpoint=checkpoint,
            ledger=ledger,
            faults=self.faults,
            hosts=self.hosts,
        )

    @property
    def first_state(self) -> ServerState | None:
        """The state before the first round, if the first models come from another run."""
        if self.start is None:
            return None
        form, state = self.method.form(self.model), ServerState.going_on(self.start.models)
        if form is None:
            return state
        return replace(state, learnt=Questionnaire.going_on(form, self.start.models).tensors())

    @property
    def split(self) -> Split:
        """The split of coordinates into shared, clustered, personal."""
        return self.method.split(self.model)

    @property
    def owns_data(self) -> bool:
        """Whether the data is the user's own rather than a catalogue dataset."""
        return self.deployed is None and self.config.data.data not in SOURCES

    def statement(self) -> dict[str, Any]:
        """Everything a reviewer needs to check the guarantee, as plain data."""
        begins = {"init": self.server.init, "rounds": self.server.init_rounds}
        document = full_statement(self.plan, self.start) | {"initialisation": begins}
        if (form := self.method.form(self.model)) is not None:
            document["questions"] = form.describe()
        uncovered = [OWN_DATA] if self.owns_data else []
        if filled := self.config.columns.filled_from_data or getattr(self.data.encoder, "filled_from_data", ()):
            uncovered.append(f"The rules of {', '.join(filled)}, which were taken from the clients' data.")
        if self.config.data.new_clients:
            uncovered.append("Who is kept out as a new client: one client more can move another in or out of training.")
        document["not_covered"] = [*document["not_covered"], *uncovered]
        if self.plan.private and (code := own_code(self)):
            document["notes"] = [*document["notes"], trust_in(code)]
        return document if self.deployed is None else self.deployed.stated(document)


def build_experiment(**settings: Any) -> Experiment:
    """The experiment of settings by name; `data`, `model` and `algorithm` may be your own objects.

    Data may be a `FederatedData`, or a table with `client`, `target` and other column settings
    (`rrcluster.from_frame`). The number of clients follows from your own data.
    """
    return make_experiment(from_flat(named_settings(settings), source="settings"))


def named_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with objects replaced by names, under which they are registered for this process.

    The run folder can then name them. To resume the run in another process, give the same objects there.
    """
    by_name = _named_data(dict(settings))
    model, method = by_name.get("model"), by_name.get("algorithm")
    loss, metric = by_name.pop("loss", None), by_name.pop("metric", None)
    if (loss or metric) and not isinstance(model, nn.Module):
        raise ConfigError(
            "loss and metric go with an nn.Module as model; give them to from_module(module, loss=..., metric=...) "
            "where the model is a Model."
        )
    if isinstance(model, (Model, nn.Module)):
        made = model if isinstance(model, Model) else from_module(model, loss=loss, metric=metric)
        by_name |= {"model": made.name}
        registry.MODELS.replace(registry.Entry(made.name, lambda *_: made, made.name))
    if isinstance(method, Method):
        by_name |= {"algorithm": method.name}
        label = registry.METHODS.label(method.name)
        registry.METHODS.replace(registry.entry_of("method", method.name, method, label=label))
    return by_name


def _named_data(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the name of a data object, and its number of clients."""
    data = settings.get("data")
    if is_frame(data):
        columns = {name: settings.pop(name) for name in COLUMNS if name in settings}
        for role in ("client", "target"):
            if role not in columns:
                raise ConfigError(f"data is a table, and {role} is not given; name its column, {role}='...'.")
        if settings.get("secure"):  # tests nothing on raw data
            columns = {"test_share": None if "test_column" in columns else 0.0} | columns
        data = from_frame(data, **({"encoding": "cells"} if _reads_cells(settings | columns) else {}) | columns)
    if not isinstance(data, FederatedData):
        return settings
    if settings.get("secure") and "num_clients" not in settings:
        raise ConfigError(
            "a secure run on data of your own needs num_clients, a public constant that you declare; counted from "
            "the data it would tell how many clients there are."
        )
    if names_file(data.name):
        raise ConfigError(f"the data's name = {data.name!r} looks like a file; give it a plain name.")
    registry.DATASETS.replace(registry.entry_of("dataset", data.name, data))
    present = DataSettings(data.name, new_clients=settings.get("new_clients", 0.0)).trained(data.num_clients)
    return {"num_clients": present} | settings | {"data": data.name}


def _reads_cells(settings: Mapping[str, Any]) -> bool:
    """Whether the method of these settings, named or default, reads a table's raw cells."""
    method, network = settings.get("algorithm", "auto"), settings.get("model", "auto")
    if isinstance(method, Method) or not isinstance(network, str):
        return isinstance(method, Method) and method.asks
    chosen = {name: value for name, value in settings.items() if name in FIELDS and FIELDS[name] != "columns"}
    about = {name: settings[name] for name in ("encoding",) if name in settings}
    algorithm = from_flat(chosen | about | {"data": "table.csv"}, resolved=False).algorithm
    return bool(registry.METHODS.fact(algorithm, "reads_cells", False))


def make_experiment(
    config: RunConfig, *, data: FederatedData | None = None, engine: Callable[[Model], Engine] | None = None
) -> Experiment:
    """Load data, make the model, calibrate the noise. All checks happen here, before anything is written.

    `data`: already loaded by an experiment with the same data settings and seed. `engine`: runs the clients instead of
    the config's engine.
    """
    config = config.resolved()
    chosen, mechanism = config.method, config.privacy.mechanism
    method = METHODS[chosen.algorithm]
    check_applies(method, mechanism, chosen.min_cluster_size)
    check_init(method, config.server.init, mechanism, chosen.min_cluster_size)
    k = method.num_clusters(chosen.num_clusters)
    make_schedule(config.server, num_rounds=config.privacy.num_rounds)
    plan = plan_for(config)  # refuses a bad budget before any file is read
    data = data or load_population(config)
    plan.sampler.check_population(data.num_clients)
    if plan.secure and method.for_population is not Method.for_population:
        raise PrivacyError(
            f"algorithm = {chosen.algorithm} uses the true groups, which epsilon does not cover; it is a "
            "reference for rehearsals: leave --secure out, or choose another method."
        )
    method = method.for_population(method, data)
    if data.columns is not None and not registry.METHODS.fact(chosen.algorithm, "reads_cells", False):
        raise ConfigError(
            f"algorithm = {chosen.algorithm} needs numeric columns, but encoding = cells gives values and "
            "codes; set --features declared (encoding=), or choose a method that reads cells."
        )
    ids = data.input_dtype == IDS
    network = make_model(chosen.model, input_shape=data.input_shape, num_classes=data.num_classes, ids=ids)
    network = fitted(network, data)
    model = method.adapt(network)
    first = config.server.start_from
    start = load_start(first, method=method, network=network, num_clusters=k, plan=plan) if first else None
    model = _with_questions(model, method, data, config, plan, start)
    _check_evaluated(config, method, data, model)
    if not config.local.plain_sgd:
        model = replace(model, accelerated="")  # its own code computes only plain SGD
    plan = plan.with_coordinates(method.coordinates(model))
    # First updates of deep networks tell groups less clearly, so by default there is no survey of them.
    applies = model.one_layer and allows_survey(method, mechanism, chosen.min_cluster_size)
    server = resolve_init(config.server, plan, survey_applies=applies)
    check_memory(method, model, plan)
    return Experiment(
        config=config,
        data=data,
        model=model,
        method=method,
        plan=plan,
        engine=(engine or partial(engine_for, config))(model),
        streams=SecureStreams() if config.seed is None else Streams(config.seed),
        local=config.local,
        server=server,
        faults=Faults(config.faults),
        start=start,
    )


def _with_questions(
    model: Model, method: Method, data: FederatedData, config: RunConfig, plan: PrivacyPlan, start: Start | None
) -> Model:
    """The model with the questions of a run of this config, if clients answer questions."""
    if not method.asks:
        return model
    if plan.mechanism.slots.count > 1:
        raise ConfigError(
            f"algorithm = {method.name} asks everybody the same, and slots take turns; use participation = "
            "everybody, or poisson."
        )
    chosen = config.method
    form = form_for(
        model, data, num_rounds=plan.num_rounds, most_clusters=chosen.num_clusters, personal=chosen.personal
    )
    if form is not None and start is not None:
        form = replace(form, begun=start.models.num_clusters)
    return replace(model, form=form)


_OBJECTS = ("data", "model", "algorithm")


def with_objects(
    path: Path, objects: Mapping[str, Any], make: Callable[[RunConfig], Experiment] = make_experiment
) -> Callable[[RunConfig], Experiment]:
    """The constructor for the run in `path`, given its objects; different objects and settings are refused.

    A data file may have moved; its content is compared when the run is resumed.
    """
    by_name = named_settings(objects)
    for name in by_name.keys() - {*_OBJECTS, "num_clients"}:
        raise ConfigError(f"{name} is a setting of the run, and resume takes those from its folder; leave it out.")
    names = {name: str(by_name[name]) for name in _OBJECTS if name in by_name}

    def make_again(config: RunConfig) -> Experiment:
        started = {"data": config.data.data, "model": config.method.model, "algorithm": config.method.algorithm}
        for name, value in names.items():
            moved = name == "data" and config.data.from_file and names_file(value)
            if value != started[name] and not moved:
                raise ConfigError(f"{path}: the run was started with {name} = {started[name]}, not {value}; give that.")
        return make(replace(config, data=replace(config.data, data=names.get("data", config.data.data))))

    return make_again


def processes_for(experiment: Experiment) -> int:
    """The number of processes for clients: as requested, or one per core where a run is long enough to repay them.

    Depends on settings alone; no bit of a result depends on it.
    """
    config, plan = experiment.config, experiment.plan
    if experiment.engine.device.type != "cpu" or experiment.deployed is not None:
        return 1
    if config.output.processes is not None:
        return config.output.processes
    clients = plan.sampler.expected_size
    if clients <= experiment.engine.part:  # a single part
        return 1
    samples = clients * (config.data.samples_per_client or config.data.max_samples or _USUAL_SAMPLES)
    work = samples * config.local.local_epochs * experiment.model.num_parameters * plan.num_rounds
    return cores() if work >= _WORK_TO_REPAY else 1


def load_population(config: RunConfig) -> FederatedData:
    """The clients of a config: a function of its data settings and its seed."""
    if config.data.from_file:
        return _checked_population(load_table(config.data.data, config.columns), config)
    if config.data.table_columns:
        file = table_file(config.data.data, config.data.data_folder)
        return _checked_population(load_table(str(file), config.columns, name=config.data.data), config)
    dataset = registry.DATASETS.load(config.data.data)
    if isinstance(dataset, FederatedData):
        return _checked_population(dataset, config)
    data = load_federated(
        config.data.data,
        num_clients=config.data.population_size,
        seed=POPULATION_SEED if config.seed is None else config.seed,
        partition=None if config.data.data in GENERATED else config.data.partition,
        ratio=config.data.ratio or None,
        samples_per_client=config.data.samples_per_client,
        concentration=config.data.concentration if config.data.partition == "dirichlet" else None,
        folder=config.data.data_folder,
    )
    return data if config.data.max_samples is None else at_most(data, config.data.max_samples)


def same_population(config: RunConfig, key: str, digest: str) -> FederatedData:
    """The clients of a config that another process has loaded too; DataError if they differ."""
    data = load_population(config)
    if keyed_digest(data, key) != digest:
        raise DataError(f"{data.name} is not the same on a worker as where the run was started; give both one copy.")
    return data


def _checked_population(data: FederatedData, config: RunConfig) -> FederatedData:
    """A ready-made population, with at most as many samples as the settings allow."""
    check_declared(data, secure=config.privacy.secure)
    check_names(data, secure=config.privacy.secure, num_slots=config.privacy.num_slots)
    data = data if config.data.max_samples is None else at_most(data, config.data.max_samples)
    return without_newcomers(data, config.data.new_clients) if config.data.new_clients else data


def check_declared(data: FederatedData, *, secure: bool) -> None:
    """Warn of constants taken from the data and of values outside the rules; in a secure run refuse the former.

    In a rehearsal a table's types need no warning: they only change if they were inferred from all rows.
    """
    if secure:
        refuse_undeclared(data)
        return
    for name, share in data.outside_rules.items():
        rules = data.encoder or ColumnSettings()
        what = "a number or date that is read as text; write 1.5 and 2024-01-31"
        what = "a value outside its categories, read as (other)" if name in rules.vocabulary else what
        what = "no ISO date, treated as missing" if name in rules.date_parts else what
        if share:
            warnings.warn(f"column {name!r}: {share:.2%} of rows have {what}.", NotDeclared, stacklevel=3)
    for name, text in undeclared(data).items():
        if name in ("regression", "features") or (name != "types" and data.num_classes):
            warnings.warn(f"{text}.", NotDeclared, stacklevel=3)


def engine_for(config: RunConfig, model: Model) -> Engine:
    """The engine of a config."""
    output = config.output
    return pick_engine(
        output.engine,
        model=model,
        device=pick_device(output.device),
        capacity=output.capacity,
        precision=output.precision,
        alone=config.privacy.secure,
    )


def _check_evaluated(config: RunConfig, method: Method, data: FederatedData, model: Model) -> None:
    """Refuse private evaluation without an accuracy or a released model, and held-out rows that are never used."""
    if not config.privacy.private_evaluation:
        if config.privacy.secure and data.encoder is not None and data.held_out:
            raise ConfigError(
                "test_share (or test_column) holds out rows that a secure run without private evaluation never looks "
                "at; set private_evaluation (0.25 is usual; not for mixed-effects), or train on all rows."
            )
        return
    if not data.num_classes and model.task.metric is None:
        raise ConfigError(
            f"private_evaluation reports accuracies, and {config.data.data} is regression, which has none; "
            "set it to 0, or give a metric with values in 0 to 1 (others are clipped)."
        )
    if method.personal:
        raise ConfigError(
            f"private_evaluation judges released models, but algorithm = {method.name} gives every client its "
            "own model; set it to 0."
        )


def plan_for(config: RunConfig) -> PrivacyPlan:
    """The privacy plan of a config, for reports of one coordinate."""
    return config.plan(METHODS[config.method.algorithm].num_clusters(config.method.num_clusters))
