"""`rrcluster assign`: the cluster of each client of a finished run, as a table for the owner of the data."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rrcluster import registry
from rrcluster.cli.run_command import trained_columns
from rrcluster.cli.terminal import parse, say, say_warnings, waiting
from rrcluster.errors import ConfigError
from rrcluster.runs.config import RunConfig, check_outside_runs, from_flat, read_settings
from rrcluster.settings import ColumnSettings, DataSettings, names_file

if TYPE_CHECKING:
    from rrcluster.runs.load import Assignment


@dataclass(frozen=True)
class AssignCommand:
    """Which client belongs to which cluster: a CSV of client, cluster and margin (how much worse the second best is).

    usage: rrcluster assign RUN --out TABLE.csv [OPTIONS]. The clients are those of the run, unless --data and the
    options beside it name others. Who is in which cluster is private: the table is readable by you alone, and never
    written into a run folder. Examples:

    rrcluster assign runs/my-run --out clusters.csv

    rrcluster assign runs/my-run --data new-clients.csv --out clusters.csv (with the columns of the run's own file)
    """

    data: DataSettings = field(default_factory=DataSettings)
    columns: ColumnSettings = field(default_factory=ColumnSettings)
    out: Path | None = None
    """The table, a CSV file outside of every run folder."""
    json: bool = False
    """Print the table as JSON on stdout, and write no file."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    if arguments and arguments[0] in ("-h", "--help", "--help-all"):
        parse(AssignCommand(), arguments, prog="rrcluster assign")
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError("assign needs a run folder first: `rrcluster assign runs/my-run --out clusters.csv`.")
    run = Path(arguments[0])
    config = _config(run)
    columns = trained_columns(config, run) if (run / "models.safetensors").exists() else config.columns
    command = parse(AssignCommand(config.data, columns), arguments[1:], prog="rrcluster assign")
    if (command.out is None) != command.json:
        raise ConfigError("give one of --out, the CSV file to write (--out clusters.csv), and --json.")
    if command.out is not None:
        check_outside_runs(command.out)
    with say_warnings(), waiting("Importing PyTorch, loading models and clients", hidden=command.json):
        table = _table(run, _population(config, command))
    if command.out is None:
        sys.stdout.write(table.to_json() + "\n")
        return 0
    table.write_csv(command.out)
    say(f"{len(table)} clients: {command.out} (private: it says who is in which cluster)")
    return 0


def _config(run: Path) -> RunConfig:
    """The settings of the run; without its data if that was registered in another process."""
    settings = read_settings(run)
    for name, names in (("data", registry.DATASETS), ("model", registry.MODELS)):
        if settings.get(name) not in names and not (name == "data" and names_file(str(settings.get(name)))):
            settings.pop(name, None)
    return from_flat(settings, source=str(run))


def _population(config: RunConfig, command: AssignCommand) -> RunConfig:
    """The settings of the clients to assign: those of the run, or others in a file with the same columns."""
    data, columns = command.data, command.columns
    if data.from_file and data.data != config.data.data:
        if not columns.classes and not columns.regression:
            raise ConfigError(
                "the run counted its classes in its own data, and other data may have more; give all of them "
                "with --classes, in the run's order."
            )
        if data.num_clients == config.data.num_clients:
            data = replace(data, num_clients=None)  # they are counted
    privacy, output = replace(config.privacy, secure=False), replace(config.output, seed=config.output.seed or 0)
    return replace(config, data=data, columns=columns, privacy=privacy, output=output).resolved()


def _table(run: Path, config: RunConfig) -> "Assignment":
    from rrcluster.runs.experiment import load_population
    from rrcluster.runs.load import assign, load

    models = load(run)
    data = load_population(config)
    if models.input_shape and tuple(models.input_shape) != tuple(data.input_shape):
        raise ConfigError(
            f"the models of {run} take samples of shape {models.input_shape}, and {config.data.data} has "
            f"{data.input_shape}; give data like the run's."
        )
    table: Assignment = assign(models, data)
    return table
