import os
from pathlib import Path

import pytest

from rrcluster import durable
from rrcluster.durable import append_line, drop_temporaries, drop_torn_line, replace_file


def test_lines_are_appended_and_flushed_with_their_folder(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(durable.os, "fsync", fsync)
    append_line(tmp_path / "lines", "one")
    append_line(tmp_path / "lines", "two")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    assert flushed == [tmp_path / "lines", tmp_path, tmp_path / "lines"]


def test_replacing_flushes_the_file_before_and_the_folder_after_the_rename(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path, (tmp_path / "file").exists()))
        real(descriptor)

    monkeypatch.setattr(durable.os, "fsync", fsync)
    replace_file(tmp_path / "file", b"content")
    assert flushed == [(False, False), (True, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_in_parts_is_finished(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(durable.os, "write", lambda descriptor, content: real(descriptor, content[:3]))
    replace_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    replace_file(tmp_path / "file", b"old")

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_crash_leaves_is_cleared(tmp_path):
    (tmp_path / "lines").write_bytes(b"one\ntw")
    drop_torn_line(tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    (tmp_path / "torn").write_bytes(b"tw")
    drop_torn_line(tmp_path / "torn")
    assert (tmp_path / "torn").read_bytes() == b""
    (tmp_path / ".state.safetensors.17.tmp").write_bytes(b"half")
    drop_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "torn"]
