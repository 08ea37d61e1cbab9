"""Watch a run to its end: a progress bar, TensorBoard, and functions that are called after every round."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.experiments.outcome import RunResult
from rrcluster.experiments.progress import ProgressBar, in_notebook
from rrcluster.experiments.run import Running
from rrcluster.experiments.tensorboard import EventWriter

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
        bar = stack.enter_context(ProgressBar(config, plan, hidden=hidden))
        if config.output.tensorboard:
            called = [*called, stack.enter_context(EventWriter(running.folder.path))]
        for done in running.rounds():
            bar.update(done)
            for call in called:
                call(done.round_index, done.figures)
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
