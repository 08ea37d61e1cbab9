"""Tables on a terminal, of which nothing is cut."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from rrcluster.report.tables import TextTable

_WIDEST = 10_000
_IN_A_FILE = 200  # columns


def print_results(table: "TextTable") -> None:
    """A table of results, its note below it in the width of the terminal."""
    from rich.console import Console
    from rich.text import Text

    from rrcluster.report.render import console_table

    console = Console()
    print_whole(console_table(table, width=console.width if console.is_terminal else _IN_A_FILE))
    console.print(Text(table.note, style="italic"))


def print_whole(table: "RichTable") -> None:
    """In the width of the terminal, or where words would be cut, in the width they need: lines then run over.

    In a file or a pipe wide enough for most tables to have a line a row.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table)
    usual = console.width if console.is_terminal else min(needed.maximum, _IN_A_FILE)
    Console(width=max(usual, needed.minimum)).print(table, crop=False)
