"""The terminal: flags and files parsed into typed settings, and tables that are never cut off.

A mistake in a flag is reported on the first line, with the way out.
"""

import contextlib
import inspect
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import tyro

from rrcluster.errors import ConfigError, NotDeclared
from rrcluster.settings import FILE_ENDINGS, refuse_other_table, refuse_removed
from rrcluster.storage import parse_yaml, printable, read_text, to_json

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from rrcluster.report.tables import TextTable
    from rrcluster.runs.sweep import Job, Outcome, Step

Parsed = TypeVar("Parsed")
HELP = ("-h", "--help", "--help-all")


def parse(default: Parsed, arguments: Sequence[str], *, prog: str) -> Parsed:
    """`default` with the given flags changed; `--help` prints and exits 0; a mistake raises ConfigError."""
    _refuse_removed(arguments)
    captured, about = io.StringIO(), inspect.getdoc(default) or ""
    if (usual := _USUAL.get(prog)) and {"-h", "--help"} & set(arguments):
        default = _with_usual_options(default, usual.split())
        about += f"\n\nThe usual options are below; `{prog} --help-all` lists all of them."
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(
                type(default),
                args=list(arguments),
                prog=prog,
                description=about,
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(_one_line(captured.getvalue(), prog)) from None


_USUAL = {  # fields of settings that --help shows; --help-all shows the others too
    "rrcluster run": "data client target regression classes num_clients epsilon delta num_clusters secure out "
    "dry_run json",
    "rrcluster update": "data epsilon lifetime_epsilon delta num_clients classes private_evaluation out dry_run",
    "rrcluster assign": "data client target classes num_clients out json",
    "rrcluster account": "epsilon delta noise_multiplier mechanism participation sample_rate num_rounds num_clients "
    "num_clusters runs json",
    "rrcluster advise": "epsilon delta num_clients num_clusters num_coordinates ratio sample_rate num_rounds json",
}


def _with_usual_options(settings: Any, usual: Collection[str]) -> Any:
    """The same settings in a type whose help shows only the usual options."""
    hints, parts = get_type_hints(type(settings), include_extras=True), []
    for part in fields(settings):
        value, hint = getattr(settings, part.name), hints[part.name]
        if is_dataclass(value):
            value = _with_usual_options(value, usual)
            hint = type(value)
        elif part.name not in usual:
            hint = Annotated[hint, tyro.conf.Suppress]
        parts.append((part.name, hint, field(default=value)))
    kind = type(settings)
    return make_dataclass(kind.__name__, parts, bases=(kind,), frozen=True, namespace={"__doc__": ""})()


def _refuse_removed(arguments: Sequence[str]) -> None:
    """Refuse a removed option or value, and name its replacement."""
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            text = value if equals else "".join(arguments[place + 1 : place + 2])
            refuse_removed(flag.removeprefix("--").replace("-", "_"), text)


def read_yaml(path: str) -> dict[str, object]:
    """A flat mapping of settings from a YAML file, loaded safely."""
    if path.lower().endswith(FILE_ENDINGS):
        raise ConfigError(
            f"{path} is a table, and a file of settings is expected here; give it as --data {path}, with "
            "--client-column and --target-column (in a file of settings: data, client and target)."
        )
    refuse_other_table(path)
    try:
        settings = parse_yaml(read_text(Path(path)))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a YAML file of settings, or flags alone.") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; give a YAML file of settings.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not in UTF-8; save the file of settings as UTF-8.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error}); write one `setting: value` per line.") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: should hold one `setting: value` per line, found a {type(settings).__name__}.")
    return settings


def say(text: str) -> None:
    """One line to the person at the terminal, beside (not in) the answer."""
    sys.stderr.write(printable(text) + "\n")


def print_json(answer: object) -> None:
    """The answer on stdout, for a program."""
    sys.stdout.write(to_json(answer))


def waiting(text: str, *, hidden: bool = False) -> contextlib.AbstractContextManager[object]:
    """Show the current step in a terminal; the line is removed afterwards, so that an error comes first."""
    if hidden or not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"{printable(text)} ...")


@contextlib.contextmanager
def say_warnings() -> Iterator[Callable[[], None]]:
    """Print our own warnings, one line each and without repeats: when `said` is called, or at the end.

    Before an error they are omitted.
    """
    heard: dict[str, bool] = {}  # whether it was printed

    def show(message: Warning | str, *_: object, **__: object) -> None:
        heard.setdefault(str(message), False)

    def said() -> None:
        for text in (text for text, done in heard.items() if not done):
            say(text)
        heard.update(dict.fromkeys(heard, True))

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotDeclared)
        warnings.showwarning = show
        yield said
        said()


def _one_line(message: str, prog: str) -> str:
    """tyro's boxed message as plain sentences."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    body = [re.sub(r"[│╭╮╰╯─]", "", line).strip(" |") for line in plain.splitlines()[1:]]
    words = " ".join(line for line in body if line.strip("+-") and "full helptext" not in line)  # +---+ without Unicode
    words = re.sub(r"^Error parsing [a-z.]+: ", "", words)  # internal grouping of settings
    no_number = re.match(r"Error parsing (-[\w/-]+): .*(float|int).*'(.*?)' Argument helptext", words)
    unknown = re.match(r"Unrecognized options: ([^\s,]+)(?:.* Perhaps you meant: (?:-\w, )?(--[\w-]+))?", words)
    if no_number:
        flag, kind, value = no_number.groups()
        words = f"{flag} {value} should be a {'whole ' if kind == 'int' else ''}number"
    elif unknown:
        flag, near = unknown.groups()
        words = f"{flag} is not an option" + (f"; did you mean {near}?" if near else "")
    return f"{words}{'' if words.endswith(('.', '?')) else '.'} See `{prog} --help`."


_WIDEST = 10_000
_IN_A_FILE = 200  # columns


def print_results(table: "TextTable") -> None:
    """A table of results in the width of the terminal, in several parts if necessary, with its note below."""
    from rich.console import Console
    from rich.text import Text

    from rrcluster.report.tables import column_parts, console_table

    console = Console()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _IN_A_FILE
    for part in column_parts(table, width=width):
        print_whole(console_table(part, width=width))
    console.print(Text(table.note, style="italic"))


def print_lines(lines: Iterable[str]) -> None:
    """Sentences on stdout, broken at the width of the terminal."""
    from rich.console import Console

    for line in lines:
        Console().print(line, highlight=False)


def print_whole(table: "RichTable") -> None:
    """Print in the width of the terminal, or wider if words would be cut: lines then wrap.

    In a file or a pipe the width suffices for most tables to have one line per row.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table)
    usual = console.width if console.is_terminal else min(needed.maximum, _IN_A_FILE)
    Console(width=max(usual, needed.minimum)).print(table, crop=False)


def follow_sweep(steps: "Iterable[Step]", jobs: "Sequence[Job]", *, hidden: bool) -> "list[Outcome]":
    """Show the steps of a sweep, and return its outcomes. Ctrl-C ends the command with status 130."""
    from rrcluster.runs.progress import SweepView
    from rrcluster.runs.sweep import Outcome, in_order

    outcomes: list[Outcome] = []
    try:
        with SweepView(jobs, hidden=hidden) as view:
            for step in steps:
                view.update(step)
                outcomes += [step] if isinstance(step, Outcome) else []
    except KeyboardInterrupt:
        say("Interrupted. Run the same command again to resume.")
        raise SystemExit(130) from None
    return in_order(outcomes, jobs)


def log_to(path: Path | None) -> None:
    """Log a member's programs for its operator alone: to a file, or the terminal."""
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=2**24, backupCount=4)  # 80 MiB at most
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("rrcluster")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
