"""What a reproduction leaves beside its runs: table.md (and CSV, LaTeX), figures and one self-contained page."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rrcluster.paper.paper_figures import draw_reproduction
from rrcluster.paper.paper_tables import how_to_read, main_tables, more_tables
from rrcluster.paper.read_reproduction import Reproduced, is_reproduction, read_reproduction
from rrcluster.paper.verdicts import verdict_table
from rrcluster.report.claim import statement_section
from rrcluster.report.drawing import Drawing
from rrcluster.report.figures import save_figures
from rrcluster.report.folders import Run, RunGroup
from rrcluster.report.page import figure_html
from rrcluster.report.render import to_csv, to_html, to_latex, to_markdown
from rrcluster.report.run_files import write_atomic
from rrcluster.report.tables import Table


@dataclass(frozen=True)
class ReproductionReport:
    """What was written, and its main tables."""

    page: Path
    table: Path
    figures: tuple[Path, ...]
    tables: tuple[Table, ...]


def make_reproduction(folder: Path, *, more: Sequence[Drawing] = ()) -> ReproductionReport:
    """Write table.md, table.csv, table.tex, figures/ and report.html from the runs there are; `more` figures are added.

    The same runs give the same table.md, byte for byte: it holds no times.
    """
    it = read_reproduction(folder)
    main = main_tables(it)
    tables, drawings = (*main, *more_tables(it)), (*draw_reproduction(it), *more)
    write_atomic(folder / "table.csv", "\n".join(to_csv(table) for table in tables))
    write_atomic(folder / "table.tex", "\n".join(to_latex(table) for table in tables))
    return ReproductionReport(
        table=write_atomic(folder / "table.md", to_text(it, tables)),
        figures=save_figures(drawings, folder / "figures"),
        page=write_atomic(folder / "report.html", _page(it, tables, drawings)),
        tables=main,
    )


def write_verdicts(
    path: Path, folders: Iterable[Path], *, quick: bool, claims: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Path:
    """Write the verdict table from the reproductions among `folders`: full ones or quick ones, nothing changed in them.

    `claims` of every study by name: those of studies without a folder count as not yet measured.
    """
    every = [read_reproduction(folder) for folder in sorted(folders) if is_reproduction(folder)]
    kept = [it for it in every if bool(it.about["quick"]) == quick and not it.about["changes"]]
    return write_atomic(path, to_markdown(verdict_table({it.about["name"]: it for it in kept}, claims)))


def to_text(it: Reproduced, tables: Sequence[Table]) -> str:
    """All tables as Markdown, under what was run and what was chosen."""
    about = it.about
    lines = [f"# {about['title']}", "", f"In the paper: `{about['source']}`.", ""]
    lines += [f"**Quick version**, not the paper's setting: {about['quick']}", ""] if about["quick"] else []
    if about["changes"]:
        lines += ["Changed: " + ", ".join(f"{name} = {value}" for name, value in about["changes"].items()) + ".", ""]
    for reason in about["absent"].values():
        lines += [f"Not run: {reason}", ""]
    lines += [*(f"- {line}" for line in how_to_read(it)), ""]
    lines += [to_markdown(table) for table in tables]
    lines += [
        "",
        "What the paper leaves open, and our choice in the full version:",
        "",
        *(f"- {choice}" for choice in about["choices"]),
    ]
    return "\n".join(lines) + "\n"


def _page(it: Reproduced, tables: Sequence[Table], drawings: Sequence[Drawing]) -> str:
    package = resources.files("rrcluster.report")
    template = Template(package.joinpath("page.html").read_text(encoding="utf-8"))
    about, (*shown, settings) = it.about, tables
    return template.substitute(
        title=html.escape(str(about["title"])),
        style=package.joinpath("page.css").read_text(encoding="utf-8"),
        lead=html.escape(_lead(it)),
        notices=_notices(it),
        facts=_facts(it),
        table=_list("", how_to_read(it)) + "\n".join(to_html(table) for table in shown),
        figures_title="Figures",
        figures="\n".join(figure_html(drawing) for drawing in drawings) or "<p>Nothing to draw yet.</p>",
        statement=_statements(it),
        settings=to_html(settings)
        + _list("What the paper leaves open, and our choice in the full version", about["choices"]),
        reproduce=_command(it),
    )


def _lead(it: Reproduced) -> str:
    return (
        f"This page sets our runs beside {it.about['source']} of the paper. identifier is the paper's mechanism, "
        "soundly accounted; joint is ours. Accuracies are diagnostics: measured on raw client data, not private."
    )


def _notices(it: Reproduced) -> str:
    found = [f"Quick version: not the paper's setting: {it.about['quick']}"] if it.about["quick"] else []
    found += [f"Not run: {reason}" for reason in it.about["absent"].values()]
    banners = []
    for text in found:
        head, _, rest = text.partition(":")
        banners.append(
            f'<p class="banner warning" role="note"><strong>{html.escape(head)}:</strong>{html.escape(rest)}</p>'
        )
    return "\n".join(banners)


def _facts(it: Reproduced) -> str:
    done = sum(len(cell.runs) for row in it.rows for cell in row.cells.values())
    budgets = dict.fromkeys(column.budget.removeprefix("epsilon ") for column in it.columns)
    facts = {"epsilon": ", ".join(budgets), "seeds": str(it.num_seeds), "finished runs": str(done)}
    return "".join(f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items())


def _statements(it: Reproduced) -> str:
    """The statement of one run per budget and mechanism: all methods under it have the same."""
    first: dict[str, Run] = {}
    for row in it.rows:
        for (key, mechanism), cell in row.cells.items():
            column = it.column(key)
            if column is not None and cell.runs and mechanism != "none":
                first.setdefault(f"{mechanism}, {column.budget}", cell.runs[min(cell.runs)])
    if not first:
        return "<p>No private run has finished yet.</p>"
    return statement_section([RunGroup((run,)) for run in first.values()], list(first))


def _list(title: str, items: Sequence[str]) -> str:
    entries = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    heading = f"<h3>{html.escape(title)}</h3>\n" if title else ""
    return f"{heading}<ul>{entries}</ul>\n"


def _command(it: Reproduced) -> str:
    about = it.about
    changed = "".join(f" --{name.replace('_', '-')} {value}" for name, value in about["changes"].items())
    seeds = " ".join(map(str, about["seeds"]))
    command = f"rrcluster reproduce {about['name']}{' --quick' if about['quick'] else ''} --seeds {seeds}{changed}"
    code = f'<pre class="scroll" tabindex="0"><code>{html.escape(command)}</code></pre>'
    return f"<p>One command runs all of it again:</p>\n{code}"
