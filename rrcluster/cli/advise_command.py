"""`rrcluster advise`: signal to noise of each cluster, and a value of B, before any data is touched. Needs no torch."""

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from rrcluster.cli.terminal import parse, print_json, print_lines, print_whole
from rrcluster.errors import PrivacyError
from rrcluster.settings import PrivacySettings

if TYPE_CHECKING:
    from rrcluster.runs.advise import Advice

Flag = tyro.conf.arg


@dataclass(frozen=True)
class AdviseCommand:
    """Signal to noise per cluster and a recommended B for your M, d and k, from public quantities alone.

    It sees no data, so following it costs no privacy (docs/choosing.md). Examples:

    rrcluster advise --clients 1000 --clusters 4 --parameters 4420 --epsilon 2 --delta 1e-3

    rrcluster advise --clients 300 --clusters 4 --parameters 26010 --ratio 8 1 1 1

    rrcluster advise --clients 1500 --rows 10 --columns 9 --epsilon 4
    """

    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    num_clients: Annotated[int, Flag(name="clients")] = 1000
    """Clients in the population (M)."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Clusters (k)."""
    num_coordinates: Annotated[int, Flag(name="parameters", aliases=["-d"])] = 4420
    """Parameters of the network (d); `rrcluster run --dry-run` prints the number for a named model."""
    ratio: tuple[float, ...] = ()
    """Expected sizes of the groups relative to each other, one number per cluster; default equal."""
    size_floor: float | None = None
    """Public lower bound on denominators; default 0.6 of the expected cluster size."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """For a table under mixed effects: training rows per client. Adds expected gains of random effects and groups."""
    columns: int = 10
    """With --rows: columns of the table."""
    exploration: float = 1.0
    """Exploration of the run; 0 is the published method."""
    average_last: float = 0.5
    """Part of the rounds that the models handed out average."""
    json: bool = False
    """Print the advice as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(AdviseCommand(), arguments, prog="rrcluster advise")
    if command.privacy.mechanism == "none":
        raise PrivacyError("mechanism = none adds no noise: there is nothing to weigh. Use joint or identifier.")
    if command.rows is not None:
        return _say_what_pays(command, command.rows)
    from rrcluster.runs.advise import advise

    advice = advise(
        command.privacy,
        num_clients=command.num_clients,
        num_clusters=command.num_clusters,
        num_coordinates=command.num_coordinates,
        expected_ratio=command.ratio or None,
        size_floor=command.size_floor,
        exploration=command.exploration,
        average_last=command.average_last,
    )
    print_json(asdict(advice)) if command.json else _print(advice)
    return 0


def _say_what_pays(command: AdviseCommand, rows: int) -> int:
    from rrcluster import checks
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.runs.advise import what_pays
    from rrcluster.runs.config import for_questions
    from rrcluster.types import Coordinates

    columns, num_clients = checks.count(columns=command.columns), checks.count(num_clients=command.num_clients)
    privacy = for_questions(command.privacy, num_clients)
    privacy, width = replace(privacy, epsilon=privacy.target_epsilon), Coordinates(columns, 0)
    plan = PrivacyPlan.build(privacy, coordinates=width, num_clients=num_clients, num_clusters=1)
    said = what_pays(plan, rows=checks.count(rows=rows), columns=columns)
    print_json({"what_pays": list(said)}) if command.json else print_lines(said)
    return 0


def _print(advice: "Advice") -> None:
    from rich.table import Table

    seen, table = advice.outlook, Table(title="Signal to noise, at most")
    for name in ("cluster", "clients of a cohort", "in a round", "over the run"):
        table.add_column(name, justify="right", overflow="fold")
    for cluster, row in enumerate(zip(seen.sizes, seen.per_round, seen.over_run, strict=True)):
        table.add_row(str(cluster), *(f"{value:.3g}" for value in row))
    print_whole(table)
    begin = "--init survey, " if advice.init == "survey" else ""
    print_lines([f"[bold]Advised: {begin}B = {advice.min_cluster_size}[/bold]", *advice.reasons])
