"""One run, from config to run folder. It yields its progress; who watches decides what to show."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.engine.evaluate import Evaluation, evaluate
from rrcluster.engine.faults import Incidents
from rrcluster.engine.simulate import RoundRecord, simulate
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.experiments.config import RunConfig, from_flat
from rrcluster.experiments.folder import RunFolder
from rrcluster.experiments.released import average, describe_evaluation
from rrcluster.experiments.setup import Experiment, make_experiment
from rrcluster.privacy.accounting import epsilon_curve
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.statement import statement
from rrcluster.types import Array, Models, NoisyEvaluation

_SECONDS_BETWEEN_CHECKPOINTS = 1.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round. `evaluation` is diagnostic: computed from raw client data."""

    round_index: int
    num_rounds: int
    sizes: Array  # (k,) released
    epsilon: float | None  # spent so far
    evaluation: Evaluation | None  # of this round, where one was due
    private_evaluation: NoisyEvaluation | None = None  # released; the average over the last rounds


@dataclass(frozen=True)
class RunResult:
    """A finished run. `evaluation` is diagnostic; everything else is made of releases."""

    folder: Path
    models: Models
    epsilon: float | None
    delta: float
    evaluation: Evaluation


def run(config: RunConfig | None = None, **settings: Any) -> RunResult:
    """Run one experiment and write its folder: `run(algorithm="ifca", epsilon=4, min_cluster_size=15)`.

    Settings are those of `rrcluster run --help`, under the names of config.yaml.
    """
    if config is not None and settings:
        raise ConfigError("give either a config or settings by name, not both.")
    config = config or from_flat(settings, source="run")
    if config.output.seeds:
        raise ConfigError("run(...) makes one run; call it once per seed, or use `rrcluster run --seeds`.")
    return finish(start(config))


def finish(running: "Running") -> RunResult:
    """Run to the end without watching."""
    for _ in running.rounds():
        pass
    return running.result()


def start(config: RunConfig) -> "Running":
    """Make a new run folder for `config`. Nothing is written if anything about the config is wrong."""
    experiment = make_experiment(config)
    told = statement(experiment.plan)
    target = config.privacy.target_epsilon
    if target is not None and told["epsilon"] > target:
        raise PrivacyError(
            f"the calibrated noise costs epsilon = {told['epsilon']:.6g}, more than the target {target:g}; the "
            "remembered calibration is damaged. Remove rrcluster/multipliers.json from your cache folder."
        )
    return Running(experiment, RunFolder.create(config.folder, config, told))


def take_up(config: RunConfig) -> "Running | None":
    """Start the run of `config`, or go on with it where it was stopped; None where its folder holds it, finished."""
    if not (config.folder / "config.yaml").exists():
        return start(config)
    folder, found = RunFolder.open(config.folder)
    if found != config:
        raise RunFolderError(f"{config.folder} holds a run with other settings; choose another folder with --out.")
    return None if folder.finished else resume(config.folder)


def resume(path: Path) -> "Running":
    """Continue the run in a folder that was stopped."""
    folder, config = RunFolder.open(path)
    if folder.finished:
        raise RunFolderError(f"{path}: this run has finished; `rrcluster report {path}` shows it.")
    return Running(make_experiment(config), folder)


class Running:
    """A run in progress: iterate `rounds()`, then ask for `result()`."""

    def __init__(self, experiment: Experiment, folder: RunFolder, *, ledger: Ledger | None = None) -> None:
        """Take up the folder's checkpoint, if it has one. `ledger`: in place of the folder's own."""
        self.experiment, self.folder = experiment, folder
        saved = folder.load_state()
        self.state = None if saved is None else saved[0]
        self._memory = None if saved is None else saved[1]
        self._ledger = folder.ledger() if ledger is None else ledger
        if ledger is None:
            self._ledger.check_covers(0 if self.state is None else self.state.round_index)
        self._evaluation: Evaluation | None = None
        self._incidents = Incidents()  # since the run was started or resumed

    def rounds(self) -> Iterator[Progress]:
        """Run round after round. Stopped at any point (also by Ctrl-C), the folder can be resumed."""
        plan, total = self.experiment.plan, self.experiment.plan.num_rounds
        spent, released = self._epsilon_by_round(), self.folder.private_evaluations()
        began, saved = time.perf_counter(), time.perf_counter()
        try:
            for record in self._records():
                self.state, self._memory = record.state, record.memory
                self._incidents = self._incidents.plus(record.incidents)
                epsilon = spent[record.round_index] if plan.private else None
                self.folder.add_round(record, epsilon)
                evaluation = self._evaluate(record) if self._due(record.round_index, total) else None
                if time.perf_counter() - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                    self.folder.save_state(record.state, record.memory)
                    saved = time.perf_counter()
                released += [] if record.release.evaluation is None else [record.release.evaluation]
                average_so_far = average(released, num_rounds=total)
                yield Progress(record.round_index, total, record.release.sizes, epsilon, evaluation, average_so_far)
        except BaseException:
            self._stop(time.perf_counter() - began)
            raise
        self._end(time.perf_counter() - began)

    def result(self) -> RunResult:
        """What the finished run produced."""
        if self.state is None or self._evaluation is None:
            raise RunFolderError(f"{self.folder.path}: the run has not finished; iterate rounds() first.")
        plan = self.experiment.plan
        epsilon = plan.epsilon() if plan.private else None
        return RunResult(self.folder.path, self.state.average, epsilon, plan.delta, self._evaluation)

    def _records(self) -> Iterator[RoundRecord]:
        it = self.experiment
        return simulate(
            data=it.data,
            model=it.model,
            algorithm=it.algorithm,
            plan=it.plan,
            engine=it.engine,
            streams=it.streams,
            local=it.local,
            server=it.server,
            state=self.state,
            memory=self._memory,
            ledger=self._ledger,
            faults=it.faults,
        )

    def _epsilon_by_round(self) -> list[float]:
        plan = self.experiment.plan
        if not plan.private:
            return []
        if plan.selection is not None:  # charged as a whole before its first run
            return [plan.epsilon()] * plan.num_rounds
        return epsilon_curve(
            plan.event, rounds=range(1, plan.num_rounds + 1), delta=plan.delta, accountant=plan.accountant
        )

    def _due(self, round_index: int, total: int) -> bool:
        every = self.experiment.config.output.evaluate_every or max(1, total // 10)
        return (round_index + 1) % every == 0 or round_index + 1 == total

    def _evaluate(self, record: RoundRecord) -> Evaluation:
        it = self.experiment
        self._evaluation = evaluate(
            record.state.average,
            it.data,
            algorithm=it.algorithm,
            split=it.split,
            engine=it.engine,
            local=it.local,
            memory=record.memory,
        )
        self.folder.add_diagnostics(record, self._evaluation, self._incidents)
        return self._evaluation

    def _stop(self, seconds: float) -> None:
        if self.state is not None and self._memory is not None:
            self.folder.save_state(self.state, self._memory)
        self.folder.save_summary(self._summary("stopped", seconds))

    def _end(self, seconds: float) -> None:
        it = self.experiment
        assert self.state is not None
        self.folder.save_summary(self._summary("finished", seconds))
        self.folder.save_models(
            self.state.average,
            {
                "format": "rrcluster-models/1",
                "model": it.config.method.model,
                "algorithm": it.config.method.algorithm,
                "input_shape": list(it.data.input_shape),
                "num_classes": it.data.num_classes,
            },
        )
        if not it.config.output.keep_checkpoint:
            self.folder.drop_checkpoint()

    def _summary(self, status: str, seconds: float) -> dict[str, Any]:
        from rrcluster import __version__

        config, plan, state = self.experiment.config, self.experiment.plan, self.state
        done = 0 if state is None else state.round_index
        judged = average(self.folder.private_evaluations(), num_rounds=plan.num_rounds)
        return {
            "name": config.label,
            "status": status,
            "version": __version__,
            "data": config.data.data,
            "partition": config.data.partition,
            "algorithm": config.method.algorithm,
            "model": config.method.model,
            "num_clusters": plan.mechanism.num_clusters,
            "rebalance": plan.rebalance,
            "min_cluster_size": config.method.min_cluster_size,
            "mechanism": config.privacy.mechanism,
            "epsilon": plan.epsilon(num_rounds=self._ledger.num_charged) if plan.private else None,
            "delta": plan.delta if plan.private else None,
            "noise_multiplier": plan.noise_multiplier,
            "num_rounds": plan.num_rounds,
            "rounds_done": done,
            "seconds": round(seconds, 2),
            "seed": config.output.seed,
            "sizes": [] if state is None or state.sizes.empty else state.sizes.mean.tolist(),
            "private_evaluation": None if judged is None else describe_evaluation(judged),
        }
