"""The settings of the image tables (`rrcluster_research/recipes.py`), chosen on clients that are in none of them.

    python research/benchmarks/tune_images.py STUDY [--seeds 0] [--device cuda] [--out runs/tune]

| STUDY | tuned on | for |
| --- | --- | --- |
| fashion | EMNIST, four rotations | rotated FashionMNIST |
| emnist | FashionMNIST, Dirichlet 0.5 and 0.1 | EMNIST, Dirichlet |
| cnn | EMNIST, four rotations | rotated FashionMNIST with the cnn |
| cnn-clip | the same, --seeds 0 1 2 | its clip at each epsilon, and how strongly to explore |
| cifar | CIFAR-10, four rotations, --seeds 7 | rotated CIFAR-10; the same images, dealt anew: not disjoint |

All settings are compared at the same (epsilon, delta): the noise is calibrated to it. DP-FedAvg has the clips that
DP-IFCA has. Accuracy is measured on raw data, and no epsilon covers this choice.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean

from rrcluster.runs.sweep import FINISHED, Job, Outcome, run_jobs

COMMON = {
    "num_clients": 1000,
    "num_clusters": 4,
    "algorithm": "ifca",
    "delta": 1e-3,
    "mechanism": "joint",
    "batch_size": 20,
    "local_epochs": 5,
    "local_lr": 0.05,
    "update_clip": 0.4,
    "average_last": 0.5,
    "evaluate_every": 1000,
}
ROTATED = {"data": "emnist", "partition": "rotation"}
DEALT = {"data": "fashion-mnist", "partition": "dirichlet"}
COLOUR = {"data": "cifar10", "partition": "rotation"}
EDGES, CLIPS = ("edges", "edges-coarse"), (0.2, 0.4, 0.8)
FEDAVG = {"algorithm": "fedavg", "min_cluster_size": 0}


def cohorts(sample_rate, num_rounds=100):
    """B is 0.8 of the expected cluster size."""
    return {"sample_rate": sample_rate, "num_rounds": num_rounds, "min_cluster_size": int(200 * sample_rate)}


def every(**axes):
    """Every combination: a list of mappings."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


SINGLE = (  # one change at a time
    {},
    {"server_momentum": 0.5},
    {"average_last": 0.25},
    {"average_last": 0.75},
    {"count_weight": 0.1},
    {"local_epochs": 2},
    {"local_epochs": 10},
    {"local_lr": 0.1},
    cohorts(0.3, 50),
    cohorts(0.3, 200),
    cohorts(0.5, 60),
    {"algorithm": "oracle", "min_cluster_size": 0},
    FEDAVG,
)
CNN_CHANGES = (
    {"min_cluster_size": 0},
    {"exploration": 2.0},
    {"server_momentum": 0.5, "update_clip": 0.2},
    {"local_lr": 0.05},
    {"local_epochs": 10},
    {"algorithm": "ifca-shared"},
    {"algorithm": "oracle", "min_cluster_size": 0},
    FEDAVG,
)
CNN_CLIPS = {2: (0.1, 0.15, 0.2, 0.3), 4: (0.15, 0.2, 0.3, 0.4), 8: (0.2, 0.3, 0.4, 0.6)}
METHODS = ({}, {"num_clusters": 2, "min_cluster_size": 90}, FEDAVG)


def fashion():
    for axes in every(model=EDGES, epsilon=(2, 8), update_clip=CLIPS):
        for sample_rate in (0.1, 0.3):
            yield ROTATED | axes | cohorts(sample_rate)
        yield ROTATED | axes | cohorts(0.3) | FEDAVG
    for axes in every(model=EDGES, epsilon=(2, 8)):
        for sample_rate in (0.1, 0.3):
            yield ROTATED | axes | {"local_lr": 0.02} | cohorts(sample_rate)
    for axes in every(epsilon=(2, 8), update_clip=(0.2, 0.4)):
        for sample_rate in (0.1, 0.3):
            yield ROTATED | axes | {"model": "linear"} | cohorts(sample_rate)
    for model, change in itertools.product(EDGES, SINGLE):
        yield ROTATED | {"model": model, "epsilon": 4} | cohorts(0.3) | change


def emnist():
    for axes in every(concentration=(0.5, 0.1), epsilon=(2, 8), model=EDGES):
        for method in METHODS:
            yield DEALT | axes | cohorts(0.3) | method
    for axes in every(concentration=(0.5, 0.1), update_clip=(0.2, 0.8)):
        for method in (METHODS[0], *METHODS[2:]):
            yield DEALT | axes | {"model": "edges-coarse", "epsilon": 2} | cohorts(0.3) | method
    for axes in every(concentration=(0.5, 0.1), epsilon=(2, 8)):
        yield DEALT | axes | {"model": "linear", "update_clip": 0.2} | cohorts(0.1)


def cnn():
    network = ROTATED | {"model": "cnn", "local_lr": 0.03}
    for axes in every(epsilon=(2, 8), update_clip=(0.2, 0.3, 0.4)):
        for sample_rate in (0.1, 0.3):
            yield network | axes | cohorts(sample_rate)
    for axes in every(epsilon=(2, 8), update_clip=(0.2, 0.3)):
        for cohort in (cohorts(0.3, 200), cohorts(1.0)):
            yield network | axes | cohort
    for epsilon, change in itertools.product((2, 8), CNN_CHANGES):
        yield network | {"epsilon": epsilon, "update_clip": 0.3} | cohorts(0.3) | change


def cnn_clip():
    for epsilon, clips in CNN_CLIPS.items():
        for axes in every(update_clip=clips, exploration=(1.0, 2.0)):
            yield ROTATED | {"model": "cnn", "local_lr": 0.03, "epsilon": epsilon} | axes | cohorts(0.3)


def cifar():
    for axes in every(model=EDGES, epsilon=(4, 8), update_clip=(0.2, 0.4)):
        yield COLOUR | axes | cohorts(0.1) | {"min_cluster_size": 0}
        yield COLOUR | axes | cohorts(0.1) | FEDAVG


GRIDS = {"fashion": fashion, "emnist": emnist, "cnn": cnn, "cnn-clip": cnn_clip, "cifar": cifar}


def combinations(study):
    """Flat settings without seed and folder, each once."""
    found = [COMMON | settings for settings in GRIDS[study]()]
    return [settings for place, settings in enumerate(found) if settings not in found[:place]]


def jobs(study, *, seeds, device, out):
    made = []
    for place, settings in enumerate(combinations(study)):
        for seed in seeds:
            folder = out / study / f"{place:04d}" / f"seed-{seed}"
            whole = {**settings, "seed": seed, "device": device, "out": str(folder)}
            made.append(Job(f"{study} {place}, seed {seed}", settings, whole, folder))
    return made


def accuracy(folder):
    """The last evaluation of a run: that of the models handed out."""
    lines = (folder / "diagnostics.jsonl").read_text().splitlines()
    found = [line["accuracy"] for line in map(json.loads, lines) if "accuracy" in line]
    return found[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=GRIDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    given = parser.parse_args()
    todo = jobs(given.study, seeds=given.seeds, device=given.device, out=given.out)
    measured = {}
    for step in run_jobs(todo):
        if isinstance(step, Outcome):
            if step.status == FINISHED:
                key = json.dumps(dict(step.job.values))
                measured.setdefault(key, []).append(100 * accuracy(step.job.folder))
            else:
                print(f"{step.job.name}: {step.status}: {step.reason}", flush=True)
    ranked = sorted(measured.items(), key=lambda pair: -fmean(pair[1]))
    rows = [{"accuracy": round(fmean(values), 2), "runs": len(values), **json.loads(key)} for key, values in ranked]
    (given.out / given.study / "ranked.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        own = {name: value for name, value in row.items() if COMMON.get(name) != value}
        print(" ".join(f"{name}={value}" for name, value in own.items()))


if __name__ == "__main__":
    main()
