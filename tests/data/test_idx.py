import gzip
import hashlib
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from idx_files import write_idx

from rrcluster.data import sources as files
from rrcluster.data.sources import content_digest
from rrcluster.errors import DataError

IMAGES = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
BY_HAND = bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, *range(12)])


@pytest.fixture(params=["plain", "gzip"])
def put(request, tmp_path):
    """Write a content to a file, plain or gzip, and return its path."""

    def write(content):
        path = tmp_path / ("file.gz" if request.param == "gzip" else "file")
        path.write_bytes(gzip.compress(content) if request.param == "gzip" else content)
        return path

    return write


def test_reads_a_file_written_by_hand(put):
    assert np.array_equal(files.read_idx(put(BY_HAND), shape=(None, 2, 2)), IMAGES)


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_writes_the_bytes_written_by_hand(tmp_path, name):
    path = tmp_path / name
    write_idx(path, IMAGES)
    content = path.read_bytes()
    assert (gzip.decompress(content) if name.endswith(".gz") else content) == BY_HAND
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_digests_are_those_of_the_content(put):
    expected = hashlib.sha256(BY_HAND).hexdigest()
    path = put(BY_HAND)
    assert content_digest(path, most=len(BY_HAND)) == expected
    assert content_digest(path, most=len(BY_HAND) - 2) != expected


@given(values=hnp.arrays("u1", hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_what_is_written_is_read(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("idx") / "values.gz"
    write_idx(path, values)
    back = files.read_idx(path, shape=values.shape)
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "at least 4 bytes, found 0", id="empty"),
        pytest.param(BY_HAND[:3], "at least 4 bytes, found 3", id="no-magic"),
        pytest.param(b"\x89PNG" + BY_HAND, "magic number", id="wrong-magic"),
        pytest.param(b"\0\0\x07" + BY_HAND[3:], "magic number", id="unknown-type"),
        pytest.param(b"\0\0\x0d" + BY_HAND[3:], "type uint8.*found 00000d03", id="wrong-type"),
        pytest.param(BY_HAND[:10], "axis lengths, found 6 bytes|header of 16 bytes", id="no-shape"),
        pytest.param(BY_HAND[:-1], "12 bytes of values, found 11|at most", id="cut-short"),
        pytest.param(BY_HAND + b"\0", "the end after 12 bytes of values, found more", id="trailing"),
        pytest.param(
            struct.pack(">HBB3I", 0, 8, 3, 3, 4, 1) + bytes(12),
            r"shape \(any, 2, 2\), found \(3, 4, 1\)",
            id="wrong-shape",
        ),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(put, content, expected):
    path = put(content)
    with pytest.raises(DataError, match=expected) as error:
        files.read_idx(path, shape=(None, 2, 2))
    assert str(path) in str(error.value)
    assert "rrcluster data get fashion-mnist" in str(error.value)


def test_an_absurd_size_takes_no_memory(put):
    path = put(struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4) + bytes(64))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="declared"):
            files.read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_cut_gzip_file(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(BY_HAND)[:-6])
    with pytest.raises(DataError, match="whole gzip file"):
        files.read_idx(path)


def test_every_flipped_byte_of_a_gzip_file_is_an_error_or_harmless(tmp_path):
    good = gzip.compress(BY_HAND, mtime=0)
    path = tmp_path / "flipped.gz"
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        with suppress(DataError):
            assert np.array_equal(files.read_idx(path), IMAGES)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        files.read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot be read"):
        files.read_idx(tmp_path)
