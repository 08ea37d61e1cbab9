"""How far private training goes on FashionMNIST: fixed features, participation, and momentum of the server.

    python benchmarks/frontier.py STUDY [--seeds 0 1 2 3 4] [--device cuda] [--out runs/frontier]

| STUDY | what |
| --- | --- |
| choose | rotated EMNIST: rounds, clip and momentum of the recipe, and other features |
| fashion | rotated FashionMNIST, four equal groups, delta 1e-3: everybody, and cohorts |
| cnn-choose | rotated EMNIST, the 26,010-parameter CNN, true clusters given: rounds, clip, momentum, local epochs |
| cnn | rotated FashionMNIST with what was best there: by survey, and with true clusters given |

Recipe and features were chosen on ten classes of EMNIST in one group (docs/data.md has the features). Writes
OUT/STUDY.json: one entry per arm and epsilon, with the accuracy of each seed and the share of clients in the cluster of
their own group. Accuracy is measured on raw data; no epsilon covers the choice of settings. A study that was stopped
goes on where it was.
"""

import argparse
import itertools
import json
from pathlib import Path

from studies import run

RECIPE = {  # one step of each client per round, on all of its samples, and the server's momentum
    "num_clients": 1000,
    "num_clusters": 4,
    "algorithm": "ifca",
    "model": "scattering-pca",
    "partition": "rotation",
    "local_epochs": 1,
    "batch_size": 1000,
    "local_lr": 0.3,
    "update_clip": 0.03,
    "server_momentum": 0.9,
    "average_last": 0.5,
    "participation": "everybody",
    "delta": 1e-3,
    "evaluate_every": 1000,
}
LOCAL = {"local_epochs": 5, "batch_size": 20, "local_lr": 0.05, "update_clip": 0.4, "server_momentum": 0.0}
ONE_STEP = {"local_epochs": 1, "batch_size": 1000, "local_lr": 0.3, "server_momentum": 0.9}
ORACLE = {"algorithm": "oracle", "exploration": 0.0}
ARMS = {
    "everybody": {},
    "everybody, survey": {"init": "survey"},
    "everybody, true clusters given": ORACLE,
    "everybody, scattering": {"model": "scattering", "update_clip": 0.04} | ORACLE,
    "everybody, edges": {"model": "edges", "update_clip": 0.04} | ORACLE,
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
    "update_clip": (0.02, 0.06),
    "server_momentum": (0.0, 0.8, 0.95),
    "model": ("scattering", "edges"),
}  # one change at a time
CNN = {"model": "cnn", "local_epochs": 5, "batch_size": 20, "local_lr": 0.03, "update_clip": 0.3}
CNN_ARMS = {  # momentum 0.9 makes ten steps of one, so its clip is a tenth of that without
    "five epochs": {},
    "five epochs, clip 0.2": {"update_clip": 0.2},
    "five epochs, clip 0.5": {"update_clip": 0.5},
    "five epochs, rate 0.1": {"local_lr": 0.1},
    "momentum 0.9, clip 0.03": {"server_momentum": 0.9, "update_clip": 0.03},
    "momentum 0.9, clip 0.05": {"server_momentum": 0.9, "update_clip": 0.05},
    "momentum 0.8, clip 0.08": {"server_momentum": 0.8, "update_clip": 0.08},
    "one epoch, momentum 0.9, clip 0.03": {"server_momentum": 0.9, "update_clip": 0.03, "local_epochs": 1},
    "one step, momentum 0.9, clip 0.03": ONE_STEP | {"update_clip": 0.03},
    "one step, momentum 0.9, clip 0.06": ONE_STEP | {"update_clip": 0.06},
}
CNN_ROUNDS = {2.0: (50, 100), 4.0: (75, 150), 8.0: (100, 200)}


def fashion(_):
    for (name, arm), epsilon in itertools.product(ARMS.items(), ROUNDS):
        yield name, {"num_rounds": ROUNDS[epsilon]} | RECIPE | arm | {"data": "fashion-mnist", "epsilon": epsilon}


def choose(_):
    for epsilon, rounds in ROUNDS.items():
        settings = RECIPE | ORACLE | {"data": "emnist", "epsilon": epsilon, "num_rounds": rounds}
        yield "as it is", settings
        for setting, values in CHOICES.items():
            for value in values:
                yield f"{setting} {value}", settings | {setting: value}


def cnn_choose(_):
    for (name, arm), (epsilon, lengths) in itertools.product(CNN_ARMS.items(), CNN_ROUNDS.items()):
        for rounds in lengths:
            settings = RECIPE | ORACLE | CNN | {"server_momentum": 0.0, "data": "emnist", "epsilon": epsilon} | arm
            yield f"{name}, {rounds} rounds", settings | {"num_rounds": rounds}


def cnn(out):
    """The arm of cnn-choose, under `out` too, that was best on EMNIST at each epsilon."""
    measured = json.loads((out / "cnn-choose.json").read_text())
    settings = {(name, chosen["epsilon"]): chosen for name, chosen in cnn_choose(out)}
    for epsilon in CNN_ROUNDS:
        best = max((row for row in measured if row["epsilon"] == epsilon), key=lambda row: row["accuracy"])
        on_fashion = settings[best["arm"], epsilon] | {"data": "fashion-mnist"}
        yield f"true clusters given: {best['arm']}", on_fashion
        yield f"survey: {best['arm']}", on_fashion | {"algorithm": "ifca", "exploration": 1.0, "init": "survey"}


STUDIES = {"choose": choose, "fashion": fashion, "cnn-choose": cnn_choose, "cnn": cnn}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    given = parser.parse_args()
    run(given.study, STUDIES[given.study](given.out), given)


if __name__ == "__main__":
    main()
