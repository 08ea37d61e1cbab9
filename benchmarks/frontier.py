"""How far private training goes on FashionMNIST: fixed features, participation, and momentum of the server.

    python benchmarks/frontier.py STUDY [--seeds 0 1 2 3 4] [--device cuda] [--out runs/frontier]

| STUDY | what |
| --- | --- |
| choose | rotated EMNIST: rounds, clip and momentum of the recipe, `scattering` and `edges` |
| fashion | rotated FashionMNIST, four equal groups, delta 1e-3, with what was chosen: everybody, and cohorts |

Writes OUT/STUDY.json: one entry per arm and epsilon, with the accuracy of each seed and the share of clients in the
cluster of their own group. Accuracy is measured on raw data; no epsilon covers the choice of settings. A study that
was stopped goes on where it was.
"""

import argparse
import itertools
from pathlib import Path

from studies import run

RECIPE = {  # one step of each client per round, on all of its samples, and the server's momentum
    "num_clients": 1000,
    "num_clusters": 4,
    "algorithm": "ifca",
    "model": "scattering",
    "partition": "rotation",
    "local_epochs": 1,
    "batch_size": 1000,
    "local_lr": 0.3,
    "update_clip": 0.04,
    "server_momentum": 0.9,
    "average_last": 0.5,
    "participation": "everybody",
    "delta": 1e-3,
    "evaluate_every": 1000,
}
LOCAL = {"local_epochs": 5, "batch_size": 20, "local_lr": 0.05, "update_clip": 0.4, "server_momentum": 0.0}
ORACLE = {"algorithm": "oracle", "exploration": 0.0}
ARMS = {
    "everybody": {},
    "everybody, survey": {"init": "survey"},
    "everybody, true clusters given": ORACLE,
    "everybody, edges": {"model": "edges"},
    "everybody, no momentum, five epochs": LOCAL,
    "poisson, cohort 100": {"participation": "poisson", "sample_rate": 0.1, "num_rounds": 100},
    "poisson, cohort 100, true clusters given": {"participation": "poisson", "num_rounds": 100} | ORACLE,
    "schedule, b = 5, cohort 200": {"participation": "schedule", "slots": 5, "num_rounds": 100},
    "schedule, b = 5, cohort 200, true clusters given": {"participation": "schedule", "slots": 5, "num_rounds": 100}
    | ORACLE,
}
ROUNDS = {2.0: 50, 4.0: 75, 8.0: 100}  # by epsilon: more where there is less noise
CHOICES = {
    "num_rounds": (25, 50, 75, 100, 200),
    "update_clip": (0.02, 0.08),
    "server_momentum": (0.0, 0.8, 0.95),
    "model": ("edges",),
}  # one change at a time


def fashion():
    for (name, arm), epsilon in itertools.product(ARMS.items(), ROUNDS):
        yield name, {"num_rounds": ROUNDS[epsilon]} | RECIPE | arm | {"data": "fashion-mnist", "epsilon": epsilon}


def choose():
    for epsilon, rounds in ROUNDS.items():
        settings = RECIPE | ORACLE | {"data": "emnist", "epsilon": epsilon, "num_rounds": rounds}
        yield "as it is", settings
        for setting, values in CHOICES.items():
            for value in values:
                yield f"{setting} {value}", settings | {setting: value}


STUDIES = {"choose": choose, "fashion": fashion}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    given = parser.parse_args()
    run(given.study, STUDIES[given.study](), given)


if __name__ == "__main__":
    main()
