"""`rrcluster data`: list datasets, download them, check their files."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rrcluster.cli.terminal import parse, print_json, print_whole, say
from rrcluster.errors import ConfigError
from rrcluster.settings import names_file


@dataclass(frozen=True)
class DataCommand:
    """List datasets and where their files are, say what one is (describe), download it (get), or verify its files.

    rrcluster data list

    rrcluster data describe wages

    rrcluster data describe clients.csv --client-column who --target-column label

    rrcluster data get movielens --accept-terms

    rrcluster data check fashion-mnist --folder my/files
    """

    action: Annotated[Literal["list", "describe", "get", "check"], tyro.conf.Positional] = "list"
    """What to do."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """Dataset, for describe, get and check; describe also accepts your own file."""
    client_column: str | None = None
    """describe: column with the client of each row."""
    target_column: str | None = None
    """describe: column to predict."""
    fill_from_data: bool = False
    """describe: fill the settings with the ranges, vocabularies and classes that occur, for rehearsals: no epsilon
    covers what is chosen by clients' values, and the run's statement says so."""
    folder: Path | None = None
    """Folder of its files; default: the usual places."""
    accept_terms: bool = False
    """get: accept the data's terms, if any, without a prompt."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command; `check` exits with 1 when a file is missing or damaged."""
    command = parse(DataCommand(), arguments, prog="rrcluster data")
    return {"list": _list, "describe": _describe, "get": _get, "check": _check}[command.action](command)


def _list(command: DataCommand) -> int:
    from rrcluster.data.sources import NOT_FOUND, list_sources

    rows = list_sources(command.folder)
    _print(command, list(map(asdict, rows)), "Datasets")
    if not command.json and any(row.where == NOT_FOUND for row in rows):
        say("`rrcluster data get NAME` downloads a dataset, or says how to get it.")
    return 0


def _describe(command: DataCommand) -> int:
    from rrcluster.data.sources import source

    if names_file(_named(command)):
        return _describe_file(command)
    entry = source(_named(command))
    facts = {
        "name": entry.name,
        "what": entry.description,
        "licence": entry.licence,
        "terms": entry.terms,
        "classes": entry.num_classes or ("regression" if entry.columns else ""),
        "clients": entry.num_clients,
        **{role: entry.columns.get(role, "") for role in ("client", "target", "group")},
        "time": entry.time and f"{entry.time} (--time-column {entry.time} tests on the newest rows)",
        "features": ", ".join(entry.columns.get("features", ())),
        "made_from": "" if entry.wheel is None else entry.wheel.requirement,
    }
    _print(
        command,
        [{"fact": fact.replace("_", " "), "value": value} for fact, value in facts.items() if value],
        entry.label,
    )
    return 0


def _describe_file(command: DataCommand) -> int:
    """Print a description of a user's table."""
    from rrcluster.data.table_description import describe_table

    found = describe_table(
        Path(command.name), command.client_column, command.target_column, fill_from_data=command.fill_from_data
    )
    columns = [asdict(column) for column in found.columns]
    if command.json:
        print_json({"facts": found.facts, "columns": columns, "problems": found.problems, "settings": found.settings})
    else:
        facts = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in found.facts.items())
        _print(command, columns, command.name)
        sys.stdout.write(f"{facts}\n\n" + "".join(f"- {problem}\n" for problem in found.problems))
        sys.stdout.write(f"\nSettings to edit, for `rrcluster run FILE.yaml`:\n\n{found.settings}")
        say("Read from all rows, for your eyes only: no guarantee covers choices made from it.")
    return 0


def _get(command: DataCommand) -> int:
    from rrcluster.data.sources import get

    accepted = command.accept_terms or _accepted(command)
    rows = get(_named(command), command.folder, progress=not command.json, accept_terms=accepted)
    _print(command, list(map(asdict, rows)), command.name)
    return 0


def _accepted(command: DataCommand) -> bool:
    """Whether the person at the terminal accepts the terms of the data, if it has some."""
    from rrcluster.data.sources import check, source

    terms = source(_named(command)).terms
    if not terms or not sys.stdin.isatty() or all(row.sha256_ok for row in check(command.name, command.folder)):
        return False
    say(f"{command.name}: {terms}")
    return input("Do you accept these terms? [y/N] ").strip().lower() in ("y", "yes")


def _check(command: DataCommand) -> int:
    from rrcluster.data.sources import check

    rows = check(_named(command), command.folder)
    _print(command, list(map(asdict, rows)), command.name)
    if all(row.present and row.sha256_ok for row in rows):
        return 0
    say(f"rrcluster data: {command.name} is incomplete; run `rrcluster data get {command.name}`.")
    return 1


def _named(command: DataCommand) -> str:
    if not command.name:
        raise ConfigError(f"data {command.action} needs the name of a dataset; `rrcluster data list` shows them.")
    return command.name


def _print(command: DataCommand, rows: list[dict[str, Any]], title: str) -> None:
    if command.json:
        print_json(
            [{name: str(value) if isinstance(value, Path) else value for name, value in row.items()} for row in rows]
        )
        return
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits 80 columns
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_spell(name, value) for name, value in row.items()))
    print_whole(table)


def _spell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "bytes" and isinstance(value, int):
        return f"{value / 1e6:.1f} MB"
    if isinstance(value, tuple):
        return ", ".join(value)
    return {True: "yes", False: "NO"}[value] if isinstance(value, bool) else str(value)
