"""A copy of a secure run's folder is not the run: resumed too, it would release a second time."""

import shutil

import pytest

from rrcluster.cli import main
from rrcluster.errors import PrivacyError
from rrcluster.runs import lock
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import make_experiment
from rrcluster.runs.run import finish, resume, start


def stopped(settings):
    running = start(make_experiment(from_flat(settings | {"num_rounds": 2})))
    rounds = running.rounds()
    next(rounds)
    rounds.close()
    return running.folder.path


@pytest.fixture
def secure(tiny):
    del tiny["evaluate_every"]
    return stopped(tiny | {"secure": True})


def test_a_copied_secure_run_is_refused_and_can_be_adopted(secure, tmp_path, capsys):
    copy = shutil.copytree(secure, tmp_path / "copy")
    before = (copy / "ledger.jsonl").read_text()
    assert main(["run", "--resume", str(copy)]) == 2
    told = capsys.readouterr().err
    assert "was started elsewhere (other inode)" in told
    assert "--adopt" in told
    assert (copy / "ledger.jsonl").read_text() == before
    assert main(["run", "--resume", str(copy), "--adopt", "--quiet"]) == 0
    assert lock.ADOPTED in capsys.readouterr().err
    finish(resume(secure))


def test_a_folder_without_a_place_or_of_another_machine_is_refused(secure, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(lock.platform, "node", lambda: "another")
        with pytest.raises(PrivacyError, match="other host"):
            resume(secure)
    (secure / "checkpoint" / "place.json").unlink()
    with pytest.raises(PrivacyError, match="does not say where it was started"):
        resume(secure)
    resume(secure, adopt=True).folder.release()
    finish(resume(secure))


def test_a_moved_folder_goes_on_and_names_no_host(secure, tmp_path):
    written = (secure / "checkpoint" / "place.json").read_text()
    assert lock.platform.node() not in written
    finish(resume(secure.rename(tmp_path / "moved")))


def test_seeded_runs_may_be_copied(tiny, tmp_path):
    folder = stopped(tiny)
    assert not (folder / "checkpoint" / "place.json").exists()
    finish(resume(shutil.copytree(folder, tmp_path / "copy")))
    finish(resume(folder))


def test_adopting_needs_a_folder(capsys):
    assert main(["run", "--adopt"]) == 2
    assert "--adopt needs --resume" in capsys.readouterr().err
