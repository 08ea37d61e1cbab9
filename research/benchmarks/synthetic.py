"""Does random rebalancing keep clusters from collapsing? The paper's four synthetic scenarios over many seeds.

    python research/benchmarks/synthetic.py --seeds 100 --out docs/results [--starts far near] [--workers 2]

The paper (appendix on synthetic data) shows one drawing per scenario and method and prints no constant. This script
runs every scenario over many seeds, with and without noise, prints the table of docs/results/synthetic/study.md and
writes the paper's 4 x 3 figure as PNG and PDF. `rrcluster/data/synthetic.py` states the lines, this script all else.

A cluster has collapsed when it is untrained (no update has entered its sum in any round) or dead (no client of the
population has its least loss there at the end). Exact rebalancing fills every cluster in every round, so no cluster is
untrained under it by construction; whether it is dead is the interesting question. The table has both.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rrcluster_research.paper_figures import draw_learnt_lines
from scipy.stats import binomtest

from rrcluster.client import ClientSide
from rrcluster.data.synthetic import SCENARIOS, noisy_lines
from rrcluster.rng import Streams
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.server.state import ServerState
from rrcluster.simulation.evaluate import clustering_accuracy, score_all
from rrcluster.simulation.hosts import Host, Hosts
from rrcluster.simulation.simulate import Checkpoint, simulate

SETTINGS: dict[str, Any] = {  # of all runs; the rest are the defaults of `rrcluster run`
    "num_clients": 200,
    "num_clusters": 4,
    "sample_rate": 0.5,
    "num_rounds": 30,
    "local_lr": 0.1,
    "local_epochs": 2,
    "batch_size": 20,
    "exploration": 0.0,  # IFCA as published
    "average_last": 0.0,
    "device": "cpu",
}
# The paper's own study has no noise, and its rebalancing moves finished updates (exact). Coins move clients before they
# train, which is a difference of its own, so coins are also run with hardly any noise.
NOISES: dict[str, dict[str, Any]] = {
    "no noise, exact": {"mechanism": "none"},
    "hardly any noise, coins": {"mechanism": "joint", "noise_multiplier": 1e-3, "update_clip": 10.0, "delta": 1e-3},
    "epsilon 2, coins": {"mechanism": "joint", "epsilon": 2.0, "update_clip": 0.5, "delta": 1e-3},
}
STARTS = {  # first slopes and intercepts are uniform in plus or minus this; the true ones lie within 2
    "near": 1.0,  # what PyTorch draws for a linear layer with one input
    "far": 4.0,  # some models start far from all data, as in the paper's drawing of a model left at the bottom
}
SAMPLES = 40  # of every client
IFCA, RR = "IFCA", "RR-Cluster (IFCA)"
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},  # in the figure alone
    IFCA: {"algorithm": "ifca", "min_cluster_size": 0},
    RR: {"algorithm": "ifca", "min_cluster_size": 15},
}


@dataclass(frozen=True)
class Collapse:
    """How one run ended: untrained and dead clusters, and the share of clients in the right one."""

    scenario: str
    start: str
    noise: str
    method: str
    seed: int
    untrained: int
    dead: int
    clustering_accuracy: float

    @property
    def collapsed(self) -> bool:
        return self.untrained > 0 or self.dead > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [(seed, options.starts, options.noises) for seed in range(options.seeds)]
        runs = [run for of_seed in pool.map(one_seed, jobs) for run in of_seed]
    print(markdown(runs))
    print(f"\n{len(runs)} runs in {time.perf_counter() - began:.0f} s")
    which = "Seed 0, far start, no noise, exact rebalancing."
    drawing = draw_learnt_lines({name: learnt_lines(name) for name in SCENARIOS}, which=which)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "synthetic.png").write_bytes(drawing.png)
    (options.out / "synthetic.pdf").write_bytes(drawing.pdf)


def one_seed(job) -> list[Collapse]:
    seed, starts, noises = job
    return list(study([seed], starts=starts, noises=noises))


def study(
    seeds: Iterable[int],
    *,
    scenarios: Iterable[str] = tuple(SCENARIOS),
    starts: Iterable[str] = tuple(STARTS),
    noises: Iterable[str] = tuple(NOISES),
) -> Iterator[Collapse]:
    """Every combination. The methods of one seed share population, first models and cohorts: they are pairs."""
    for scenario, seed, start, noise, method in product(scenarios, seeds, starts, noises, (IFCA, RR)):
        experiment, models, received = final_models(scenario, seed, start=start, noise=noise, method=method)
        k, data = len(received), experiment.data
        scores = score_all(models, data, method=experiment.method, split=experiment.split, engine=experiment.engine)
        choices = scores.argmin(axis=1)
        yield Collapse(
            *(scenario, start, noise, method, seed),
            untrained=int((received == 0).sum()),
            dead=int((np.bincount(choices, minlength=k) == 0).sum()),
            clustering_accuracy=clustering_accuracy(choices, data.groups, k, data.num_groups),
        )


def final_models(scenario: str, seed: int, *, start: str, noise: str, method: str):
    """Run to the end: experiment, models, and how many updates entered each cluster's sum in all rounds (k,)."""
    law, settings = SCENARIOS[scenario], SETTINGS | NOISES[noise] | METHODS[method]
    data = noisy_lines(
        scenario,
        num_clients=settings["num_clients"],
        ratio=law.ratio,
        noise_std=law.noise_std,
        sizes=(SAMPLES, SAMPLES),
        rng=Streams(seed)("data"),
    )
    experiment = make_experiment(from_flat({**settings, "data": scenario, "seed": seed}), data=data)
    mechanism, width = experiment.plan.mechanism, experiment.model.num_parameters
    k, bound = mechanism.num_clusters, STARTS[start]
    first = experiment.streams("first lines").uniform(-bound, bound, size=(k, width))
    state, received = ServerState.fresh(experiment.split.models(first)), np.zeros(k)
    parts = ("data", "model", "method", "plan", "engine", "streams", "local", "server")
    filled = mechanism.min_cluster_size > 0 and not mechanism.flips_coins
    side = CountingSide(*(getattr(experiment.hosts.host.side, part.name) for part in fields(ClientSide)), received)
    hosts = Hosts(Host(data, side, experiment.faults, discreet=False))
    for record in simulate(
        **{name: getattr(experiment, name) for name in parts}, checkpoint=Checkpoint(state), hosts=hosts
    ):
        state = record.state
        if filled:
            received += 1
    return experiment, state.models, received


@dataclass(frozen=True)
class CountingSide(ClientSide):
    """Clients whose updates are counted by the cluster they go to."""

    received: Any  # (k,), added to in place

    def answer(self, guidance, clients, keys):
        reports, memory = super().answer(guidance, clients, keys)
        went = reports.choices if reports.destinations is None else reports.destinations
        np.add.at(self.received, went, 1)
        return reports, memory


def learnt_lines(scenario: str) -> dict[str, list[tuple[float, float]]]:
    """The paper's figure as data: slopes and intercepts by method; seed 0, far start, no noise."""
    lines = {}
    for method in METHODS:
        experiment, models, _ = final_models(scenario, 0, start="far", noise="no noise, exact", method=method)
        lines[method] = [(float(slope), float(shift)) for slope, shift in experiment.split.vectors(models)]
    return lines


def markdown(runs: Iterable[Collapse]) -> str:
    """The table: one row per scenario, start and noise, both methods paired by seed."""
    head = "| scenario | first models | noise, rebalancing | IFCA collapsed | RR collapsed | only IFCA / only RR | p | "
    lines = [head + "untrained IFCA / RR | clustering accuracy IFCA / RR |", "|" + " --- |" * 9]
    cells: dict[tuple[str, str, str], dict[str, dict[int, Collapse]]] = {}
    for run in runs:
        cells.setdefault((run.scenario, run.start, run.noise), {}).setdefault(run.method, {})[run.seed] = run
    for (scenario, start, noise), methods in cells.items():
        pairs = [(methods[IFCA][seed], methods[RR][seed]) for seed in methods[IFCA]]
        one, two = ([pair[place].collapsed for pair in pairs] for place in (0, 1))
        only_one = sum(a and not b for a, b in zip(one, two, strict=True))
        only_two = sum(b and not a for a, b in zip(one, two, strict=True))
        untrained = " / ".join(f"{np.mean([pair[place].untrained > 0 for pair in pairs]):.0%}" for place in (0, 1))
        right = " / ".join(f"{100 * np.mean([p[place].clustering_accuracy for p in pairs]):.1f}" for place in (0, 1))
        lines.append(
            f"| {scenario.removeprefix('synthetic-')} | {start} | {noise} | {rate(one)} | {rate(two)} | "
            f"{only_one} / {only_two} | {mcnemar(only_one, only_two):.2g} | {untrained} | {right} |"
        )
    return "\n".join(lines)


def rate(collapsed: list[bool]) -> str:
    """A share with Wilson's 95% interval."""
    interval = binomtest(sum(collapsed), len(collapsed)).proportion_ci(method="wilson")
    return f"{np.mean(collapsed):.0%} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def mcnemar(first_only: int, second_only: int) -> float:
    """Exact one-sided McNemar test that the second method collapses less often than the first."""
    discordant = first_only + second_only
    return binomtest(first_only, discordant, alternative="greater").pvalue if discordant else 1.0


if __name__ == "__main__":
    main()
