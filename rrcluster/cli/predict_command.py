"""`rrcluster predict`: predictions of a finished run's models for new rows, as a table for the owner of the rows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from rrcluster.cli.terminal import parse, say, say_warnings, waiting
from rrcluster.errors import ConfigError
from rrcluster.runs.config import check_outside_runs
from rrcluster.settings import ColumnSettings


@dataclass(frozen=True)
class PredictCommand:
    """Score the rows of a table: a CSV of client, cluster, prediction and probabilities, in the order of the rows.

    The rows need the run's features, and no labels. Who is in which cluster is private: the table is readable by you
    alone, and never written into a run folder. Examples:

    rrcluster predict runs/my-run --data rows.csv --out scores.csv --clusters clusters.csv (made by assign)

    rrcluster predict runs/my-run --data november.csv --out scores.csv --labelled october.csv
    """

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder of a finished run."""
    data: Path | None = None
    """Rows to score: a CSV or Parquet file, or a folder of them."""
    out: Path | None = None
    """The table of predictions, a CSV file outside of every run folder."""
    clusters: Path | None = None
    """Each client's cluster: the table of `rrcluster assign`."""
    labelled: Path | None = None
    """Rows with labels, in the columns of the run: they say which cluster a client is in, and under mixed effects how
    it differs from it. Those that are to be scored too are left out."""
    client_column: str | None = None
    """Column with the client of each row; default: the run's. Without it each row counts as one client."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(PredictCommand(), arguments, prog="rrcluster predict")
    if not command.run or command.data is None or command.out is None:
        raise ConfigError(
            "predict needs a run, rows and a table to write: predict RUN --data rows.csv --out scores.csv."
        )
    check_outside_runs(command.out)
    with say_warnings(), waiting("Importing PyTorch, loading models and rows"):
        from rrcluster.data.table_files import check_columns, table_names
        from rrcluster.runs.load import load
        from rrcluster.runs.predictions import predict_rows

        models = load(command.run)
        if command.client_column is not None and models.encoder is not None:
            check_columns(table_names(command.data), ColumnSettings(client=command.client_column), source="--data")
            models = replace(models, encoder=replace(models.encoder, client=command.client_column))
        scored = predict_rows(models, command.data, clusters=command.clusters, labelled=command.labelled)
        scored.write_csv(command.out)
    say(f"{scored.sentence()} {command.out} (private: it says who is in which cluster)")
    return 0
