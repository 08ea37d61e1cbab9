"""Choose settings by repeated private runs, and account for it: only the best run is ever seen.

The number of runs is drawn at random; each draws one combination of the grid uniformly, with its own noise and cohorts;
the best by score is kept. Combinations, scores, folders and number of the others are neither written nor shown:
temporary results are in a folder that only its owner can read, and are removed at once.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rrcluster.data.arrays import with_validation
from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.calibrate import calibrate
from rrcluster.privacy.events import RepeatAndSelect
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.selection import Selection, draw_repetitions, worst_run
from rrcluster.rng import Streams
from rrcluster.runs.config import RunConfig, from_flat, refuse_a_second_run
from rrcluster.runs.experiment import Experiment, make_experiment, plan_for
from rrcluster.runs.fingerprint import KEY_FILE, check_same, describe_selection, remember
from rrcluster.runs.folder import RunFolder
from rrcluster.runs.lock import FolderLock
from rrcluster.runs.outcome import average
from rrcluster.runs.run import Running, check_target
from rrcluster.runs.sweep import Grid
from rrcluster.settings import LocalSettings, MethodSettings, ServerSettings
from rrcluster.storage import explain_write, make_folders, sync_folder

# Settings that may be selected: the method and its training. Data and guarantee are the same for all.
SELECTABLE = {
    setting.name
    for section in (MethodSettings, LocalSettings, ServerSettings)
    for setting in fields(section)
    if setting.name != "start_from"
} | {"sample_rate", "num_rounds", "update_clip", "count_weight"}
_BY_EVALUATION = "mean of the accuracies released privately in the last quarter of the run's rounds, inside its budget"


@dataclass(frozen=True)
class SelectSettings:
    """The law and score of a selection."""

    mean_repetitions: float = 10.0
    law: str = "geometric"


def _score(running: Running) -> float:
    judged = average(running.folder.private_evaluations(), num_rounds=running.experiment.plan.num_rounds)
    assert judged is not None  # every combination has private evaluation
    return judged.accuracy


@dataclass(frozen=True)
class Candidates:
    """The inputs of a selection, checked and calibrated; nothing is written or charged yet."""

    experiments: tuple[Experiment, ...]  # one per combination, each with the selection in its plan
    selection: Selection
    out: Path
    target: float | None = None  # most that the whole selection may cost
    score: Callable[[Running], float] = _score

    @property
    def epsilon(self) -> float:
        """The cost of the whole selection, whichever run wins and however many there are."""
        return self.experiments[0].plan.epsilon()


@dataclass(frozen=True)
class _Run:
    """A finished run while it is the best one. The coin breaks ties."""

    folder: RunFolder
    score: float
    coin: float


def candidates(grid: Grid, settings: SelectSettings) -> Candidates:
    """Check the grid, and calibrate one noise for all combinations so that the whole selection meets the target."""
    configs = _configs(grid)
    privacy, delta = configs[0].privacy, configs[0].privacy.target_delta(configs[0].data.population_size)

    def event(noise_multiplier: float) -> RepeatAndSelect:
        plans = [plan_for(_with_noise(config, noise_multiplier)) for config in configs]
        run, num_rounds = worst_run([(plan.event, plan.num_participations) for plan in plans])
        return RepeatAndSelect(run, num_rounds, settings.mean_repetitions, settings.law)

    target, noise = privacy.target_epsilon, privacy.noise_multiplier
    if noise is None:
        assert target is not None  # `none` was refused
        noise = calibrate(event, epsilon=target, delta=delta, num_rounds=1, accountant="rdp")
    charged = event(noise)
    check_target(epsilon(charged, num_rounds=1, delta=delta, accountant="rdp"), target)
    selection = Selection(charged, _BY_EVALUATION, grid.spelled())
    noisy = [_with_noise(config, noise) for config in configs]
    data = with_validation(make_experiment(noisy[0]).data)
    experiments = _stating(selection, (make_experiment(config, data=data) for config in noisy))
    return Candidates(experiments, selection, grid.out, target)


def select(offer: Candidates) -> RunFolder:
    """Charge the whole selection, run it, and leave only the best run in its folder.

    Stopped at any point, no run is left, and the charge stands. Seeded draws are keyed by the seed: repeating the
    selection makes the same release, charged once; a different one is refused. A secure selection that is repeated
    draws everything afresh: it is charged again, and epsilon covers both.
    """
    refuse_a_second_run(offer.out)
    with explain_write(offer.out):
        make_folders(offer.out)
    lock = FolderLock(offer.out / "checkpoint" / "lock")
    try:
        refuse_a_second_run(offer.out)
        _drop_left_over(lock.folder)
        _same_data(offer)
        _best_run(_charged(offer), Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=lock.folder)))  # mode 0700
    finally:
        _drop_left_over(lock.folder)
        lock.remove()
    return RunFolder(offer.out)


def _same_data(offer: Candidates) -> None:
    """Refuse to repeat a selection on other data of the user's own: the ledger has no digest of it to compare.

    What the comparison needs stays in checkpoint/ until a run was selected.
    """
    first = offer.experiments[0]
    if not first.owns_data:
        return
    if (offer.out / "ledger.jsonl").exists():
        check_same(offer.out, first.data)
    else:
        remember(offer.out, first.data)


def _charged(offer: Candidates) -> Candidates:
    """Write the charge; the candidates, stating the cost of this selection and of those stopped before it."""
    plan = offer.experiments[0].plan
    ledger = Ledger(
        offer.out / "ledger.jsonl", secure=plan.secure, made_by=describe_selection(offer.experiments, offer.selection)
    )
    if plan.secure:
        selection = replace(offer.selection, charges=ledger.num_charged + 1)
        offer = replace(offer, experiments=_stating(selection, offer.experiments), selection=selection)
        if offer.target is not None and offer.epsilon > offer.target:
            raise PrivacyError(
                f"{offer.out}: {ledger.num_charged} selections were charged here and stopped. Another one "
                f"makes new draws, and together they cost epsilon = {offer.epsilon:.4g}, more than the target "
                f"{offer.target:g}. Choose another folder with --out, and add the cost of the earlier charges."
            )
    ledger.charge(0, offer.selection.event)
    return offer


def _stating(selection: Selection, experiments: Iterable[Experiment]) -> tuple[Experiment, ...]:
    """The experiments with a selection in their plans, whose cost they then state."""
    return tuple(replace(each, plan=replace(each.plan, selection=selection)) for each in experiments)


def _best_run(offer: Candidates, hidden: Path) -> None:
    """Make the runs in `hidden`, and move the best one to its place."""
    streams = offer.experiments[0].streams
    best: _Run | None = None
    for place in range(draw_repetitions(offer.selection.event, rng=streams("repetitions"))):
        run = _repetition(offer, hidden / str(place), place, streams)
        best = run if best is None else _better(best, run)
    assert best is not None  # at least one repetition
    for path in sorted(best.folder.path.iterdir(), key=lambda path: path.name == "config.yaml"):
        path.replace(offer.out / path.name)  # config.yaml, which makes it a run folder, last
    (offer.out / "checkpoint" / KEY_FILE).unlink(missing_ok=True)
    sync_folder(offer.out)


def _repetition(offer: Candidates, path: Path, place: int, streams: StreamSource) -> _Run:
    """One run of a random combination, on the same clients, with cohorts and noise of its own."""
    experiment = offer.experiments[int(streams("combination", place).integers(len(offer.experiments), size=1)[0])]
    secure = experiment.plan.secure
    run_streams = SecureStreams() if secure else Streams(int(streams("run", place).integers(2**63, size=1)[0]))
    folder = RunFolder.create(path, experiment.config, experiment.statement())
    ledger = Ledger(secure=secure)  # in memory: the selection was charged as a whole
    running = Running(replace(experiment, streams=run_streams), folder, ledger)
    for _ in running.rounds():
        pass
    score = offer.score(running)
    return _Run(folder, score if math.isfinite(score) else -math.inf, float(streams("tie", place).random(1)[0]))


def _better(one: _Run, two: _Run) -> _Run:
    winner, loser = (one, two) if (one.score, one.coin) >= (two.score, two.coin) else (two, one)
    shutil.rmtree(loser.folder.path)
    return winner


def _configs(grid: Grid) -> list[RunConfig]:
    if not grid.axes:
        raise ConfigError("nothing to select among; list several values for at least one setting.")
    if len(grid.seeds) > 1:
        raise ConfigError(f"seeds = {list(grid.seeds)}: a selection repeats runs by itself; give one seed.")
    for name in grid.axes:
        if name not in SELECTABLE:
            raise PrivacyError(
                f"{name} cannot be selected privately: all runs must have the same data and the same guarantee. Give "
                "it one value."
            )
    common = {"seed": grid.seeds[0], "out": str(grid.out)}
    configs = [from_flat({**cell.settings, **common}, source=cell.name) for cell in grid.cells]
    _check_privacy(configs[0])
    return configs


def _check_privacy(config: RunConfig) -> None:
    if config.privacy.max_epsilon is not None or config.privacy.reserve_rounds:
        raise PrivacyError(
            "max_epsilon and reserve_rounds belong to a single run; a selection is charged as a whole. Remove both."
        )
    if config.server.start_from is not None:
        raise PrivacyError("start_from adds another run's cost, which a selection does not state; leave it out.")
    if config.privacy.mechanism == "none":
        raise PrivacyError("mechanism = none has no epsilon to select within; use mechanism = joint.")
    if config.privacy.private_evaluation == 0:
        raise PrivacyError(
            "private_evaluation = 0 leaves no private score to select by; set it above 0 (0.25 is usual)."
        )


def _with_noise(config: RunConfig, noise_multiplier: float) -> RunConfig:
    """The runs' actual configs: with the selection's noise, more than a single run of the same epsilon needs."""
    privacy = replace(config.privacy, noise_multiplier=noise_multiplier, epsilon=None, accountant="rdp")
    return replace(
        config,
        privacy=privacy,
        output=replace(config.output, name=config.label, keep_checkpoint=False, references=False),
    )


_HIDDEN = "selection-"  # in checkpoint/, which only its owner reads, and which the lock guards


def _drop_left_over(checkpoint: Path) -> None:
    """Remove runs that were not selected, also those of a selection that was killed; call it with the lock held."""
    for left in checkpoint.glob(f"{_HIDDEN}*"):
        shutil.rmtree(left, ignore_errors=True)
