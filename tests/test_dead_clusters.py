"""Released sizes that say that a cluster is dead are put into words, at the end of a run and in its report."""

import json

import numpy as np
import pytest

import rrcluster as rr
from rrcluster.report import make_report
from rrcluster.report.values import dead_text, groups_text
from rrcluster.runs.outcome import dead_clusters


@pytest.mark.parametrize(
    ("sizes", "noise", "dead"),
    [
        ([50.0, 40.0, 0.1, 30.0], 0.0, [2]),
        ([50.0, 40.0, 1.2, 30.0], 0.0, []),  # small, and alive
        ([50.0, 40.0, 1.2, -0.4], 4.0, [2, 3]),  # spread of the average: 4 sqrt(0.1 / 1.9) = 0.92
        ([50.0, 40.0, 1.9, 30.0], 4.0, []),
        ([5.0, 4.0, 0.1, 5.0], 4.0, []),  # the noise would hide any of them
        ([0.1], 0.0, []),
    ],
)
def test_a_cluster_is_dead_if_its_size_cannot_be_told_from_zero(sizes, noise, dead):
    assert dead_clusters(np.array(sizes), size_noise_std=noise, memory=0.9) == dead


def test_the_noise_of_a_short_average_is_that_of_the_average(rng):
    """Over three rounds with memory 0.9, against draws."""
    from rrcluster.server.state import RunningMean

    mean = RunningMean(np.zeros(100_000))
    for _ in range(3):
        mean = mean.updated(rng.normal(size=100_000), memory=0.9)
    spread = mean.mean.std()
    for factor, dead in ((1.9, [1]), (2.1, [])):
        sizes = np.array([1000.0, 10 * factor * spread])
        assert dead_clusters(sizes, size_noise_std=10.0, memory=0.9, weight=mean.weight) == dead


def test_a_mechanism_that_does_not_say_how_noisy_sizes_are_calls_none_dead():
    assert dead_clusters(np.array([50.0, 0.0]), size_noise_std=None, memory=0.9) == []


def test_the_summary_and_the_report_say_it(tmp_path, capsys):
    """Two models start far away, and no client ever chooses them."""
    from rrcluster.cli.run_command import _say_remarks
    from rrcluster.runs.run import finish, start
    from rrcluster.server.state import ServerState

    experiment = rr.experiment(
        data="fashion-mini", model="linear", num_clients=60, max_samples=20, num_rounds=2, sample_rate=0.9,
        local_epochs=1, noise_multiplier=0.02, delta=1e-3, exploration=0.0, device="cpu", out=str(tmp_path / "run"),
    )  # fmt: skip
    models = experiment.method.init(experiment.model, num_clusters=4, rng=np.random.default_rng(0))
    models.clustered[2:] *= 1e4  # sure, and wrong
    running = start(experiment)
    running.state = ServerState.fresh(models)
    folder = finish(running).folder
    assert json.loads((folder / "summary.json").read_text())["dead_clusters"] == [2, 3]
    _say_remarks(folder)
    assert "clusters 2, 3 look empty" in capsys.readouterr().err
    assert "clusters 2, 3 look empty" in make_report([folder], tmp_path / "report").page.read_text()


def test_words_for_one_and_none():
    assert "cluster 1 looks empty" in dead_text([1])
    for nothing in ([], None, "1", ["<b>"]):
        assert dead_text(nothing) == ""


def test_words_for_a_survey():
    found = {"groups_found": 3, "num_clusters": 4}
    assert groups_text(found) == "The survey found 3 groups; 1 of 4 clusters stay closed."
    assert groups_text(found | {"groups_found": 1}) == "The survey found 1 group; 3 of 4 clusters stay closed."
    assert "could not tell groups" in groups_text(found | {"groups_found": 0})
    assert groups_text({"groups_found": None, "num_clusters": 4}) == ""
