"""Tables, figures and a self-contained page, made from run folders alone; no run is repeated.

Importing this package is cheap: matplotlib, rich, scipy and yaml are imported on use.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rrcluster.errors import RunFolderError
from rrcluster.report.figures import draw_figures, save_figures
from rrcluster.report.folders import find_runs
from rrcluster.report.page import render_page
from rrcluster.report.tables import TextTable, results_table, write_table
from rrcluster.storage import explain_write, make_folders, make_subfolder, write_file

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Report:
    """Paths written by `make_report`, and the table of results."""

    page: Path
    tables: tuple[Path, ...]  # CSV, LaTeX, Markdown
    figures: tuple[Path, ...]  # each as PNG and PDF
    table: TextTable


def make_report(paths: AnyPath | Iterable[AnyPath], out: AnyPath | None = None) -> Report:
    """Write report.html, figures/, table.csv, table.tex and table.md from the runs at `paths`.

    Names of figures start with accuracy (convergence), privacy-utility, worst-decile and clustering (over epsilon),
    min-cluster-size (over B), confusion or sizes.

    `out` defaults to the given folder, or to the common parent of several. Raises `RunFolderError` for folders without
    readable runs and `ConfigError` without matplotlib.
    """
    folders = [Path(paths)] if isinstance(paths, (str, os.PathLike)) else [Path(path) for path in paths]
    groups = find_runs(folders)
    folder = _default_folder(folders) if out is None else Path(out)
    table = results_table(groups)
    drawings = draw_figures(groups)
    with explain_write(folder):
        make_folders(folder)
        subfolder = make_subfolder(folder / "figures")
    page = render_page(groups, table=table, drawings=drawings, out=folder)
    return Report(
        figures=save_figures(drawings, subfolder),
        tables=write_table(table, folder),
        page=write_file(folder / "report.html", page),
        table=table,
    )


def _default_folder(folders: list[Path]) -> Path:
    if len(folders) == 1:
        return folders[0]
    try:
        common = Path(os.path.commonpath([path.resolve() for path in folders]))
    except ValueError:  # on different drives
        common = Path("/")
    if common == Path(common.anchor):
        raise RunFolderError("the runs have no common folder to write the report to; give one as `out`.")
    return common
