"""The settings of the image tables (`experiments/paper/recipes.py`), chosen on clients that are in none of them.

    python benchmarks/tune_images.py STUDY [--seeds 0 1] [--device cuda] [--out runs/tune]

| STUDY | tuned on | for |
| --- | --- | --- |
| fashion | EMNIST, four rotations | rotated FashionMNIST |
| emnist | FashionMNIST, Dirichlet 0.5 and 0.1 | EMNIST, Dirichlet |
| cnn | EMNIST, four rotations | rotated FashionMNIST with the cnn |
| cifar | CIFAR-10, rotations 2:1:1, seeds 7 and 8 | rotated CIFAR-10; the same images, dealt anew: not disjoint |

Every method has the same grid, and all settings are compared at the same (epsilon, delta): the noise is calibrated to
it. B is 0.8 of the expected cluster size. Accuracy is measured on raw data, and no epsilon covers this choice.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean

from rrcluster.experiments.stack import pick_executor
from rrcluster.experiments.sweep import FINISHED, Job, Outcome

COMMON = {"num_clients": 1000, "delta": 1e-3, "mechanism": "joint", "batch_size": 20, "evaluate_every": 1000}
METHODS = (("fedavg", 1), ("ifca", 2), ("ifca", 4))  # algorithm, k
SMALL = ("linear", "pooled-linear", "edges", "edges-coarse")
GRIDS = {
    "fashion": {
        "population": ({"data": "emnist", "partition": "rotation"},),
        "epsilon": (2, 8),
        "model": SMALL,
        "update_clip": (0.2, 0.4, 0.8),
        "local_lr": (0.02, 0.05),
        "local_epochs": (5, 10),
        "sample_rate": (0.1, 0.3),
        "num_rounds": (100,),
    },
    "emnist": {
        "population": tuple(
            {"data": "fashion-mnist", "partition": "dirichlet", "concentration": concentration}
            for concentration in (0.5, 0.1)
        ),
        "epsilon": (2, 8),
        "model": SMALL,
        "update_clip": (0.2, 0.4, 0.8),
        "local_lr": (0.05,),
        "local_epochs": (5, 10),
        "sample_rate": (0.1, 0.3),
        "num_rounds": (100,),
    },
    "cnn": {
        "population": ({"data": "emnist", "partition": "rotation"},),
        "epsilon": (2, 8),
        "model": ("cnn",),
        "update_clip": (0.2, 0.4, 0.8),
        "local_lr": (0.03, 0.05, 0.1),
        "local_epochs": (5,),
        "sample_rate": (0.1, 0.2, 0.3),
        "num_rounds": (100,),
    },
    "cifar": {
        "population": ({"data": "cifar10", "partition": "rotation-imbalanced"},),
        "epsilon": (4, 8),
        "model": (*SMALL, "cifar-cnn"),
        "update_clip": (0.2, 0.4, 0.8),
        "local_lr": (0.05,),
        "local_epochs": (5,),
        "sample_rate": (0.1, 0.3),
        "num_rounds": (100,),
    },
}
SEEDS = {"cifar": (7, 8)}


def combinations(grid):
    """Flat settings without seed and folder: every combination with every method."""
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        population = chosen.pop("population")
        for algorithm, k in METHODS:
            coins = int(0.8 * COMMON["num_clients"] * chosen["sample_rate"] / k) if k > 1 else 0
            method = {"algorithm": algorithm, "num_clusters": k, "min_cluster_size": coins}
            yield {**COMMON, **population, **chosen, **method}


def jobs(study, *, seeds, device, out):
    made = []
    for place, settings in enumerate(combinations(GRIDS[study])):
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
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    given = parser.parse_args()
    todo = jobs(given.study, seeds=given.seeds or SEEDS.get(given.study, (0, 1)), device=given.device, out=given.out)
    measured = {}
    for step in pick_executor(todo)(todo):
        if isinstance(step, Outcome):
            if step.status == FINISHED:
                key = json.dumps(dict(step.job.values))
                measured.setdefault(key, []).append(100 * accuracy(step.job.folder))
            else:
                print(f"{step.job.name}: {step.status}: {step.reason}", flush=True)
    ranked = sorted(measured.items(), key=lambda pair: -fmean(pair[1]))
    rows = [{"accuracy": round(fmean(values), 2), "runs": len(values), **json.loads(key)} for key, values in ranked]
    (given.out / given.study / "ranked.json").write_text(json.dumps(rows, indent=1) + "\n")
    shown = [name for name in GRIDS[given.study] if name != "population"]
    for row in rows:
        settings = ", ".join(f"{name} {row[name]}" for name in ("concentration", *shown) if name in row)
        print(f"{row['accuracy']:6.2f}  {row['algorithm']} k={row['num_clusters']}  {settings}")


if __name__ == "__main__":
    main()
