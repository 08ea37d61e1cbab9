"""Does following `rrcluster advise` pay? On populations that the advice was not made with.

    python benchmarks/advice.py [--seeds 0 1 2] [--device cuda] [--out runs/advice]

Twelve populations of EMNIST, rotated or with labels flipped by group: sizes, k, epsilon and imbalance differ. Per
population: the default (exploration, B = 0) and what `advise` says; the ratio is told to it where there are as many
clusters as groups. Writes OUT/advice.json. Accuracies are diagnostics.
"""

import argparse
from pathlib import Path

from studies import run

import rrcluster as rr
from rrcluster.experiments.config import from_flat

PARAMETERS = 442 * 47  # of `edges` on EMNIST's 47 classes
POPULATIONS = (  # partition, ratio, k, M, q, epsilon, T
    ("rotation", (1, 1, 1), 3, 1000, 0.1, 4.0, 100),
    ("rotation", (1, 1, 1), 6, 1000, 0.1, 4.0, 100),
    ("rotation", (5, 1, 1), 3, 1000, 0.15, 8.0, 100),
    ("rotation", (2, 1), 4, 700, 0.2, 2.0, 60),
    ("rotation", (4, 2, 1, 1), 4, 1200, 0.15, 8.0, 100),
    ("label-flip", (1, 1, 1, 1), 4, 900, 0.1, 8.0, 100),
    ("label-flip", (6, 1, 1), 3, 1200, 0.15, 8.0, 100),
    ("label-flip", (7, 1), 2, 900, 0.1, 4.0, 100),
    ("label-flip", (1, 1, 1, 1, 1, 1), 9, 1500, 0.15, 8.0, 100),
    ("rotation", (1,), 4, 800, 0.1, 8.0, 100),
    ("rotation", (2, 2, 1), 3, 600, 0.15, 2.0, 60),
    ("label-flip", (3, 2, 1), 5, 1000, 0.2, 4.0, 100),
)


def arms():
    for partition, ratio, k, clients, rate, epsilon, rounds in POPULATIONS:
        settings = {
            "data": "emnist",
            "model": "edges",
            "partition": partition,
            "ratio": list(ratio),
            "num_clusters": k,
            "num_clients": clients,
            "sample_rate": rate,
            "epsilon": epsilon,
            "delta": 1e-3 if clients <= 1000 else 1 / clients,
            "num_rounds": rounds,
            "evaluate_every": 1000,
        }
        told = ratio if len(ratio) == k else None
        advice = rr.advise(
            from_flat(settings).privacy,
            num_clients=clients,
            num_clusters=k,
            num_coordinates=PARAMETERS,
            expected_ratio=told,
        )
        name = f"{partition} {':'.join(map(str, ratio))}, k = {k}, M = {clients}, q = {rate:g}"
        yield f"{name}, default", settings
        advised = {"init": advice.init, "min_cluster_size": advice.min_cluster_size}
        yield f"{name}, advised {advice.init}, B = {advice.min_cluster_size}", settings | advised


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/advice"))
    given = parser.parse_args()
    run("advice", arms(), given)


if __name__ == "__main__":
    main()
