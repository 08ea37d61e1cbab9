"""Watch a run to its end: a progress bar, TensorBoard, Weights & Biases, MLflow, or functions of one's own.

`rr.run(..., on_round=WandbLogger(project="mine"))`. All get the same figures: names under `released/` are public, names
under `diagnostic_not_private/` were computed from raw client data. TensorBoard, W&B and MLflow record when each figure
came, and how long a round takes depends on who took part: a secure run refuses them.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.experiments.outcome import RunResult
from rrcluster.experiments.progress import ProgressBar, in_notebook
from rrcluster.experiments.run import Running


class WandbLogger:
    """One W&B run; the arguments are those of `wandb.init`."""

    records_times = True

    def __init__(self, **init: Any) -> None:
        """Start a W&B run."""
        self._run = _imported("wandb").init(**init)

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        self._run.log(figures, step=round_index)


class MlflowLogger:
    """Metrics of the active MLflow run, or of a new one in `experiment`."""

    records_times = True

    def __init__(self, *, experiment: str | None = None) -> None:
        """Choose the experiment."""
        self._mlflow = _imported("mlflow")
        if experiment is not None:
            self._mlflow.set_experiment(experiment)

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        self._mlflow.log_metrics(figures, step=round_index)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"this logger needs the package {name}; install it: pip install {name}.") from error


class EventWriter:
    """TensorBoard events in `tensorboard/` of a run folder; config.py refuses it for secure runs."""

    def __init__(self, folder: Path) -> None:
        """Needs the extra `tensorboard`."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("--tensorboard needs TensorBoard; install rrcluster[tensorboard].") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> "EventWriter":
        """Ready."""
        return self

    def __exit__(self, *error: object) -> None:
        """Flush and close."""
        self._writer.close()

    def __call__(self, round_index: int, figures: dict[str, float]) -> None:
        """One round."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round_index)


# What is called after a round: its number from 0, and figures by name. Names under `released/` are made of releases;
# names under `diagnostic_not_private/` are computed from raw client data, and absent in secure runs.
OnRound = Callable[[int, dict[str, float]], object]


def watch(
    running: Running, *, on_round: OnRound | Sequence[OnRound] | None = None, progress: bool | Literal["auto"] = "auto"
) -> RunResult:
    """Run to the end. `progress`: show it, hide it, or ("auto") show it to a person: in a terminal or a notebook."""
    config, plan = running.experiment.config, running.experiment.plan
    called = _callables(on_round, secure=plan.secure)
    if progress not in (True, False, "auto"):
        raise ConfigError(f'progress = {progress!r} should be True, False or "auto".')
    hidden = not (sys.stderr.isatty() or in_notebook()) if progress == "auto" else not progress
    with ExitStack() as stack:
        done = 0 if running.state is None else running.state.round_index
        bar = stack.enter_context(ProgressBar(config, plan, hidden=hidden, rounds_done=done))
        if config.output.tensorboard:
            called = [*called, stack.enter_context(EventWriter(running.folder.path))]
        for step in running.rounds():
            bar.update(step)
            for call in called:
                call(step.round_index, step.figures)
    return running.result()


def _callables(on_round: OnRound | Sequence[OnRound] | None, *, secure: bool) -> list[OnRound]:
    given = [] if on_round is None else [on_round] if callable(on_round) else list(on_round)
    for call in given:
        if not callable(call):
            raise ConfigError(f"on_round = {call!r} should be a function of a round's number and its figures.")
        if secure and getattr(call, "records_times", False):
            raise PrivacyError(
                f"{type(call).__name__} writes down when each round ended, which depends on who took part; leave it "
                "out of a secure run."
            )
    return given
