"""Ten thousand random configs through the real parser, `from_flat` and the plan: a valid plan or a named error."""

import random

import pytest
import yaml
from config_cases import flags, settings, yaml_text

from rrcluster.cli import main
from rrcluster.cli.run_command import read_command
from rrcluster.errors import ConfigError, RRClusterError
from rrcluster.privacy import calibrate
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import plan_for


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """An empty folder to run in, and a calibration that costs nothing: the search has tests of its own."""
    monkeypatch.setattr(calibrate, "calibrate", lambda make, **_: make(1.0).noise_multiplier)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome(case, rng, folder):
    """Whether the case made a plan; any exception but the ones named here is one that nobody may see."""
    told = "--help"
    try:
        kind = case % 10
        if kind < 5:
            config = from_flat(settings(rng))
        elif kind < 8:
            (folder / "case.yaml").write_text(yaml_text(rng), encoding="utf-8")
            config = read_command(["case.yaml"]).config.resolved() if kind < 6 else from_flat(_read(folder))
        else:
            config = read_command(["-q", *flags(rng)]).config.resolved()
        plan_for(config)
        again = from_flat(yaml.safe_load(yaml.safe_dump(config.flat())))
        assert str(again.flat()) == str(config.flat())  # a secure run's seed of 0 and of nothing are the same
        assert config.folder == config.output.out or config.folder.parent.name == "runs"
        return True
    except RRClusterError as error:
        told = str(error)
    except SystemExit as stop:
        told = "" if stop.code else "--help"
    assert 0 < len(told.strip()) < 20_000
    return False


def _read(folder):
    from rrcluster.cli.terminal import read_yaml

    return read_yaml(str(folder / "case.yaml"))


def fuzz(cases, folder, *, seed):
    planned = 0
    for case in range(cases):
        planned += outcome(case, random.Random(f"{seed} {case}"), folder)
        assert not [path for path in folder.iterdir() if path.name != "case.yaml"], f"case {case} left something behind"
    assert cases / 10 < planned < 0.9 * cases, f"one-sided: {planned} of {cases} made a plan"


def test_five_hundred_configs(quick):
    fuzz(500, quick, seed=0)


@pytest.mark.slow
def test_ten_thousand_configs(quick):
    fuzz(10_000, quick, seed=1)


@pytest.mark.parametrize("name", ["../escape", "a/b", ".hidden", "", "a\0b", "x" * 300, "a\nb"])
def test_a_name_cannot_leave_the_runs_folder(name):
    with pytest.raises(ConfigError, match="name"):
        from_flat({"name": name})


REFUSED = {
    "too many rounds": ["--rounds", "1000001", "--noise-multiplier", "1"],
    "too many clusters": ["-k", "1000000000", "--noise-multiplier", "1"],
    "huge clip": ["--update-clip", "1e200", "--noise-multiplier", "1"],
    "tiny clip": ["--update-clip", "5e-324", "--noise-multiplier", "1"],
    "long name": [
        "--out",
        "a" * 5000,
        "--noise-multiplier",
        "1",
        "--clients",
        "40",
        "--delta",
        "1e-3",
        "--rounds",
        "1",
    ],
    "no such home": ["--data", "fashion-mnist", "--data-folder", "~nobody-is-called-this", "--noise-multiplier", "1"],
    "odd device": ["--device", "meta", "--noise-multiplier", "1", "--clients", "40", "--delta", "1e-3"],
    "no such gpu": ["--device", "cuda:99", "--noise-multiplier", "1", "--clients", "40", "--delta", "1e-3"],
    "no memory": ["--data", "synthetic", "--clients", "1000000000000", "--delta", "1e-13", "--noise-multiplier", "1"],
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED.keys())
def test_the_command_refuses_in_one_line_and_leaves_nothing(arguments, quick, capsys):
    assert main(["run", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("rrcluster run: ")
    assert told.err.count("\n") == 1
    assert not list(quick.iterdir())
