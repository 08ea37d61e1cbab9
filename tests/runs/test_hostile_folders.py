"""A run folder may come from anyone: links, pipes and terminal escapes in it do nothing."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import rrcluster as rr
from rrcluster import storage
from rrcluster.cli import main
from rrcluster.errors import RunFolderError
from rrcluster.privacy.cost import folder_cost
from rrcluster.report import make_report
from rrcluster.report.folders import read_run
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start

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


def test_the_file_that_was_checked_is_the_file_that_is_read(run, tmp_path, monkeypatch):
    """A file exchanged for a link after the check, and before a reader opens it by name, is not followed."""
    finish(resume(run))
    path, other = run / "models.safetensors", tmp_path / "other.safetensors"
    own = rr.load(run).models.clustered
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, other, metadata=read_metadata(path))
    real = storage.open_plain

    def opened_then_exchanged(target, *arguments):
        descriptor = real(target, *arguments)
        if target == path:
            path.unlink()
            path.symlink_to(other)
        return descriptor

    monkeypatch.setattr(storage, "open_plain", opened_then_exchanged)
    assert np.array_equal(rr.load(run).models.clustered, own)


def read_metadata(path):
    with safe_open(path, framework="np") as file:
        return file.metadata()


def test_a_checkpoint_exchanged_after_the_check_is_not_followed(run, tmp_path, monkeypatch):
    path, outside = run / "checkpoint" / "state.safetensors", tmp_path / "outside"
    content, real = path.read_bytes(), storage.open_plain

    def opened_then_exchanged(target, *arguments):
        descriptor = real(target, *arguments)
        if target == path and not outside.exists():
            outside.write_bytes(content[:-1])
            path.unlink()
            path.symlink_to(outside)
        return descriptor

    monkeypatch.setattr(storage, "open_plain", opened_then_exchanged)
    finish(resume(run))  # what was opened is whole; what took its place is not
    assert outside.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_models_that_are_no_finite_numbers_are_refused(run, value):
    """They would be predicted with, and started from, without a word."""
    finish(resume(run))
    path = run / "models.safetensors"
    tensors, metadata = load_file(path), read_metadata(path)
    tensors["clustered"][0, 0] = value
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(RunFolderError, match="not finite numbers"):
        rr.load(run)


ESCAPE = "\x1b[2Jnothing here\x07\u202e"


def test_the_page_has_no_control_characters(run):
    """A name in a file of the folder reaches the page in its title, its labels and its statements."""
    finish(resume(run))
    stated = json.loads((run / "privacy.json").read_text())
    stated["unit"] = stated["artefacts"] = ESCAPE
    stated["notes"] = [ESCAPE]
    stated["recompute"]["reason"] = ESCAPE
    (run / "privacy.json").write_text(json.dumps(stated))
    config = (run / "config.yaml").read_text() + '\nname: "\\e[2Jnothing here\\a"\n'
    (run / "config.yaml").write_text(config.replace("name: null\n", ""))
    page = make_report(run).page.read_text()
    assert "nothing here" in page
    assert not [mark for mark in page if not mark.isprintable() and mark not in "\n\u00a0"]
