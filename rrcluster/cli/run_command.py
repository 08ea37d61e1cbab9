"""`rrcluster run`: train, show progress, leave a run folder."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rrcluster import registry
from rrcluster.cli.terminal import HELP, parse, print_json, read_yaml, say, say_warnings, waiting
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.cost import epsilon_text
from rrcluster.processes import cluster_executor, refuse_secure
from rrcluster.runs.config import RunConfig, from_flat, read_settings, refuse_a_second_run, seeds_folder
from rrcluster.settings import ColumnSettings, PrivacySettings, data_label
from rrcluster.storage import read_tensors

if TYPE_CHECKING:
    from rrcluster.runs.experiment import Experiment
    from rrcluster.runs.run import MakeExperiment, Running


@dataclass(frozen=True)
class RunCommand:
    """Train k models for M clients under client-level differential privacy.

    usage: rrcluster run [FILE.yaml] [OPTIONS]. Settings come from the defaults, then FILE.yaml (one `setting: value`
    per line, as in a run folder's config.yaml), then the options. Examples:

    rrcluster run --epsilon 2 -B 15 --seeds 0 1 2

    rrcluster run --data fashion-mnist --model cnn --epsilon 8 --delta 1e-3

    rrcluster run --data clients.csv --client-column client_id --target-column label --test-share 0.2

    rrcluster run --secure --reserve-rounds 5 --epsilon 2

    rrcluster run --model cnn --cluster tcp://scheduler:8786

    rrcluster run --resume runs/my-run

    """

    config: RunConfig = field(default_factory=RunConfig)
    resume: Path | None = None
    """Continue the run in this folder; no other setting may be given."""
    adopt: bool = False
    """With --resume: continue in a copy of a secure run's folder. The releases of copy and original add up."""
    cluster: str | None = None
    """Compute clients on a Dask cluster: tcp://host:8786 of its scheduler, or local:4 for processes of this machine.
    No bit depends on it. Also with --resume."""
    dry_run: bool = False
    """Print epsilon, noise, expected time and memory, and stop."""
    json: bool = False
    """Print only the summary, as JSON, on stdout."""
    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"])] = False
    """No progress bar."""
    watch: bool = False
    """Also show the run on a local page, as `rrcluster watch` does, and print its address."""


@dataclass(frozen=True)
class UpdateCommand:
    """Train the models of a finished run further: on new rows, with new clients, without those that are gone.

    usage: rrcluster update RUN --data FILE --epsilon EPSILON [OPTIONS]. Settings are those of RUN, then the options.
    The same groups go on. Whichever private evaluation likes better is handed out: the models of RUN, or those trained
    further. --epsilon is what this training costs; what it and those that RUN began with cost together is computed and
    stated in privacy.json, and no other update of them is in that: for those, `rrcluster account`. Examples:

    rrcluster update runs/october --data november.csv --epsilon 1

    rrcluster update runs/november --data december.csv --epsilon 1 --lifetime-epsilon 8

    """

    run: RunCommand = field(default_factory=RunCommand)
    lifetime_epsilon: float | None = None
    """Refuse a training that would bring the epsilon of the whole chain of runs above this."""


def update(arguments: list[str]) -> int:
    """Run `rrcluster update`."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in HELP):
        raise ConfigError(
            "update needs a finished run first: `rrcluster update runs/my-run --data new.csv --epsilon 1`."
        )
    if arguments[0] in HELP:
        parse(UpdateCommand(), arguments, prog="rrcluster update")
    first, earlier = Path(arguments[0]), _finished(Path(arguments[0]))
    parsed = parse(UpdateCommand(RunCommand(_going_on(earlier, first))), arguments[1:], prog="rrcluster update")
    command, options = parsed.run, parsed.run.config
    if (
        options.privacy.epsilon is None
        and options.privacy.noise_multiplier is None
        and earlier.privacy.mechanism != "none"
    ):
        raise ConfigError("update needs --epsilon, the cost of this training beside that of earlier ones.")
    if command.resume is not None or command.adopt:
        raise ConfigError(f"resume a stopped update like any run: `rrcluster run --resume {command.resume}`.")
    if options.data.data != earlier.data.data and options.data.num_clients == earlier.data.num_clients:
        options = replace(
            options,
            data=replace(options.data, num_clients=earlier.data.num_clients if options.privacy.secure else None),
        )
    command = replace(command, config=_checked(options))
    _check_first(command)
    with _waiting(command, "Importing PyTorch"):
        from rrcluster.runs.experiment import make_experiment

    def make(config: RunConfig) -> "Experiment":
        experiment = make_experiment(config)
        most, plan = parsed.lifetime_epsilon, experiment.plan
        together = None if experiment.start is None else experiment.start.epsilon_with(plan)
        if most is not None and plan.private and (together is None or together > most):
            raise PrivacyError(
                f"this training and those that {first} began with would cost epsilon = {epsilon_text(together)} "
                f"together, more than lifetime_epsilon = {most:g}; lower --epsilon, or end here."
            )
        return experiment

    return _run(command, make)


def _finished(run: Path) -> RunConfig:
    """The settings of a finished run."""
    config = from_flat(read_settings(run), source=str(run))
    if not (run / "models.safetensors").exists():
        raise RunFolderError(f"{run}: the run has not finished; continue it with `rrcluster run --resume {run}`.")
    return config


def trained_columns(config: RunConfig, run: Path) -> ColumnSettings:
    """The columns of a finished run, with the features and the target's kind that it took from its own file."""
    rules = json.loads(read_tensors(run / "models.safetensors")[1].get("encoder", "null"))
    if not rules or not config.data.from_file:
        return config.columns
    features, classes = tuple(rules["features"]), tuple(rules.get("classes", ()))
    return replace(config.columns, features=features, classes=classes, regression=rules.get("regression", False))


def _going_on(earlier: RunConfig, run: Path) -> RunConfig:
    """The settings of a run that starts from the models of an earlier one, on its own columns and classes."""
    asks, usual = registry.METHODS.fact(earlier.algorithm, "reads_cells", False), PrivacySettings()
    columns = trained_columns(earlier, run)
    judged = earlier.privacy.private_evaluation or (0.0 if asks or columns.regression else 0.25)
    privacy = replace(
        earlier.privacy,
        epsilon=None,
        noise_multiplier=None,
        max_epsilon=None,
        private_evaluation=judged if earlier.privacy.mechanism == "joint" else 0.0,
        num_rounds=usual.num_rounds if asks else earlier.privacy.num_rounds,
    )
    server = replace(earlier.server, start_from=str(run), init="auto", init_rounds=None)
    output = replace(earlier.output, seed=(earlier.output.seed or 0) + 1, seeds=(), out=None, name=None)
    output = replace(output, seed=0) if privacy.secure else output
    return replace(earlier, columns=columns, privacy=privacy, server=server, output=output)


def main(arguments: list[str]) -> int:
    """Run the command."""
    command = read_command(arguments)
    _check_first(command)
    with _waiting(command, "Importing PyTorch"):
        from rrcluster.runs.experiment import make_experiment
    return _run(command, make_experiment)


def _check_first(command: RunCommand) -> None:
    """Refuse errors that can be found without torch, which takes seconds to import."""
    from rrcluster.privacy.plan import check_budget

    config, kind = command.config, registry.MECHANISMS.load(command.config.privacy.mechanism)
    if command.cluster is not None:
        refuse_secure(config.privacy.secure)
    if command.resume is not None:
        return
    clustered = registry.METHODS.fact(config.method.algorithm, "chooses_by_loss", False)  # others are checked later
    k, least = (config.method.num_clusters, config.method.min_cluster_size) if clustered else (1, 0)
    privacy = replace(config.privacy, epsilon=config.privacy.target_epsilon)
    check_budget(privacy, config.data.population_size, k, least, noisy=kind.noisy)
    if not command.dry_run and (config.output.out is not None or config.output.name is not None):
        refuse_a_second_run(config.folder)


def _run(command: RunCommand, make: "MakeExperiment") -> int:
    with say_warnings() as said, ExitStack() as stack:
        if command.dry_run:
            from rrcluster.cli.dry_run import show

            return show(command.config, as_json=command.json, make=make)
        page, executor = None, None
        if command.cluster is not None:
            executor, about = stack.enter_context(cluster_executor(command.cluster))
            say(about)
        from rrcluster.runs.run import make_on

        if command.watch:
            from rrcluster.cli.watch_command import open_page

            page = open_page((), browser=sys.stderr.isatty(), what="this run, until it ends")
            stack.enter_context(page.beside())

        def make_named(config: RunConfig) -> "Experiment":
            text = f"Loading {data_label(config.data.data)} and calibrating the noise"
            with _waiting(command, text), nullcontext() if page is None else page.waiting(text):
                made = make_on(executor, make, config)
            said()
            return made

        _show(command, list(_runs(command, make_named, followed=[] if page is None else page.paths)))
    return 0


def _waiting(command: RunCommand, text: str) -> AbstractContextManager[object]:
    return waiting(text, hidden=command.quiet or command.json or command.dry_run)


def read_command(arguments: list[str]) -> RunCommand:
    """Settings from the defaults, then a YAML file, then flags."""
    default = RunCommand()
    if arguments and not arguments[0].startswith("-"):
        settings = read_yaml(arguments[0])
        default = RunCommand(config=from_flat(settings, source=arguments[0], resolved=False))
        arguments = arguments[1:]
    command = parse(default, arguments, prog="rrcluster run")
    nothing, data = RunConfig(), command.config.data
    if command.resume is not None and replace(command.config, data=replace(data, data=nothing.data.data)) != nothing:
        raise ConfigError("--resume takes all settings from the run folder; give no others (--data for a moved file).")
    if command.adopt and command.resume is None:
        raise ConfigError("--adopt needs --resume with the folder to continue in; add that.")
    if command.resume is not None:
        return command
    return replace(command, config=_checked(command.config))


def _checked(asked: RunConfig) -> RunConfig:
    """The settings, resolved; a method that replaces the requested one is announced."""
    config = asked.resolved()
    if config.method.algorithm != (requested := asked.algorithm):
        say(
            f"algorithm = {config.method.algorithm}: clients of {requested} remember their rounds, which mechanism = "
            f"{config.privacy.mechanism} does not cover; those of this form remember nothing."
        )
    if config.data.from_file:
        from rrcluster.data.table_files import check_table

        check_table(Path(config.data.data), config.columns)
    return config


def _runs(command: RunCommand, make: "MakeExperiment", followed: list[Path]) -> Iterator[Path]:
    """The folders of the runs, each when it has finished; `followed` gets each when it begins."""
    from rrcluster.runs.experiment import with_objects
    from rrcluster.runs.run import resume, start, start_or_resume

    config = command.config
    if command.resume is not None:
        if command.config.data.from_file:  # it has moved
            make = with_objects(command.resume, {"data": command.config.data.data}, make)
        running = resume(command.resume, make=make, adopt=command.adopt)
        if command.adopt and running.experiment.plan.secure:
            from rrcluster.runs.lock import ADOPTED

            say(ADOPTED)
        yield _watch(running, command, followed)
    elif not config.output.seeds:
        yield _watch(start(make(config)), command, followed)
    else:
        parent = seeds_folder(config)
        for seed in config.output.seeds:
            folder = parent / f"seed-{seed}"
            started_run = start_or_resume(config.with_seed(seed, folder), make=make)
            yield folder if started_run is None else _watch(started_run, command, followed)


def _watch(running: "Running", command: RunCommand, followed: list[Path]) -> Path:
    """Run to the end behind a progress bar; after Ctrl-C say how to continue."""
    from rrcluster.runs.advise import noise_warnings
    from rrcluster.runs.progress import watch

    followed.append(running.folder.path)
    if running.state is None and not command.json:
        for warning in noise_warnings(running.experiment):  # as --dry-run does
            say(warning)
    try:
        watch(running, progress=not (command.quiet or command.json))
    except KeyboardInterrupt:
        again = "the same command" if command.config.output.seeds else f"rrcluster run --resume {running.folder.path}"
        say(f"Stopped. Continue with: {again}")
        raise SystemExit(130) from None
    done, planned = running.state.round_index if running.state is not None else 0, running.experiment.plan.num_rounds
    if done < planned:
        say(f"The budget was spent after {done} of {planned} rounds; the models are those of round {done}.")
    return running.folder.path


def _show(command: RunCommand, folders: list[Path]) -> None:
    if command.json:
        print_json([_answer(folder) for folder in folders])
        return
    from rrcluster.cli.report_command import show_table

    show_table(folders)
    for folder in folders:
        _say_remarks(folder)
    parent = folders[0] if len(folders) == 1 else folders[0].parent
    say(f"Run folder: {parent}")
    say("Next: a page with figures; each client's cluster (private); a model in Python:")
    say(f"  rrcluster report {parent}")
    say(f"  rrcluster assign {folders[0]} --out clusters.csv")
    say(f'  rrcluster.load("{folders[0]}").module(0)')


def _say_remarks(folder: Path) -> None:
    """Print remarks that readers of the table need."""
    from rrcluster.report.folders import read_run
    from rrcluster.report.values import again_text, dead_text, effects_text, groups_text, start_text

    run = read_run(folder)
    started, dead = start_text(run.privacy.get("started_from")), dead_text(run.summary.get("dead_clusters"))
    for text in (started, again_text(run.summary), groups_text(run.summary), effects_text(run.summary), dead):
        if text:
            say(f"{folder}: {text}")


def _answer(folder: Path) -> dict[str, Any]:
    from rrcluster.report.folders import read_run

    run = read_run(folder)
    judged = {"diagnostic_not_private": run.final.written} if run.final else {}
    return {"folder": str(folder), **run.summary, **judged}
