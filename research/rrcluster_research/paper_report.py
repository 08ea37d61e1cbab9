"""Tables (Markdown, CSV, LaTeX), figures and one page of a reproduction, from its run folders alone.

A page beside it states the result's origin: command, version, commit, machine and time (`provenance`).
"""

import html
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster import __version__
from rrcluster.report.drawing import Drawing
from rrcluster.report.figures import save_figures
from rrcluster.report.folders import Run, RunGroup
from rrcluster.report.page import fill_page, statement_section
from rrcluster.report.tables import TextTable, to_csv, to_html, to_latex, to_markdown
from rrcluster.storage import write_file
from rrcluster_research.paper_figures import draw_reproduction
from rrcluster_research.paper_tables import how_to_read, main_tables, more_tables
from rrcluster_research.read_reproduction import Reproduced, is_reproduction, read_reproduction
from rrcluster_research.verdicts import verdict_table

CHOICES = "What the paper leaves open, and our choice in the full version"


@dataclass(frozen=True)
class ReproductionReport:
    """Paths written by `make_reproduction`, and the main tables."""

    page: Path
    table: Path
    figures: tuple[Path, ...]
    tables: tuple[TextTable, ...]


def make_reproduction(folder: Path) -> ReproductionReport:
    """Write table.md, table.csv, table.tex, figures/ and report.html from the runs that have finished.

    The same runs give the same table.md, byte for byte: it holds no times.
    """
    reproduced = read_reproduction(folder)
    main = main_tables(reproduced)
    tables, drawings = (*main, *more_tables(reproduced)), draw_reproduction(reproduced)
    write_file(folder / "table.csv", "\n".join(to_csv(table) for table in tables))
    write_file(folder / "table.tex", "\n".join(to_latex(table) for table in tables))
    return ReproductionReport(
        table=write_file(folder / "table.md", to_text(reproduced, tables)),
        figures=save_figures(drawings, folder / "figures"),
        page=write_file(folder / "report.html", _page(reproduced, tables, drawings)),
        tables=main,
    )


def write_verdicts(
    path: Path, folders: Iterable[Path], *, quick: bool, claims: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Path:
    """Write the table of verdicts from the reproductions among `folders` that ran with the settings of their study.

    `quick` chooses between full and quick versions. `claims` by study: without a folder they are not yet measured.
    """
    reproductions = [read_reproduction(folder) for folder in sorted(folders) if is_reproduction(folder)]
    counted = [entry for entry in reproductions if bool(entry.about["quick"]) == quick and not entry.about["changes"]]
    return write_file(path, to_markdown(verdict_table({entry.about["name"]: entry for entry in counted}, claims)))


def to_text(reproduced: Reproduced, tables: Sequence[TextTable]) -> str:
    """All tables as Markdown, with the settings and choices above them."""
    about = reproduced.about
    lines = [f"# {about['title']}", "", f"In the paper: `{about['source']}`.", ""]
    lines += [f"**Quick version**, not the paper's setting: {about['quick']}", ""] if about["quick"] else []
    if about["changes"]:
        lines += ["Changed: " + ", ".join(f"{name} = {value}" for name, value in about["changes"].items()) + ".", ""]
    for reason in about["absent"].values():
        lines += [f"Not run: {reason}", ""]
    lines += [*(f"- {line}" for line in how_to_read(reproduced)), ""]
    lines += [to_markdown(table) for table in tables]
    lines += [
        "",
        f"{CHOICES}:",
        "",
        *(f"- {choice}" for choice in about["choices"]),
    ]
    return "\n".join(lines) + "\n"


def _page(reproduced: Reproduced, tables: Sequence[TextTable], drawings: Sequence[Drawing]) -> str:
    about, (*shown, settings) = reproduced.about, tables
    return fill_page(
        title=str(about["title"]),
        lead=_lead(reproduced),
        notices=[("warning", text) for text in _notices(reproduced)],
        facts=_facts(reproduced),
        drawings=drawings,
        table=_list("", how_to_read(reproduced)) + "\n".join(to_html(table) for table in shown),
        statement=_statements(reproduced),
        settings=to_html(settings) + _list(CHOICES, about["choices"]),
        reproduce=_command(reproduced),
    )


def _lead(reproduced: Reproduced) -> str:
    return (
        f"Our runs beside {reproduced.about['source']} of the paper. identifier is the paper's mechanism, soundly "
        "accounted; joint is ours. Accuracies are diagnostics: measured on raw client data, not private."
    )


def _notices(reproduced: Reproduced) -> list[str]:
    quick = reproduced.about["quick"]
    notices = [f"Quick version: not the paper's setting: {quick}"] if quick else []
    return notices + [f"Not run: {reason}" for reason in reproduced.about["absent"].values()]


def _facts(reproduced: Reproduced) -> dict[str, str]:
    done = sum(len(cell.runs) for row in reproduced.rows for cell in row.cells.values())
    budgets = dict.fromkeys(column.budget.removeprefix("epsilon ") for column in reproduced.columns)
    return {"epsilon": ", ".join(budgets), "seeds": str(reproduced.num_seeds), "finished runs": str(done)}


def _statements(reproduced: Reproduced) -> str:
    """The statement of one run per budget and mechanism: all methods under it have the same."""
    first: dict[str, Run] = {}
    for row in reproduced.rows:
        for (key, mechanism), cell in row.cells.items():
            column = reproduced.column(key)
            if column is not None and cell.runs and mechanism != "none":
                first.setdefault(f"{mechanism}, {column.budget}", cell.runs[min(cell.runs)])
    if not first:
        return "<p>No private run has finished yet.</p>"
    return statement_section([RunGroup((run,)) for run in first.values()], list(first))


def _list(title: str, items: Sequence[str]) -> str:
    entries = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    heading = f"<h3>{html.escape(title)}</h3>\n" if title else ""
    return f"{heading}<ul>{entries}</ul>\n"


def _command(reproduced: Reproduced) -> str:
    about = reproduced.about
    changed = "".join(f" --{name.replace('_', '-')} {value}" for name, value in about["changes"].items())
    seeds = " ".join(map(str, about["seeds"]))
    command = f"rrcluster reproduce {about['name']}{' --quick' if about['quick'] else ''} --seeds {seeds}{changed}"
    code = f'<pre class="scroll" tabindex="0"><code>{html.escape(command)}</code></pre>'
    return f"<p>One command runs all of it again:</p>\n{code}"


def provenance(arguments: Sequence[str], *, seconds: float, num_runs: int, taken: int = 0) -> str:
    """A short Markdown page. `seconds` is the time of this call for its own `num_runs`; `taken` runs were copied."""
    lines = {
        "command": f"`{shlex.join(['rrcluster', *arguments])}`",
        "version": f"rrcluster {__version__}, commit {_commit() or 'unknown'}",
        "machine": _machine(),
        "time": f"{seconds:.0f} s for {num_runs} runs made by this call",
    }
    if taken:
        lines["taken over"] = f"{taken} runs copied from tables beside this one (see their about.md)"
    return "".join(f"- {name}: {value}\n" for name, value in lines.items())


def _commit() -> str | None:
    """The commit of the package's checkout, marked if files were changed; None without one.

    `RRCLUSTER_COMMIT` comes first, for files that were copied without their history.
    """
    root = Path(__file__).parents[2]
    if "RRCLUSTER_COMMIT" in os.environ or not (root / ".git").exists():
        return os.environ.get("RRCLUSTER_COMMIT")
    try:
        ask = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _machine() -> str:
    """Architecture, cores and accelerator; no names of machines or people."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {cores} cores{device}, torch {torch.__version__}"
