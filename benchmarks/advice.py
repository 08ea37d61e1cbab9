"""Does following `rrcluster advise` pay? On populations that the advice was not made with.

    python benchmarks/advice.py [--seeds 0 1 2] [--only 0 1 ...] [--out FILE.json]

Each population is fashion-mini, rotated or with labels flipped by group: sizes, k, epsilon, imbalance and network
differ. Per population and seed: the default (exploration 1) with B = 0 and with the advised B, and the published
method (exploration 0, B = 0). The ratio is told to `advise` where there are as many clusters as groups. Accuracies are
diagnostics.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

import rrcluster as rr
from rrcluster.data import load_federated
from rrcluster.data.federated import FederatedData
from rrcluster.experiments.setup import Experiment
from rrcluster.simulation.evaluate import Evaluation, evaluate


@dataclass(frozen=True)
class Population:
    """What differs between the populations."""

    partition: str
    ratio: tuple[int, ...]
    clients: int
    rate: float
    epsilon: float
    clusters: int
    model: str = "pooled-linear"
    rounds: int = 60

    @property
    def expected_ratio(self) -> tuple[float, ...] | None:
        """For the advice: known where there are as many clusters as groups."""
        return self.ratio if len(self.ratio) == self.clusters else None


POPULATIONS = (
    Population("rotation", (1, 1, 1, 1), 400, 0.15, 2, 4),
    Population("rotation", (1, 1, 1, 1), 400, 0.15, 8, 4),
    Population("rotation", (2, 1, 1), 400, 0.15, 4, 3),
    Population("rotation", (6, 1, 1), 400, 0.15, 8, 3),
    Population("rotation", (1, 1), 250, 0.2, 2, 2),
    Population("rotation", (1, 1), 400, 0.15, 8, 4),
    Population("label-flip", (1, 1, 1, 1), 400, 0.15, 4, 4),
    Population("label-flip", (1, 1, 1, 1), 600, 0.1, 8, 4),
    Population("label-flip", (8, 1, 1, 1), 600, 0.1, 8, 4),
    Population("label-flip", (3, 1), 250, 0.2, 4, 2),
    Population("rotation", (1, 1, 1, 1), 600, 0.1, 8, 4, "linear"),
    Population("rotation", (5, 3, 1, 1), 300, 0.1, 1, 4),
)


def main(arguments: list[str]) -> int:
    """Print one line per population and write all of it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", type=int, nargs="+", default=range(len(POPULATIONS)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = []
    for place in options.only:
        results.append({"population": place, **measure(POPULATIONS[place], options.seeds)})
        sys.stdout.write(json.dumps(results[-1]) + "\n")
        sys.stdout.flush()
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(population: Population, seeds: list[int]) -> dict[str, object]:
    """Accuracies (%) of the three ways on one population, seed by seed."""
    first = _experiment(population, _data(population, seeds[0]), 0, 0.0, seeds[0])
    known = {
        "num_clients": population.clients,
        "num_clusters": population.clusters,
        "num_coordinates": first.model.num_parameters,
        "expected_ratio": population.expected_ratio,
    }
    advice = rr.advise(first.config.privacy, **known)
    ways = {"none": (0, 1.0), "advised": (advice.min_cluster_size, 1.0), "published": (0, 0.0)}
    rows: dict[str, list[Evaluation]] = {name: [] for name in ways}
    for seed in seeds:
        data = _data(population, seed)
        done = {way: _run(population, data, *way, seed) for way in dict.fromkeys(ways.values())}
        for name, way in ways.items():
            rows[name].append(done[way])
    return asdict(population) | {
        "parameters": first.model.num_parameters,
        "signal_to_noise": round(min(advice.outlook.over_run), 2),
        "B": advice.min_cluster_size,
        **{name: [round(100 * run.accuracy, 1) for run in runs] for name, runs in rows.items()},
        "alive": {name: [run.clusters_alive for run in runs] for name, runs in rows.items()},
        "worst_decile": {
            name: round(100 * float(np.mean([run.worst_decile for run in runs])), 1) for name, runs in rows.items()
        },
    }


def _data(population: Population, seed: int) -> FederatedData:
    data = load_federated(
        "fashion-mini",
        num_clients=population.clients,
        seed=seed,
        partition=population.partition,
        ratio=population.ratio,
        samples_per_client=20,
    )
    return replace(data, name="advice", test_sets=tuple(tests.first(400) for tests in data.test_sets))


def _experiment(population: Population, data: FederatedData, least: int, exploration: float, seed: int) -> Experiment:
    return rr.experiment(
        data=data,
        model=population.model,
        num_clusters=population.clusters,
        epsilon=population.epsilon,
        delta=1e-3,
        sample_rate=population.rate,
        num_rounds=population.rounds,
        exploration=exploration,
        min_cluster_size=least,
        local_epochs=3,
        seed=seed,
        engine="batched",
        device="cpu",
    )


def _run(population: Population, data: FederatedData, least: int, exploration: float, seed: int) -> Evaluation:
    made = _experiment(population, data, least, exploration, seed)
    *_, last = made.rounds()
    return evaluate(
        last.state.average, data, algorithm=made.algorithm, split=made.split, engine=made.engine, local=made.local
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
