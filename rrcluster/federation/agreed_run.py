"""From an agreement to everything that server and members compute with: one function for both sides.

There is no second source: method, network, noise, number of releases and the client's code all come from the agreement,
so a daemon whose operator signed a digest runs the plan of that digest. Every side computes the stated guarantee again
and refuses a different one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rrcluster import registry
from rrcluster.client import ClientSide
from rrcluster.data.federated import FLOAT, IDS, FederatedData, Inputs, Targets
from rrcluster.data.frames import row_rules
from rrcluster.engine.protocol import Engine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError, DataError, PrivacyError
from rrcluster.federation import agreed_settings
from rrcluster.federation.agreed_settings import MEMBERS
from rrcluster.federation.agreement import Agreement, SampleShape
from rrcluster.federation.secure_plan import SecurePlan
from rrcluster.mixed.questions import Form
from rrcluster.models.model import Model
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.evidence import risk
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.runs.experiment import Experiment, engine_for, make_experiment, plan_for
from rrcluster.server.survey import make_schedule
from rrcluster.settings import AFFECTS, refuse_files
from rrcluster.simulation.clients import ClientMemory

_ALIKE = 1e-6  # relative difference in epsilon that two machines' arithmetic may cause


@dataclass(frozen=True)
class AgreedRun:
    """The run of server and members, made from one agreement. Public: it holds nobody's data."""

    agreement: Agreement
    experiment: Experiment  # its population has no samples: these stay with the members
    side: ClientSide
    secure: SecurePlan | None = None

    @classmethod
    def build(cls, agreement: Agreement, *, trains: bool = True, **own: Any) -> "AgreedRun":
        """Build the run of an agreement that states its guarantee; `own` settings are local (device, out).

        Refuses settings that a member could not honour, and a guarantee that the settings do not give. A side that does
        not train needs no engine.
        """
        run = cls.draft(agreement, trains=trains, **own)
        _check_guarantee(agreement.guarantee, run.guarantee())
        return run

    @classmethod
    def draft(cls, agreement: Agreement, *, trains: bool = False, **own: Any) -> "AgreedRun":
        """The same for an agreement whose guarantee is yet to be stated."""
        config = agreed_config(agreement, **own)
        data = absent_population(agreement.samples, agreement.num_clients, name=config.data.data)
        engine = _alone(config) if trains and config.data.data == MEMBERS else None
        experiment = make_experiment(config, data=data, engine=engine if trains else ReferenceEngine)
        if not experiment.plan.private:
            raise PrivacyError("mechanism = none adds no noise, and a federation states a guarantee; use joint.")
        secure = SecurePlan.build(experiment.plan, agreement) if agreement.secure else None
        if secure is not None:
            _check_forgets(experiment)
            experiment = replace(experiment, plan=secure.plan)
        run = experiment
        side = ClientSide(run.method, run.split, run.engine, run.local, run.plan.mechanism)
        return cls(agreement, experiment, side, secure)

    @property
    def plan(self) -> PrivacyPlan:
        """The privacy plan, in secure mode on the grid of the aggregation."""
        return self.experiment.plan

    @property
    def num_releases(self) -> int:
        """The most attempts that a member joins."""
        return self.plan.num_releases

    def survey_stage(self, round_index: int) -> str | None:
        """The question of the agreed survey in a round; None where clients train alone."""
        place = make_schedule(self.experiment.server, num_rounds=self.plan.num_rounds).place(round_index)
        return None if place is None else place.stage

    @property
    def form(self) -> Form | None:
        """The agreed questionnaire, where clients answer questions on their columns."""
        return self.experiment.method.form(self.experiment.model)

    @property
    def num_models(self) -> int | None:
        """The number of released models; None where releases decide."""
        return self.plan.mechanism.num_clusters if self.form is None else None

    def first_memory(self) -> ClientMemory:
        """The clients' memory before their first round."""
        return ClientMemory(self.experiment.method.memory_width(self.experiment.model))

    def risk(self, event: RoundEvent) -> dict[str, float]:
        """Bounds on guesses about a client's participation, from all rounds of `event`."""
        plan, failure = self.plan, 0.0 if self.secure is None else self.secure.terms.failure_probability
        return risk(
            event,
            num_rounds=plan.num_participations,
            delta=plan.delta,
            accountant=plan.accountant,
            failure_probability=failure,
        )

    def guarantee(self) -> dict[str, Any]:
        """The numbers that operators read before they sign, computed from the settings alone."""
        plan, mechanism = self.plan, self.plan.mechanism
        common = {
            "epsilon": plan.epsilon(),
            "delta": plan.delta if self.secure is None else self.secure.delta,
            "adjacency": plan.event.adjacency if self.secure is None else "zero-out",
            "towards": "observers of the models; the server is trusted with raw reports",
            "num_rounds": plan.num_rounds,
            "num_releases": plan.num_releases,
            "num_clients": mechanism.num_clients,
            "update_clip": mechanism.describe().noise.get("update_clip"),
            "noise_multiplier": plan.noise_multiplier,
            "rehearsal": not plan.secure,
        }
        if self.secure is None:
            return common | {"least_members": self.agreement.least_members}
        return common | {
            "towards": self.secure.towards,
            "epsilon_towards_members": self.secure.epsilon_towards_members(),
            "grid_bits": getattr(mechanism, "grid_bits", None),
            "noise_share_sigma": self.secure.sigma,
            "least_honest": self.agreement.least_honest,
            "least_survivors": self.agreement.least_survivors,
        }


def close(draft: Agreement) -> Agreement:
    """The agreement of a draft: clients counted by the roster, defaults written out, noise calibrated, cost stated.

    The epsilon is replaced by the noise multiplier calibrated to it, so that no two sides calibrate differently; the
    cost is in the guarantee. In plain mode more than half of the members have to be connected in a round, unless the
    draft says another number.
    """
    agreed_settings.register_members()
    given = {**draft.settings, "num_clients": draft.num_clients}
    agreed_settings.check_settings(given, secure=draft.secure)
    config = from_flat(given, source="the settings")
    settings = {name: value for name, value in config.flat().items() if AFFECTS[name] == "result"}
    settings = {**settings, "epsilon": None, "noise_multiplier": plan_for(config).noise_multiplier}
    majority = 0 if draft.secure else draft.least_members or len(draft.members) // 2 + 1
    agreement = replace(draft, settings=settings, guarantee={}, least_members=majority)
    return replace(agreement, guarantee=AgreedRun.draft(agreement).guarantee())


def agreed_config(agreement: Agreement, **own: Any) -> RunConfig:
    """Run settings from the agreed ones; `own` are local to this side and change no result."""
    agreed_settings.register_members()
    agreed_settings.check_samples(agreement.samples)
    agreed_settings.check_settings(agreement.settings, secure=agreement.secure)
    num_clients = agreement.settings.get("num_clients")
    if num_clients != agreement.num_clients:
        raise ConfigError(
            f"the settings are for num_clients = {num_clients} and the roster has {agreement.num_clients}; close the "
            "roster again."
        )
    for name in own:
        if name in agreement.settings:
            raise ConfigError(f"{name} was agreed on by everybody; no side may change it.")
    refuse_files(agreement.settings)
    return from_flat({**agreement.settings, **own}, source="the agreement")


def _alone(config: RunConfig) -> Callable[[Model], Engine]:
    """The config with an engine that computes clients one at a time, so that no bit depends on others' data.

    Computed together, their last bits depend on the other clients and their numbers of samples. Because of one client,
    many could then choose differently between models whose losses a server makes equal to the last bit.
    """
    name = config.output.engine
    if name == "batched":
        raise ConfigError(
            "engine = batched computes clients together, and the guarantee is for clients that compute alone; use "
            "engine = reference, or auto."
        )
    with_engine = replace(config, output=replace(config.output, engine="reference" if name == "auto" else name))
    return partial(engine_for, with_engine)


@dataclass(frozen=True)
class _Absent:
    """Placeholder for samples that stay with the members."""

    def client(self, client: int) -> tuple[Inputs, Targets]:  # noqa: ARG002
        """Raise: there are no samples here."""
        raise DataError("the samples of a federation's clients are with its members, and cannot be read here.")


def absent_population(samples: SampleShape, num_clients: int, *, name: str = MEMBERS) -> FederatedData:
    """A population of which only public constants are known."""
    none = np.zeros(num_clients, dtype=np.int64)
    return FederatedData(
        name=name,
        num_classes=samples.num_classes,
        input_shape=samples.input_shape,
        sizes=none,
        groups=none,
        num_groups=0,
        store=_Absent(),
        test_sets=(),
        test_of=none - 1,
        input_dtype=IDS if samples.ids else FLOAT,
        columns=agreed_settings.agreed_cells(samples.columns),
        encoder=row_rules(agreed_settings.agreed_rules(samples.columns)) if samples.columns else None,
    )


def check_data(data: FederatedData, agreement: Agreement, place: int) -> FederatedData:
    """Refuse a member's population that does not match the agreement."""
    samples, most = agreement.samples, agreement.members[place].num_clients
    facts = {
        "input_shape": (tuple(data.input_shape), samples.input_shape),
        "num_classes": (data.num_classes, samples.num_classes),
        "ids": (data.input_dtype == IDS, samples.ids),
        "columns": (data.columns, agreed_settings.agreed_cells(samples.columns)),
    }
    for name, (value, expected) in facts.items():
        if value != expected:
            raise DataError(f"{data.name} has {name} = {value}, but the agreement says {expected}; encode it anew.")
    if data.num_clients > most:
        raise DataError(
            f"{data.name} has more clients than the {most} that {agreement.members[place].name} enrolled with; leave "
            "some out, or enrol again with more in the next training."
        )
    return data


def _check_forgets(experiment: Experiment) -> None:
    """Refuse methods whose clients have memory: masks only bind the messages of the current attempt."""
    if experiment.method.memory_width(experiment.model):
        raise PrivacyError(
            f"algorithm = {experiment.method.name}: clients have memory, so a server that sends members "
            "different models, and later the same ones, could tell their sums apart; use a method without "
            "memory, such as ifca, fesem-memoryless or fedper-memoryless, or mode = plain."
        )


def _check_guarantee(stated: Mapping[str, Any], computed: Mapping[str, Any]) -> None:
    """Refuse an agreement whose stated numbers differ from those of its settings."""
    for name in sorted({*stated, *computed}):
        claimed, value = stated.get(name), computed.get(name)
        if not _alike(claimed, value):
            raise PrivacyError(
                f"the agreement states {name} = {claimed!r:.60}, and its settings give {value!r:.60}; do not sign it. "
                "Ask for an agreement that was closed by this version of rrcluster."
            )


def _alike(claimed: Any, value: Any) -> bool:
    if isinstance(claimed, float) and isinstance(value, float):
        return math.isclose(claimed, value, rel_tol=_ALIKE)
    return type(claimed) is type(value) and claimed == value


def samples_of(config: RunConfig) -> SampleShape:
    """The shape of samples, from the settings: of a named dataset, or of tables by the rules for columns."""
    from rrcluster.runs.experiment import load_population

    if config.data.data in registry.DATASETS and config.data.data != MEMBERS:
        data = load_population(replace(config, data=replace(config.data, num_clients=4)))
        return SampleShape(tuple(data.input_shape), data.num_classes, data.input_dtype == IDS)
    raise ConfigError("the shape of members' samples must be declared; give input_shape and classes.")
