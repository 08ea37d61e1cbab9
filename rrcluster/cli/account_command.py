"""`rrcluster account`: epsilon from noise, or noise from epsilon, by every accountant that applies; runs together."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rrcluster.cli.terminal import parse, print_json, print_lines, print_whole, say
from rrcluster.errors import PrivacyError
from rrcluster.privacy.cost import risk_text, rounded_up
from rrcluster.settings import PrivacySettings
from rrcluster.storage import printable

if TYPE_CHECKING:
    from rrcluster.privacy.budget import Budget
    from rrcluster.privacy.composition import Together

Flag = tyro.conf.arg


@dataclass(frozen=True)
class AccountCommand:
    """Epsilon from noise, or noise from epsilon, by every accountant that applies, and why others do not.

    Give --epsilon (the noise is calibrated, never overspending) or --noise-multiplier (epsilon follows). Example:

    rrcluster account --mechanism joint --epsilon 2 --delta 1e-3 --sample-rate 0.1 --rounds 100

    The total cost of several runs on the same clients (`rrcluster account RUN --help`):

    rrcluster account runs/first runs/second --delta 1e-4
    """

    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    num_clients: Annotated[int, Flag(name="clients")] = 1000
    """Clients in the population (M)."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Clusters (k)."""
    json: bool = False
    """Print the budget as JSON."""


@dataclass(frozen=True)
class RunsCommand:
    """The total cost of several runs on the same clients: their planned releases composed, at one delta.

    A client that took part in all of the runs is protected by this epsilon, not by the one of each run. Runs under
    different neighbouring relations, and runs without privacy, are refused. Example:

    rrcluster account runs/first runs/second --delta 1e-4
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, finished or not: a run costs its plan."""
    delta: float | None = None
    """Delta; default: that of the runs, if they agree."""
    json: bool = False
    """Print the cost as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    if arguments and not arguments[0].startswith("-"):
        return _runs_together(parse(RunsCommand(), arguments, prog="rrcluster account"))
    command = parse(AccountCommand(), arguments, prog="rrcluster account")
    if command.privacy.mechanism == "none":
        raise PrivacyError("mechanism = none adds no noise: it has no epsilon. Use --mechanism joint or identifier.")
    from rrcluster.privacy.budget import account

    settings = asdict(command.privacy) | {"epsilon": command.privacy.target_epsilon, "update_clip": 1.0}
    budget = account(**settings, num_clients=command.num_clients, num_clusters=command.num_clusters)
    if command.json:
        print_json(asdict(budget))
    else:
        _print(budget)
    return 0 if any(row.epsilon is not None for row in budget.rows) else 2


def _print(budget: "Budget") -> None:
    from rich.table import Table

    table = Table(title=f"{budget.mechanism}: {budget.adjacency}, {budget.sampling}, delta = {budget.delta:g}")
    parts = sorted({name for row in budget.rows for name in row.noise})
    for name in ("accountant", "noise multiplier", "epsilon", "cohorts seen", *parts):
        table.add_column(name, justify="left" if name == "accountant" else "right", overflow="fold")
    for row in budget.rows:
        cells = (row.noise_multiplier, row.epsilon, row.epsilon_seen, *(row.noise.get(part) for part in parts))
        table.add_row(row.accountant, *map(_cell, cells))
    print_whole(table)
    lines = [
        "Noise stds are for clip = 1; the noise multiplier is noise std / sensitivity of the whole round.",
        f"Participation: {budget.participation}, at most {budget.most_participations} rounds of a client. epsilon is "
        "for observers of releases; cohorts seen: for somebody who also sees who takes part.",
    ]
    for row in budget.rows:
        lines.append(f"[bold]{row.accountant}[/bold]: {row.description}.")
        if row.reason:
            lines.append(f"  No answer: {row.reason}")
        if row.least is not None and row.most is not None:
            least, most = rounded_up(-row.least, 6).lstrip("-"), rounded_up(row.most, 6)
            lines.append(f"  All rounding included, epsilon is between {least} and {most}.")
    best = next((row.risk for row in budget.rows if row.risk), None)
    if best:
        sampled = any(row.epsilon_seen not in (None, row.epsilon) for row in budget.rows)
        lines.append(risk_text(best, budget.adjacency, sampled=sampled))
    print_lines(lines)


def _cell(value: float | None) -> str:
    """Four decimals, rounded up, so that neither a bound nor noise is understated."""
    return "-" if value is None else str(value) if math.isinf(value) else rounded_up(value, 4)


def _runs_together(command: RunsCommand) -> int:
    from rrcluster.privacy.composition import account_runs

    together = account_runs(command.runs, delta=command.delta)
    if command.json:
        print_json(_plain(together))
    else:
        _print_together(together)
    return 0 if together.epsilon is not None else 2


def _plain(together: "Together") -> dict[str, object]:
    from rrcluster.privacy.composition import HOLDS_IF

    return {
        "epsilon": together.epsilon,
        "delta": together.delta,
        "adjacency": together.adjacency,
        "accountants": [asdict(row) for row in together.rows],
        "runs": [
            {
                "folder": str(run.folder),
                "epsilon": run.epsilon,
                "delta": run.delta,
                "releases": run.covered,
                "secure": run.secure,
                "started_from": run.started_from,
            }
            for run in together.runs
        ],
        "holds_if": HOLDS_IF,
    }


def _print_together(together: "Together") -> None:
    from rich.table import Table

    from rrcluster.privacy.composition import HOLDS_IF
    from rrcluster.privacy.cost import epsilon_text

    runs = "One run" if len(together.runs) == 1 else f"{len(together.runs)} runs on the same clients"
    table = Table(title=f"{runs}: {together.adjacency}, delta = {together.delta:g}")
    for name in ("run", "releases", "epsilon"):
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for run in together.runs:
        alone = "-" if run.epsilon is None else epsilon_text(run.epsilon)
        at = "" if run.delta == together.delta else f" at {run.delta:g}"
        table.add_row(printable(str(run.folder)), str(run.covered), alone + at)
    for row in together.rows:
        table.add_row(f"together, by {row.accountant}", "", "-" if row.epsilon is None else epsilon_text(row.epsilon))
    print_whole(table)
    say(HOLDS_IF)
    if not all(run.secure for run in together.runs):
        say("Seeded runs among them: not private, whatever their epsilon; whoever has the seed can subtract the noise.")
    listed = {str(run.folder.resolve()) for run in together.runs}
    for run in together.runs:
        if run.started_from is not None and str(Path(run.started_from).resolve()) not in listed:
            say(f"{run.folder} started from the models of {run.started_from}, which is not in this list.")
