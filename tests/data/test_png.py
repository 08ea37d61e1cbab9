"""The PNG reader against an encoder that follows the specification pixel by pixel."""

import struct
import zlib

import numpy as np
import pytest

from rrcluster.data.content import Unexpected
from rrcluster.data.png import read_png

WIDTH, HEIGHT = 5, 4


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def predicted(kind, left, up, corner):
    if kind == 4:
        guess = left + up - corner
        distances = [abs(guess - value) for value in (left, up, corner)]
        return (left, up, corner)[distances.index(min(distances))]
    return {0: 0, 1: left, 2: up, 3: (left + up) // 2}[kind]


def filtered(pixels, kinds):
    """Every byte less its prediction, with a filter byte in front of every row."""
    values, out = pixels.astype(int), bytearray()
    at = lambda row, column, c: values[row, column, c] if row >= 0 and column >= 0 else 0  # noqa: E731
    for row, kind in enumerate(kinds):
        out.append(kind)
        for column in range(values.shape[1]):
            for c in range(3):
                around = at(row, column - 1, c), at(row - 1, column, c), at(row - 1, column - 1, c)
                out.append((values[row, column, c] - predicted(kind, *around)) % 256)
    return bytes(out)


def encode(pixels, kinds, *, header=None, cut=0, parts=2):
    height, width = pixels.shape[:2]
    head = struct.pack(">IIBBBBB", *(header or (width, height, 8, 2, 0, 0, 0)))
    body = zlib.compress(filtered(pixels, kinds)[: -cut or None])
    bodies = [body] if parts == 1 else [body[:7], body[7:]]
    data = b"".join(chunk(b"IDAT", part) for part in bodies)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"tEXt", b"a\0b") + data + chunk(b"IEND", b"")


@pytest.fixture
def pixels(rng):
    return rng.integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)


def read(content):
    return read_png(content, width=WIDTH, height=HEIGHT)


@pytest.mark.parametrize("kinds", [[0] * 4, [1] * 4, [2] * 4, [3] * 4, [4] * 4, [4, 3, 1, 2], [2, 0, 4, 3]])
def test_every_filter_is_undone(pixels, kinds):
    assert np.array_equal(read(encode(pixels, kinds)), pixels)
    assert np.array_equal(read(encode(pixels, kinds, parts=1)), pixels)


def test_one_row_by_hand():
    # Sub: bytes are differences to the pixel on the left; 250 + 10 wraps to 4.
    raw = bytes([1, 250, 1, 2, 10, 1, 1])
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    assert read_png(content, width=2, height=1).tolist() == [[[250, 1, 2], [4, 2, 3]]]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ((WIDTH + 1, HEIGHT, 8, 2, 0, 0, 0), "5 x 4 pixels, found 6 x 4"),
        ((2**31, 2**31, 8, 2, 0, 0, 0), "5 x 4 pixels"),
        ((WIDTH, HEIGHT, 16, 2, 0, 0, 0), "8-bit RGB"),
        ((WIDTH, HEIGHT, 8, 6, 0, 0, 0), "8-bit RGB"),
        ((WIDTH, HEIGHT, 8, 2, 0, 0, 1), "not interlaced"),
    ],
)
def test_other_kinds_are_refused(pixels, header, expected):
    with pytest.raises(Unexpected, match=expected):
        read(encode(pixels, [0] * 4, header=header))


def test_damage_is_noticed_wherever_it_is(pixels):
    good = encode(pixels, [1, 4, 3, 2])
    for place in range(len(good)):
        with pytest.raises(Unexpected):
            read(good[:place])
        with pytest.raises(Unexpected):
            read(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])


def test_too_few_and_too_many_pixels(pixels):
    with pytest.raises(Unexpected, match="64 bytes of pixels"):
        read(encode(pixels, [0] * 4, cut=1))
    with pytest.raises(Unexpected, match="64 bytes of pixels"):
        read(encode(np.concatenate([pixels] * 99), [0] * 396, header=(WIDTH, HEIGHT, 8, 2, 0, 0, 0)))


def test_an_unknown_filter():
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes([5, 0, 0, 0]))) + chunk(b"IEND", b"")
    with pytest.raises(Unexpected, match="row filters from 0 to 4, found 5"):
        read_png(content, width=1, height=1)
