import json
import os
import time
from pathlib import Path

import pytest

from rrcluster import storage
from rrcluster.errors import RunFolderError
from rrcluster.storage import (
    append_json,
    append_line,
    cache_folder,
    drop_temporaries,
    drop_torn_line,
    parse_json,
    parse_yaml,
    read_json_lines,
    read_mapping,
    read_text,
    replace_file,
    write_file,
    write_json,
)

YAML_BOMBS = {
    "anchors": ("a: &a [1]\nb: *a", "anchors"),
    "merged": ("a: &a {x: 1}\nb:\n  <<: [*a, *a]", "anchors"),
    "deep": ("a: " + "[" * 100_000, "nested too deeply"),
    "long number": ("a: 0x" + "f" * 5000, "64 bits"),
    "long number in a list": ("a: [1, {b: 99999999999999999999}]", "64 bits"),
    "code": ("a: !!python/object/apply:os.system ['true']", "constructor"),
    "no date": ("a: 2001-99-99", "month"),
    "unclosed": ("{a", "expected"),
    "control": ("a: \0", "special characters"),
}


def test_lines_are_appended_and_flushed_with_their_folder(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    append_line(tmp_path / "lines", "one")
    append_line(tmp_path / "lines", "two")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    assert flushed == [tmp_path / "lines", tmp_path, tmp_path / "lines"]


def test_a_line_that_is_not_flushed_is_appended_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.os, "fsync", lambda descriptor: pytest.fail("flushed"))
    append_json(tmp_path / "lines", {"round": 0})
    append_json(tmp_path / "lines", {"round": 1})
    assert read_json_lines(tmp_path / "lines", damaged="refuse") == [{"round": 0}, {"round": 1}]


def test_replacing_flushes_the_file_before_and_the_folder_after_the_rename(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path, (tmp_path / "file").exists()))
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    replace_file(tmp_path / "file", b"content")
    assert flushed == [(False, False), (True, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_in_parts_is_finished(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(storage.os, "write", lambda descriptor, content: real(descriptor, content[:3]))
    replace_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    replace_file(tmp_path / "file", b"old")

    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "write", full)
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
    (tmp_path / ".state.safetensors.17-99.tmp").write_bytes(b"half")
    others = [".mine.tmp", ".other.17-99.tmp", ".state.safetensors.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"somebody's")
    drop_temporaries(tmp_path, ["state.safetensors"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "lines", "torn"]


def test_a_failed_write_names_the_file_and_the_way_out(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunFolderError, match=r"taken/file: cannot be written .*choose another folder"):
        write_file(tmp_path / "taken" / "file", "text")
    with pytest.raises(RunFolderError, match=r"taken/lines: cannot be written"):
        append_json(tmp_path / "taken" / "lines", {})
    assert write_file(tmp_path / "new" / "file", "text").read_text() == "text"


def test_a_torn_last_line_never_counts(tmp_path):
    path = tmp_path / "lines"
    for torn in ('{"round": 1', '{"round": 1}', "\0\0"):
        path.write_text('{"round": 0}\n\n' + torn)
        for damaged in ("refuse", "stop"):
            assert read_json_lines(path, damaged=damaged) == [{"round": 0}]


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", "\0\0", "[" * 100_000])
def test_a_damaged_line_is_refused_or_ends_the_file(tmp_path, line):
    path = tmp_path / "lines"
    path.write_text(f'{{"round": 0}}\n{line}\n{{"round": 2}}\n')
    assert read_json_lines(path, damaged="stop") == [{"round": 0}]
    with pytest.raises(RunFolderError, match=r"line 2: not a JSON object; .* Start anew"):
        read_json_lines(path, damaged="refuse", way_out="Start anew.")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b"{", "a.json: not valid JSON; the file is damaged"),
        ("a.yaml", b"{", "a.yaml: not valid YAML"),
        ("a.yaml", b"- 1", "expected named values"),
        ("a.json", b"\xff", "not text"),
        ("a.json", None, "missing, so the run folder is incomplete"),
    ],
)
def test_damaged_run_files_are_named(tmp_path, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=expected):
        read_mapping(tmp_path / name)


def test_named_values_are_read(tmp_path):
    for name, text in (("a.json", json.dumps({"a": [1]})), ("a.yaml", "a: [1]\n")):
        write_file(tmp_path / name, text)
        assert read_mapping(tmp_path / name) == {"a": [1]}


@pytest.mark.parametrize(("text", "expected"), YAML_BOMBS.values(), ids=YAML_BOMBS.keys())
def test_hostile_yaml_is_a_value_error_and_costs_no_time(text, expected):
    began = time.process_time()  # not the clock on the wall: other processes may keep the processor
    with pytest.raises(ValueError, match=expected):
        parse_yaml(text)
    assert time.process_time() - began < 2


def test_plain_values_pass():
    assert parse_yaml("a: 1\nb: [1, 2.5, x]\nc: {d: true}\n") == {"a": 1, "b": [1, 2.5, "x"], "c": {"d": True}}
    assert parse_yaml("") is None
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_deep_json_is_a_value_error():
    for text in ("[" * 100_000, '{"a":' * 100_000, "{"):
        with pytest.raises(ValueError):
            parse_json(text)


def test_a_file_that_is_far_too_long_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "long").write_text("x" * 100)
    assert read_text(tmp_path / "long") == "x" * 100
    monkeypatch.setattr(storage, "MAX_BYTES", 99)
    with pytest.raises(ValueError, match="larger than 99"):
        read_text(tmp_path / "long")


def test_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("a") == tmp_path / "rrcluster" / "a"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "rrcluster"

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(storage.Path, "home", homeless)
    with pytest.raises(OSError, match="set XDG_CACHE_HOME"):
        cache_folder()


def test_new_folders_are_flushed_into_those_that_hold_them(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    write_file(tmp_path / "a" / "b" / "file", "text")
    assert flushed[:2] == [tmp_path, tmp_path / "a"]
    assert flushed[-1] == tmp_path / "a" / "b"


@pytest.mark.parametrize("levels", [25, 900, 100_000])
def test_deep_json_is_an_error_and_never_a_traceback(tmp_path, levels):
    for text in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
    assert parse_json("[" * 20 + "]" * 20)


def test_what_a_terminal_would_obey_is_not_printed():
    assert storage.printable("a\x1b[2Jb\x9bc\rd\u202ee\nf") == "a?[2Jb?c?d?e\nf"
    assert storage.printable("ε ≤ 2 ± 0.1 – fine") == "ε ≤ 2 ± 0.1 – fine"


def test_json_has_no_number_that_is_not_finite(tmp_path):
    value = {"a": [float("nan"), 1.5, (float("inf"),)], "b": {"c": -float("inf")}}
    expected = {"a": [None, 1.5, [None]], "b": {"c": None}}
    write_json(tmp_path / "whole.json", value)
    append_json(tmp_path / "lines.jsonl", value)
    assert json.loads((tmp_path / "whole.json").read_text(), parse_constant=pytest.fail) == expected
    assert json.loads((tmp_path / "lines.jsonl").read_text(), parse_constant=pytest.fail) == expected


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "runs:\n  - {lr: 1, lr: 2}\n", "a: {b: {c: 1, 'c': 2}}"])
def test_a_key_that_yaml_has_twice_is_refused(text):
    with pytest.raises(ValueError, match=r"it has '[acl]r?' twice; keep one of them"):
        parse_yaml(text)
    assert parse_yaml("a: 1\nb: {a: 1}\nc: [{a: 1}, {a: 2}]\nd:\n") is not None
