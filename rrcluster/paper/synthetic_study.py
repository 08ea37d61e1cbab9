"""The synthetic case study: does random rebalancing keep clusters from collapsing? The paper's four scenarios as data.

The paper (appendix on synthetic data) shows one drawing per scenario and method and prints no constant; here every
scenario is run over many seeds, with and without noise, and rates are compared. `data/lines.py` states the lines, this
module all else. Runs are in process and write no folder: `study(seeds=range(100))`.

A cluster has **collapsed** when it is *untrained* (no update has entered its sum in any round) or *dead* (no client of
the population has its least loss there at the end). Exact rebalancing fills every cluster in every round, so that no
cluster is untrained under it by construction; whether it is dead is the question worth asking, and both are reported.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from rrcluster.data.federated import FederatedData
from rrcluster.data.lines import SCENARIOS, noisy_lines
from rrcluster.errors import ConfigError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.setup import Experiment, make_experiment
from rrcluster.rng import Streams
from rrcluster.server_state import ServerState
from rrcluster.simulation.evaluate import choose_all, clustering_accuracy
from rrcluster.simulation.simulate import RoundRecord, simulate
from rrcluster.types import Array, Models

SETTINGS: dict[str, Any] = {  # of all runs; the rest are the defaults of `rrcluster run`
    "num_clients": 200,
    "num_clusters": 4,
    "sample_rate": 0.5,
    "num_rounds": 30,
    "local_lr": 0.1,
    "local_epochs": 2,
    "batch_size": 20,
    "exploration": 0.0,  # IFCA as published; our exploration is what the study must not lean on
    "average_last": 0.0,
    "device": "cpu",
}
# The paper's own study has no noise, and its rebalancing moves finished updates (exact). Coins move clients before they
# train, which is a difference of its own, so that it is also shown with hardly any noise. Its argument is about noise.
NOISES: dict[str, dict[str, Any]] = {
    "no noise, exact": {"mechanism": "none"},
    "hardly any noise, coins": {"mechanism": "joint", "noise_multiplier": 1e-3, "update_clip": 10.0, "delta": 1e-3},
    "epsilon 2, coins": {"mechanism": "joint", "epsilon": 2.0, "update_clip": 0.5, "delta": 1e-3},
}
STARTS = {  # the first models' slopes and intercepts are uniform in plus or minus this; the true ones lie within 2
    "near": 1.0,  # what PyTorch draws for a linear layer with one input
    "far": 4.0,  # some models start where nobody is, as in the paper's drawing of a model left at the bottom
}
SAMPLES = 40  # of every client
METHODS: dict[str, dict[str, Any]] = {
    "IFCA": {"algorithm": "ifca", "min_cluster_size": 0},
    "RR-Cluster (IFCA)": {"algorithm": "ifca", "min_cluster_size": 15},
}
FEDAVG: dict[str, Any] = {"algorithm": "fedavg"}


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    scenario: str
    start: str
    noise: str
    method: str
    seed: int
    untrained: int  # clusters
    dead: int
    clustering_accuracy: float

    @property
    def collapsed(self) -> bool:
        """Whether some cluster was never trained or is dead."""
        return self.untrained > 0 or self.dead > 0


def study(
    seeds: Iterable[int],
    *,
    scenarios: Iterable[str] = tuple(SCENARIOS),
    starts: Iterable[str] = tuple(STARTS),
    noises: Iterable[str] = tuple(NOISES),
) -> Iterator[Outcome]:
    """Every scenario, start, noise, method and seed.

    The methods of one seed share population, first models and cohorts' randomness: they are pairs.
    """
    for scenario, seed in product(tuple(scenarios), tuple(seeds)):
        data = population(scenario, seed)
        for start, noise, method in product(tuple(starts), tuple(noises), METHODS):
            it = experiment(data, scenario, seed, NOISES[noise] | METHODS[method])
            yield outcome(it, start=start, noise=noise, method=method)


def population(scenario: str, seed: int) -> FederatedData:
    """The clients of one seed: `SAMPLES` points each, on the lines of data/lines.py."""
    it = SCENARIOS[scenario]
    return noisy_lines(
        scenario,
        num_clients=SETTINGS["num_clients"],
        ratio=it.ratio,
        noise_std=it.noise_std,
        sizes=(SAMPLES, SAMPLES),
        rng=Streams(seed)("data"),
    )


def experiment(data: FederatedData, scenario: str, seed: int, settings: Mapping[str, Any]) -> Experiment:
    """One run of the study, ready to go."""
    config = from_flat({**SETTINGS, "data": scenario, "seed": seed, **settings}, source="synthetic study")
    return make_experiment(config, data=data)


def final_models(it: Experiment, *, start: str) -> tuple[Models, Array]:
    """Run to the end: the models, and how many updates entered each cluster's sum in all rounds together (k,)."""
    k = it.plan.mechanism.num_clusters
    first = it.streams("first lines").uniform(-STARTS[start], STARTS[start], size=(k, it.model.num_parameters))
    state, received = ServerState.fresh(it.split.models(first)), np.zeros(k)
    for record in simulate(
        data=it.data,
        model=it.model,
        algorithm=it.algorithm,
        plan=it.plan,
        engine=it.engine,
        streams=it.streams,
        local=it.local,
        server=it.server,
        state=state,
    ):
        state, received = record.state, received + _received(it, record)
    return state.models, received


def outcome(it: Experiment, *, start: str, noise: str, method: str) -> Outcome:
    """Run to the end and look at the clusters."""
    k = it.plan.mechanism.num_clusters
    models, received = final_models(it, start=start)
    choices = choose_all(models, it.data, algorithm=it.algorithm, split=it.split, engine=it.engine)
    return Outcome(
        scenario=it.data.name,
        start=start,
        noise=noise,
        method=method,
        seed=int(it.config.output.seed or 0),
        untrained=int((received == 0).sum()),
        dead=int((np.bincount(choices, minlength=k) == 0).sum()),
        clustering_accuracy=clustering_accuracy(choices, it.data.groups, k, it.data.num_groups),
    )


def fitted_lines(
    seed: int,
    *,
    scenarios: Iterable[str] = tuple(SCENARIOS),
    start: str = "far",
    noise: str = "no noise, exact",
) -> dict[str, dict[str, Array]]:
    """The paper's figure as data: for every scenario, the (k, 2) slopes and intercepts that each method ends with."""
    found: dict[str, dict[str, Array]] = {}
    for scenario in scenarios:
        data = population(scenario, seed)
        for method, settings in {"FedAvg": FEDAVG, **METHODS}.items():
            it = experiment(data, scenario, seed, NOISES[noise] | settings)
            models, _ = final_models(it, start=start)
            found.setdefault(scenario, {})[method] = it.split.vectors(models)
    return found


def _received(it: Experiment, record: RoundRecord) -> Array:
    """(k,) updates that entered each cluster's sum this round; at least one each where exact rebalancing fills them."""
    reports, mechanism = record.reports, it.plan.mechanism
    if reports is None:
        raise ConfigError("the study looks at raw choices, which a secure run does not keep; leave secure out.")
    if mechanism.min_cluster_size > 0 and not mechanism.flips_coins:
        return np.ones(mechanism.num_clusters)
    went = reports.choices if reports.destinations is None else reports.destinations
    return np.bincount(went, minlength=mechanism.num_clusters)


@dataclass(frozen=True)
class Rate:
    """How often a method collapsed, with Wilson's 95% interval."""

    count: int
    runs: int

    @property
    def interval(self) -> tuple[float, float]:
        """95%, by Wilson's score: sensible also at 0 and 1."""
        return wilson(self.count, self.runs)

    @property
    def share(self) -> float:
        """The rate itself."""
        return self.count / self.runs


@dataclass(frozen=True)
class Comparison:
    """One row of the study's table: both methods on the same seeds."""

    scenario: str
    start: str
    noise: str
    ifca: Rate
    rr: Rate
    ifca_only: int  # seeds in which only IFCA collapsed
    rr_only: int
    ifca_untrained: Rate
    rr_untrained: Rate
    clustering_accuracy: tuple[float, float]  # means, IFCA and RR

    @property
    def p_value(self) -> float:
        """Exact one-sided McNemar test that RR collapses less often than IFCA."""
        return mcnemar(self.ifca_only, self.rr_only)


def compare(outcomes: Iterable[Outcome]) -> list[Comparison]:
    """Rates, paired by seed, one row per scenario and noise in the order met."""
    cells: dict[tuple[str, str, str], dict[str, dict[int, Outcome]]] = {}
    for found in outcomes:
        cells.setdefault((found.scenario, found.start, found.noise), {}).setdefault(found.method, {})[found.seed] = (
            found
        )
    rows = []
    for place, by_method in cells.items():
        base, ours = (by_method[method] for method in METHODS)
        if set(base) != set(ours):
            raise ConfigError(f"{', '.join(place)}: the methods ran on different seeds, so there are no pairs.")
        pairs = [(base[seed], ours[seed]) for seed in base]
        rows.append(_row(place, pairs))
    return rows


def _row(place: tuple[str, str, str], pairs: list[tuple[Outcome, Outcome]]) -> Comparison:
    scenario, start, noise = place
    runs = len(pairs)
    return Comparison(
        scenario=scenario,
        start=start,
        noise=noise,
        ifca=Rate(sum(one.collapsed for one, _ in pairs), runs),
        rr=Rate(sum(two.collapsed for _, two in pairs), runs),
        ifca_only=sum(one.collapsed and not two.collapsed for one, two in pairs),
        rr_only=sum(two.collapsed and not one.collapsed for one, two in pairs),
        ifca_untrained=Rate(sum(one.untrained > 0 for one, _ in pairs), runs),
        rr_untrained=Rate(sum(two.untrained > 0 for _, two in pairs), runs),
        clustering_accuracy=(
            float(np.mean([one.clustering_accuracy for one, _ in pairs])),
            float(np.mean([two.clustering_accuracy for _, two in pairs])),
        ),
    )


def wilson(count: int, trials: int) -> tuple[float, float]:
    """Wilson's 95% score interval for a rate (Wilson 1927)."""
    z = 1.959963984540054
    share, scale = count / trials, 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(first_only: int, second_only: int) -> float:
    """Exact one-sided McNemar test: P(at least `first_only` heads in all discordant pairs), by a fair coin."""
    trials = first_only + second_only
    return float(sum(math.comb(trials, heads) for heads in range(first_only, trials + 1)) / 2**trials)
