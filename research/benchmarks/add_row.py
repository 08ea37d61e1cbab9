"""Add a row to published tables, or replace it there, from runs of that row alone.

    python research/benchmarks/add_row.py TABLE ... [--row default] [--runs runs/cells] [--results docs/results]
        [--device cuda] [--no-run]

TABLE: folders of docs/results that `rrcluster reproduce` made. Runs the row of the table's study (runs resume when it
is called again, and go to RUNS/TABLE/ROW), writes it into table.md, table.csv, table.tex and reproduction.json, makes
the best of each column bold again, and prints the row before and after. Every cell must have all seeds of the table.
The figures are drawn from these files afterwards, by research/benchmarks/results_figures.py.
"""

import argparse
import csv
import json
import re
from dataclasses import replace
from pathlib import Path

from rrcluster_research.paper_tables import main_tables, more_tables
from rrcluster_research.read_reproduction import read_reproduction
from rrcluster_research.reproduce import describe, plan_reproduction
from rrcluster_research.studies import find_study

from rrcluster.report.folders import DESCRIPTION
from rrcluster.report.tables import TextTable, to_csv, to_latex, to_markdown
from rrcluster.report.values import NOTHING, Estimate, clear_best
from rrcluster.runs.sweep import FINISHED, Outcome, run_jobs
from rrcluster.storage import write_json

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TABLE = re.compile(r"\*\*(?!Quick version)(?P<title>.+)\*\*\n\n(?P<body>(?:\|.*\n)+)\n(?P<note>.*)\n")
NUMBER = re.compile(r"([\d.]+) ± ([\d.]+)")
FEW_SEEDS = re.compile(r"[\d.]+( \S+ [\d.]+)? \{?\[\}?\d of \d seeds\{?\]\}?")  # research/benchmarks/fill_cells.py
BOUNDS = ("Oracle: true clusters given", "Constant predictor")  # never bold
MEASURED = (", identifier", ", joint (ours)", ", here", "Here (points)", "Here (loss)", "p")  # ends of heads
CHANGED = {"fashion-delta-1e-4": ("fashion", {"delta": 1e-4}), "fashion-cnn": ("fashion", {"model": "cnn"})}


def plain(text):
    """Without what `to_markdown` escapes."""
    return re.sub(r"\\(\W|_)", r"\1", text)


def read_tables(text):
    """The tables of a table.md, in order."""
    tables = []
    for found in TABLE.finditer(text):
        heads, rule, *rows = [line[2:-2].split(" | ") for line in found["body"].splitlines()]
        bold = {(at, place) for at, row in enumerate(rows) for place, cell in enumerate(row) if cell[:2] == "**"}
        kinds = [place for place, mark in enumerate(rule) if mark == "---"]
        heads = tuple(map(plain, heads))
        measured = [place for place, head in enumerate(heads) if head.endswith(MEASURED[:-1]) or head == MEASURED[-1]]
        tables.append(
            TextTable(
                title=plain(found["title"]),
                columns=heads,
                rows=tuple(tuple(plain(cell.strip("*")) for cell in row) for row in rows),
                note=plain(found["note"]),
                bold=frozenset(bold),
                diagnostic=frozenset(measured),
                text_columns=frozenset(kinds),
            )
        )
    return tables


def with_row(table, row, *, before):
    """The table with a row, in place of the one of that name, or ahead of the first of `before`."""
    names = [cells[0] for cells in table.rows]
    if row[0] in names:
        place, rest = names.index(row[0]), 1
    else:
        place, rest = next((at for at, name in enumerate(names) if name in before), len(names)), 0
    rows = (*table.rows[:place], row, *table.rows[place + rest :])
    return replace(table, rows=rows, bold=frozenset(best_of(rows, table.diagnostic)))


def best_of(rows, places):
    """Of each column the cell whose interval lies above all others, as in the tables of `rrcluster reproduce`."""
    for place in places:
        found = [(at, NUMBER.fullmatch(row[place])) for at, row in enumerate(rows) if row[0] not in BOUNDS]
        found = [(at, Estimate(float(cell[1]), float(cell[2]), 0)) for at, cell in found if cell]
        best = clear_best([value for _, value in found])
        if best is not None:
            yield found[best][0], place


def add_row(folder, reproduced, key, following):
    """Write the row of finished runs into the files of a published table; prints it before and after."""
    name = reproduced.row(key).name
    text = (folder / "table.md").read_text(encoding="utf-8")
    made = {}  # title -> head -> cell; a wide table is in pieces of one title
    for table in (*main_tables(reproduced), *more_tables(reproduced)):
        cells = next((row for row in table.rows if row[0] == name), ())
        made.setdefault(table.title, {}).update(zip(table.columns, cells, strict=False))
    tables = []
    for table in read_tables(text):
        cells = made.get(table.title, {})
        if not set(table.columns[1:]).isdisjoint(cells):
            row = tuple(cells.get(head, NOTHING) for head in table.columns)
            before = next((" | ".join(old) for old in table.rows if old[0] == name), "none")
            print(f"{table.title}\n  before: {before}\n  after:  {' | '.join(row)}")
            table = with_row(table, row, before=following)
        tables.append(table)
    left = iter(tables)
    (folder / "table.md").write_text(TABLE.sub(lambda _: to_markdown(next(left)), text), encoding="utf-8")
    write_forms(folder)
    describe_row(folder / DESCRIPTION, reproduced, key, following)


def write_forms(folder):
    """Write table.csv and table.tex as table.md has them."""
    tables = read_tables((folder / "table.md").read_text(encoding="utf-8"))
    for name, form in {"table.csv": to_csv, "table.tex": to_latex}.items():
        (folder / name).write_text("\n".join(map(form, tables)), encoding="utf-8")


def describe_row(path, reproduced, key, following):
    """The row in reproduction.json, which figures read."""
    about = json.loads(path.read_text(encoding="utf-8"))
    entry = next(row for row in reproduced.about["rows"] if row["key"] == key)
    rows = [row for row in about["rows"] if row["key"] != key]
    place = next((at for at, row in enumerate(rows) if row["name"] in following), len(rows))
    write_json(path, about | {"rows": [*rows[:place], entry, *rows[place:]]})


def check_forms(folder):
    """SystemExit if table.csv and table.tex do not follow from table.md, from which they are written."""
    tables = read_tables((folder / "table.md").read_text(encoding="utf-8"))
    stored = [(folder / name).read_text(encoding="utf-8") for name in ("table.csv", "table.tex")]
    made = ["\n".join(map(form, tables)) for form in (to_csv, to_latex)]
    stored, made = ([FEW_SEEDS.sub("(1)", text).splitlines() for text in texts] for texts in (stored, made))
    if list(csv.reader(stored[0])) != list(csv.reader(made[0])) or stored[1] != made[1]:
        raise SystemExit(f"{folder}: table.csv or table.tex is not what table.md says; make them again.")


def run_row(plan):
    """The runs of the row; SystemExit unless every one has finished."""
    failed = []
    for step in run_jobs(plan.jobs):
        if isinstance(step, Outcome):
            print(step.job.name, step.status, flush=True)
            failed += [] if step.status == FINISHED else [f"{step.job.name}: {step.reason}"]
    if failed:
        raise SystemExit("\n".join(failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--row", default="default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/cells"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--no-run", action="store_true")
    given = parser.parse_args()
    for name in given.tables:
        check_forms(given.results / name)
    for name in given.tables:
        study, changes = CHANGED.get(name, (name, {}))
        changes = changes if given.device == "auto" else {**changes, "device": given.device}
        study = find_study(study)
        plan = plan_reproduction(study, out=given.runs / name / given.row, rows=[given.row], changes=changes)
        if not given.no_run:
            run_row(plan)
        describe(plan, {}, {})
        reproduced = read_reproduction(plan.out)
        finished = sum(len(cell.runs) for row in reproduced.rows for cell in row.cells.values())
        if not plan.jobs:
            raise SystemExit(f"{name}: {next(iter(plan.absent.values()))}")
        if finished < len(plan.jobs):
            raise SystemExit(f"{name}: {finished} of {len(plan.jobs)} runs have finished; run the others first.")
        names = [row.name for row in study.rows]
        following = {*names[names.index(study.row(given.row).name) + 1 :], *BOUNDS}
        add_row(given.results / name, reproduced, given.row, following)


if __name__ == "__main__":
    main()
