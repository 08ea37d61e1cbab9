"""`rrcluster watch`: a local page that follows runs while they go."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rrcluster.cli.terminal import parse, say
from rrcluster.errors import ConfigError

if TYPE_CHECKING:
    from rrcluster.report.live import LivePage


@dataclass(frozen=True)
class WatchCommand:
    """Follow runs on a page of this machine: rounds, released sizes, epsilon, and diagnostics marked as such.

    Each RUN is a run folder, or a folder with runs in it, such as that of a sweep, of a federation or of `reproduce`; a
    run that has not begun is waited for. The page reads these folders, writes nothing, and answers on this machine
    alone, to whoever has the address that is printed. Of a secure run it shows method, data, round and epsilon only.
    Ctrl-C ends it. Examples:

    rrcluster watch runs/my-run

    rrcluster watch runs
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, or folders with runs in them."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""
    no_open: bool = False
    """Do not open the page in a browser."""


def main(arguments: list[str]) -> int:
    """Run the command until it is interrupted."""
    command = parse(WatchCommand(), arguments, prog="rrcluster watch")
    if not command.runs:
        raise ConfigError("watch needs at least one run folder, for example `rrcluster watch runs/my-run`.")
    if not 0 <= command.port <= 65535:
        raise ConfigError(f"port = {command.port} must lie between 0 (a free one) and 65535.")
    from rrcluster.report.folders import NoRunYet, read_run, run_folders

    for path in command.runs:
        try:
            for folder in run_folders(path, reproduced=True):
                read_run(folder)  # refuses an inconsistent folder
        except NoRunYet:
            say(f"{path}: no run there yet; the page shows it when it begins.")
    with open_page(
        command.runs, port=command.port, browser=not command.no_open, what=", ".join(map(str, command.runs))
    ) as page:
        page.serve_forever()
    return 0


def open_page(runs: Sequence[Path], *, port: int = 0, browser: bool, what: str) -> "LivePage":
    """Create the page, print its address, and open it in a browser if requested and possible."""
    from rrcluster.report.live import LivePage

    try:
        page = LivePage(runs, port=port)
    except OSError as error:
        raise ConfigError(f"port = {port} cannot be used ({error.strerror}); leave it out.") from None
    say(f"Watching {what}: {page.address}")
    if browser:
        import webbrowser

        webbrowser.open(page.address)
    return page
