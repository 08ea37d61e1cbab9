import time

import pytest

from rrcluster import reading
from rrcluster.reading import plain_json, plain_yaml, read_text

BOMBS = {
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


@pytest.mark.parametrize(("text", "told"), BOMBS.values(), ids=BOMBS.keys())
def test_hostile_yaml_is_one_kind_of_error_and_costs_nothing(text, told):
    began = time.perf_counter()
    with pytest.raises(ValueError, match=told):
        plain_yaml(text)
    assert time.perf_counter() - began < 2


def test_plain_values_pass():
    assert plain_yaml("a: 1\nb: [1, 2.5, x]\nc: {d: true}\n") == {"a": 1, "b": [1, 2.5, "x"], "c": {"d": True}}
    assert plain_yaml("") is None
    assert plain_json('{"a": [1]}') == {"a": [1]}


def test_deep_json_is_a_value_error():
    for text in ("[" * 100_000, '{"a":' * 100_000, "{"):
        with pytest.raises(ValueError):
            plain_json(text)


def test_a_file_that_is_far_too_long_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "long").write_text("x" * 100)
    assert read_text(tmp_path / "long") == "x" * 100
    monkeypatch.setattr(reading, "MAX_BYTES", 99)
    with pytest.raises(ValueError, match="larger than 99"):
        read_text(tmp_path / "long")
