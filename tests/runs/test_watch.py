"""Callbacks, loggers and progress of rr.run: released values under one name, diagnostics under another."""

import sys
from types import SimpleNamespace

import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.runs.progress import MlflowLogger, WandbLogger


def test_on_round_gets_released_figures_and_marked_diagnostics(tiny):
    seen = []
    rr.run(**tiny | {"private_evaluation": 0.25}, on_round=lambda *round_and_figures: seen.append(round_and_figures))
    assert [round_index for round_index, _ in seen] == [0, 1, 2, 3]
    released = {f"released/size_{cluster}" for cluster in range(4)} | {"released/accuracy", "released/loss"}
    for round_index, figures in seen:
        diagnostics = {name for name in figures if name.startswith("diagnostic_not_private/")}
        assert set(figures) - diagnostics == released
        assert bool(diagnostics) == (round_index in (1, 3))
        assert all(isinstance(value, float) for value in figures.values())


def test_a_secure_run_calls_back_without_diagnostics_and_refuses_what_records_times(tiny, tmp_path, monkeypatch):
    secure = {name: value for name, value in tiny.items() if name != "evaluate_every"} | {"secure": True}
    logger = fake_wandb(monkeypatch)[0]
    with pytest.raises(PrivacyError, match="WandbLogger writes down when each round ended"):
        rr.run(**secure, on_round=[logger])
    seen = []
    rr.run(**secure | {"out": str(tmp_path / "again"), "num_rounds": 1}, on_round=lambda _, named: seen.extend(named))
    assert seen
    assert all(name.startswith("released/") for name in seen)


def fake_wandb(monkeypatch):
    logged = []
    run = SimpleNamespace(log=lambda figures, step: logged.append((step, figures)))
    module = SimpleNamespace(init=lambda **about: logged.append(about) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return WandbLogger(project="mine"), logged


def test_wandb_and_mlflow_get_the_figures(monkeypatch):
    logger, logged = fake_wandb(monkeypatch)
    logger(3, {"released/size_0": 5.0})
    assert logged == [{"project": "mine"}, (3, {"released/size_0": 5.0})]
    calls = []
    module = SimpleNamespace(
        set_experiment=calls.append, log_metrics=lambda figures, step: calls.append((step, figures))
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    MlflowLogger(experiment="mine")(2, {"released/size_1": 4.0})
    assert calls == ["mine", (2, {"released/size_1": 4.0})]


@pytest.mark.parametrize(("name", "make"), [("wandb", WandbLogger), ("mlflow", MlflowLogger)])
def test_a_logger_without_its_package_says_what_to_install(name, make, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        make()


def test_progress_is_shown_to_people_alone(tiny, tmp_path, capsys):
    few = tiny | {"num_rounds": 2}
    rr.run(**few)
    assert capsys.readouterr().err == ""  # not a terminal
    rr.run(**few | {"out": str(tmp_path / "shown")}, progress=True)
    shown = capsys.readouterr().err
    assert "NOT PRIVATE, for research only" in shown
    assert "round 2/2" in shown
    with pytest.raises(ConfigError, match="progress = 'yes'"):
        rr.run(**few | {"out": str(tmp_path / "other")}, progress="yes")
    with pytest.raises(ConfigError, match="on_round = 3"):
        rr.run(**few | {"out": str(tmp_path / "third")}, on_round=[3])


def test_tensorboard_is_written_from_python_too(tiny):
    pytest.importorskip("tensorboard", reason="events need rrcluster[tensorboard]")
    folder = rr.run(**tiny | {"num_rounds": 1, "tensorboard": True}).folder
    assert list((folder / "tensorboard").iterdir())
