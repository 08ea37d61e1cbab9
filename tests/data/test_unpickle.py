"""Pickles are read, never run."""

import os
import pickle
import pickletools
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrcluster.data import unpickle
from rrcluster.data.content import Unexpected
from rrcluster.data.unpickle import read_pickle

BATCH = {
    "data": np.arange(12, dtype=np.uint8).reshape(2, 6),
    "labels": [3, 1],
    "batch_label": "training batch 1 of 5",
    "filenames": ["a.png", "b.png"],
    "more": (1, (2, None), True, [], {}, -5, 70000, 0.5),
}

# The form of the published files: protocol 2 as Python 2 wrote it, strings as bytes, numpy's old module names.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x06\x00\x01\x02\x03\xfe\xfftbU\x06labelsq\x08]q\t(K\x06K\x09eU\x05againq\nh\x05u."
)


class Evil:
    """Its pickle asks the reader to make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_plain_data_and_byte_arrays(protocol):
    found = read_pickle(pickle.dumps(BATCH, protocol=protocol))
    assert np.array_equal(found.pop("data"), BATCH["data"])
    assert found == {key: value for key, value in BATCH.items() if key != "data"}


def test_the_published_form():
    found = read_pickle(PYTHON_2)
    assert found["data"].tolist() == [[0, 1, 2], [3, 254, 255]]
    assert found["labels"] == [6, 9]
    assert found["again"] is found["data"]


def test_bytes_as_keys_and_arrays_in_fortran_order():
    values = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert np.array_equal(read_pickle(pickle.dumps({b"data": values}, protocol=2))["data"], values)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_act_is_refused_and_does_not(tmp_path, protocol):
    target = tmp_path / "made by the pickle"
    hostile = pickle.dumps({"data": Evil(target), "labels": [1]}, protocol=protocol)
    with pytest.raises(Unexpected):
        read_pickle(hostile)
    assert not target.exists()
    pickle.loads(hostile)  # it would have
    assert target.exists()


HOSTILE = {
    "system": b"cposix\nsystem\n(S'true'\ntR.",
    "eval": b"\x80\x02c__builtin__\neval\nU\x011\x85R.",
    "attribute": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
    "instance": b"(ios\nsystem\nS'true'\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "newobj": b"\x80\x02cnumpy\nndarray\nK\x02\x85\x81.",
    "persistent": b"Pname\n.",
    "extension": b"\x80\x02\x82\x01.",
    "call of ndarray": b"\x80\x02}U\x01acnumpy\nndarray\nK\x02\x85Rs.",
    "reconstruct of another": b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\n"
    b"cnumpy\ndtype\nK\x00\x85U\x01b\x87Rs.",
    "object array": b"\x80\x02}U\x01acnumpy\ndtype\nU\x01OK\x00K\x01\x87Rs.",
    "other codec": b"\x80\x02}U\x01ac_codecs\nencode\nX\x01\x00\x00\x00aU\x03hex\x86Rs.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_and_calls_are_refused(content):
    with pytest.raises(Unexpected, match="expected"):
        read_pickle(content)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {1: 2},
        {"a": {1, 2}},
        {"a": OrderedDict()},
        {"a": np.zeros(3)},
        {"a": np.array(["x"], dtype=object)},
        {"a": Path("b")},
        {"a": np.float32(3)},
        {"a": 2**200000},
    ],
    ids=lambda value: str(type(value))[:20],
)
def test_what_is_not_a_batch_is_refused(value):
    with pytest.raises(Unexpected):
        read_pickle(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize(
    "content", [b"", b".", b"\x80\x02", b"\x80\x02}", b"}h\x01.", b"}(K\x01u.", b"N.", b"0.", b"t."]
)
def test_programs_that_make_no_sense(content):
    with pytest.raises(Unexpected):
        read_pickle(content)


def test_an_array_whose_bytes_do_not_fit_its_shape():
    with pytest.raises(Unexpected, match=r"an array \(2, 4\), found 6 bytes"):
        read_pickle(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"))
    with pytest.raises(Unexpected):
        read_pickle(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02U\x01x\x86"))


@given(place=st.integers(0, len(PYTHON_2) - 1), value=st.integers(0, 255))
def test_one_changed_byte_is_read_or_refused_never_worse(place, value):
    with suppress(Unexpected):
        read_pickle(PYTHON_2[:place] + bytes([value]) + PYTHON_2[place + 1 :])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content):
    with suppress(Unexpected):
        read_pickle(content)


def test_the_reader_has_no_unpickler():
    source = Path(unpickle.__file__).read_text(encoding="utf-8")
    assert "import pickle\n" not in source
    assert "importlib" not in source
    assert not hasattr(unpickle, "pickle")
    assert unpickle.pickletools is pickletools
