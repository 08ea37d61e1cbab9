"""`rrcluster report`: tables, figures and one page from run folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rrcluster.cli.terminal import parse, print_json, print_results, say
from rrcluster.errors import ConfigError
from rrcluster.registry import COMMANDS


@dataclass(frozen=True)
class ReportCommand:
    """Compare runs: a table (console, CSV, LaTeX, Markdown), figures (PNG, PDF) and one self-contained HTML page.

    Each RUN is a run folder, a folder of seeds, or up to two levels above. No run is repeated. Examples:

    rrcluster report runs/my-run

    rrcluster report runs/demo runs/other --out comparison
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders."""
    out: Path | None = None
    """Folder to write to; default: the given folder, or the common parent of several."""
    json: bool = False
    """Print the table as JSON on stdout."""
    table_only: bool = False
    """Print the table and write nothing."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(ReportCommand(), arguments, prog="rrcluster report")
    if not command.runs:
        raise ConfigError("report needs at least one run folder, for example `rrcluster report runs/my-run`.")
    if len(command.runs) == 1 and command.out is None and _reproduced(command.runs[0]):
        return 0
    if command.table_only:
        show_table(command.runs, as_json=command.json)
        return 0
    from rrcluster.report import make_report

    report = make_report(command.runs, command.out)
    show_table(command.runs, as_json=command.json)
    say(f"Page: {report.page}")
    say(f"Figures: {report.page.parent / 'figures'}; tables: {', '.join(str(path) for path in report.tables)}")
    return 0


def _reproduced(folder: Path) -> bool:
    """Rewrite the tables, figures and page of a folder of `rrcluster reproduce`; False for any other folder."""
    from rrcluster.report.folders import DESCRIPTION

    if not (folder / DESCRIPTION).is_file():
        return False
    if "reproduce" not in COMMANDS:
        raise ConfigError(f"{folder} holds a reproduction of the paper; its page is made by rrcluster-research.")
    return int(COMMANDS.load("reproduce")(["--report", str(folder)])) == 0


def show_table(runs: Sequence[Path], *, as_json: bool = False) -> None:
    """Print the table of results."""
    from rrcluster.report.folders import find_runs
    from rrcluster.report.tables import group_labels, results_table, to_dict

    groups = find_runs(runs)
    table = results_table(groups)
    if as_json:
        print_json(to_dict(table))
        return
    print_results(table)
    for group, label in zip(groups, group_labels(groups), strict=True):
        if group.first.verdict:
            say(f"{label}: {group.first.verdict}")
