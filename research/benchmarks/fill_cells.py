"""Fill the cells of published tables that were not measured: DP-FeSEM, RR-Cluster (FeSEM) and DP-FedPer, identifier.

    fill_cells.py [TABLE ...] [--device cuda] [--runs runs/cells] [--results docs/results] [--no-run]

TABLE: folders of docs/results; all of them unless named. Runs the missing cells alone, which resume when it is called
again, and writes what has finished in place of "(1)" into table.md, table.csv and table.tex. A cell of fewer seeds than
the table has says so. The paired tests of the new cells are printed. --no-run fills in what has finished before.
"""

import argparse
import re
from pathlib import Path

from add_row import write_forms
from rrcluster_research.paper_tables import significance_table
from rrcluster_research.read_reproduction import MEASURES, read_reproduction
from rrcluster_research.reproduce import describe, plan_reproduction
from rrcluster_research.studies import find_study

from rrcluster.report.values import NOTHING, percent
from rrcluster.runs.sweep import FINISHED, Outcome, run_jobs

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLES = {  # folder -> study, and what is changed in it
    "fashion": ("fashion", {}),
    "fashion-delta-1e-4": ("fashion", {"delta": 1e-4}),
    "curves": ("curves", {}),
    "clustering": ("clustering", {}),
    "emnist": ("emnist", {}),
    "shakespeare": ("shakespeare", {}),
    "cifar": ("cifar", {}),
}
NOT_MEASURED = "(1)"
NOTE = " (1) not measured: the memoryless form that runs here is newer than this table."
MISSING = re.compile(r"\(1\)|[\d.]+( ± [\d.]+)? \\?\[\d of \d seeds\\?\]")  # not measured, or not with all seeds


def plan_of(name, given):
    """The study of a table with the rows that have a memoryless form."""
    study, changes = TABLES[name]
    study = find_study(study)
    rows = [row.key for row in study.rows if "memoryless" in str(row.answers.get("identifier"))]
    device = {} if given.device == "auto" else {"device": given.device}
    return plan_reproduction(study, out=given.runs / name, rows=rows, changes={**changes, **device})


def run_cells(plan):
    """The jobs under identifier, by seed: a table has one seed everywhere before it has two anywhere."""
    jobs = [job for job in plan.jobs if job.values["mechanism"] == "identifier"]
    jobs = sorted(jobs, key=lambda job: job.settings["seed"])
    for step in run_jobs(jobs):
        if isinstance(step, Outcome):
            print(step.job.name, step.status, "" if step.status == FINISHED else step.reason, flush=True)


class Cells:
    """What was measured, as text, by title of a table, name of a row, and head of a column."""

    def __init__(self, reproduced):
        self.texts = {}
        for measure, words in MEASURES.items():
            for row in reproduced.rows:
                for column in reproduced.columns:
                    key = (f"{column.panel}: {words}", row.name, f"{column.budget}, identifier")
                    value = reproduced.estimate(row, column, "identifier", measure)
                    if value is not None and column.epsilon is not None:
                        short = f" [{value.count} of {reproduced.num_seeds} seeds]"
                        short = short if value.count < reproduced.num_seeds else ""
                        width = "" if value.half_width is None else percent(value.half_width)
                        self.texts[key] = percent(value.mean), width, short
                    elif reproduced.runs(row, column, "identifier"):  # such as how one cluster clusters
                        self.texts[key] = NOTHING, "", ""

    def text(self, title, row, head, text):
        """The text of a missing cell, filled in if it was measured."""
        mean, width, short = self.texts.get((title, row, head), (text, "", ""))
        return f"{mean}{f' ± {width}' if width else ''}{short}"


def fill(folder, cells):
    """Write the cells into the three tables; how many were filled."""
    filled = fill_markdown(folder / "table.md", cells)
    write_forms(folder)
    return sum(text != NOT_MEASURED for text in filled)


def fill_markdown(path, cells):
    """What every missing cell became, in order. Tables without one lose their note."""
    lines, filled, title, heads = path.read_text(encoding="utf-8").split("\n"), [], "", []
    for place, line in enumerate(lines):
        if line.startswith("**") and not line.startswith("**Quick"):
            title, heads = line.strip("*"), []
        elif line.startswith("| "):
            parts = line.strip("| ").split(" | ")
            heads = heads or parts
            missing = [at for at, part in enumerate(parts) if MISSING.fullmatch(part)]
            for at in missing:
                parts[at] = cells.text(title, parts[0], heads[at], parts[at])
                filled.append(parts[at])
            lines[place] = f"| {' | '.join(parts)} |" if missing else line
    *above, rest = "\n".join(lines).split(NOTE)
    path.write_text("".join(part + NOTE * (NOT_MEASURED in part) for part in above) + rest, encoding="utf-8")
    return filled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/cells"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--no-run", action="store_true")
    given = parser.parse_args()
    if unknown := [name for name in given.tables if name not in TABLES]:
        parser.error(f"no table {unknown[0]!r} has such cells; choose among {', '.join(TABLES)}")
    for name in given.tables or TABLES:
        plan = plan_of(name, given)
        if not given.no_run:
            run_cells(plan)
        describe(plan, {}, {})
        reproduced = read_reproduction(plan.out)
        print(f"{name}: {fill(given.results / name, Cells(reproduced))} cells filled")
        for table in significance_table(reproduced):
            for row in table.rows:
                print("  " + " | ".join(row))


if __name__ == "__main__":
    main()
