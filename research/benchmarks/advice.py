"""Does following `rrcluster advise` pay? On populations that the advice was not made with.

    python research/benchmarks/advice.py [--seeds 0 1 2] [--device cuda] [--out runs/advice]

Twelve populations of EMNIST, rotated or with labels flipped by group; sizes of groups, k, M, cohort, epsilon and T are
drawn at random, once and for all. Per population: exploration with B = 0, and what `advise` says; the ratio is told to
it where there are as many clusters as groups. Writes OUT/advice.json. Accuracies are diagnostics.
"""

import argparse
from pathlib import Path

import numpy as np
from studies import run

import rrcluster as rr
from rrcluster.runs.config import from_flat

MODEL, PARAMETERS = "edges-coarse", 177 * 47  # on EMNIST's 47 classes


def populations(count=12):
    """Partition, ratio, k, M, q, epsilon, T."""
    rng = np.random.default_rng(2028)
    for _ in range(count):
        ratio = sorted((int(rng.choice([1, 1, 1, 2, 3, 5, 8])) for _ in range(rng.integers(1, 5))), reverse=True)
        k = len(ratio) + int(rng.choice([0, 0, 1, 2, 4]))
        clients, rate = int(rng.choice([500, 700, 1000])), float(rng.choice([0.1, 0.15, 0.2]))
        epsilon, rounds = float(rng.choice([2, 4, 8])), int(rng.choice([60, 100]))
        yield str(rng.choice(["rotation", "label-flip"])), tuple(ratio), max(k, 2), clients, rate, epsilon, rounds


def arms():
    for partition, ratio, k, clients, rate, epsilon, rounds in populations():
        settings = {
            "data": "emnist",
            "model": MODEL,
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
        plain = {"init": "independent", "min_cluster_size": 0}
        yield f"{name}, B = 0", settings | plain
        advised = {"init": advice.init, "min_cluster_size": advice.min_cluster_size}
        if advised != plain:
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
