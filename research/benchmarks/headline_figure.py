"""Draw docs/results/headline.svg: accuracy over epsilon, five lines.

From docs/results/fashion/table.csv.

python research/benchmarks/headline_figure.py
"""

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from rrcluster.report.drawing import INK
from rrcluster.report.series import base_look

DOCS = Path(__file__).parents[2] / "docs"
EPSILONS = (2, 4, 8)
TEXT_COLOURS = ("#00588a", "#a84a00", "#00755a", "#946600", "#1f74a8", "#9c4a79")  # the palette, dark enough to be read
OURS, PAPER, PUBLISHED = "joint (ours)", "identifier", "published"
IFCA = {"algorithm": "ifca"}
LINES = (  # row of the table, column, label, settings of the method
    ("Oracle: true clusters given", OURS, "groups known beforehand", {"algorithm": "oracle"}),
    ("Default: DP-IFCA + survey", OURS, "rrcluster, the default", IFCA | {"exploration": 1.0}),
    ("DP-FedAvg", OURS, "one model for all", {"algorithm": "fedavg"}),
    ("RR-Cluster (IFCA)", PUBLISHED, "RR-Cluster as published", IFCA | {"min_cluster_size": 15}),
    ("DP-IFCA", PAPER, "the paper's mechanism,\nsoundly accounted", IFCA),
)
LABEL_HEIGHT = {"groups known beforehand": 1.6, "rrcluster, the default": -1.8, "RR-Cluster as published": 0.9}


def read():
    """The file's first table: accuracy, balanced groups."""
    first, _, _ = (DOCS / "results" / "fashion" / "table.csv").read_text(encoding="utf-8").partition("\n\n")
    return {row["Method"]: row for row in csv.DictReader(first.splitlines())}


def value(rows, method, epsilon, column):
    row = rows[method]
    suffix = "" if column == PUBLISHED else " [diagnostic, not private]"
    return float(row[f"epsilon {epsilon}, {column}{suffix}"])


def main():
    rows = read()
    plt.rcParams.update(
        {"font.size": 13, "svg.hashsalt": "rrcluster", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    for method, column, label, settings in LINES:
        heights = [value(rows, method, epsilon, column) for epsilon in EPSILONS]
        look = base_look(settings)
        axes.plot(range(3), heights, linewidth=2.5, markersize=7, **look.style())
        axes.annotate(
            label,
            (2, heights[-1] + LABEL_HEIGHT.get(label, -1.5 if "\n" in label else 0)),
            xytext=(9, 0),
            textcoords="offset points",
            color=(*TEXT_COLOURS, INK)[look.colour],
            va="center",
        )
    axes.set_xticks(range(3), [f"ε = {epsilon}" for epsilon in EPSILONS])
    axes.set_xlim(-0.15, 3.35)
    axes.set_ylim(30, 90)
    axes.set_ylabel("test accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines["bottom"].set_bounds(-0.15, 2.1)
    axes.hlines(axes.get_yticks(), -0.15, 2.1, color="#dddddd", linewidth=1, zorder=0)
    figure.savefig(DOCS / "results" / "headline.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
