"""The progress bar: round, released sizes, time left, and the diagnostic accuracy named as such."""

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from rrcluster.experiments.config import RunConfig

if TYPE_CHECKING:
    from rrcluster.experiments.run import Progress
    from rrcluster.privacy.plan import PrivacyPlan
    from rrcluster.types import NoisyEvaluation


class ProgressBar:
    """Draws on stderr; where stderr is not a terminal, prints a line now and then instead."""

    def __init__(self, config: RunConfig, plan: "PrivacyPlan", *, hidden: bool) -> None:
        """Prepare; nothing is drawn before `with`."""
        self._console = Console(stderr=True, quiet=hidden)
        self._drawn = self._console.is_terminal and not hidden
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[sizes]}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._drawn,
        )
        self._plan, self._label = plan, config.label
        self._source = "secure" if config.seed is None else f"seed {config.seed}"
        self._accuracy = ""

    def __enter__(self) -> "ProgressBar":
        """Say what runs, and start drawing."""
        plan = self._plan
        guarantee = "NO PRIVACY (mechanism none)"
        if plan.private:
            spare = f" for {plan.num_rounds} rounds and {plan.reserve_rounds} in reserve" if plan.reserve_rounds else ""
            guarantee = (
                f"epsilon {plan.epsilon():.4g}{spare} at delta {plan.delta:g} ({plan.event.adjacency}, "
                f"{plan.event.sampling}), noise multiplier {plan.noise_multiplier:.4g}, "
                + ("exact noise from the operating system" if plan.secure else "seeded: NOT PRIVATE, for research only")
            )
        self._console.print(f"{self._label}, {self._source}: {guarantee}", highlight=False, soft_wrap=True)
        self._bar.start()
        self._task = self._bar.add_task("round", total=plan.num_rounds, sizes="", accuracy="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self.stop()

    def stop(self) -> None:
        """Stop drawing, leaving the bar where it is."""
        self._bar.stop()

    def update(self, progress: "Progress") -> None:
        """Show one finished round."""
        sizes = "sizes " + " ".join(f"{size:.0f}" for size in progress.sizes)
        if progress.evaluation is not None:
            figure = progress.evaluation
            value = (
                f"loss {figure.loss:.4g}" if figure.accuracy != figure.accuracy else f"accuracy {figure.accuracy:.1%}"
            )
            self._accuracy = f"{value} (diagnostic, not private)"
        private = _private_text(progress.private_evaluation)
        done = progress.round_index + 1
        self._bar.update(self._task, completed=done, sizes=sizes, accuracy=private or self._accuracy)
        tenth = self._plan.secure and done % max(1, progress.num_rounds // 10) == 0  # secure runs evaluate nothing
        if not self._drawn and (tenth or progress.evaluation is not None):
            line = "  ".join(part for part in (sizes, private, self._accuracy) if part)
            self._console.print(f"round {done}/{progress.num_rounds}  {line}", highlight=False, soft_wrap=True)


def _private_text(evaluation: "NoisyEvaluation | None") -> str:
    if evaluation is None:
        return ""
    return f"accuracy {evaluation.accuracy:.1%} ± {100 * evaluation.accuracy_noise_std:.1f} (private)"
