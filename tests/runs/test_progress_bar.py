"""The progress bar in a terminal of 80 columns: the round, the accuracy and the time left are whole."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from rrcluster.runs import progress


@pytest.fixture
def terminal(monkeypatch):
    """What was drawn at a width."""

    def start(width):
        drawn = io.StringIO()
        console = Console(file=drawn, force_terminal=True, width=width, color_system=None)
        monkeypatch.setattr(progress, "Console", lambda **_: console)
        return drawn

    return start


def last_line(drawn):
    """Without what moves the cursor, and with spaces for those that break no line."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).replace("\u00a0", " ")
    return re.split(r"[\r\n]+", text.rstrip())[-1]


def draw(*, clusters, private=False):
    config = SimpleNamespace(label="run", seed=0)
    plan = SimpleNamespace(private=False, secure=False, num_rounds=400, reserve_rounds=0)
    measured = SimpleNamespace(accuracy=0.678, loss=1.0, accuracy_noise_std=0.012)
    step = SimpleNamespace(
        sizes=[-12.3] * clusters,
        round_index=99,
        num_rounds=400,
        evaluation=measured,
        private_evaluation=measured if private else None,
    )
    with progress.ProgressBar(config, plan, hidden=False) as bar:
        bar.update(step)
        bar._bar.refresh()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("clusters", [1, 4, 12])
@pytest.mark.parametrize("private", [False, True])
def test_the_bar_fits_and_its_figures_are_whole(terminal, width, clusters, private):
    drawn = terminal(width)
    draw(clusters=clusters, private=private)
    line = last_line(drawn)
    assert len(line) <= width
    assert "100/400" in line
    assert " left" in line
    assert ("67.8% ± 1.2 (private)" if private else "67.8% (not private)") in line
    assert re.search(r"sizes( -12)+( …)? +accuracy", line)  # a size that is cut would be another size


def test_what_the_first_seconds_are_spent_on_is_whole(terminal):
    drawn = terminal(80)
    config = SimpleNamespace(label="run", seed=0)
    with progress.ProgressBar(config, SimpleNamespace(private=False, num_rounds=400), hidden=False) as bar:
        bar._bar.refresh()
    assert "clients of the first round are training" in last_line(drawn)
    assert "0/400" in last_line(drawn)


def test_a_resumed_run_begins_where_it_stopped(terminal):
    drawn = terminal(80)
    config, plan = SimpleNamespace(label="run", seed=0), SimpleNamespace(private=False, num_rounds=400)
    with progress.ProgressBar(config, plan, hidden=False, rounds_done=120) as bar:
        bar._bar.refresh()
    assert "clients of the next round are training" in last_line(drawn)
    assert "120/400" in last_line(drawn)
