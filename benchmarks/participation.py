"""Who takes part, at equal epsilon: FashionMNIST with public schedules, everybody, and secret cohorts.

    python benchmarks/participation.py STUDY [--seeds 0 1 2 3 4] [--device cuda] [--out runs/participation]

| STUDY | what |
| --- | --- |
| choose | rotated EMNIST: rounds, exploration, memory of sizes and correlation for each participation |
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

from rrcluster.experiments.config import from_flat
from rrcluster.experiments.setup import make_experiment

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
ARMS = {  # name -> who takes part; B is 0.8 of the expected cluster size; T = 100 but where it says so
    "poisson, cohort 100": {"sample_rate": 0.1, "min_cluster_size": 20},
    "poisson, cohort 300": {"sample_rate": 0.3, "min_cluster_size": 60},
    "within-slot, b = 4, cohort 100": {
        "participation": "within-slot",
        "slots": 4,
        "sample_rate": 0.4,
        "min_cluster_size": 20,
    },
    "schedule, b = 5, cohort 200": {"participation": "schedule", "slots": 5, "min_cluster_size": 40},
    "schedule, b = 10, cohort 100": {"participation": "schedule", "slots": 10, "min_cluster_size": 20},
    "everybody, T = 50": {"participation": "everybody", "num_rounds": 50, "min_cluster_size": 200},
    "everybody, T = 100": {"participation": "everybody", "num_rounds": 100, "min_cluster_size": 200},
    "everybody, T = 200": {"participation": "everybody", "num_rounds": 200, "min_cluster_size": 200},
}
UNBALANCED = {"min_cluster_size": 0}
COEFFICIENTS = ("square-root", "independent")  # beside the optimised ones


def steady(arm):
    """For noisier rounds: longer averages of sizes, and B at 0.96 of the expected cluster size."""
    return {"memory": 0.95, "min_cluster_size": round(1.2 * arm["min_cluster_size"])}


CHOICES = {"exploration": (0.5, 1.0, 2.0), "memory": (0.8, 0.9, 0.95)}  # one change at a time


def fashion(delta):
    for (name, arm), epsilon in itertools.product(ARMS.items(), EPSILONS):
        settings = COMMON | arm | {"data": "fashion-mnist", "epsilon": epsilon, "delta": delta}
        yield name, settings
        yield f"{name}, B = 0", settings | UNBALANCED
        yield f"{name}, true clusters given", settings | UNBALANCED | {"algorithm": "oracle", "exploration": 0.0}
        yield f"{name}, steady", settings | steady(arm)
        yield f"{name}, survey", settings | UNBALANCED | {"init": "survey"}
        if "slots" in arm:
            for correlation in COEFFICIENTS:
                yield f"{name}, steady, {correlation}", settings | steady(arm) | {"correlation": correlation}


def choose():
    for (name, arm), epsilon in itertools.product(ARMS.items(), EPSILONS):
        settings = COMMON | arm | {"data": "emnist", "epsilon": epsilon, "delta": 1e-3}
        yield name, settings
        yield f"{name}, B = 0", settings | UNBALANCED
        yield f"{name}, steady", settings | steady(arm)
        for setting, values in CHOICES.items():
            for value in values:
                if value != COMMON.get(setting, 0.9):
                    yield f"{name}, {setting} {value:g}", settings | {setting: value}
        if "slots" in arm:
            for correlation in COEFFICIENTS:
                yield f"{name}, {correlation}", settings | {"correlation": correlation}


STUDIES = {"choose": choose, "fashion": lambda: fashion(1e-3), "fashion-1e-4": lambda: fashion(1e-4)}


def speed(given):
    rows = {}
    for name in ("poisson, cohort 100", "schedule, b = 10, cohort 100"):
        settings = (
            COMMON | ARMS[name] | {"data": "fashion-mnist", "epsilon": 8.0, "delta": 1e-3, "device": given.device}
        )
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
