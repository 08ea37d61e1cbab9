"""When does personalisation pay? Made populations, by rows per client, differences between clients, and noise.

Clients differ in their intercept by a normal of some spread and in every slope by half of that; or they are in three
groups, which differ in their mean columns and in their slopes. The default against one model, and against itself with
one cluster. Writes docs/results/natural/when-pays.json, and a figure of it.

python research/benchmarks/when_pays.py
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from rrcluster_research.natural_study import trained_right

from rrcluster.report.drawing import MARKERS, PALETTE, draw
from rrcluster.runs.experiment import build_experiment

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "natural"
FILE = FOLDER / "when-pays.json"
COLUMNS, TEST_SHARE, DELTA = 6, 0.3, 1e-4
ROWS, SPREADS = (2, 4, 8, 16, 32, 64), (0.0, 0.5, 1.0, 2.0)
CLIENTS, EPSILONS = (100, 300, 1000, 3000), (4.0, 1.0)
ONE = {"algorithm": "mixed-effects", "num_clusters": 1, "personal": False}
PERSONAL, DEFAULT = ONE | {"personal": True}, {"algorithm": "mixed-effects"}


def population(rng, *, clients, rows, spread, groups=1):
    """Table columns: clients with `rows` rows for training, and more for testing."""
    size = round(rows / (1 - TEST_SHARE)) if rows > 2 else 3
    group = rng.integers(0, groups, clients)
    means = rng.normal(size=(groups, COLUMNS)) if groups > 1 else np.zeros((1, COLUMNS))
    slopes = rng.normal(size=(groups, COLUMNS))
    slopes *= 2 / np.linalg.norm(slopes, axis=1, keepdims=True)
    own = spread * rng.normal(size=(clients, 1 + COLUMNS)) * np.r_[1.0, np.full(COLUMNS, 0.5)]
    x = rng.normal(size=(clients, size, COLUMNS))
    logits = np.einsum("csj,cj->cs", x, slopes[group] + own[:, 1:]) + own[:, :1]
    answers = (rng.random((clients, size)) < 1 / (1 + np.exp(-logits))).astype(int)
    x += means[group][:, None]
    names = {f"x{j}": x[..., j].ravel() for j in range(COLUMNS)}
    return {"client": np.repeat(np.arange(clients), size), "target": answers.ravel(), **names}


def accuracy(table, **settings):
    """Mean over clients, in %."""
    about = {"client": "client", "target": "target", "classes": (0, 1), "test_share": TEST_SHARE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = build_experiment(data=table, **about, delta=DELTA, seed=0, device="cpu", processes=1, **settings)
    return 100 * float(np.mean([rows.mean() for rows in trained_right(experiment)[0]]))


def measured():
    cells = []
    for spread in SPREADS:
        for rows in ROWS:
            table = population(np.random.default_rng(0), clients=1000, rows=rows, spread=spread)
            one, own = (accuracy(table, epsilon=4.0, **settings) for settings in (ONE, PERSONAL))
            cells.append({"what": "personal", "clients": 1000, "epsilon": 4.0, "rows": rows, "spread": spread})
            cells[-1] |= {"before": round(one, 2), "after": round(own, 2)}
            print(json.dumps(cells[-1]), flush=True)
    for epsilon in EPSILONS:
        for clients in CLIENTS:
            table = population(np.random.default_rng(1), clients=clients, rows=10, spread=1.0)
            one, own = (accuracy(table, epsilon=epsilon, **settings) for settings in (ONE, PERSONAL))
            grouped = population(np.random.default_rng(2), clients=clients, rows=10, spread=0.3, groups=3)
            single, found = (accuracy(grouped, epsilon=epsilon, **settings) for settings in (PERSONAL, DEFAULT))
            for what, before, after in (("personal", one, own), ("groups", single, found)):
                cells.append({"what": what, "clients": clients, "epsilon": epsilon, "rows": 10})
                cells[-1] |= {"spread": 1.0 if what == "personal" else 0.3}
                cells[-1] |= {"before": round(before, 2), "after": round(after, 2)}
                print(json.dumps(cells[-1]), flush=True)
    return cells


def paint(figure, cells):
    """Gain over rows per client by spread; gain over clients by budget."""
    left, right = figure.subplots(1, 2)
    for k, spread in enumerate(SPREADS):
        own = [cell for cell in cells if cell["clients"] == 1000 and cell["epsilon"] == 4 and cell["spread"] == spread]
        points = sorted((cell["rows"], cell["after"] - cell["before"]) for cell in own if cell["what"] == "personal")
        points = [point for point in points if point[0] in ROWS]
        left.plot(*zip(*points, strict=True), marker=MARKERS[k], color=PALETTE[k], label=f"spread {spread:g}")
    left.set_xscale("log", base=2)
    left.set_xticks(ROWS, [str(rows) for rows in ROWS])
    left.set_xlabel("rows of a client")
    left.set_ylabel("points that the own part gains")
    left.legend(fontsize=7)
    k = 0
    for what, words in (("personal", "own part"), ("groups", "three groups")):
        for epsilon in EPSILONS:
            own = [cell for cell in cells if (cell["what"], cell["epsilon"], cell["rows"]) == (what, epsilon, 10)]
            points = sorted((cell["clients"], cell["after"] - cell["before"]) for cell in own)
            right.plot(
                *zip(*points, strict=True),
                marker=MARKERS[k],
                color=PALETTE[k],
                label=f"{words}, epsilon {epsilon:g}",
            )
            k += 1
    right.set_xscale("log")
    right.set_xticks(CLIENTS, [f"{clients:,}" for clients in CLIENTS])
    right.set_xlabel("clients")
    right.set_ylabel("points gained")
    right.legend(fontsize=7)


def main():
    torch.set_num_threads(1)
    if "--draw" not in sys.argv:
        FOLDER.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps({"delta": DELTA, "columns": COLUMNS, "cells": measured()}, indent=1) + "\n")
    cells = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
    caption = "Gain of a client's own part by its rows and by how far clients differ, and by clients and epsilon."
    drawing = draw(
        "when-pays", lambda figure: paint(figure, cells), height=2.6, width=6.4, caption=caption, alt=caption
    )
    (FOLDER / "when-pays.png").write_bytes(drawing.png)


if __name__ == "__main__":
    main()
