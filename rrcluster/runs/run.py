"""One run, from experiment to run folder. It yields its progress; the caller decides what to show."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.ledger import Ledger
from rrcluster.processes import refuse_secure
from rrcluster.runs.comparison import compared
from rrcluster.runs.config import RunConfig, new_folder
from rrcluster.runs.experiment import Experiment, build_experiment, check_declared, make_experiment, with_objects
from rrcluster.runs.fingerprint import check_same, describe_parts, fingerprint
from rrcluster.runs.folder import EVALUATION_OF_START, RunFolder
from rrcluster.runs.group_description import describe_groups
from rrcluster.runs.load import TrainedModels
from rrcluster.runs.lock import bind, check_place
from rrcluster.runs.outcome import Progress, RunResult, judged_both, learnt, summarise
from rrcluster.server.state import ServerState
from rrcluster.simulation.clients import ClientMemory, Incidents
from rrcluster.simulation.evaluate import Evaluation, evaluate, judged_clients, measure_round
from rrcluster.simulation.personalise import personalised_accuracies
from rrcluster.simulation.simulate import Checkpoint, RoundRecord
from rrcluster.storage import write_json
from rrcluster.types import Models

if TYPE_CHECKING:
    from rrcluster.runs.progress import OnRound

_SECONDS_BETWEEN_CHECKPOINTS = 1.0  # at least; and at most a twentieth of the time goes into them

MakeExperiment = Callable[[RunConfig], Experiment]


def run(
    experiment: Experiment | RunConfig | None = None,
    *,
    resume: str | Path | None = None,
    adopt: bool = False,
    on_round: "OnRound | Sequence[OnRound] | None" = None,
    progress: bool | Literal["auto"] = "auto",
    executor: Executor | None = None,
    **settings: Any,
) -> RunResult:
    """Run one experiment and write its folder: `run(algorithm="ifca", epsilon=4, min_cluster_size=15)`.

    Settings are those of `rrcluster run --help`, under the names of config.yaml. `data`, `model` and `algorithm` may be
    names, or objects of your own: a table (with `client` and `target`), a path or a `FederatedData`; an `nn.Module` or
    `Model`; a `Method`. An experiment that was built before (`rrcluster.experiment`), whole or with parts replaced,
    runs in the same way. `resume` continues the run in a folder, with the same objects as it was started with.

    `on_round(round_index, figures)` is called after every round: figures under `released/` are public, those under
    `diagnostic_not_private/` (never in a secure run) are not. `progress` shows a bar; "auto": to a person. `executor`:
    anything with the interface of concurrent.futures, whose workers compute the clients (`client.get_executor()` of
    Dask); no bit depends on it. Secure runs take none.
    """
    from rrcluster.runs.progress import watch

    if resume is not None:
        if experiment is not None:
            raise ConfigError("resume takes the experiment from the run folder; give no other.")
        make = partial(make_on, executor, with_objects(Path(resume), settings))
        running = resume_run(Path(resume), make=make, adopt=adopt)
        return watch(running, on_round=on_round, progress=progress)
    if experiment is None:
        experiment = build_experiment(**settings)
    elif settings:
        raise ConfigError("give either an experiment or settings by name, not both.")
    elif isinstance(experiment, RunConfig):
        experiment = make_experiment(experiment)
    if experiment.config.output.seeds:
        raise ConfigError("run(...) makes one run; call it once per seed, or use `rrcluster run --seeds`.")
    if executor is not None:
        experiment = replace(experiment, executor=executor)
    return watch(start(experiment), on_round=on_round, progress=progress)


def make_on(executor: Executor | None, make: MakeExperiment, config: RunConfig) -> Experiment:
    """The experiment of a config, with its clients on an executor's workers, if there is one."""
    return replace(make(config), executor=executor)


def finish(running: "Running") -> RunResult:
    """Run to the end without display."""
    for _ in running.rounds():
        pass
    return running.result()


def start(experiment: Experiment) -> "Running":
    """Create the run folder of an experiment. Nothing is written if anything is wrong."""
    _check_cost(experiment)
    if experiment.plan.secure:
        check_declared(experiment.data, secure=True)  # the data may have been replaced
    config, own_data = experiment.config, experiment.data if experiment.owns_data else None
    return _running(experiment, RunFolder.create(new_folder(config), config, experiment.statement(), own_data=own_data))


def _check_cost(experiment: Experiment) -> None:
    if experiment.executor is not None:
        refuse_secure(experiment.plan.secure)
    if experiment.plan.private:
        check_target(experiment.plan.epsilon(), experiment.config.privacy.target_epsilon)


def check_target(epsilon: float, target: float | None) -> None:
    """Refuse noise that costs more than the target, whatever its origin."""
    if target is not None and epsilon > target:
        raise PrivacyError(
            f"the calibrated noise costs epsilon = {epsilon:.6g}, more than the target {target:g}. Calibration is "
            "wrong: please report this as a bug."
        )


def start_or_resume(config: RunConfig, *, make: MakeExperiment = make_experiment) -> "Running | None":
    """Start the run of `config`, or continue it; None if its folder contains it, finished."""
    config = config.resolved()
    if not (config.folder / "config.yaml").exists():
        return start(make(config))
    folder, present = RunFolder.open(config.folder)
    folder.release()
    if present != config:
        raise RunFolderError(f"{config.folder} holds a run with other settings; choose another folder with --out.")
    return None if folder.finished else resume(config.folder, make=make)


def resume(path: Path, *, make: MakeExperiment = make_experiment, adopt: bool = False) -> "Running":
    """Continue a stopped or killed run in its folder.

    A secure run continues in its original folder. A copy is refused without `adopt`, because the run and its copy would
    both release.
    """
    finished = RunFolderError(f"{path}: this run has finished; `rrcluster report {path}` shows it.")
    if RunFolder(path).finished and not (path / "checkpoint").exists():
        raise finished
    folder, config = RunFolder.open(path)
    try:
        if folder.finished:  # killed, or kept, between the last file and the removal of checkpoint/
            if not config.output.keep_checkpoint:
                folder.drop_checkpoint()
            raise finished
        if config.privacy.secure and adopt:
            bind(path)
        elif config.privacy.secure:
            check_place(path)
        experiment = make(config)
        _check_cost(experiment)
        if experiment.owns_data:
            check_same(path, experiment.data)
        folder.check_statement(experiment.statement())
        return _running(experiment, folder)  # drops rounds beyond the checkpoint
    except BaseException:
        folder.release()
        raise


resume_run = resume  # `run` has an argument of that name


def _running(experiment: Experiment, folder: RunFolder) -> "Running":
    plan = experiment.plan
    try:
        ledger = Ledger(
            folder.path / "ledger.jsonl",
            secure=plan.secure,
            limit=plan.num_releases,
            made_by=fingerprint(experiment.config, experiment.engine) | describe_parts(experiment),
            stored=plan.stores_rounds,
        )
        running = Running(experiment, folder, ledger)
        ledger.check_model()
        return running
    except BaseException:
        folder.release()
        raise


class Running:
    """A run in progress: iterate `rounds()`, then ask for `result()`."""

    def __init__(self, experiment: Experiment, folder: RunFolder, ledger: Ledger) -> None:
        """Start from the folder's checkpoint, if it has one."""
        self.experiment, self.folder = experiment, folder
        saved = folder.load_state(last_charged=ledger.last_round if self._saves_every_round else -1)
        self.state = None if saved is None else saved[0]
        self._memory = None if saved is None else saved[1]
        self._noise = folder.load_noise() if experiment.plan.mechanism.slots.count > 1 else None
        self._past = None if self._noise is None else self._noise.past
        self._ledger = ledger
        self._released = folder.private_evaluations()
        self._of_start = folder.private_evaluations(EVALUATION_OF_START)
        self._evaluated: tuple[int, Evaluation] | None = None  # the round, and its evaluation
        self._incidents = Incidents()  # since the run was started or resumed
        self._began = time.perf_counter()

    def rounds(self) -> Iterator[Progress]:
        """Run round after round. Stopped at any point (also by Ctrl-C), the folder can be resumed."""
        if self.folder.lock is None or not self.folder.lock.held:
            raise RunFolderError(f"{self.folder.path}: this run was stopped; continue it with resume.")
        self._began = saved = time.perf_counter()
        pause = _SECONDS_BETWEEN_CHECKPOINTS
        try:
            rounds = self.experiment.rounds(
                checkpoint=Checkpoint(self.state, self._memory, self._noise), ledger=self._ledger
            )
            for record in rounds:
                self._incidents = self._incidents.plus(record.collection.incidents)
                progress, record = self._note(record)
                self.state, self._memory, self._past = record.state, record.memory, record.past
                if self._saves_every_round or time.perf_counter() - saved > pause:
                    began = time.perf_counter()
                    self.folder.save_state(record.state, record.memory, record.past)
                    saved = time.perf_counter()
                    pause = max(_SECONDS_BETWEEN_CHECKPOINTS, 20 * (saved - began))
                yield progress
            self._end()
        except BaseException:
            self.experiment.hosts.stop()
            self._stop()
            raise
        finally:
            self.folder.release()

    @property
    def _saves_every_round(self) -> bool:
        """Whether to save every round: a secure run charges repeats again, and a federation's clients may be gone."""
        return self.experiment.plan.secure or self.experiment.deployed is not None

    @property
    def releases_charged(self) -> int:
        """The number of charged releases, of those that the plan allows."""
        return self._ledger.num_charged

    @property
    def failed_charges(self) -> int:
        """The number of earlier charges for the next round."""
        return self._ledger.times_charged(0 if self.state is None else self.state.round_index)

    def result(self) -> RunResult:
        """The result of the finished run."""
        if self.state is None or not self.folder.finished:
            raise RunFolderError(f"{self.folder.path}: the run has not finished; iterate rounds() first.")
        evaluation = None if self._evaluated is None else self._evaluated[1]
        return RunResult(self.folder.path, self.state.average, self._epsilon, self.experiment.plan.delta, evaluation)

    def _note(self, record: RoundRecord) -> tuple[Progress, RoundRecord]:
        """Record a round in the folder, and evaluate if due; after the last, models are those for release."""
        plan, t, released = self.experiment.plan, record.round_index, record.release.evaluation
        of_start = record.state.judges_start(t, plan.num_rounds)
        self.folder.add_round(record, of_start=of_start)
        if released is not None:
            (self._of_start if of_start else self._released).append(released)
        if t + 1 == plan.num_rounds:
            record = replace(record, state=self._better(record.state))
        evaluation = self._evaluate(record.state, record.memory, record) if self._due(t, plan.num_rounds) else None
        judged = judged_both(self._of_start, self._released, num_rounds=plan.num_rounds)[1]
        return Progress(t, plan.num_rounds, record.release.sizes, self._epsilon, evaluation, judged), record

    def _better(self, state: ServerState) -> ServerState:
        """The state that releases the initial models, if private evaluation says that training made them worse."""
        start, end = judged_both(self._of_start, self._released, num_rounds=self.experiment.plan.num_rounds)
        worse = start is not None and end is not None and end.accuracy < start.accuracy
        return replace(state, average=state.start) if worse and state.start is not None else state

    @cached_property
    def _epsilon(self) -> float | None:
        """The cost of the run: its plan's, whenever it is stopped.

        Composing only the releases made so far would bound a run that was *planned* to end there. A run stopped by
        somebody who watches its releases is not that run (docs/privacy.md, "Stopping early").
        """
        return self.experiment.plan.epsilon() if self.experiment.plan.private else None

    @property
    def _judges(self) -> bool:
        """Whether models are evaluated on raw client data: never in a secure run, nor without raw data."""
        return not self.experiment.plan.secure and self.experiment.deployed is None

    def _due(self, round_index: int, total: int) -> bool:
        if not self._judges:
            return False
        usual = total if self.experiment.method.asks else max(1, total // 10)
        every = self.experiment.config.output.evaluate_every or usual
        return (round_index + 1) % every == 0 or round_index + 1 == total

    def _evaluate(self, state: ServerState, memory: ClientMemory | None, made: RoundRecord | None = None) -> Evaluation:
        experiment, last = self.experiment, state.round_index - 1
        measures = None if made is None else measure_round(made, plan=experiment.plan, method=experiment.method)
        measured = evaluate(
            state.average,
            experiment.data,
            method=experiment.method,
            split=experiment.split,
            engine=experiment.engine,
            local=experiment.local,
            memory=memory,
            hosts=experiment.hosts,
        )
        if experiment.config.output.personalise and state.round_index == experiment.plan.num_rounds:
            measured = self._personalised(measured, state)
        self._evaluated, seconds = (last, measured), time.perf_counter() - self._began
        comparison = self._compared(state, memory)
        self.folder.add_diagnostics(last, measured, self._incidents, seconds, measures, comparison)
        return measured

    def _compared(self, state: ServerState, memory: ClientMemory | None) -> dict[str, Any]:
        """After the last round on a user's data: the comparison of the models with others."""
        experiment = self.experiment
        has_clients = experiment.owns_data or experiment.config.data.table_columns
        if state.round_index < experiment.plan.num_rounds or not has_clients:
            return {}
        effects = any(learnt(experiment, state).get("random_effects", [experiment.method.personal]))
        return compared(experiment, state.average, memory, own_effects=effects)

    def _personalised(self, measured: Evaluation, state: ServerState) -> Evaluation:
        """Add the accuracy of personalised models; methods with personal models have measured it already."""
        experiment = self.experiment
        if experiment.method.personal:
            return replace(
                measured, personalised_accuracy=measured.accuracy, personalised_worst_decile=measured.worst_decile
            )
        ids = judged_clients(experiment.data.num_clients)
        accuracy = personalised_accuracies(state.average, ids, experiment.hosts)
        accuracy = accuracy[experiment.data.test_of[ids] >= 0]  # clients without test rows are in no mean
        if not len(accuracy):
            return measured
        return replace(
            measured,
            personalised_accuracy=float(accuracy.mean()),
            personalised_worst_decile=float(np.sort(accuracy)[: max(1, len(accuracy) // 10)].mean()),
        )

    def _stop(self) -> None:
        if self.folder.finished:
            return
        if self.state is not None and self._memory is not None:
            self.folder.save_state(self.state, self._memory, self._past)
        self._summarise("stopped")

    def _end(self) -> None:
        experiment = self.experiment
        if self.state is None:
            raise PrivacyError(
                f"{self.folder.path}: the budget of {experiment.plan.num_releases} releases is spent and no round was "
                "kept; start a new run."
            )
        if self.state.round_index < experiment.plan.num_rounds:
            self.state = self._better(self.state)
        if self._judges and (self._evaluated is None or self._evaluated[0] != self.state.round_index - 1):
            self._evaluate(self.state, self._memory)
        self._summarise("finished")
        save_models(self.folder, experiment, self.state.average)
        if not experiment.config.output.keep_checkpoint:
            self.folder.drop_checkpoint()
        elif self._past is not None and self._memory is not None:
            self.folder.save_state(self.state, self._memory)  # without the noise, which reveals exact sums
            self.folder.drop_drawn()

    def _summarise(self, status: str) -> None:
        """Write summary.json: released values only."""
        summary = summarise(
            self.experiment,
            self.state,
            status=status,
            epsilon=self._epsilon,
            releases_charged=self.releases_charged,
            evaluations=self.folder.private_evaluations(),
            of_start=self.folder.private_evaluations(EVALUATION_OF_START),
        )
        described = describe_groups(self.experiment, self.state) if status == "finished" and self.state else {}
        write_json(self.folder.path / "summary.json", summary | ({"groups": described} if described else {}))


def save_models(folder: RunFolder, experiment: Experiment, models: Models) -> None:
    """Write the released models, with everything needed to use them again."""
    about = {
        "model": experiment.config.method.model,
        "algorithm": experiment.config.method.algorithm,
        "input_shape": list(experiment.data.input_shape),
        "num_classes": experiment.data.num_classes,
        "inputs": experiment.model.input_kind,
    }
    layers = [[layer.name, *layer.shape] for layer in experiment.model.layers]
    encoder = experiment.data.encoder
    rules = (
        {} if encoder is None else {name: value for name, value in asdict(encoder).items() if value not in (None, ())}
    )
    folder.save_models(
        models,
        {"format": "rrcluster-models/1", **about, "layers": layers, **({"encoder": rules} if rules else {})},
        TrainedModels(models, experiment.model, experiment.method).files(about),
    )
