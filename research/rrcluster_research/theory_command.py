"""`rrcluster theory`: the bounds of the convergence theory, term by term, as printed and as corrected, over B."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rrcluster import checks
from rrcluster.cli.terminal import parse, print_json, print_whole, say
from rrcluster.errors import ConfigError

if TYPE_CHECKING:
    from rrcluster_research.convergence import Comparison
    from rrcluster_research.lemma import Setting

Flag = tyro.conf.arg


@dataclass(frozen=True)
class TheoryCommand:
    """The misassignment lemma, the one-round theorem and the corollary over T rounds, as printed and as corrected.

    Where an assumption fails, it is named: the bound then says nothing. docs/theory.md has the proofs. Example:

    rrcluster theory -B 100 200 300 --plot theory.pdf
    """

    min_cluster_sizes: Annotated[tuple[int, ...], Flag(name="min-cluster-size", aliases=["-B"])] = (100, 200, 300, 400)
    """Minimum cluster sizes (B) to compare."""
    num_clients: Annotated[int, Flag(name="clients")] = 2000
    """Number of clients, all of them in every round (M)."""
    num_clusters: Annotated[int, Flag(name="clusters", aliases=["-k"])] = 4
    """Clusters (k)."""
    num_coordinates: Annotated[int, Flag(name="coordinates", aliases=["-d"])] = 10
    """Model coordinates (d)."""
    strong_convexity: float = 0.5
    """Strong convexity of every cluster's expected loss (lambda)."""
    smoothness: float = 1.0
    """Smoothness of every cluster's expected loss (L)."""
    server_lr: float = 1.0
    """Step size (gamma)."""
    separation: float = 2.0
    """Smallest distance of two optima (Delta)."""
    largest_separation: float = 3.0
    """Largest distance of two optima."""
    margin: float = 0.25
    """How far inside the region of reliable choices the models are (beta, alpha_0), in (0, 1/2)."""
    loss_std: float = 2e-4
    """Std of a client's loss (eta)."""
    gradient_std: float = 0.01
    """Root mean squared distance of a client's gradient from its mean (v)."""
    cluster_size_std: float = 0.5
    """Root mean squared distance of a cluster's size from M / k, before rebalancing (mu)."""
    identifier_noise_multiplier: float = 0.1
    """Noise std on a one-hot identifier (sigma_s)."""
    noise_multiplier: float = 1.0
    """Noise std / sensitivity of the updates (sigma_theta)."""
    update_clip: float = 0.25
    """Clip of an update (C_theta)."""
    failure_probability: float = 0.02
    """Failure probability of one cluster in one round (delta_c)."""
    plot: Path | None = None
    """Write a figure of the terms over B: .png, .pdf or .svg."""
    json: bool = False
    """Print the bounds as JSON."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = parse(TheoryCommand(), arguments, prog="rrcluster theory")
    _check(command)
    from rrcluster_research.convergence import compare

    comparisons = compare(_setting(command), sorted(set(command.min_cluster_sizes)))
    if command.json:
        print_json([_plain(asdict(comparison)) for comparison in comparisons])
    else:
        _print(comparisons)
    if command.plot is not None:
        _write_figure(comparisons, command.plot)
        say(f"figure: {command.plot}")
    return 0


def _check(command: TheoryCommand) -> None:
    """Refuse values that no formula can be evaluated with; the theory reports all other problems."""
    for size in command.min_cluster_sizes or (-1,):
        checks.count(min_cluster_size=size, at_least=0)
    checks.count(clients=command.num_clients)
    checks.count(clusters=command.num_clusters)
    checks.count(coordinates=command.num_coordinates)
    for name in ("strong_convexity", "smoothness", "separation", "largest_separation", "server_lr", "update_clip"):
        checks.positive(**{name: getattr(command, name)})
    for name in ("loss_std", "gradient_std", "cluster_size_std", "identifier_noise_multiplier", "noise_multiplier"):
        checks.non_negative(**{name: getattr(command, name)})
    checks.rate(failure_probability=command.failure_probability)
    if not 0 < command.margin < 0.5:
        raise ConfigError(f"margin = {command.margin} must be greater than 0 and less than 1/2.")
    if command.plot is not None:
        checks.one_of((".png", ".pdf", ".svg"), plot=command.plot.suffix)
        if not command.plot.parent.is_dir():
            raise ConfigError(f"plot = {command.plot} cannot be written: there is no folder {command.plot.parent}.")


def _setting(command: TheoryCommand) -> "Setting":
    from rrcluster.privacy.relation import update_sensitivity
    from rrcluster_research.lemma import Setting

    sensitivity = update_sensitivity(update_clip=command.update_clip)
    constants = asdict(command)
    for name in ("min_cluster_sizes", "noise_multiplier", "update_clip", "plot", "json"):
        del constants[name]
    return Setting(min_cluster_size=0, noise_std=command.noise_multiplier * sensitivity, **constants)


def _print(comparisons: Sequence["Comparison"]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The bounds as printed in the paper and as corrected (docs/theory.md)")
    for name in ("part", "term", "", *(f"B = {comparison.min_cluster_size}" for comparison in comparisons)):
        table.add_column(name, overflow="fold")
    for row in zip(*(comparison.terms for comparison in comparisons), strict=True):
        part, name = row[0].part, row[0].name.replace("_", " ")
        table.add_row(part, name, "printed", *(_number(term.printed) for term in row))
        table.add_row("", "", "corrected", *(_number(term.corrected) for term in row), end_section=True)
    console = Console()
    print_whole(table)
    for comparison in comparisons:
        for failure in comparison.failed:
            console.print(
                f"B = {comparison.min_cluster_size}: {failure.assumption}: {failure.reason}.", highlight=False
            )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    """JSON has neither infinity nor NaN: null."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_figure(comparisons: Sequence["Comparison"], path: Path) -> None:
    from rrcluster_research.bounds_figure import write_bounds_figure
    from rrcluster_research.convergence import ROUND_TERMS

    terms = [{term.name: term for term in comparison.terms if term.part == "round"} for comparison in comparisons]
    panels = {
        form: {name: [getattr(by_name[name], form) for by_name in terms] for name in ROUND_TERMS}
        for form in ("printed", "corrected")
    }
    write_bounds_figure(path, [comparison.min_cluster_size for comparison in comparisons], panels)
