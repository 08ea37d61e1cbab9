"""Draw the figures of docs/results/*/figures from the tables beside them; no run is needed.

python research/benchmarks/results_figures.py

Drawn are accuracy over epsilon, the worst decile and the sweep over B, with the charts of `rrcluster reproduce`. What
the tables do not hold (values after each round, released sizes, confusions) is drawn by `rrcluster reproduce` alone.
"""

import csv
import json
import shutil
from pathlib import Path

from rrcluster_research.paper_figures import FIGURE_KINDS
from rrcluster_research.read_reproduction import MeasuredColumn, MeasuredRow

from rrcluster.report.figures import save_figures
from rrcluster.report.values import Estimate, estimate

RESULTS = Path(__file__).parents[2] / "docs" / "results"
DRAWN = ("epsilon", "worst-decile", "sweep")
HEADS = {"identifier": ", identifier", "joint": ", joint (ours)", "none": ", here"}
MEASURE, HALF_WIDTH = " [diagnostic, not private]", " 95% half width"


class StoredTables:
    """What figures ask of a reproduction, answered from its tables: means and half widths in percent."""

    def __init__(self, folder):
        self.about = json.loads((folder / "reproduction.json").read_text(encoding="utf-8"))
        self.measure = self.about["measure"]
        self.columns = [
            MeasuredColumn(entry["key"], entry["panel"], entry["epsilon"], tuple(entry["mechanisms"]), entry["title"])
            for entry in self.about["columns"]
        ]
        self.rows = [
            MeasuredRow(row["key"], row["name"], row["reference"], row["published"], row["settings"], {})
            for row in self.about["rows"]
        ]
        self.panels = tuple(dict.fromkeys(column.panel for column in self.columns))
        self.tables = stored_tables(folder)

    def estimate(self, row, column, mechanism, measure=None):
        """Mean and interval over the seeds; None for a cell that holds no number."""
        head = column.budget + HEADS[mechanism] + MEASURE
        for cells in self.tables.get((column.panel, measure or self.measure), ()):
            if cells["Method"] == row.name and head in cells:
                return number(cells[head], cells.get(head + HALF_WIDTH), len(self.about["seeds"]))
        return None

    def constant(self, column):
        """The accuracy of the constant predictor."""
        return estimate(self.about["constant"].get(column.key, ()))


def stored_tables(folder):
    """The rows of table.csv by panel and measure, which the titles in table.md say in the same order."""
    named = [
        line.strip("*") for line in (folder / "table.md").read_text(encoding="utf-8").splitlines() if line[:2] == "**"
    ]
    named = [line for line in named if not line.startswith("Quick version")]
    parts = (folder / "table.csv").read_text(encoding="utf-8").split("\n\n")
    tables = {}
    for title, part in zip(named, parts, strict=True):
        panel, _, measure = title.rpartition(": ")
        key = (panel, measure.removesuffix(" (%)").replace(" ", "_"))
        tables.setdefault(key, []).extend(csv.DictReader(part.splitlines()))
    return tables


def number(mean, half_width, seeds):
    try:
        return Estimate(float(mean) / 100, float(half_width) / 100 if half_width else None, seeds)
    except ValueError:
        return None


def drawn_by(folder):
    """The figures that the tables of a folder have values for."""
    stored = StoredTables(folder)
    kinds = [kind for kind in stored.about["figures"] if kind in DRAWN]
    return [drawing for kind in kinds for drawing in FIGURE_KINDS[kind](stored)]


def main():
    for path in sorted(RESULTS.glob("*/reproduction.json")):
        figures = drawn_by(path.parent)
        if not figures:  # such as the map's, which `rrcluster reproduce` draws
            continue
        shutil.rmtree(path.parent / "figures", ignore_errors=True)
        for file in save_figures(figures, path.parent / "figures"):
            print(file.relative_to(RESULTS))


if __name__ == "__main__":
    main()
