"""Every setting of a run, declared once: type, default, one line of help. The CLI, run folders and docs derive from it.

Field names are unique across the sections, so a YAML file is a flat mapping of them.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rrcluster import checks
from rrcluster.errors import ConfigError

Flag = tyro.conf.arg


@dataclass(frozen=True)
class DataConfig:
    """The population: who the clients are and how they differ."""

    data: Literal[
        "fashion-mini",
        "fashion-mnist",
        "emnist",
        "emnist-balanced",
        "emnist-bymerge",
        "cifar10",
        "cifar100",
        "shakespeare",
        "synthetic",
        "synthetic-balanced-easy",
        "synthetic-balanced-hard",
        "synthetic-imbalanced-easy",
        "synthetic-imbalanced-hard",
    ] = "fashion-mini"
    """Dataset; fashion-mini comes with the package, `rrcluster data get NAME` gets the others, or says how."""
    partition: Literal["rotation", "rotation-imbalanced", "dirichlet", "role", "label-flip"] = "rotation"
    """How clients differ (shakespeare is by role; the synthetic sets draw their own groups)."""
    concentration: float = 0.5
    """dirichlet: how even a client's labels are; small values give it few classes."""
    num_clients: Annotated[int, Flag(name="clients")] = 1000
    """Clients in the population (M), a declared constant."""
    samples_per_client: int | None = None
    """Every client draws this many images for itself, by formula, instead of being dealt its share of them: for
    populations of any size. Default: dealt; 40 where fashion-mini has more clients in a group than images."""
    max_samples: int | None = None
    """Most samples of a client, for training and for testing, taken at equal distances; default all."""
    data_folder: str | None = None
    """Where the files of `data` are; default: the usual places."""

    def __post_init__(self) -> None:
        checks.count(num_clients=self.num_clients)
        if self.max_samples is not None:
            checks.count(max_samples=self.max_samples)
        checks.positive(concentration=self.concentration)
        if self.samples_per_client is not None:
            checks.count(samples_per_client=self.samples_per_client)
        if self.data_folder is not None:
            checks.path(data_folder=self.data_folder)


@dataclass(frozen=True)
class MethodConfig:
    """The method and its models."""

    algorithm: Literal[
        "ifca",
        "ifca-shared",
        "fesem",
        "fesem-last",
        "fedcam",
        "fedcam-fesem",
        "r-dpcfl",
        "fedavg",
        "fedprox",
        "fedper",
        "mr-mtl",
        "local",
        "oracle",
    ] = "ifca"
    """Federated method; local and oracle are the floor and the ceiling."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Models to train (k); methods without clusters always train one."""
    model: Literal[
        "auto",
        "linear",
        "pooled-linear",
        "edges",
        "edges-coarse",
        "edges-mlp",
        "mlp",
        "cnn",
        "cifar-cnn",
        "lstm",
        "bigram",
        "trigram",
        "fourgram",
    ] = "auto"
    """Network; auto: edges or edges-coarse on images, lstm on text, else linear. On 28x28 images edges (4,420
    parameters), edges-coarse (1,780), pooled-linear (1,970), linear (7,850), cnn (26,010), edges-mlp (90,410), mlp
    (159,010); also cifar-cnn (308,490); for text bigram (6,480), trigram (12,880), fourgram (19,280), lstm
    (819,920)."""
    init: Literal["independent", "kmeans++", "warm"] = "independent"
    """How the k models come to differ: from the start, opened one after another, or copies of a FedAvg phase."""
    init_rounds: int | None = None
    """Rounds that kmeans++ or warm take, of the run's own; default: a tenth, kmeans++ at least one per cluster."""
    rebalance: Literal["auto", "none", "exact", "coin", "shrinkage"] = "auto"
    """How small clusters are helped; auto: coin under joint, exact otherwise, none when B = 0."""
    min_cluster_size: Annotated[int, Flag(name="min-cluster-size", aliases=["-B"])] = 0
    """Rebalance clusters below this size (B); 0 is the base method."""
    size_floor: float | None = None
    """Public lower bound of every denominator; default 0.6 of the expected cluster size."""

    def __post_init__(self) -> None:
        checks.count(num_clusters=self.num_clusters)
        checks.count(min_cluster_size=self.min_cluster_size, at_least=0)
        if self.init_rounds is not None:
            checks.count(init_rounds=self.init_rounds, at_least=0)
        if self.size_floor is not None:
            checks.non_negative(size_floor=self.size_floor)


@dataclass(frozen=True)
class PrivacyConfig:
    """The guarantee: mechanism, budget and noise."""

    mechanism: Literal["joint", "identifier", "none"] = "joint"
    """joint (add-remove, Poisson), identifier (the paper's; replace-one, fixed size) or none."""
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
    identifier: Literal["gaussian", "kary", "exponential", "permute-and-flip", "projection"] = "gaussian"
    """identifier: how choices are privatised: from the choice (gaussian, kary), from the losses (exponential,
    permute-and-flip), or, in r-dpcfl, from a projection of the update."""
    identifier_share: float | Literal["auto"] = 0.5
    """identifier: share of the round's budget that the choices get; auto: the least error by docs/privacy.md."""
    identifier_loss_bound: float = 1.0
    """identifier by loss: how much a loss above the client's least counts at most."""
    accountant: Literal["pld", "rdp", "paper"] = "pld"
    """Accountant the noise is calibrated by."""
    sampling: Literal["poisson", "fixed-size"] | None = None
    """Assert how cohorts are sampled; each mechanism has its own law."""
    adjacency: Literal["add-remove", "replace-one"] | None = None
    """Assert the neighbouring relation; each mechanism has its own."""
    private_evaluation: float = 0.0
    """joint: weight of accuracy and loss inside every release, in units of the clip; 0 is off, 0.25 is usual."""
    evaluation_loss_bound: float = 4.0
    """Private evaluation: a client's loss is clipped to this."""
    secure: bool = False
    """Release for real: exact noise from the operating system, no seed, no diagnostics."""
    reserve_rounds: int = 0
    """Calibrate the noise for this many more releases: rounds that a crash makes a secure run repeat."""
    max_epsilon: float | None = None
    """Stop before the round that would bring epsilon above this."""

    def __post_init__(self) -> None:
        checks.positive(delta=self.delta)
        checks.positive(update_clip=self.update_clip)
        checks.non_negative(count_weight=self.count_weight)
        if not isinstance(self.identifier_share, str):
            checks.fraction(identifier_share=self.identifier_share)
        checks.positive(identifier_loss_bound=self.identifier_loss_bound)
        checks.non_negative(private_evaluation=self.private_evaluation)
        checks.positive(evaluation_loss_bound=self.evaluation_loss_bound)
        checks.count(reserve_rounds=self.reserve_rounds, at_least=0)
        if self.max_epsilon is not None:
            checks.positive(max_epsilon=self.max_epsilon)
            if self.mechanism == "none":
                raise ConfigError("mechanism = none has no epsilon, so max_epsilon cannot be kept; leave it out.")
        if self.epsilon is not None:
            checks.positive(epsilon=self.epsilon)
        if self.noise_multiplier is not None:
            checks.positive(noise_multiplier=self.noise_multiplier)

    @property
    def target_epsilon(self) -> float | None:
        """The epsilon to calibrate to: the one given, else 4, else none when the noise is given or there is none."""
        if self.mechanism == "none" or self.noise_multiplier is not None:
            return self.epsilon
        return 4.0 if self.epsilon is None else self.epsilon


@dataclass(frozen=True)
class TrainingConfig:
    """Rounds, local training and the server's step."""

    sample_rate: float = 0.1
    """Share of the clients in a round (q)."""
    num_rounds: Annotated[int, Flag(name="rounds")] = 100
    """Rounds (T)."""
    local_lr: float = 0.05
    """Learning rate of the clients' SGD."""
    local_epochs: int = 5
    """Passes over the client's data per round."""
    batch_size: int = 20
    """Samples per SGD step."""
    proximal: float = 0.0
    """Pull towards the server's model in fedprox and mr-mtl; 0: the method's own default."""
    server_lr: float = 1.0
    """Factor on the released means."""
    server_momentum: float = 0.0
    """Momentum of the server's step."""
    memory: float = 0.9
    """Memory of the running averages of released sizes and sums."""
    exploration: float = 1.0
    """How strongly early rounds tell clusters apart; 0 is the base method throughout, better where no groups exist."""
    average_last: float = 0.5
    """Hand out the mean of the models over this last part of the rounds; 0: the last models."""

    def __post_init__(self) -> None:
        checks.rate(sample_rate=self.sample_rate)
        checks.count(num_rounds=self.num_rounds)
        checks.positive(local_lr=self.local_lr)
        checks.count(local_epochs=self.local_epochs)
        checks.count(batch_size=self.batch_size)
        checks.non_negative(proximal=self.proximal)
        checks.positive(server_lr=self.server_lr)
        checks.fraction(server_momentum=self.server_momentum)
        checks.fraction(memory=self.memory)
        checks.non_negative(exploration=self.exploration)
        if self.average_last != 1:
            checks.fraction(average_last=self.average_last)


@dataclass(frozen=True)
class FaultConfig:
    """Clients that fail or lie (simulated; the guarantee stays what it is)."""

    dropout: float = 0.0
    """Share of the sampled clients that drop out; nobody replaces them."""
    hostile: float = 0.0
    """Share of the others that send nonsense: NaN, huge norms, wrong shapes, duplicates."""

    def __post_init__(self) -> None:
        checks.share(dropout=self.dropout)
        checks.share(hostile=self.hostile)


@dataclass(frozen=True)
class OutputConfig:
    """Seeds, machine and output."""

    name: str | None = None
    """Name of the run; default: made from the method and the budget."""
    seed: int | None = 0
    """Seed of everything random; none with --secure."""
    seeds: tuple[int, ...] = ()
    """Several seeds: one run each, in folders seed-N."""
    out: Path | None = None
    """Run folder; default runs/<name>."""
    device: str = "auto"
    """auto, cpu or cuda."""
    engine: Literal["auto", "batched", "reference", "workers"] = "auto"
    """How clients are run; all engines give the same numbers."""
    capacity: int | None = None
    """Most clients trained together (bounds memory, never changes results); default: what suits the model."""
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """CUDA: how operands of matrix products are rounded; auto: tf32."""
    evaluate_every: int | None = None
    """Rounds between diagnostic evaluations; default: ten in a run."""
    tensorboard: bool = False
    """Also write TensorBoard events (diagnostics are tagged as such)."""
    keep_checkpoint: bool = False
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


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "method": MethodConfig,
    "privacy": PrivacyConfig,
    "training": TrainingConfig,
    "faults": FaultConfig,
    "output": OutputConfig,
}
FIELDS: dict[str, str] = {
    setting.name: section for section, kind in SECTIONS.items() for setting in fields(kind)
}  # setting -> section
