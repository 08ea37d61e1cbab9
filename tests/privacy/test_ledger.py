import json

import pytest

from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.ledger import Ledger

EVENT = PoissonGaussian(1.0, 0.1)


def test_a_charge_is_on_disk_when_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, EVENT)
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["event"]["noise_multiplier"] == 1.0


def test_a_repeated_round_is_charged_once_also_after_a_restart(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    first.charge(0, EVENT)
    first.charge(1, EVENT)
    second = Ledger(path)
    second.charge(1, EVENT)
    second.charge(2, EVENT)
    assert second.num_charged == 3
    assert len(path.read_text().splitlines()) == 3


def test_the_same_round_at_another_price_is_refused():
    ledger = Ledger()
    ledger.charge(0, EVENT)
    with pytest.raises(PrivacyError, match="was charged for a different event"):
        ledger.charge(0, PoissonGaussian(2.0, 0.1))


def test_a_later_round_at_another_price_is_refused(tmp_path):
    """Regression: with config.yaml edited before a resume, two kinds of rounds were accounted as one."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, EVENT)
    with pytest.raises(PrivacyError, match="was charged for a different event"):
        Ledger(path).charge(1, PoissonGaussian(2.0, 0.1))


def test_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, EVENT)
    with path.open("a") as file:
        file.write('{"round": 1, "ev')
    ledger = Ledger(path)
    assert ledger.num_charged == 1
    ledger.charge(1, EVENT)
    assert Ledger(path).num_charged == 2


def test_a_damaged_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(RunFolderError, match=r"line 1: not a JSON object; .* ledger is corrupt"):
        Ledger(path)


@pytest.mark.parametrize("entry", [{}, {"round": -1, "event": None}, {"round": 1, "event": None}])
def test_an_entry_that_is_not_a_charge_like_the_others_is_refused(tmp_path, entry):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, EVENT)
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    with pytest.raises(RunFolderError, match=r"charge 2: invalid entry\. The ledger is corrupt"):
        Ledger(path)


def test_what_cannot_be_charged_is_not_released(tmp_path):
    with pytest.raises(RunFolderError, match="was not released"):
        Ledger(tmp_path / "missing" / "ledger.jsonl").charge(0, EVENT)


def test_a_secure_repeat_is_charged_again_also_after_a_restart(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, secure=True)
    first.charge(0, EVENT)
    first.charge(1, EVENT)
    second = Ledger(path, secure=True)
    second.charge(1, EVENT)
    assert second.num_charged == 3
    assert len(path.read_text().splitlines()) == 3


def test_nothing_is_charged_beyond_the_limit(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", limit=1)
    ledger.charge(0, EVENT)
    assert ledger.affords(0)  # a seeded repeat costs nothing
    assert not ledger.affords(1)
    with pytest.raises(PrivacyError, match="round 1 would be release 2, but the budget covers 1"):
        ledger.charge(1, EVENT)
    secure = Ledger(tmp_path / "ledger.jsonl", secure=True, limit=1)
    assert not secure.affords(0)
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1


def test_a_seeded_round_is_repeated_only_by_what_made_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path, made_by={"config": "c", "torch": "2.8", "threads": 1}).charge(0, EVENT)
    changed = Ledger(path, made_by={"config": "c", "torch": "2.9", "threads": 2})
    with pytest.raises(PrivacyError, match=r"different setup \(threads: 1 -> 2, torch: 2\.8 -> 2\.9\)"):
        changed.charge(0, EVENT)
    changed.charge(1, EVENT)
    Ledger(path, secure=True, made_by={"config": "c", "torch": "2.9"}).charge(0, EVENT)


def test_other_settings_are_refused_at_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path, made_by={"config": "c"}).charge(0, EVENT)
    with pytest.raises(PrivacyError, match="settings have changed since round 0 was charged"):
        Ledger(path, made_by={"config": "d"})


def test_another_event_is_refused_in_any_round(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(0, EVENT)
    with pytest.raises(PrivacyError, match="was charged for a different event"):
        Ledger(path).charge(1, PoissonGaussian(2.0, 0.1))


def test_a_charge_that_cannot_be_flushed_leaves_the_ledger_as_it_was(tmp_path, monkeypatch):
    from rrcluster import storage

    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(0, EVENT)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage.os, "fsync", full)
        with pytest.raises(RunFolderError, match=r"No space left on device.*was not released"):
            ledger.charge(1, EVENT)
    assert path.read_bytes() == before
    assert ledger.num_charged == 1
    ledger.charge(1, EVENT)
    assert Ledger(path).num_charged == 2
