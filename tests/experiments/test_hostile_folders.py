"""A run folder may come from anyone: links, pipes and terminal escapes in it do nothing."""

import json
import os
import shutil

import pytest

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import RunFolderError
from rrcluster.experiments.config import from_flat
from rrcluster.experiments.run import finish, resume, start
from rrcluster.experiments.setup import make_experiment
from rrcluster.privacy.cost import folder_cost
from rrcluster.report import make_report, read_run

TINY = {
    "data": "fashion-mini",
    "num_clients": 60,
    "max_samples": 20,
    "num_rounds": 3,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    rounds = start(make_experiment(from_flat(TINY | {"out": str(folder)}))).rounds()
    next(rounds)
    rounds.close()
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


@pytest.mark.parametrize("name", ["ledger.jsonl", "config.yaml", "privacy.json", "checkpoint/state.safetensors"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_links_and_pipes_are_not_opened(run, tmp_path, name, kind):
    target, outside = run / name, tmp_path / "outside"
    if kind == "link":
        shutil.move(target, outside)
    else:
        target.unlink()
    os.mkfifo(target) if kind == "pipe" else target.symlink_to(outside)
    before = outside.read_bytes() if kind == "link" else None
    if (kind, name) != ("dangling", "checkpoint/state.safetensors"):  # no checkpoint: the round is made again
        with pytest.raises(RunFolderError):
            finish(resume(run))
    else:
        finish(resume(run))
    if not name.startswith("checkpoint"):
        with pytest.raises(RunFolderError):
            read_run(run)
    assert (outside.read_bytes() if kind == "link" else outside.exists()) == (before or False)


@pytest.mark.parametrize("name", ["rounds.jsonl", "diagnostics.jsonl"])
def test_nothing_is_appended_through_a_link(run, tmp_path, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunFolderError, match="a link, which is not followed"):
        finish(resume(run))
    assert not (tmp_path / "outside").exists()


def test_a_linked_checkpoint_is_refused(run, tmp_path):
    shutil.move(run / "checkpoint", tmp_path / "elsewhere")
    (run / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="a link or a file where a folder should be"):
        resume(run)
    assert (tmp_path / "elsewhere" / "state.safetensors").exists()


def test_an_open_checkpoint_is_closed_again(run):
    (run / "checkpoint").chmod(0o755)
    (run / "checkpoint" / "state.safetensors").chmod(0o644)
    running = resume(run)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [run / "checkpoint", *(run / "checkpoint").iterdir()]}
    assert modes.pop("checkpoint") == 0o700
    assert set(modes.values()) == {0o600}
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    assert (run / "checkpoint" / "state.safetensors").stat().st_mode & 0o777 == 0o600


def test_only_our_own_temporary_files_are_removed(run):
    (run / ".notes.tmp").write_text("mine")
    (run / ".summary.json.1-2.tmp").write_text("half")
    resume(run).folder.release()
    assert (run / ".notes.tmp").exists()
    assert not (run / ".summary.json.1-2.tmp").exists()


def test_linked_models_and_figures_are_not_followed(tmp_path):
    folder = tmp_path / "done"
    rr.run(**TINY | {"num_rounds": 1, "out": str(folder)})
    (tmp_path / "outside").mkdir()
    (folder / "figures").symlink_to(tmp_path / "outside")
    with pytest.raises(RunFolderError, match="a link or a file where a folder should be"):
        make_report(folder)
    assert list((tmp_path / "outside").iterdir()) == []
    shutil.move(folder / "models.safetensors", tmp_path / "models")
    (folder / "models.safetensors").symlink_to(tmp_path / "models")
    with pytest.raises(RunFolderError):
        rr.load(folder)


def test_escapes_in_names_and_values_reach_no_terminal(run, tmp_path, capsys):
    config = (run / "config.yaml").read_text().replace("algorithm: ifca", 'algorithm: "evil\\e]0;owned\\a"')
    assert "owned" in config
    (run / "config.yaml").write_text(config)
    evil = tmp_path / "a\x1b[2Jb"
    run.rename(evil)
    main(["report", str(evil), "--table-only"])
    main(["run", "--resume", str(evil)])
    (evil / "privacy.json").write_text("[" * 5000)
    assert main(["report", str(evil)]) == 2
    out, err = capsys.readouterr()
    assert "evil" in out + err
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)


def test_a_huge_or_deep_file_is_an_error(run):
    (run / "privacy.json").write_text(json.dumps({"private": True}).replace("true", "[" * 900 + "]" * 900))
    with pytest.raises(RunFolderError, match="not valid JSON"):
        folder_cost(run)
    with (run / "privacy.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunFolderError, match="not text"):
        folder_cost(run)
