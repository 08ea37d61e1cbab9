"""Draw the map (docs/map.md) from what was measured: `rrcluster reproduce map` in full is 840 runs.

    python benchmarks/map.py [--runs runs/reproduce/map] [--out docs/results/map]

Reads docs/results/groups/groups.json (the default, exploration, true groups given; per seed) and
docs/results/fashion/table.csv (DP-IFCA, the paper's rule, coins; means over five seeds), both made with the settings of
the study `map`; and finished runs of that study in RUNS, whatever their number. A cell that several have is taken
from RUNS where it has five seeds, else from the published files. Writes OUT/map.json and the two heat maps.
"""

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import ttest_rel

from rrcluster.paper.map_figure import MapPanel, draw_panels
from rrcluster.paper.read_reproduction import is_reproduction, read_reproduction
from rrcluster.paper.studies import find_study
from rrcluster.report.figures import save_figures

RESULTS = Path(__file__).parents[1] / "docs" / "results"
STUDY = find_study("map")
EPSILONS = (2.0, 8.0)
METHODS = {  # (row, mechanism) -> line of the figure
    ("ifca", "identifier"): "DP-IFCA, identifier",
    ("exact", "identifier"): "the paper's rule, identifier",
    ("ifca", "joint"): "DP-IFCA",
    ("coin", "joint"): "coins",
    ("explore", "joint"): "exploration",
    ("survey", "joint"): "survey",
}
ARMS = {  # place of the study -> population of groups.json, and k there
    "even": ("rotation 1:1:1:1", 4),
    "three": ("rotation 2:1:1", 4),
    "uneven": ("rotation 8:1:1:1", 4),
    "two": ("rotation 1:1", 4),
    "one": ("rotation 1", 4),
    "flip-even": ("label-flip 1:1:1:1", 4),
    "flip-uneven": ("label-flip 8:1:1:1", 4),
    "k8": ("rotation 1:1:1:1", 8),
}
TABLE_ROWS = {
    "DP-IFCA": ("ifca", ("identifier", "joint")),
    "RR-Cluster (IFCA)": ("exact", ("identifier",)),
    "RR-Cluster (IFCA), no exploration": ("coin", ("joint",)),
}


def of_groups():
    """(place, epsilon, row, mechanism) -> accuracies by seed, worst decile, source."""
    arms = {(arm["arm"], arm["epsilon"]): arm for arm in json.loads((RESULTS / "groups" / "groups.json").read_text())}
    for place, (population, k) in ARMS.items():
        for epsilon in EPSILONS:
            names = {
                "explore": f"{population}, k = {k}, exploration",
                "survey": f"{population}, k = {k}",
                "oracle": f"{population}, true groups given",
            }
            for row, name in names.items():
                if (arm := arms.get((name, epsilon))) is not None:
                    by_seed = dict(zip(arm["seeds"], arm["accuracies"], strict=True))
                    yield (place, epsilon, row, "joint"), (by_seed, arm["worst decile"], "groups.json")


def of_the_fashion_table():
    """As `of_groups`, means alone: the seeds are None."""
    lines = (RESULTS / "fashion" / "table.csv").read_text().split("\n\n")
    blocks = [list(csv.DictReader(block.splitlines())) for block in lines]
    blocks = [block for block in blocks if block and "Method" in block[0]]
    accuracies, deciles = blocks[:2], blocks[-3:-1]  # balanced, imbalanced; the last block has the settings
    for place, accuracy, decile in zip(("even", "three"), accuracies, deciles, strict=True):
        worst = {line["Method"]: line for line in decile}
        for line in accuracy:
            row, mechanisms = TABLE_ROWS.get(line["Method"], ("", ()))
            for mechanism in mechanisms:
                for epsilon in EPSILONS:
                    kind = "joint (ours)" if mechanism == "joint" else mechanism
                    head = f"epsilon {epsilon:g}, {kind} [diagnostic, not private]"
                    value = (None, float(worst[line["Method"]][head]), "fashion/table.csv", float(line[head]))
                    yield (place, epsilon, row, mechanism), value


def of_runs(folder):
    """As `of_groups`, from a reproduction of the study."""
    if folder is None or not is_reproduction(folder):
        return
    reproduced = read_reproduction(folder)
    for column in reproduced.columns:
        for row in reproduced.rows:
            for mechanism in column.mechanisms:
                by_seed = reproduced.values(row, column, mechanism, "accuracy")
                worst = reproduced.values(row, column, mechanism, "worst_decile")
                if by_seed:
                    place = column.key.rsplit("-eps", 1)[0]
                    points = {seed: 100 * value for seed, value in by_seed.items()}
                    source = f"{len(points)} of 5 seeds of the study"
                    yield (place, column.epsilon, row.key, mechanism), (points, 100 * fmean(worst.values()), source)


def measured(folder):
    """Every cell: published files first, then runs that are complete or stand alone."""
    cells = {
        key: (value[0], value[1], value[2], value[3] if len(value) > 3 else fmean(value[0].values()))
        for key, value in (*of_groups(), *of_the_fashion_table())
    }
    for key, (by_seed, worst, source) in of_runs(folder):
        if key not in cells or len(by_seed) >= 5:
            cells[key] = (by_seed, worst, source, fmean(by_seed.values()))
    return cells


def behind(cells, place, epsilon, row, mechanism):
    """Points behind the oracle: mean accuracy over the seeds that both have, and worst decile; None without either."""
    own, best = cells.get((place, epsilon, row, mechanism)), cells.get((place, epsilon, "oracle", "joint"))
    if own is None or best is None:
        return None
    common = sorted(set(own[0] or ()) & set(best[0] or ()))
    gap = fmean(best[0][seed] - own[0][seed] for seed in common) if common else best[3] - own[3]
    told = {"seeds": len(own[0] or range(5)), "source": own[2]}
    return {"accuracy": round(gap, 2), "worst decile": round(best[1] - own[1], 2), **told}


def paired(cells, place, epsilon, first, second):
    """Difference in points over common seeds, and the two-sided p of a paired t-test; None without five."""
    one, two = (cells.get((place, epsilon, row, "joint")) for row in (first, second))
    if one is None or two is None or one[0] is None or two[0] is None:
        return None
    common = sorted(set(one[0]) & set(two[0]))
    if len(common) < 5:
        return None
    values = [[cell[0][seed] for seed in common] for cell in (one, two)]
    return {"points": round(fmean(values[0]) - fmean(values[1]), 2), "p": round(float(ttest_rel(*values).pvalue), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS / "map")
    given = parser.parse_args()
    cells, titles = measured(given.runs), {column.key.rsplit("-eps", 1)[0]: column.title for column in STUDY.columns}
    places = [place for place in titles if any(key[0] == place for key in cells)]
    rows = [
        {"place": titles[place], "epsilon": epsilon, "method": name, **gap}
        for epsilon in EPSILONS
        for place in places
        for (row, mechanism), name in METHODS.items()
        if (gap := behind(cells, place, epsilon, row, mechanism)) is not None
    ]
    tests = [
        {"place": titles[place], "epsilon": epsilon, "pair": f"{first} against {second}", **test}
        for epsilon in EPSILONS
        for place in places
        for first, second in (("survey", "explore"), ("survey", "oracle"), ("explore", "oracle"))
        if (test := paired(cells, place, epsilon, first, second)) is not None
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "map.json").write_text(json.dumps({"behind the oracle": rows, "paired": tests}, indent=1) + "\n")
    drawings = []
    for measure, words in (("accuracy", "mean accuracy"), ("worst decile", "accuracy of the worst decile")):
        values = {(row["place"], row["epsilon"], row["method"]): row[measure] for row in rows}
        panels = [
            MapPanel(
                f"Epsilon {epsilon:g}",
                tuple(METHODS.values()),
                tuple(titles[place] for place in places),
                np.array([[values.get((titles[p], epsilon, m), np.nan) for p in places] for m in METHODS.values()]),
            )
            for epsilon in EPSILONS
        ]
        drawings.append(draw_panels(f"map-{measure.replace(' ', '-')}", panels, words))
    save_figures(drawings, given.out / "figures")


if __name__ == "__main__":
    main()
