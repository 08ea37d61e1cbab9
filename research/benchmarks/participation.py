"""Who takes part, at equal epsilon: FashionMNIST with public schedules, everybody, and secret cohorts.

    python research/benchmarks/participation.py STUDY [--seeds 0 1 2 3 4] [--device cuda] [--out runs/participation]

| STUDY | what |
| --- | --- |
| choose | rotated EMNIST: rounds, and for schedules B and the memory of sizes |
| fashion | rotated FashionMNIST, delta 1e-3, with what was chosen: every participation and its oracle |
| fashion-1e-4 | the same at delta 1e-4 |
| speed | median milliseconds of a round on FashionMNIST: poisson, and a schedule of ten slots, cohort 100 |

Writes OUT/STUDY.json: one entry per arm and epsilon, with the accuracy of each seed and the share of clients in the
cluster of their own group. Accuracy is measured on raw data; no epsilon covers the choice of settings. A study that
was stopped goes on where it was.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import median

from studies import run

from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment

COMMON = {
    "num_clients": 1000,
    "num_clusters": 4,
    "algorithm": "ifca",
    "model": "edges",
    "num_rounds": 100,
    "local_epochs": 5,
    "local_lr": 0.05,
    "batch_size": 20,
    "update_clip": 0.4,
    "average_last": 0.5,
    "exploration": 1.0,
    "partition": "rotation",
    "evaluate_every": 1000,
}
EPSILONS = (2.0, 4.0, 8.0)
EVERYBODY = {"participation": "everybody"}
SCHEDULES = {  # who takes part in public slots, and the clients of a cluster of a cohort
    "schedule, b = 5, cohort 200": ({"participation": "schedule", "slots": 5}, 50),
    "schedule, b = 10, cohort 100": ({"participation": "schedule", "slots": 10}, 25),
}
OTHERS = {
    "poisson, cohort 100": {"sample_rate": 0.1},
    "poisson, cohort 300": {"sample_rate": 0.3},
    "everybody, T = 50": EVERYBODY | {"num_rounds": 50},
    "everybody, T = 100": EVERYBODY | {"num_rounds": 100},
    "everybody, T = 200": EVERYBODY | {"num_rounds": 200},
}
ORACLE = {"algorithm": "oracle", "exploration": 0.0}
CHOSEN = 0.96  # B, of the expected clients of a cluster, in schedules: chosen on EMNIST
LONG = {"num_rounds": 200}  # chosen on EMNIST at epsilon 8
CHOICES = {"B": (0.8, 0.96), "memory": (0.9, 0.95, 0.98), "rounds": {2.0: (50, 100), 4.0: (100,), 8.0: (100, 200)}}


def arms(settings, epsilon):
    """Every participation with what was chosen for it, and its oracle."""
    for name, who in OTHERS.items():
        yield f"{name}, default", settings | who
        yield f"{name}, true clusters given", settings | who | ORACLE
    for name, (who, size) in SCHEDULES.items():
        for words, rounds in (("", {}), (", T = 200", LONG)) if epsilon == 8 else (("", {}),):
            yield f"{name}{words}, default", settings | who | rounds
            yield f"{name}{words}, B at 0.96", settings | who | rounds | {"min_cluster_size": round(CHOSEN * size)}
            yield f"{name}{words}, true clusters given", settings | who | rounds | ORACLE


def fashion(delta):
    for epsilon in EPSILONS:
        yield from arms(COMMON | {"data": "fashion-mnist", "epsilon": epsilon, "delta": delta}, epsilon)


def choose():
    for epsilon in EPSILONS:
        settings = COMMON | {"data": "emnist", "model": "edges-coarse", "epsilon": epsilon, "delta": 1e-3}
        for name, who in OTHERS.items():
            yield f"{name}, default", settings | who
        for (name, (who, size)), rounds in itertools.product(SCHEDULES.items(), CHOICES["rounds"][epsilon]):
            for share, memory in itertools.product(CHOICES["B"], CHOICES["memory"]):
                changes = {"num_rounds": rounds, "min_cluster_size": round(share * size), "memory": memory}
                yield f"{name}, T = {rounds}, B at {share:g}, memory {memory:g}", settings | who | changes


STUDIES = {"choose": choose, "fashion": lambda: fashion(1e-3), "fashion-1e-4": lambda: fashion(1e-4)}


def speed(given):
    rows = {}
    slots, size = SCHEDULES["schedule, b = 10, cohort 100"]
    for name, who in (("poisson", OTHERS["poisson, cohort 100"]), ("schedule, b = 10", slots)):
        budget = {"epsilon": 8.0, "delta": 1e-3, "min_cluster_size": round(CHOSEN * size)}
        settings = COMMON | who | budget | {"data": "fashion-mnist", "device": given.device}
        seconds = [record.seconds for record in make_experiment(from_flat(settings)).rounds()]
        rows[name] = round(1e3 * median(seconds[20:]), 3)
        print(f"{name}: {rows[name]} ms a round", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "speed.json").write_text(json.dumps(rows, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[*STUDIES, "speed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/participation"))
    given = parser.parse_args()
    if given.study == "speed":
        speed(given)
    else:
        run(given.study, STUDIES[given.study](), given)


if __name__ == "__main__":
    main()
