"""Survey or exploration on tables: made-up clients whose groups weigh the columns differently. Prints one line each.

python research/benchmarks/tables.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import rrcluster as rr

CLIENTS, SEED = 600, 1
EQUAL, ONE, UNEQUAL = (1, 1, 1, 1), (1,), (8, 1, 1, 1)
POPULATIONS = [  # columns, classes, rows of a client to train on, group ratio
    *((12, 2, rows, EQUAL) for rows in (25, 60, 200)),
    *((30, 4, rows, EQUAL) for rows in (25, 60)),
    *((60, 2, 25, EQUAL), (60, 4, 60, EQUAL)),
    *((12, 2, rows, ratio) for ratio in (ONE, UNEQUAL) for rows in (25, 60, 200)),
    *((30, 4, rows, ratio) for ratio in (ONE, UNEQUAL) for rows in (25, 60)),
]


def population(columns, classes, rows, ratio):
    """Uniform columns; the label is the class of the largest weighted sum, a little noise added."""
    rng = np.random.default_rng(SEED)
    weights = rng.normal(size=(len(ratio), columns, classes)) * 4 / np.sqrt(columns / 12)
    ends = np.round(np.cumsum(ratio) / sum(ratio) * CLIENTS).astype(int)
    groups = np.repeat(np.arange(len(ratio)), np.diff(ends, prepend=0))
    inputs = rng.random((CLIENTS, rows + 20, columns)).astype(np.float32)
    sums = np.einsum("nsc,nck->nsk", inputs - 0.5, weights[groups])
    labels = (sums + 0.5 * rng.normal(size=sums.shape)).argmax(axis=2)
    return rr.from_arrays(
        inputs[:, :rows],
        labels[:, :rows],
        test_inputs=list(inputs[:, rows:]),
        test_targets=list(labels[:, rows:]),
        groups=groups,
        num_classes=classes,
        name="tables",
    )


def main():
    """Every population with both."""
    for columns, classes, rows, ratio in POPULATIONS:
        data = population(columns, classes, rows, ratio)
        line = f"{columns} columns, {classes} classes, {rows} rows, groups {':'.join(map(str, ratio))}:"
        for init in ("survey", "independent"):
            with tempfile.TemporaryDirectory() as folder:
                settings = {"num_clusters": 4, "epsilon": 4, "delta": 1e-4, "local_lr": 0.5, "init": init}
                result = rr.run(data=data, **settings, seed=SEED, device="cpu", out=f"{folder}/run", progress=False)
                summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
            groups = f" ({summary['groups_found']} found)" if init == "survey" else ""
            line += f" {init} {100 * result.evaluation.accuracy:.1f}{groups}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
