"""`rrcluster advise`: what noise leaves of each cluster, and which B, before any data is touched. Needs no torch."""

import contextlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rrcluster.cli.terminal import parse, print_json, print_lines, print_whole
from rrcluster.errors import ConfigError, PrivacyError
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
    """Parameters of the network (d); `rrcluster run --dry-run` prints those of a model by name."""
    ratio: tuple[float, ...] = ()
    """Expected sizes of the groups relative to each other, one number per cluster; default equal."""
    size_floor: float | None = None
    """Public lower bound of every denominator; default 0.6 of the expected cluster size."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """For a table, mixed effects: rows of a client to train on. Says what its own part and groups would gain."""
    columns: int = 10
    """With --rows: columns of the table."""
    exploration: float = 1.0
    """Exploration of the run; 0 is the published method."""
    average_last: float = 0.5
    """Part of the rounds that the models handed out average."""
    no_alternatives: bool = False
    """Leave out what fewer clusters, larger cohorts, fewer rounds and a larger epsilon would give."""
    json: bool = False
    """Print the answer as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(AdviseCommand(), arguments, prog="rrcluster advise")
    if command.privacy.mechanism == "none":
        raise PrivacyError("mechanism = none adds no noise: there is nothing to weigh. Use joint or identifier.")
    if command.rows is not None:
        return _say_what_pays(command, command.rows)
    advice = _ask(command)
    others = {} if command.no_alternatives else _alternatives(command)
    if command.json:
        answer = asdict(advice) | {"alternatives": {name: asdict(other.outlook) for name, other in others.items()}}
        print_json(answer)
        return 0
    _print(advice, others)
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


def _ask(command: AdviseCommand) -> "Advice":
    from rrcluster.runs.advise import advise

    return advise(
        command.privacy,
        num_clients=command.num_clients,
        num_clusters=command.num_clusters,
        num_coordinates=command.num_coordinates,
        expected_ratio=command.ratio or None,
        size_floor=command.size_floor,
        exploration=command.exploration,
        average_last=command.average_last,
    )


def _alternatives(command: AdviseCommand) -> "dict[str, Advice]":
    """The same question with one thing changed; noise that is given stays, so only budgets are recalibrated."""
    privacy, named = command.privacy, {}
    if command.num_clusters > 1:
        fewer: dict[str, Any] = {"num_clusters": max(1, command.num_clusters // 2), "ratio": ()}
        named[f"{fewer['num_clusters']} clusters, equal"] = replace(command, **fewer)
    changes: dict[str, PrivacySettings] = {}
    if privacy.participation == "poisson" and privacy.sample_rate < 1:
        rate = min(1.0, 3 * privacy.sample_rate)
        changes[f"sample rate {rate:g}"] = replace(privacy, sample_rate=rate)
    if privacy.num_rounds > 3:
        changes[f"{privacy.num_rounds // 4} rounds"] = replace(privacy, num_rounds=privacy.num_rounds // 4)
    if privacy.target_epsilon is not None and privacy.noise_multiplier is None:
        double = 2 * privacy.target_epsilon
        changes[f"epsilon {double:g}"] = replace(privacy, epsilon=double)
    changes |= _participations(privacy)
    named |= {name: replace(command, privacy=changed) for name, changed in changes.items()}
    answers = {}
    for name, other in named.items():
        with contextlib.suppress(ConfigError):  # such as a schedule whose noise would not fit into memory
            answers[name] = _ask(other)
    return answers


def _participations(privacy: PrivacySettings) -> dict[str, PrivacySettings]:
    """Other ways to take part, for secret cohorts of `joint`: at the same cohort without a secret, and everybody."""
    if privacy.mechanism != "joint" or privacy.participation != "poisson" or privacy.sample_rate == 1:
        return {}
    changes = {"everybody in every round (no secret)": replace(privacy, participation="everybody")}
    slots = round(1 / privacy.sample_rate)
    if 1 < slots <= privacy.num_rounds:
        changes[f"a schedule of {slots} slots (no secret)"] = replace(privacy, participation="schedule", slots=slots)
    return changes


def _print(advice: "Advice", others: "dict[str, Advice]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Signal to noise, at most")
    for name in ("", "clients of a cohort in the smallest cluster", "in a round", "over the run"):
        table.add_column(name, justify="left" if not name else "right", overflow="fold")
    for name, each in {"as asked": advice, **others}.items():
        seen = each.outlook
        smallest = min(range(len(seen.sizes)), key=lambda place: seen.sizes[place])
        row = (seen.sizes[smallest], seen.per_round[smallest], seen.over_run[smallest])
        table.add_row(name, *(f"{value:.3g}" for value in row))
    print_whole(table)
    begin = "--init survey, " if advice.init == "survey" else ""
    Console().print(f"Advised: {begin}B = {advice.min_cluster_size}", style="bold", highlight=False)
    print_lines(advice.reasons)
