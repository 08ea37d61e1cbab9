"""`rrcluster run`: train, show progress, leave a run folder."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rrcluster.cli import torchrun_rank
from rrcluster.cli.terminal import parse, read_yaml, say
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.experiments.config import RunConfig, from_flat

if TYPE_CHECKING:
    from rrcluster.experiments.run import MakeExperiment, Running, RunResult


@dataclass(frozen=True)
class RunCommand:
    """Train k models for M clients under client-level differential privacy.

    usage: rrcluster run [FILE.yaml] [OPTIONS]. Settings come from the defaults, then FILE.yaml (one `setting: value`
    per line, as in a run folder's config.yaml), then the options. Examples:

    rrcluster run --epsilon 2 -B 15 --seeds 0 1 2

    rrcluster run --data fashion-mnist --model cnn --epsilon 8 --delta 1e-3

    rrcluster run --secure --reserve-rounds 5 --epsilon 2

    rrcluster run --resume runs/my-run

    torchrun --nproc-per-node 2 -m rrcluster run --model cnn (clients shared by two processes; docs/scaling.md)
    """

    config: RunConfig = field(default_factory=RunConfig)
    resume: Path | None = None
    """Continue the run in this folder; no other setting may be given."""
    adopt: bool = False
    """With --resume: go on in a copy of a secure run's folder. What it and the original release adds up."""
    dry_run: bool = False
    """Print epsilon, noise, expected time and memory, and stop."""
    json: bool = False
    """Print the summary as JSON on stdout, nothing else."""
    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"])] = False
    """No progress bar."""


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = read_command(arguments)
    if torchrun_rank() is None:
        from rrcluster.experiments.setup import make_experiment

        return _run(command, make_experiment)
    from rrcluster.engine.channel import join_ranks
    from rrcluster.engine.distributed import Ranks, serve
    from rrcluster.experiments.setup import make_distributed, prepare_rank

    with join_ranks() as channel:
        if channel.rank:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the run, and with it this rank
            serve(channel, prepare_rank)
            return 0
        ranks = Ranks(channel)
        status = _run(command, partial(make_distributed, ranks=ranks))
        ranks.dismiss()
        return status


def _run(command: RunCommand, make: "MakeExperiment") -> int:
    """The command in a single process, or in rank 0 of several."""
    if command.dry_run:
        from rrcluster.cli.dry_run import show

        return show(command.config, as_json=command.json, make=make)
    results = list(_runs(command, make))
    _show(command, results)
    return 0


def read_command(arguments: list[str]) -> RunCommand:
    """Settings from the defaults, then a YAML file, then flags."""
    default = RunCommand()
    if arguments and not arguments[0].startswith("-"):
        settings = read_yaml(arguments[0])
        default = RunCommand(config=from_flat(settings, source=arguments[0], resolved=False))
        arguments = arguments[1:]
    command = parse(default, arguments, prog="rrcluster run")
    if command.resume is not None and command.config != RunConfig():
        raise ConfigError("--resume takes all settings from the run folder; give no others.")
    if command.adopt and command.resume is None:
        raise ConfigError("--adopt belongs to --resume, which names the folder to go on in; add that.")
    return replace(command, config=command.config.resolved())


def _runs(command: RunCommand, make: "MakeExperiment") -> "Iterator[RunResult]":
    from rrcluster.experiments.run import resume, start

    if command.resume is not None:
        if not (command.resume / "config.yaml").exists():
            raise RunFolderError(f"{command.resume} holds no run to resume; start one with `rrcluster run`.")
        running = resume(command.resume, make=make, adopt=command.adopt)
        if command.adopt and running.experiment.plan.secure:
            from rrcluster.experiments.place import ADOPTED

            say(ADOPTED)
        yield _watch(running, command)
        return
    config = command.config
    if not config.output.seeds:
        yield _watch(start(make(config)), command)
        return
    for seed in config.output.seeds:
        yield _watch(start(make(config.with_seed(seed, config.folder / f"seed-{seed}"))), command)


def _watch(running: "Running", command: RunCommand) -> "RunResult":
    """Run to the end behind a progress bar; after Ctrl-C say how to go on."""
    from rrcluster.cli.progress import EventWriter, ProgressBar

    config, plan = running.experiment.config, running.experiment.plan
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(config, plan, hidden=command.quiet or command.json))
        events = None
        if config.output.tensorboard:
            events = stack.enter_context(EventWriter(running.folder.path))
        try:
            for progress in running.rounds():
                bar.update(progress)
                if events is not None:
                    events.add(progress)
        except KeyboardInterrupt:
            bar.stop()
            say(f"Stopped. Continue with: rrcluster run --resume {running.folder.path}")
            raise SystemExit(130) from None
    done = running.state.round_index if running.state is not None else 0
    if done < plan.num_rounds:
        say(f"The budget was spent after {done} of {plan.num_rounds} rounds; the models are those of round {done}.")
    return running.result()


def _show(command: RunCommand, results: "list[RunResult]") -> None:
    folders = [result.folder for result in results]
    if command.json:
        sys.stdout.write(json.dumps([_answer(result) for result in results], indent=2) + "\n")
        return
    from rrcluster.cli.report_command import show_table

    show_table(folders)
    parent = folders[0] if len(folders) == 1 else folders[0].parent
    say(f"Run folder: {parent}. Figures and a page: rrcluster report {parent}")


def _answer(result: "RunResult") -> dict[str, Any]:
    from rrcluster.storage import read_mapping

    summary = read_mapping(result.folder / "summary.json")
    answer = {"folder": str(result.folder), **summary}
    return answer if result.evaluation is None else answer | {"diagnostic_not_private": asdict(result.evaluation)}
