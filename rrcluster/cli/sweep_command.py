"""`rrcluster sweep`: every combination of the settings in a file, or the best of them chosen privately."""

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rrcluster.cli.terminal import follow_sweep, parse, print_json, print_results, read_yaml, say
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.privacy.cost import epsilon_text
from rrcluster.processes import cluster_executor, refuse_secure
from rrcluster.runs.config import refuse_a_second_run

if TYPE_CHECKING:
    from rrcluster.runs.sweep import Grid, Outcome


@dataclass(frozen=True)
class SweepCommand:
    """Run every combination of the settings in FILE.yaml, whose values may be lists; or choose among them privately.

    usage: rrcluster sweep FILE.yaml [OPTIONS]. The file holds one `setting: value` or `setting: [value, ...]` per line,
    under the names of a run folder's config.yaml. Examples:

    rrcluster sweep grid.yaml

    rrcluster sweep grid.yaml --shard 3/24

    rrcluster sweep grid.yaml --private-select --mean-repetitions 10

    Without --private-select, choosing the best row of the table is tuning that no epsilon covers. With it, epsilon in
    the file is that of the whole selection, and only the best run is kept.
    """

    out: Path | None = None
    """Folder; default: `out` of the file, else runs/<name of the file>, with -selected for --private-select."""
    private_select: bool = False
    """Choose privately, by a random number of runs within the budget; needs private_evaluation."""
    mean_repetitions: float = 10.0
    """private-select: mean number of runs."""
    law: Literal["geometric", "logarithmic"] = "geometric"
    """private-select: law of the number of runs; logarithmic costs less and makes a single run more often."""
    processes: int | None = None
    """Number of parallel processes; default: as many as are worthwhile."""
    cluster: str | None = None
    """Run on a Dask cluster whose workers see the same folders: tcp://host:8786 of its scheduler, or local:4."""
    shard: str | None = None
    """i/n: every n-th combination from the i-th on, as one of n jobs of a batch system; when all have ended, the same
    command without it writes the table."""
    report: bool = False
    """Also write figures and a page, as `rrcluster report` does."""
    json: bool = False
    """Print only the results, as JSON, on stdout."""
    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"])] = False
    """No progress."""


def main(arguments: list[str]) -> int:
    """Run the command; exit status 1 where a combination was refused or failed."""
    from rrcluster.runs.sweep import check_own_data, read_grid

    file = arguments[0] if arguments and not arguments[0].startswith("-") else None
    command = parse(SweepCommand(), arguments[1:] if file else arguments, prog="rrcluster sweep")
    if file is None:
        raise ConfigError("sweep needs a YAML file of settings, some of them lists: `rrcluster sweep grid.yaml`.")
    settings = read_yaml(file)
    if command.out is not None:
        settings["out"] = str(command.out)
    name = Path(file).stem + ("-selected" if command.private_select else "")
    grid = read_grid(settings, source=file, out=Path("runs") / name)
    if command.private_select and (command.cluster or command.shard):
        raise ConfigError("--private-select chooses in one process; leave --cluster and --shard out.")
    if command.report and (command.private_select or command.shard):
        raise ConfigError("--report is for a whole sweep; leave it out, and use `rrcluster report` afterwards.")
    check_own_data(grid, source=file)
    if command.private_select:
        return _select(grid, command)
    _refuse_selection_flags(command)
    if (grid.out / "config.yaml").exists():
        raise RunFolderError(f"{grid.out} is the folder of a single run; choose another folder with --out.")
    return _sweep(grid, command)


def _refuse_selection_flags(command: SweepCommand) -> None:
    default = SweepCommand()
    for name in ("mean_repetitions", "law"):
        if getattr(command, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} only applies with --private-select; add that flag, or remove {flag}.")


def _sweep(grid: "Grid", command: SweepCommand) -> int:
    from rrcluster.runs.sweep import jobs, sweep_steps

    place, shards = _shard(command.shard)
    with ExitStack() as stack:
        executor = None
        if command.cluster is not None:
            refuse_secure(any(cell.settings.get("secure", False) for cell in grid.cells))
            executor, about = stack.enter_context(cluster_executor(command.cluster))
            say(about)
        steps = sweep_steps(grid, executor=executor, processes=command.processes, place=place, shards=shards)
        outcomes = follow_sweep(steps, jobs(grid)[place::shards], hidden=command.quiet or command.json)
    return _show(grid, outcomes, command)


def _shard(text: str | None) -> tuple[int, int]:
    """The shard's place from 0 on, and the number of shards."""
    place, _, shards = (text or "1/1").partition("/")
    if not (place.isdigit() and shards.isdigit() and 1 <= int(place) <= int(shards)):
        raise ConfigError(f"--shard {text} must be i/n, such as 3/24: shard i of n, counted from 1.")
    return int(place) - 1, int(shards)


def _show(grid: "Grid", outcomes: "list[Outcome]", command: SweepCommand) -> int:
    """Print the table of finished runs, write it beside the run folders, and list the others with reasons."""
    from rrcluster.report.tables import to_dict, write_table
    from rrcluster.runs.sweep import DIVERGED, FINISHED, describe

    table = _table([outcome.job.folder for outcome in outcomes if outcome.job.folder.exists()])
    if table is not None and command.shard is None:  # a part of the runs is no table of the sweep
        write_table(table, grid.out)
    if command.json:
        answer = {"folder": str(grid.out), **describe(grid, outcomes), "table": table and to_dict(table)}
        print_json(answer)
    elif table is not None:
        print_results(table)
        say(f"Folder: {grid.out}." + ("" if command.report else f" Figures and a page: rrcluster report {grid.out}"))
    if command.report and table is not None:
        from rrcluster.report import make_report

        say(f"Page: {make_report(grid.out).page}")
    for outcome in outcomes:
        if outcome.reason is not None:
            say(f"{outcome.job.name}: {outcome.status}: {outcome.reason}")
    lost = sum(outcome.status not in (FINISHED, DIVERGED) for outcome in outcomes)
    if lost:
        say(f"{lost} of {len(outcomes)} runs were refused or failed.")
    return 1 if lost else 0


def _table(folders: list[Path]) -> Any:
    """The results table, which says that choosing a row of it is not covered; None without any run."""
    from rrcluster.report.folders import find_runs
    from rrcluster.report.tables import UNCOVERED_TUNING, results_table

    if not folders:
        return None
    table = results_table(find_runs(folders))
    return table if UNCOVERED_TUNING in table.note else replace(table, note=f"{table.note} {UNCOVERED_TUNING}")


def _select(grid: "Grid", command: SweepCommand) -> int:
    """Choose privately. The output meanwhile is the same whatever the number of runs and their results."""
    from rich.console import Console

    from rrcluster.runs.private_selection import SelectSettings, candidates, select

    refuse_a_second_run(grid.out)
    if any(any(grid.out.glob(name)) for name in ("sweep.json", "*/config.yaml", "*/seed-*/config.yaml")):
        raise RunFolderError(
            f"{grid.out} already contains a sweep, but a selection needs a separate folder; choose another with --out."
        )
    offer = candidates(grid, SelectSettings(command.mean_repetitions, command.law))
    secure = offer.experiments[0].plan.secure
    console = Console(stderr=True, quiet=command.quiet or command.json)
    console.print(
        f"Selecting among {len(offer.experiments)} combinations: epsilon {epsilon_text(offer.epsilon)} at delta "
        f"{offer.experiments[0].plan.delta:g} for the whole selection, "
        f"{'from operating-system entropy' if secure else 'seeded: for research only'}",
        highlight=False,
    )
    status = "Selecting (no progress is shown, because the number of runs is private)"
    working = console.status(status) if console.is_terminal else nullcontext()
    try:
        with working:
            folder = select(offer)
    except KeyboardInterrupt:
        again = "starts a new selection, which is charged again" if secure else "repeats the same selection"
        say(f"Interrupted: no run was kept, and its privacy cost stays charged. Running the command again {again}.")
        raise SystemExit(130) from None
    _show_selected(folder.path, grid, command)
    return 0


def _show_selected(folder: Path, grid: "Grid", command: SweepCommand) -> None:
    from rrcluster.report.folders import read_run

    run = read_run(folder)
    selected = {name: run.config[name] for name in grid.axes}
    if command.json:
        print_json({"folder": str(folder), "selected": selected, **run.summary})
        return
    from rrcluster.cli.report_command import show_table

    show_table([folder])
    chosen = ", ".join(f"{name} = {value}" for name, value in selected.items())
    say(f"Selected: {chosen}. epsilon {epsilon_text(run.epsilon)} covers the selection and the run.")
    say(f"Run folder: {folder}. Figures and a page: rrcluster report {folder}")
