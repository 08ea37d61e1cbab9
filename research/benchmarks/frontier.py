"""How far private training goes on FashionMNIST: fixed features, participation, and momentum of the server.

    python research/benchmarks/frontier.py STUDY [--seeds 0 1 2 3 4] [--device cuda] [--out runs/frontier]

| STUDY | what |
| --- | --- |
| choose | ten classes of EMNIST that are often confused, rotated: rounds, clip, momentum and average |
| fashion | rotated FashionMNIST, four equal groups, delta 1e-3: everybody, and cohorts |
| cnn-choose | the same classes, one group, the 26,010-parameter CNN: first layer, clip, rounds and average |
| cnn | rotated FashionMNIST with what was best there: true clusters given, exploration, survey |

`choose` has ten classes of EMNIST that are easily confused, about as hard as clothes: on ten classes at random errors
are four times as rare, and longer steps pay. Writes OUT/STUDY.json: one entry per arm and epsilon, with the accuracy of
each seed and the share of clients in the cluster of their own group. Accuracy is measured on raw data; no epsilon
covers the choice of settings. A study that was stopped goes on where it was.
"""

import argparse
import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from studies import run

import rrcluster as rr
from rrcluster.data.images import load_emnist
from rrcluster.runs.job_runner import in_turn
from rrcluster.runs.sweep import run_jobs

RECIPE = {  # one step of each client per round, on all of its samples, and the server's momentum: chosen on EMNIST
    "num_clients": 1000,
    "num_clusters": 4,
    "algorithm": "ifca",
    "model": "scattering-pca",
    "partition": "rotation",
    "local_epochs": 1,
    "batch_size": 1000,
    "local_lr": 0.3,
    "update_clip": 0.02,
    "server_momentum": 0.9,
    "average_last": 0.3,
    "participation": "everybody",
    "delta": 1e-3,
    "evaluate_every": 1000,
}
LOCAL = {"local_epochs": 5, "batch_size": 20, "local_lr": 0.05, "update_clip": 0.4, "server_momentum": 0.0}
EDGES = {"model": "edges", "update_clip": 0.027}
DEFAULT = {"algorithm": "ifca", "exploration": 1.0}
ORACLE = {"algorithm": "oracle", "exploration": 0.0}
ARMS = {
    "everybody, survey of 6 rounds, momentum 0.8, C = 0.03": {
        "init": "survey",
        "init_rounds": 6,
        "server_momentum": 0.8,
        "update_clip": 0.03,
    },
    "everybody, survey of 8 rounds, momentum 0.8, C = 0.03": {
        "init": "survey",
        "init_rounds": 8,
        "server_momentum": 0.8,
        "update_clip": 0.03,
    },
    "everybody, survey of 8 rounds": {"init": "survey", "init_rounds": 8},
    "everybody, the default's survey": {},
    "everybody, momentum 0.8": {"server_momentum": 0.8, "update_clip": 0.04},
    "everybody, exploration": {"init": "independent"},
    "everybody, true clusters given": ORACLE,
    "everybody, scattering, true clusters given": {"model": "scattering", "update_clip": 0.027} | ORACLE,
    "everybody, edges": EDGES,
    "everybody, edges, true clusters given": EDGES | ORACLE,
    "everybody, no momentum, five epochs": LOCAL,
    "poisson, cohort 100": {"participation": "poisson", "sample_rate": 0.1, "num_rounds": 100},
    "poisson, cohort 100, true clusters given": {"participation": "poisson", "num_rounds": 100} | ORACLE,
    "schedule, b = 5, cohort 200": {"participation": "schedule", "slots": 5, "num_rounds": 100},
    "schedule, b = 5, cohort 200, true clusters given": {"participation": "schedule", "slots": 5, "num_rounds": 100}
    | ORACLE,
}
ROUNDS = {2.0: 60, 4.0: 80, 8.0: 100}  # by epsilon: more where there is less noise
CONFUSED, CHARACTERS = "0O1IL2Z5S9", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
CHOICES = {  # changes from the recipe; steps by momentum 0.8 are half of those by 0.9
    "as it is": {},
    "default's survey": DEFAULT,
    "survey of 8 rounds": DEFAULT | {"init": "survey", "init_rounds": 8},
    "0.75 of the rounds": 0.75,
    "1.5 of the rounds": 1.5,
    "clip 0.013": {"update_clip": 0.013},
    "clip 0.03": {"update_clip": 0.03},
    "clip 0.03, average of half": {"update_clip": 0.03, "average_last": 0.5},
    "momentum 0.8, clip 0.04": {"server_momentum": 0.8, "update_clip": 0.04},
    "momentum 0.8, clip 0.06": {"server_momentum": 0.8, "update_clip": 0.06},
    **{
        f"survey of {rounds} rounds, momentum {momentum}, clip {clip}": DEFAULT
        | {"init": "survey", "init_rounds": rounds, "server_momentum": momentum, "update_clip": clip}
        for rounds, (momentum, clip) in itertools.product((6, 8), ((0.9, 0.02), (0.8, 0.04), (0.8, 0.03)))
    },
}
CNN = {"local_epochs": 5, "batch_size": 20, "local_lr": 0.03, "server_momentum": 0.0}
CNN_ROUNDS, CNN_CLIPS = {2.0: 60, 4.0: 80, 8.0: 100}, {2.0: 0.2, 4.0: 0.28, 8.0: 0.35}
CNN_SURVEY_ROUNDS = {2.0: 27}  # where the default's 18 often take two groups for one: survey_length.py
CNN_ARMS = {  # network, clip and rounds relative to those above, and part of the rounds that is averaged
    "cnn": ("cnn", 1.0, 1.0, 0.3),
    "edges-cnn": ("edges-cnn", 1.0, 1.0, 0.3),
    "edges-cnn, clip x 0.7": ("edges-cnn", 0.7, 1.0, 0.3),
    "edges-cnn, clip x 1.4": ("edges-cnn", 1.4, 1.0, 0.3),
    "edges-cnn, average of half": ("edges-cnn", 1.0, 1.0, 0.5),
    "edges-cnn, clip x 0.7, 1.5 of the rounds": ("edges-cnn", 0.7, 1.5, 0.3),
    "edges-cnn, 0.7 of the rounds": ("edges-cnn", 1.0, 0.7, 0.3),
    "edges-cnn, clip x 0.7, average of half": ("edges-cnn", 0.7, 1.0, 0.5),
}


def fashion(_):
    for (name, arm), epsilon in itertools.product(ARMS.items(), ROUNDS):
        yield name, {"num_rounds": ROUNDS[epsilon]} | RECIPE | arm | {"data": "fashion-mnist", "epsilon": epsilon}


def confused(folder=None):
    """The images of ten classes of EMNIST."""
    whole = load_emnist(folder)
    numbers = [CHARACTERS.index(character) for character in CONFUSED]
    parts = {}
    for part in ("train", "test"):
        labels = getattr(whole, f"{part}_labels")
        chosen = np.isin(labels, numbers)
        parts[f"{part}_images"] = getattr(whole, f"{part}_images")[chosen]
        parts[f"{part}_labels"] = np.array([numbers.index(label) for label in labels[chosen]])
    return replace(whole, num_classes=len(numbers), **parts)


def choose(_):
    for (name, change), (epsilon, rounds) in itertools.product(CHOICES.items(), ROUNDS.items()):
        changed = {"num_rounds": round(change * rounds)} if isinstance(change, float) else change
        yield name, RECIPE | ORACLE | on_confused() | {"epsilon": epsilon, "num_rounds": rounds} | changed


@cache
def on_confused():
    rr.register("dataset", "emnist-confused", confused, num_classes=len(CONFUSED), usual_model="edges")
    return {"data": "emnist-confused", "samples_per_client": 60}


def cnn_settings(name, epsilon):
    network, clip, rounds, averaged = CNN_ARMS[name]
    own = {"model": network, "update_clip": clip * CNN_CLIPS[epsilon], "average_last": averaged}
    return RECIPE | CNN | own | {"epsilon": epsilon, "num_rounds": round(rounds * CNN_ROUNDS[epsilon])}


def cnn_choose(_):
    one_group = {"ratio": [1], "num_clients": 250, "algorithm": "fedavg", "num_clusters": 1}
    for name, epsilon in itertools.product(CNN_ARMS, CNN_ROUNDS):
        yield name, cnn_settings(name, epsilon) | on_confused() | one_group


def cnn(out):
    """The arm of cnn-choose, under `out` too, that was best on EMNIST at each epsilon."""
    measured = json.loads((out / "cnn-choose.json").read_text())
    for epsilon in CNN_ROUNDS:
        best = max((row for row in measured if row["epsilon"] == epsilon), key=lambda row: row["accuracy"])
        on_fashion = cnn_settings(best["arm"], epsilon) | {"data": "fashion-mnist"}
        yield f"true clusters given: {best['arm']}", on_fashion | ORACLE
        yield f"exploration: {best['arm']}", on_fashion | DEFAULT | {"init": "independent"}
        survey = on_fashion | DEFAULT | {"init": "survey"}
        yield f"survey: {best['arm']}", survey
        if rounds := CNN_SURVEY_ROUNDS.get(epsilon):
            yield f"survey of {rounds} rounds: {best['arm']}", survey | {"init_rounds": rounds}


STUDIES = {"choose": choose, "fashion": fashion, "cnn-choose": cnn_choose, "cnn": cnn}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"))
    given = parser.parse_args()
    runner = in_turn if given.study.endswith("choose") else run_jobs  # its data is too large to be sent
    run(given.study, STUDIES[given.study](given.out), given, runner)


if __name__ == "__main__":
    main()
