"""Does a run find the groups, whatever their number and size? FashionMNIST, 1,000 clients, delta 1e-3, `edges`.

    python benchmarks/groups.py [STUDY] [--seeds 0 1 2 3 4] [--device cuda] [--out runs/groups]

| STUDY | what |
| --- | --- |
| groups | seven populations, epsilon 2 and 8, k = 4 and 8: exploration, survey, true groups given, one model |
| schedules | a survey where cohorts need not be secret: public schedules, and everybody in every round |

Writes OUT/STUDY.json as benchmarks/participation.py does. Accuracy is measured on raw data.
"""

import argparse
import itertools
from pathlib import Path

from participation import ARMS, COMMON, EPSILONS
from studies import run

POPULATIONS = (
    ("rotation", (1, 1, 1, 1)),
    ("rotation", (2, 1, 1)),
    ("rotation", (8, 1, 1, 1)),
    ("label-flip", (1, 1, 1, 1)),
    ("label-flip", (8, 1, 1, 1)),
    ("rotation", (1, 1)),
    ("rotation", (1,)),
)
SURVEY = {"init": "survey"}


def groups():
    for (partition, ratio), epsilon in itertools.product(POPULATIONS, (2.0, 8.0)):
        name = f"{partition} {':'.join(map(str, ratio))}"
        settings = COMMON | {"data": "fashion-mnist", "partition": partition, "ratio": list(ratio)}
        settings |= {"epsilon": epsilon, "delta": 1e-3, "sample_rate": 0.1}
        for k in (4, 8):
            yield f"{name}, k = {k}", settings | {"num_clusters": k}
        yield f"{name}, exploration", settings | {"init": "independent"}
        oracle = {"algorithm": "oracle", "num_clusters": len(ratio), "exploration": 0.0}
        yield f"{name}, true groups given", settings | oracle


def schedules():
    for (name, arm), epsilon in itertools.product(ARMS.items(), EPSILONS):
        rounds = {2.0: 50, 4.0: 100, 8.0: 200}[epsilon]
        if "schedule" in name or arm.get("num_rounds") == rounds:
            settings = COMMON | arm | {"data": "fashion-mnist", "epsilon": epsilon, "delta": 1e-3}
            yield f"{name}, survey", settings | {"min_cluster_size": 0} | SURVEY


STUDIES = {"groups": groups, "schedules": schedules}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, nargs="?", default="groups")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/groups"))
    given = parser.parse_args()
    run(given.study, STUDIES[given.study](), given)


if __name__ == "__main__":
    main()
