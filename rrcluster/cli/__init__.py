"""The command line. This module imports nothing heavy: `rrcluster --help` answers at once."""

import os
import sys
from collections.abc import Callable, Sequence

from rrcluster.registry import COMMANDS

USAGE = """\
rrcluster: federated clustering with client-level differential privacy.

usage: rrcluster COMMAND [OPTIONS]

{commands}

Start here:
  rrcluster run                                  a private clustering on the bundled data
  rrcluster run --data clients.csv --client-column client_id --target-column label --test-share 0.2
                                                 the same on a table of your own (docs/own-data.md)
  rrcluster account --epsilon 2 --rounds 100     how much noise that takes, and why
  rrcluster report runs/*                        compare what you ran

`rrcluster COMMAND --help` explains a command, `--help-all` all of its options. All commands that answer a question
take --json, and all take --plugin FILE.py, a file that registers methods, models or data of your own.
`rrcluster COMMAND --tyro-print-completion bash` prints a completion of its options for your shell.
"""

_TORCHRUN_SETS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # environment variables of torchrun's processes


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit status 0 when it worked, 2 for bad usage, 130 after Ctrl-C."""
    try:
        return _command(list(sys.argv[1:] if argv is None else argv), sys.stderr.write)
    except KeyboardInterrupt:
        return 130


def _command(arguments: list[str], complain: Callable[[str], object]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        print_usage(sys.stdout.write)
        return 0
    if arguments[0] in ("-V", "--version"):
        from rrcluster import __version__

        sys.stdout.write(f"rrcluster {__version__}\n")
        return 0
    name, rest = arguments[0], [_at_home(argument) for argument in arguments[1:]]
    if name == "--install-completion":
        complain(
            "rrcluster: --install-completion is gone; `rrcluster COMMAND --tyro-print-completion bash` prints one.\n"
        )
        return 2
    if name.startswith("-"):
        complain(f"rrcluster: {name} belongs behind a command: `rrcluster run {name} ...`.\n")
        return 2
    if name not in COMMANDS:
        return _explained("rrcluster", lambda: _with_plugin(name, rest), complain)
    if all(variable in os.environ for variable in _TORCHRUN_SETS) and os.environ["WORLD_SIZE"] != "1":
        complain(f"rrcluster {name}: runs share no work among torchrun's ranks; start it alone, with --processes.\n")
        return 2
    return _explained(f"rrcluster {name}", lambda: _with_plugin(name, rest), complain)


def _at_home(argument: str) -> str:
    """The argument with ~ expanded, also behind =, where shells leave it."""
    flag, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    return f"{flag}{equals}{os.path.expanduser(value)}" if value.startswith("~") else argument  # noqa: PTH111


def _with_plugin(name: str, arguments: list[str]) -> int:
    """The command, after the file of --plugin has registered its names."""
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if flag != "--plugin":
            rest.append(argument)
            continue
        _load_plugin(value if equals else next(remaining, ""))
    return int(COMMANDS.load(name)(rest))


def _load_plugin(path: str) -> None:
    """Run a user's Python file, which calls `rrcluster.register`; ConfigError if it fails or registers nothing."""
    import runpy

    from rrcluster.errors import ConfigError
    from rrcluster.registry import registered

    before = len(registered())
    if not os.path.isfile(path):  # noqa: PTH113
        raise ConfigError(f"--plugin {path}: no such file; give a Python file that calls rrcluster.register(...).")
    try:
        runpy.run_path(path, run_name="rrcluster_plugin")
    except Exception as error:
        raise ConfigError(f"--plugin {path}: {type(error).__name__}: {error}; correct the file.") from None
    if len(registered()) == before:
        raise ConfigError(f"--plugin {path} registers nothing; call rrcluster.register('method', NAME, method) in it.")


def print_usage(write: Callable[[str], object]) -> None:
    """The overview of all commands."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name.ljust(width)}  {COMMANDS.label(name)}" for name in COMMANDS)
    write(USAGE.format(commands=lines))


def _explained(who: str, command: Callable[[], int], complain: Callable[[str], object]) -> int:
    """Run the command; our own errors become one line on stderr and status 2, never a traceback."""
    from rrcluster.errors import RRClusterError
    from rrcluster.storage import printable

    try:
        return command()
    except RRClusterError as error:
        complain(printable(f"{who}: {error}\n"))
        return 2
    except BrokenPipeError:
        return 0
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":  # torch's own
            raise
        complain(f"{who}: not enough memory; lower --capacity, --clients, --clusters or --batch-size.\n")
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(printable(f"{who}: {where}{error.strerror or 'cannot be read or written'}.\n"))
        return 2
