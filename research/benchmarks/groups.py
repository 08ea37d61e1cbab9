"""Does a run find the groups, whatever their number and size? FashionMNIST, 1,000 clients, delta 1e-3, `edges`.

    python research/benchmarks/groups.py [groups|others] [--seeds 0 1 2 3 4] [--device cuda] [--out runs/groups]

Seven populations, epsilon 2 and 8, k = 4 and 8: the default, exploration, true groups given. `others`: six that nothing
was tuned on or tried with before, without exploration. Writes OUT/groups.json or OUT/others.json as
research/benchmarks/participation.py does. Accuracy is measured on raw data.
"""

import argparse
import itertools
from pathlib import Path

from participation import COMMON
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


OTHERS = (
    ("rotation", (4, 2, 1, 1)),
    ("rotation", (3, 1)),
    ("label-flip", (2, 1, 1)),
    ("label-flip", (1, 1)),
    ("rotation", (6, 3, 1)),
    ("label-flip", (4, 2, 1, 1)),
)


def groups(populations, *, explore):
    for (partition, ratio), epsilon in itertools.product(populations, (2.0, 8.0)):
        name = f"{partition} {':'.join(map(str, ratio))}"
        settings = COMMON | {"data": "fashion-mnist", "partition": partition, "ratio": list(ratio)}
        settings |= {"epsilon": epsilon, "delta": 1e-3, "sample_rate": 0.1}
        for k in (4, 8):
            yield f"{name}, k = {k}", settings | {"num_clusters": k}
            if explore:
                yield f"{name}, k = {k}, exploration", settings | {"num_clusters": k, "init": "independent"}
        oracle = {"algorithm": "oracle", "num_clusters": len(ratio), "exploration": 0.0}
        yield f"{name}, true groups given", settings | oracle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=["groups", "others"], default="groups")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/groups"))
    given = parser.parse_args()
    known = given.study == "groups"
    run(given.study, groups(POPULATIONS if known else OTHERS, explore=known), given)


if __name__ == "__main__":
    main()
