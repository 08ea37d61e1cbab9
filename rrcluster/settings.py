"""Every setting, declared once and without torch: type, default, check, help, and what it affects.

The sections below are the command line's, the keys of a YAML file (flat: field names are unique across sections), and
what the code itself takes: a plan takes `PrivacySettings`, an engine `LocalSettings`, the server `ServerSettings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from rrcluster import checks, registry
from rrcluster.data_settings import DISPLAY, PLACE, ColumnSettings, DataSettings, Flag
from rrcluster.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")
Participation = Literal["poisson", "schedule", "everybody"]
Identifier = Literal["gaussian", "kary"]
Accountant = Literal["pld", "rdp", "paper"]
Optimizer = Literal["sgd", "adam"]
Init = Literal["auto", "survey", "independent"]
EngineName = Literal["auto", "batched", "reference"]
Precision = Literal["auto", "float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class MethodSettings:
    """The method and its models."""

    algorithm: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.METHODS.hint)] = "ifca"
    """Federated method; local (no federation) and oracle (true groups given) are reference points."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Models to train (k); methods without clusters always train one."""
    model: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.MODELS.hint)] = "auto"
    """Network; auto: the usual one of the data (edges or edges-coarse on images, lstm on text, else linear), with more
    layers (edges-mlp, mlp) for methods that split off the last one."""
    min_cluster_size: Annotated[int, Flag(name="min-cluster-size", aliases=["-B"])] = 0
    """Rebalance clusters below this size (B): by clients' own coins under joint, exactly otherwise; 0 is the base
    method."""
    size_floor: float | None = None
    """Public lower bound of every denominator; default 0.6 of the expected cluster size."""

    def __post_init__(self) -> None:
        registry.METHODS.check(algorithm=self.algorithm)
        if self.model != "auto":
            registry.MODELS.check(model=self.model)
        checks.count(num_clusters=self.num_clusters)
        checks.count(min_cluster_size=self.min_cluster_size, at_least=0)
        if self.size_floor is not None:
            checks.non_negative(size_floor=self.size_floor)


@dataclass(frozen=True)
class PrivacySettings:
    """The guarantee: mechanism, sampling, rounds, budget and noise."""

    mechanism: Annotated[str, Flag(metavar="NAME", help_behavior_hint=registry.MECHANISMS.hint)] = "joint"
    """joint (add-remove, Poisson cohorts), identifier (the paper's; replace-one, cohorts of fixed size) or none."""
    sample_rate: float = 0.1
    """Share of the clients in a round (q); schedule, everybody: not used."""
    participation: Participation = "poisson"
    """joint: who takes part: a secret sample of all clients; everybody of a public slot; everybody in every round."""
    slots: int | None = field(
        default=None,
        metadata={"hint": "which client is in which slot follows from slot_key: slots by hand may depend on data"},
    )
    """schedule: number of slots (b); a client takes part once in b rounds, and noise is correlated over rounds."""
    slot_key: str = "rrcluster"
    """Public key under which clients' ids are hashed to slots; fix it before anybody enrols."""
    num_rounds: Annotated[int, Flag(name="rounds")] = 100
    """Rounds (T)."""
    epsilon: float | None = None
    """Target epsilon; the noise is calibrated to it. Default 4, unless noise_multiplier is given."""
    delta: float = 1e-4
    """Target delta; at most 1/(10 M) is advised, more than 1/M refused."""
    noise_multiplier: float | None = None
    """Noise std / sensitivity (of the whole round), instead of epsilon."""
    update_clip: float = 0.4
    """Largest L2 norm of a client's update (C)."""
    count_weight: float = 0.25
    """joint: weight of the count row, in units of the clip."""
    identifier: Identifier = "gaussian"
    """identifier: how choices are privatised: Gaussian noise, or k-ary randomised response."""
    identifier_share: float = 0.5
    """identifier: share of the round's budget that the choices get."""
    accountant: Accountant = "pld"
    """Accountant the noise is calibrated by."""
    private_evaluation: float = 0.0
    """joint: weight of accuracy and loss inside every release, in units of the clip; 0 is off, 0.25 is usual."""
    evaluation_loss_bound: float = 4.0
    """Private evaluation: a client's loss is clipped to this."""
    secure: bool = False
    """Release for real: exact noise from the operating system, no seed, no diagnostics."""
    reserve_rounds: int = 0
    """Calibrate the noise for this many more releases: rounds that a crash makes a secure run repeat."""
    max_epsilon: float | None = None
    """End the plan before the round that would bring epsilon above this."""

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        registry.MECHANISMS.check(mechanism=self.mechanism)
        checks.rate(sample_rate=self.sample_rate)
        if checks.count(num_rounds=self.num_rounds) > MAX_ROUNDS:
            raise ConfigError(f"num_rounds = {self.num_rounds} is more than {MAX_ROUNDS}, the most that is accounted.")
        if checks.count(reserve_rounds=self.reserve_rounds, at_least=0) > MAX_ROUNDS:
            raise ConfigError(
                f"reserve_rounds = {self.reserve_rounds} is more than {MAX_ROUNDS}, the most that is accounted."
            )
        checks.one_of(get_args(Participation), participation=self.participation)
        checks.slots(self.participation, self.slots, num_rounds=self.num_rounds, reserve_rounds=self.reserve_rounds)
        checks.positive(delta=self.delta)
        checks.positive(update_clip=self.update_clip)
        checks.non_negative(count_weight=self.count_weight)
        checks.one_of(get_args(Identifier), identifier=self.identifier)
        checks.one_of(get_args(Accountant), accountant=self.accountant)
        checks.fraction(identifier_share=self.identifier_share)
        checks.non_negative(private_evaluation=self.private_evaluation)
        checks.positive(evaluation_loss_bound=self.evaluation_loss_bound)
        if self.max_epsilon is not None:
            checks.positive(max_epsilon=self.max_epsilon)
            if self.mechanism == "none":
                raise ConfigError("mechanism = none has no epsilon, so max_epsilon cannot be kept; leave it out.")
        if self.epsilon is not None:
            checks.positive(epsilon=self.epsilon)
        if self.noise_multiplier is not None:
            checks.positive(noise_multiplier=self.noise_multiplier)

    @property
    def num_slots(self) -> int:
        """b; 1 where everybody may take part in every round."""
        return self.slots or 1

    @property
    def slot_rate(self) -> float:
        """q': the probability with which a client that may take part does."""
        return 1.0 if self.participation in ("schedule", "everybody") else self.sample_rate

    @property
    def cohort_share(self) -> float:
        """Share of the clients that is expected in a round."""
        return self.slot_rate / self.num_slots

    @property
    def target_epsilon(self) -> float | None:
        """The epsilon to calibrate to: the one given, else 4, else none when the noise is given or there is none."""
        if self.mechanism == "none" or self.noise_multiplier is not None:
            return self.epsilon
        return 4.0 if self.epsilon is None else self.epsilon


MAX_ROUNDS = 1_000_000


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains."""

    local_lr: float = 0.05
    """Learning rate of the clients."""
    local_epochs: int = 5
    """Passes over the client's data per round."""
    batch_size: int = 20
    """Samples per step."""
    proximal: float = 0.0
    """Pull towards the server's model in fedprox and mr-mtl; 0: the method's own default."""
    local_optimizer: Optimizer = "sgd"
    """Optimiser of the clients; its state is fresh in every round."""
    local_momentum: float = 0.0
    """Momentum of the clients' SGD."""

    def __post_init__(self) -> None:
        checks.one_of(get_args(Optimizer), local_optimizer=self.local_optimizer)
        checks.fraction(local_momentum=self.local_momentum)
        if self.local_momentum and self.local_optimizer == "adam":
            raise ConfigError(
                f"local_momentum = {self.local_momentum:g} is for local_optimizer = sgd; adam has its own, set it to 0."
            )
        checks.positive(local_lr=self.local_lr)
        checks.count(local_epochs=self.local_epochs)
        checks.count(batch_size=self.batch_size)
        checks.non_negative(proximal=self.proximal)

    @property
    def plain_sgd(self) -> bool:
        """SGD without momentum."""
        return self.local_optimizer == "sgd" and not self.local_momentum


@dataclass(frozen=True)
class ServerSettings:
    """How the server moves the models and guides clients."""

    server_lr: float = 1.0
    """Factor on the released means."""
    server_momentum: float = 0.0
    """Momentum of the server's step."""
    memory: float = 0.9
    """Memory of the running average of released sizes."""
    exploration: float = 1.0
    """Strength of exploration in early rounds, which separates the clusters; 0: none (better where no groups exist)."""
    average_last: float = 0.5
    """Part of the rounds, from the end, over which the final models are averaged; 0: the last models."""
    init: Init = "auto"
    """First models: one for each group that early rounds find, at most k (survey), or independent random ones. auto:
    survey for ifca with one trained layer and B = 0 where noise leaves enough to find groups, else independent."""
    init_rounds: int | None = None
    """How many of the run's rounds a survey takes; default: as many as the noise asks for: at least 9 and at most 22%
    of the run, but 4 in short runs."""
    start_from: Annotated[str | None, Flag(metavar="RUN")] = None
    """Start from the models of this finished run, not from random ones; what both cost adds up, and is stated."""

    def __post_init__(self) -> None:
        checks.positive(server_lr=self.server_lr)
        checks.fraction(server_momentum=self.server_momentum)
        checks.fraction(memory=self.memory)
        checks.non_negative(exploration=self.exploration)
        if self.average_last != 1:
            checks.fraction(average_last=self.average_last)
        checks.one_of(get_args(Init), init=self.init)
        if self.init_rounds is not None:
            checks.count(init_rounds=self.init_rounds, at_least=0)
        if self.start_from is not None:
            checks.path(start_from=self.start_from)
        if self.start_from is not None and self.init not in ("auto", "independent"):
            raise ConfigError(f"init = {self.init} makes first models, and start_from gives them; leave one out.")


@dataclass(frozen=True)
class FaultSettings:
    """Simulated clients that drop out or send invalid reports; the guarantee is unaffected."""

    dropout: float = 0.0
    """Share of the sampled clients that drop out; nobody replaces them."""
    hostile: float = 0.0
    """Share of the others that send invalid reports: NaN, huge norms, wrong shapes, duplicates."""

    def __post_init__(self) -> None:
        checks.share(dropout=self.dropout)
        checks.share(hostile=self.hostile)


@dataclass(frozen=True)
class OutputSettings:
    """Seeds, machine and output."""

    name: str | None = field(default=None, metadata=PLACE)
    """Name of the run; default: made from the method and the budget."""
    seed: int | None = 0
    """Seed of everything random; none with --secure."""
    seeds: tuple[int, ...] = field(default=(), metadata=PLACE)
    """Several seeds: one run each, in folders seed-N."""
    out: Path | None = field(default=None, metadata=PLACE)
    """Run folder; default runs/<name>."""
    device: str = field(default="auto", metadata=PLACE)
    """auto, cpu or cuda."""
    engine: EngineName = field(default="auto", metadata=PLACE)
    """How clients are run; all engines give the same numbers."""
    processes: int | None = field(default=None, metadata=PLACE)
    """Processes that compute clients; no bit depends on how many. Default: one per core where a run is long enough."""
    capacity: int | None = None
    """Most clients trained together (bounds memory, never changes results); default: what suits the model."""
    precision: Precision = "auto"
    """CUDA: how operands of matrix products are rounded; auto: tf32."""
    evaluate_every: int | None = field(default=None, metadata=DISPLAY)
    """Rounds between diagnostic evaluations; default: ten in a run."""
    personalise: bool = field(default=False, metadata=DISPLAY)
    """At the end, also measure what clients end up with when each fits its model to its own data (diagnostic)."""
    tensorboard: bool = field(default=False, metadata=DISPLAY)
    """Also write TensorBoard events (diagnostics are tagged as such)."""
    keep_checkpoint: bool = field(default=False, metadata=DISPLAY)
    """Keep checkpoint/ after the run has finished."""

    def __post_init__(self) -> None:
        if self.name is not None:
            checks.file_name(name=self.name)
        if self.out is not None:
            checks.path(out=self.out)
        if self.seed is not None:
            checks.count(seed=self.seed, at_least=0)
        for seed in self.seeds:
            checks.count(seeds=seed, at_least=0)
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds = {list(self.seeds)} names a seed twice; name each once.")
        if self.evaluate_every is not None:
            checks.count(evaluate_every=self.evaluate_every)
        if self.capacity is not None:
            checks.count(capacity=self.capacity)
        if self.processes is not None:
            checks.count(processes=self.processes)


SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "columns": ColumnSettings,
    "method": MethodSettings,
    "privacy": PrivacySettings,
    "local": LocalSettings,
    "server": ServerSettings,
    "faults": FaultSettings,
    "output": OutputSettings,
}
FIELDS: dict[str, str] = {
    setting.name: section for section, kind in SECTIONS.items() for setting in fields(kind)
}  # setting -> section
AFFECTS: dict[str, str] = {
    setting.name: setting.metadata.get("affects", "result") for kind in SECTIONS.values() for setting in fields(kind)
}  # setting -> "result", "place" or "display"

# Settings that are gone, and what replaces them.
REMOVED: dict[str, str] = {
    "rebalance": "small clusters are helped by coins under joint and exactly otherwise; set min_cluster_size alone",
    "sampling": "every mechanism has its own sampling; choose the mechanism",
    "adjacency": "every mechanism has its own neighbouring relation; choose the mechanism",
    "public_score": "a selection scores runs by private_evaluation, inside its budget",
    "correlation": "a schedule correlates its noise by the square root, than which nothing was better",
    "identifier_loss_bound": "identifiers read the choice alone; use identifier = gaussian or kary",
}


# Values of settings that are gone, and what replaces them.
_SURVEY = "use init = survey, which finds the groups first, or init = independent"
REMOVED_VALUES: dict[str, dict[str, str]] = {
    "init": {"warm": _SURVEY, "kmeans++": _SURVEY},
    "participation": {"within-slot": "use schedule, which needs no secret, or poisson, which has less noise"},
    "engine": {"workers": "clients are computed in several processes by themselves (processes = N), by any engine"},
}


def refuse_removed(name: str, value: object = None, *, source: str = "") -> None:
    """ConfigError for a setting, or a value of one, that is gone: it says what replaces it."""
    where = f"{source}: " if source else ""
    if name in REMOVED:
        raise ConfigError(f"{where}setting {name!r} is gone: {REMOVED[name]}.")
    if isinstance(value, str) and value in REMOVED_VALUES.get(name, {}):
        raise ConfigError(f"{where}{name} = {value} is gone: {REMOVED_VALUES[name][value]}.")


def changed(section: Section, changes: Mapping[str, Any]) -> Section:
    """A section with some settings changed; ConfigError for a name that it does not have."""
    known = [setting.name for setting in fields(section)]
    for name in changes:
        refuse_removed(name, changes[name])
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ConfigError(
                f"setting {name!r} is not known; "
                + (f"did you mean {near[0]!r}?" if near else f"use {', '.join(known)}.")
            )
    return replace(section, **changes)


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run folder that an earlier version wrote, without those that are gone."""
    gone = {
        name
        for name, value in settings.items()
        if name in REMOVED or (isinstance(value, str) and value in REMOVED_VALUES.get(name, ()))
    }
    return {name: value for name, value in settings.items() if name not in gone}
