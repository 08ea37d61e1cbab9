"""`rrcluster account`: epsilon from noise, or noise from epsilon, by every accountant that applies."""

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from rrcluster.cli.terminal import parse
from rrcluster.errors import PrivacyError
from rrcluster.settings import PrivacySettings

if TYPE_CHECKING:
    from rrcluster.privacy.budget import Budget

Flag = tyro.conf.arg


@dataclass(frozen=True)
class AccountCommand:
    """Epsilon from noise, or noise from epsilon, by every accountant that applies; and why the others do not.

    Give --epsilon (the noise is calibrated, never overspending) or --noise-multiplier (epsilon follows). Example:

    rrcluster account --mechanism joint --epsilon 2 --delta 1e-3 --sample-rate 0.1 --rounds 100
    """

    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    num_clients: Annotated[int, Flag(name="clients")] = 1000
    """Clients in the population (M)."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Clusters (k)."""
    json: bool = False
    """Print the answer as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(AccountCommand(), arguments, prog="rrcluster account")
    if command.privacy.mechanism == "none":
        raise PrivacyError("mechanism = none adds no noise: it has no epsilon. Use --mechanism joint or identifier.")
    from rrcluster.privacy.budget import account

    settings = asdict(command.privacy) | {"epsilon": command.privacy.target_epsilon, "update_clip": 1.0}
    budget = account(**settings, num_clients=command.num_clients, num_clusters=command.num_clusters)
    if command.json:
        sys.stdout.write(json.dumps(asdict(budget), indent=2) + "\n")
    else:
        _print(budget)
    return 0 if any(row.epsilon is not None for row in budget.rows) else 2


def _print(budget: "Budget") -> None:
    from rich.console import Console
    from rich.table import Table

    from rrcluster.cli.terminal import print_whole

    console = Console()
    table = Table(title=f"{budget.mechanism}: {budget.adjacency}, {budget.sampling}, delta = {budget.delta:g}")
    parts = sorted({name for row in budget.rows for name in row.noise})
    for name in ("accountant", "noise multiplier", "epsilon", "cohorts seen", *(f"{part}" for part in parts)):
        table.add_column(name, justify="left" if name == "accountant" else "right", overflow="fold")
    for row in budget.rows:
        shown = (row.noise_multiplier, row.epsilon, row.epsilon_seen, *(row.noise.get(part) for part in parts))
        table.add_row(row.accountant, *("-" if value is None else f"{value:.4f}" for value in shown))
    print_whole(table)
    console.print("Noise stds are for clip = 1; the noise multiplier is noise std / sensitivity of the whole round.")
    console.print(
        f"Participation: {budget.participation}, at most {budget.most_participations} rounds of a client. epsilon is "
        "for observers of releases; cohorts seen: for somebody who also sees who takes part.",
        highlight=False,
    )
    for row in budget.rows:
        console.print(f"[bold]{row.accountant}[/bold]: {row.description}.", highlight=False)
        if row.reason:
            console.print(f"  No answer: {row.reason}", highlight=False)
