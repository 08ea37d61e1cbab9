"""`rrcluster reproduce`: a table or figure of the paper, ours beside theirs."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rrcluster.cli.terminal import follow_sweep, parse, print_json, print_results, print_whole, say
from rrcluster.data.catalogue import SOURCES
from rrcluster.errors import ConfigError
from rrcluster.storage import write_file

NATURAL = "natural"  # tables of real people, not a table of the paper

if TYPE_CHECKING:
    from rrcluster.runs.sweep import Outcome
    from rrcluster_research.paper_report import ReproductionReport
    from rrcluster_research.reproduce import Reproduction


@dataclass(frozen=True)
class ReproduceCommand:
    """Run a table or figure of the paper: published numbers, the paper's mechanism soundly accounted, and ours.

    usage: rrcluster reproduce NAME [OPTIONS]. Examples:

    rrcluster reproduce --list

    rrcluster reproduce fashion --quick

    rrcluster reproduce fashion --device cuda

    The full version has five seeds and the paper's population: hours on a laptop, so start with --quick. An interrupted
    command resumes when it is run again, and runs that another table has already made are copied. It writes run
    folders, table.md, figures/ and report.html to its folder, and the verdicts on the paper's claims beside it (with
    --out, into it). Rows whose data is missing are left out, and the table says how to get it.
    """

    list: bool = False
    """Show all names, what they reproduce and how many runs they take."""
    quick: bool = False
    """A small version for a laptop, minutes instead of hours: fewer seeds, rounds and cells, as its table says."""
    seeds: tuple[int, ...] = ()
    """Seeds; default five, with --quick two."""
    rows: tuple[str, ...] = ()
    """Only these rows, such as ifca rr-ifca; default all. A wrong name lists them."""
    tables: tuple[str, ...] = ()
    """natural: only these tables of real people, such as wages star; default eight of them."""
    model: str | None = None
    """Another network, such as cnn, for all rows without their own."""
    delta: float | None = None
    """Another delta; default 1e-3, the paper's."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_folder: str | None = None
    """Folder of the data files; default: the usual places (`rrcluster data list`)."""
    out: Path | None = None
    """Folder; default runs/reproduce/NAME, with -quick and changed settings appended."""
    report: Path | None = None
    """Run nothing: make the tables, figures and page of this folder again."""
    json: bool = False
    """Print only the tables, as JSON, on stdout."""
    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"])] = False
    """No progress."""


def main(arguments: list[str]) -> int:
    """Run the command; exit status 1 when nothing could be run."""
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    command = parse(ReproduceCommand(), arguments[1:] if name else arguments, prog="rrcluster reproduce")
    if command.list:
        return _list(command)
    if name == NATURAL:
        return _natural(command)
    if command.report is not None:
        from rrcluster_research.paper_report import make_reproduction

        report = make_reproduction(command.report)
        say(f"Page: {report.page}. Tables: {report.table}")
        return 0
    from rrcluster_research.reproduce import plan_reproduction
    from rrcluster_research.reuse import take_over
    from rrcluster_research.studies import STUDIES, find_study

    if name is None:
        raise ConfigError(
            f"reproduce needs the name of a table or figure: {', '.join((*STUDIES, NATURAL))}. "
            "`rrcluster reproduce --list` explains them."
        )
    study = find_study(name)
    plan = plan_reproduction(
        study,
        out=command.out or _folder(study.name, command),
        quick=command.quick,
        seeds=command.seeds,
        rows=command.rows,
        changes=_changes(command),
    )
    if taken := take_over(plan.jobs, _beside(plan, command)):
        say(f"{taken} of {len(plan.jobs)} runs were copied from other tables, which have the same runs.")
    began = time.monotonic()
    fresh = sum(not (job.folder / "models.safetensors").exists() for job in plan.jobs)
    outcomes = _run(plan, command)
    _write_about(plan, arguments, seconds=time.monotonic() - began, num_runs=fresh, taken=taken)
    return _show(plan, outcomes, command)


def _natural(command: ReproduceCommand) -> int:
    """Tables of real people: measure what is missing, and write page, figure and numbers."""
    from rrcluster.report.figures import save_figures
    from rrcluster_research.natural_report import draw_figure, make_page
    from rrcluster_research.natural_study import (
        CONTENDERS,
        TABLES,
        TEST_SHARE,
        absent_tables,
        parts_of,
        read_cells,
        run_study,
    )

    unknown = [row for row in command.rows if row not in CONTENDERS]
    unknown += [
        table
        for table in command.tables
        if table not in SOURCES or not (SOURCES[table].wheel and SOURCES[table].num_classes)
    ]
    if unknown:
        raise ConfigError(
            f"natural has no {unknown[0]!r}; its rows are {', '.join(CONTENDERS)}, its tables {', '.join(TABLES)} and "
            "others of `rrcluster data list` with classes."
        )
    tables = command.tables or (("wages",) if command.quick else TABLES)
    absent = {} if command.report else absent_tables(tables, command.data_folder)
    for reason in absent.values():
        say(f"Left out: {reason}")
    out = command.out or _folder(NATURAL, command)
    seeds = command.seeds or ((0,) if command.quick else ())
    plan = parts_of([table for table in tables if table not in absent], command.rows or tuple(CONTENDERS), seeds)
    file = out / NATURAL / "natural.json"
    if command.report is None:
        for done, part, method in run_study(file, plan, data_folder=command.data_folder):
            if not (command.quiet or command.json):
                budget = "no noise" if part.epsilon is None else f"epsilon {part.epsilon:g}"
                say(f"{done} of {len(plan)}: {part.table}, {part.rows} rows, {budget}, seed {part.seed}, {method}")
    cells = read_cells(file if command.report is None else command.report / NATURAL / "natural.json")
    if not cells:
        say("rrcluster reproduce: nothing could be run for natural; the reasons are above.")
        return 1
    out = out if command.report is None else command.report
    save_figures([draw_figure(cells)], out / NATURAL)
    page = make_page(cells, test_share=TEST_SHARE, figure=f"{NATURAL}/natural.png")
    path = write_file(out / "natural.md", page)
    if command.json:
        print_json({"name": NATURAL, "folder": str(out), "cells": [asdict(cell) for cell in cells]})
    say(f"Page: {path}. Numbers: {out / NATURAL / 'natural.json'}.")
    return 0


def _beside(plan: "Reproduction", command: ReproduceCommand) -> list[Path]:
    """The other reproductions in the usual folder; none if the user chose a folder."""
    from rrcluster.report.folders import DESCRIPTION

    files = () if command.out else plan.out.parent.glob(f"*/{DESCRIPTION}")
    return sorted(file.parent for file in files if file.parent != plan.out)


def _write_about(plan: "Reproduction", arguments: Sequence[str], *, seconds: float, num_runs: int, taken: int) -> None:
    """Write the result's origin, unless this call ran nothing: then the existing file stays."""
    from rrcluster_research.paper_report import provenance

    if num_runs or taken:
        text = provenance(["reproduce", *arguments], seconds=seconds, num_runs=num_runs, taken=taken)
        write_file(plan.out / "about.md", text)


def _run(plan: "Reproduction", command: ReproduceCommand) -> "list[Outcome]":
    from rrcluster_research.reproduce import reproduce

    for reason in plan.absent.values():
        say(f"Left out: {reason}")
    return follow_sweep(reproduce(plan), plan.jobs, hidden=command.quiet or command.json)


def _show(plan: "Reproduction", outcomes: "Sequence[Outcome]", command: ReproduceCommand) -> int:
    """Write and print the tables, the failed runs, and the paths of the files."""
    from rrcluster.runs.sweep import FAILED, REFUSED
    from rrcluster_research.paper_report import make_reproduction

    report = make_reproduction(plan.out)
    lost = [outcome for outcome in outcomes if outcome.status in (REFUSED, FAILED)]
    if command.json:
        _print_json(plan, report)
    elif len(outcomes) > len(lost):
        for table in report.tables:
            print_results(table)
    for reason in dict.fromkeys(f"{outcome.job.name}: {outcome.reason}" for outcome in lost):
        say(reason)
    say(f"Page: {report.page}. Tables: {report.table}. Verdicts: {_verdicts(plan, command)}")
    if len(outcomes) > len(lost):
        return 0
    say(f"rrcluster reproduce: nothing could be run for {plan.study.name}; the reasons are above.")
    return 1


def _verdicts(plan: "Reproduction", command: ReproduceCommand) -> Path:
    from rrcluster_research.paper_report import write_verdicts
    from rrcluster_research.studies import STUDIES

    claims = {name: [asdict(claim) for claim in study.claims] for name, study in STUDIES.items()}
    name = "verdicts-quick.md" if plan.quick else "verdicts.md"
    own_folder = command.out is not None
    folders = [plan.out] if own_folder else list(plan.out.parent.iterdir())
    return write_verdicts(
        (plan.out if own_folder else plan.out.parent) / name, folders, quick=plan.quick, claims=claims
    )


def _print_json(plan: "Reproduction", report: "ReproductionReport") -> None:
    from rrcluster.report.tables import to_dict

    answer = {"name": plan.study.name, "folder": str(plan.out), "tables": [to_dict(table) for table in report.tables]}
    print_json(answer)


def _list(command: ReproduceCommand) -> int:
    from rrcluster_research.reproduce import plan_reproduction
    from rrcluster_research.studies import STUDIES

    rows: list[dict[str, Any]] = []
    for name, study in STUDIES.items():
        plans = [
            plan_reproduction(study, out=Path(), quick=quick, changes=_changes(command)) for quick in (False, True)
        ]
        data_here = "yes" if not plans[0].absent else f"without {', '.join(plans[0].absent)}"
        counts = (len(replace(plan, absent={}).jobs) for plan in plans)  # as if no data were missing
        rows.append(
            {"name": name, "reproduces": study.title, "in_the_paper": study.source, "data_here": data_here}
            | dict(zip(("runs", "quick_runs"), counts, strict=True))
        )
    rows.append(_natural_row(command))
    if command.json:
        print_json(rows)
        return 0
    from rich.table import Table

    table = Table(title="rrcluster reproduce NAME", title_justify="left")
    heads = [head for head in rows[0] if head != "in_the_paper"]  # too long for a terminal
    for head in heads:
        table.add_column(head.replace("_", " "), overflow="fold", justify="right" if "runs" in head else "left")
    for row in rows:
        table.add_row(*(str(row[head]) for head in heads))
    print_whole(table)
    if any(row["data_here"] != "yes" for row in rows):
        say("`rrcluster data get NAME` downloads missing data, or explains how to get it.")
    return 0


def _natural_row(command: ReproduceCommand) -> dict[str, Any]:
    from rrcluster_research.natural_study import CONTENDERS, TABLES, absent_tables, parts_of

    absent = absent_tables(TABLES, command.data_folder)
    plans = (parts_of(TABLES, tuple(CONTENDERS), ()), parts_of(TABLES[:1], tuple(CONTENDERS), (0,)))
    runs = [sum(len(methods) for _, methods in plan) for plan in plans]
    return {
        "name": NATURAL,
        "reproduces": "real people's tables: one model, personalised, clustered, the default",
        "in_the_paper": "none",
        "data_here": f"without {', '.join(absent)}" if absent else "yes",
        "runs": runs[0],
        "quick_runs": runs[1],
    }


def _changes(command: ReproduceCommand) -> dict[str, Any]:
    flags = {"model": command.model, "delta": command.delta, "data_folder": command.data_folder}
    device = {} if command.device == "auto" else {"device": command.device}
    return {name: value for name, value in flags.items() if value is not None} | device


def _folder(name: str, command: ReproduceCommand) -> Path:
    from rrcluster.report.values import delta_text

    changed = [command.model, None if command.delta is None else f"delta-{delta_text(command.delta)}"]
    return Path("runs/reproduce") / "-".join([name, *filter(None, changed), *(["quick"] if command.quick else [])])
