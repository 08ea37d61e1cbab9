"""A method, an image dataset, a model and a mechanism are added by registering them: nothing in the package changes."""

from dataclasses import fields, replace

import numpy as np
import pytest
from torch import nn

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.data.images import ImageDataset
from rrcluster.engine.protocol import measure
from rrcluster.methods import Method
from rrcluster.privacy.joint import JOINT, JointMechanism
from rrcluster.privacy.mechanism import MechanismKind
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.run import finish, resume, start
from rrcluster.runs.sweep import FINISHED, Outcome, jobs, read_grid, run_jobs

FLAGS = {
    "data": "fashion-mini",
    "clients": 60,
    "max-samples": 20,
    "rounds": 4,
    "sample-rate": 0.5,
    "local-epochs": 1,
    "noise-multiplier": 1.0,
    "delta": 1e-3,
    "device": "cpu",
    "model": "linear",
}


def command(folder, **changes):
    given = FLAGS | {"out": folder} | {name.replace("_", "-"): value for name, value in changes.items()}
    return ["run", *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


def settings(folder, **changes):
    named = {"clients": "num_clients", "rounds": "num_rounds"}
    given = {named.get(name, name.replace("-", "_")): value for name, value in FLAGS.items()}
    return given | {"out": str(folder)} | changes


def stopped_and_resumed(folder, **changes):
    """The models of a run that was stopped after two rounds and resumed."""
    rounds = start(build_experiment(**settings(folder, **changes))).rounds()
    next(rounds)
    next(rounds)
    rounds.close()
    return finish(resume(folder)).models


def check(tmp_path, capsys, label, **changes):
    """It runs from the command line, resumes to the same models, and a report calls it by its label."""
    assert main(command(tmp_path / "run", **changes)) == 0
    again = stopped_and_resumed(tmp_path / "again", **changes)
    assert np.allclose(rr.load(tmp_path / "run").models.clustered, again.clustered, atol=1e-6)
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert label in capsys.readouterr().out


def fewest_mistakes(models, clients, *, tools):
    loss, accuracy = measure(tools.engine, tools.split.vectors(models), clients.cohort)
    return (1 - accuracy) + 1e-3 * np.tanh(loss)


def test_a_method(tmp_path, capsys):
    method = Method("fewest-mistakes", scores=fewest_mistakes)
    rr.register("method", "fewest-mistakes", method, label="Fewest mistakes")
    check(tmp_path, capsys, "DP-Fewest mistakes", algorithm="fewest-mistakes")


def squares(folder):
    """Images of one bright square, whose row says the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, size=400)
    images = np.zeros((400, 1, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 2, :4] = 200
    return ImageDataset(images[:300], labels[:300], images[300:], labels[300:], 4, 0.1, 0.3)


def test_an_image_dataset(tmp_path, capsys):
    rr.register("dataset", "squares", squares, label="Squares", num_classes=4, usual_model="linear")
    check(tmp_path, capsys, "DP-IFCA", data="squares")


def test_a_model(tmp_path, capsys):
    def tiny(input_shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 3), nn.Tanh(), nn.Linear(3, outputs))

    rr.register("model", "tiny", tiny)
    check(tmp_path, capsys, "DP-IFCA", model="tiny")


class Louder(JointMechanism):
    """The joint mechanism under another name, with twice the noise that its event needs."""

    name = "louder"

    @property
    def noise_std(self):
        return 2 * super().noise_std


def louder(given):
    make = JOINT.maker(given)
    return lambda noise: Louder(**{part.name: getattr(make(noise), part.name) for part in fields(make(noise))})


def test_a_mechanism(tmp_path, capsys):
    rr.register("mechanism", "louder", MechanismKind("louder", louder, rebalancing="coin"))
    check(tmp_path, capsys, "DP-IFCA", mechanism="louder")
    plan = build_experiment(**settings(tmp_path / "other", mechanism="louder")).plan
    usual = build_experiment(**settings(tmp_path / "third")).plan
    assert plan.mechanism.noise_std == 2 * usual.mechanism.noise_std
    assert plan.epsilon() == usual.epsilon()


def test_objects_of_ones_own_are_run_like_names(tmp_path):
    data = replace(rr.experiment(**settings(tmp_path / "x")).data, name="mine")
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    method = Method("mine-too", chooses_by_loss=True)
    given = {name: value for name, value in settings(tmp_path / "run").items() if name != "num_clients"}
    result = rr.run(**(given | {"data": data, "model": network, "algorithm": method}))
    assert {path.name for path in result.folder.iterdir()} >= {"ledger.jsonl", "privacy.json", "models.safetensors"}
    experiment = rr.experiment(**settings(tmp_path / "whole"))
    assert rr.run(experiment).epsilon == experiment.plan.epsilon()


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ValueError, match="registered already"):
        rr.register("method", "ifca", Method("ifca"))


def test_a_method_that_adapts_the_network_shares_no_engine_with_others_of_its_sweep(tmp_path):
    """In one process, one run after another, of which the engine of the last is used again where it fits."""
    rr.register("method", "my-cam", replace(rr.METHODS["fedcam"], name="my-cam"), chooses_by_loss=True)
    axes = {"algorithm": ["ifca", "my-cam", "fedcam"], "num_rounds": 2}
    grid = read_grid(settings(tmp_path / "sweep") | axes, source="test", out=tmp_path / "sweep")
    outcomes = [step for step in run_jobs(jobs(grid), processes=1) if isinstance(step, Outcome)]
    assert [outcome.status for outcome in outcomes] == [FINISHED] * 3
    mine, same = (rr.load(outcome.job.folder).models for outcome in outcomes[1:])
    assert np.array_equal(mine.clustered, same.clustered)
