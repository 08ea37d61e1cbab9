"""Progress on stderr: the bar of one run, and the live table of a sweep.

The bar shows the round, released sizes, the time left, and the diagnostic accuracy named as such; the table has one
line per run.

Watch a run to its end: a progress bar, TensorBoard, Weights & Biases, MLflow, or functions of one's own.

`rr.run(..., on_round=WandbLogger(project="mine"))`. All get the same figures: names under `released/` are public, names
under `diagnostic_not_private/` were computed from raw client data. TensorBoard, W&B and MLflow record when each figure
came, and how long a round takes depends on who took part: a secure run refuses them.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from rrcluster.errors import ConfigError, PrivacyError, install_extra
from rrcluster.privacy.cost import epsilon_text
from rrcluster.runs.config import RunConfig
from rrcluster.storage import printable

if TYPE_CHECKING:
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.runs.outcome import Progress, RunResult
    from rrcluster.runs.run import Running
    from rrcluster.runs.sweep import Job, Step


_ROOMY = 100  # columns of a terminal that has room for a long bar


class ProgressBar:
    """Draws on stderr; where stderr is not a terminal, prints a line now and then instead."""

    def __init__(self, config: RunConfig, plan: "PrivacyPlan", *, hidden: bool, rounds_done: int = 0) -> None:
        """Prepare; nothing is drawn before `with`. A resumed run begins after `rounds_done`."""
        self._console = Console(stderr=True, quiet=hidden)
        has_widgets = in_notebook() and find_spec("ipywidgets") is not None  # else a notebook gets lines of text
        self._drawn = (self._console.is_terminal or has_widgets) and not hidden
        self._bar_width = 20 if self._console.width >= _ROOMY else 5
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=self._bar_width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[sizes]}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self._console,
            disable=not self._drawn,
        )
        self._plan, self._label, self._begins = plan, printable(config.label), rounds_done
        self._source = "secure" if config.seed is None else f"seed {config.seed}"
        self._accuracy = ""

    def __enter__(self) -> "ProgressBar":
        """Say what runs, and start drawing."""
        plan = self._plan
        guarantee = "NO PRIVACY (mechanism none)"
        if plan.private:
            spare = f" for {plan.num_rounds} rounds and {plan.reserve_rounds} in reserve" if plan.reserve_rounds else ""
            guarantee = (
                f"epsilon {epsilon_text(plan.epsilon())}{spare} at delta {plan.delta:g} ({plan.event.adjacency}, "
                f"{plan.event.sampling}), noise multiplier {plan.noise_multiplier:.4g}, "
                + ("exact noise from the operating system" if plan.secure else "seeded: NOT PRIVATE, for research only")
            )
        line = f"{self._label}, {self._source}: {guarantee}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._bar.start()
        begins, total = self._begins, plan.num_rounds
        waiting = f"clients of the {'next' if begins else 'first'} round are training"
        if not self._drawn:
            self._console.print(f"round {begins}/{total}  {waiting}", highlight=False, soft_wrap=True)
        self._task = self._bar.add_task("round", total=total, completed=begins, sizes=waiting, accuracy="")
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing, leaving the bar where it is."""
        self._bar.stop()

    def update(self, progress: "Progress") -> None:
        """Show one finished round."""
        from rrcluster.runs.outcome import diagnostic_text, private_text

        sizes = "sizes " + " ".join(f"{size:.0f}" for size in progress.sizes)
        if progress.evaluation is not None:
            self._accuracy = diagnostic_text(progress.evaluation, "accuracy ")
        released = progress.private_evaluation
        private = "" if released is None else private_text(released, "accuracy ")
        done = progress.round_index + 1
        text = private or self._accuracy.replace("diagnostic, ", "")
        self._bar.update(self._task, completed=done, sizes=self._cut(sizes, text), accuracy=text)
        tenth = self._plan.secure and done % max(1, progress.num_rounds // 10) == 0  # secure runs evaluate nothing
        if not self._drawn and (tenth or progress.evaluation is not None):
            line = "  ".join(part for part in (sizes, private, self._accuracy) if part)
            self._console.print(f"round {done}/{progress.num_rounds}  {line}", highlight=False, soft_wrap=True)

    def _cut(self, sizes: str, accuracy: str) -> str:
        """The sizes as far as there is room beside the other columns, which stay whole."""
        digits = len(str(self._plan.num_rounds))
        others = ("round", "-" * self._bar_width, "-" * (2 * digits + 1), accuracy, "0:00:00", "left", "")
        room = self._console.width - len(" ".join(others))
        return sizes if len(sizes) <= room else sizes[: max(0, room - 1)].rpartition(" ")[0] + " …"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return Console().is_jupyter


_MOST_ROWS = 20
_SECONDS_BETWEEN_DRAWINGS = 0.2


class SweepView:
    """Draws on stderr; where stderr is not a terminal, prints one line per finished run instead."""

    def __init__(self, jobs: "Sequence[Job]", *, hidden: bool) -> None:
        """Prepare; nothing is drawn before `with`."""
        self._console = Console(stderr=True, quiet=hidden)
        self._rows = {job.name: ["waiting", "", ""] for job in jobs}
        self._live = Live(console=self._console, auto_refresh=False)
        self._drawn = self._console.is_terminal and not hidden
        self._began, self._finished, self._drawn_at = time.monotonic(), 0, 0.0
        self._parts: dict[str, float] = {}  # of the runs going on

    def __enter__(self) -> "SweepView":
        """Start drawing."""
        if self._drawn:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing, leaving the table where it is."""
        if self._drawn:
            self._live.stop()

    def update(self, step: "Step") -> None:
        """Show a finished round, or a finished run."""
        from rrcluster.runs.sweep import Going

        row = self._rows[step.job.name]
        if isinstance(step, Going):
            self._parts[step.job.name] = step.done / step.total
            row[:2] = ["running", f"{step.done}/{step.total}"]
            row[2] = step.accuracy or row[2]
        else:
            row[0], self._finished = step.status, self._finished + 1
            self._parts.pop(step.job.name, None)
        if self._drawn:
            self._draw(at_once=not isinstance(step, Going))
        elif not isinstance(step, Going):
            line = "  ".join(part for part in (step.job.name, *row) if part)
            line = printable(f"{line}  {self._time_left()}")
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _draw(self, *, at_once: bool) -> None:
        """Redraw, at most a few times a second: many runs at once finish many rounds a second."""
        now = time.monotonic()
        if at_once or now - self._drawn_at > _SECONDS_BETWEEN_DRAWINGS:
            self._live.update(self._table(), refresh=True)
            self._drawn_at = now

    def _table(self) -> Table:
        """As many rows as fit: the last finished runs, the running ones, the next ones."""
        table = Table(title=f"{self._finished} of {len(self._rows)} runs, {self._time_left()}", title_justify="left")
        for name in ("run", "", "round", "accuracy"):
            table.add_column(name, overflow="fold")
        first = max(0, min(self._finished - _MOST_ROWS // 2, len(self._rows) - _MOST_ROWS))
        for name, row in list(self._rows.items())[first : first + _MOST_ROWS]:
            table.add_row(Text(printable(name)), *row)
        return table

    def _time_left(self) -> str:
        done = self._finished + sum(self._parts.values())
        if done == 0 or done >= len(self._rows):
            return f"{_duration(time.monotonic() - self._began)} passed"
        return f"{_duration((time.monotonic() - self._began) / done * (len(self._rows) - done))} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


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
            raise ConfigError(f"--tensorboard needs TensorBoard; {install_extra('tensorboard')}.") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> "EventWriter":
        """Return the server."""
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
    running: "Running",
    *,
    on_round: OnRound | Sequence[OnRound] | None = None,
    progress: bool | Literal["auto"] = "auto",
) -> "RunResult":
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
    calls = [] if on_round is None else [on_round] if callable(on_round) else list(on_round)
    for call in calls:
        if not callable(call):
            raise ConfigError(f"on_round = {call!r} should be a function of a round's number and its figures.")
        if secure and getattr(call, "records_times", False):
            raise PrivacyError(
                f"{type(call).__name__} writes down when each round ended, which depends on who took part; leave it "
                "out of a secure run."
            )
    return calls
