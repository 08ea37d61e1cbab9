"""A reader for the one kind of PNG that data comes in: 8 bits, RGB, not interlaced. zlib and numpy only.

Follows the PNG specification (ISO/IEC 15948): a signature, then chunks with a length, a type and a CRC; the
concatenated IDAT chunks are one zlib stream of rows, each with a filter byte in front. Everything is checked: a
file that is cut, altered or of another kind raises `Unexpected`, and no more is decompressed than the header
declares.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from rrcluster.data.content import Unexpected, expect

Row = NDArray[np.uint8]  # (width, 3)

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3


def read_png(content: bytes, *, width: int, height: int) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of a PNG file of exactly this size, given its bytes."""
    expect(content.startswith(_SIGNATURE), "a PNG signature", "other bytes")
    chunks = _chunks(content)
    expect(bool(chunks) and chunks[0][0] == b"IHDR" and len(chunks[0][1]) == 13, "a header chunk", "another")
    expect(chunks[-1][0] == b"IEND", "an end chunk", "none: it is cut short")
    found = struct.unpack(">IIBBBBB", chunks[0][1])
    expect(found[:2] == (width, height), f"{width} x {height} pixels", f"{found[0]} x {found[1]}")
    expect(found[2:] == (8, 2, 0, 0, 0), "8-bit RGB, not interlaced", f"the format {found[2:]}")
    stride = 1 + _CHANNELS * width
    pixels = _inflate(b"".join(body for name, body in chunks if name == b"IDAT"), stride * height)
    rows = np.frombuffer(pixels, dtype=np.uint8).reshape(height, stride)
    return _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, _CHANNELS))


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Type and body of every chunk up to the end chunk, CRCs checked."""
    chunks: list[tuple[bytes, bytes]] = []
    place = len(_SIGNATURE)
    while not chunks or chunks[-1][0] != b"IEND":
        head = content[place : place + 8]
        expect(len(head) == 8, "another chunk", "the end of the file: it is cut short")
        (length,) = struct.unpack(">I", head[:4])
        body, crc = content[place + 8 : place + 8 + length], content[place + 8 + length : place + 12 + length]
        expect(len(crc) == 4, f"a chunk of {length} bytes", "the end of the file: it is cut short")
        right = zlib.crc32(head[4:] + body).to_bytes(4, "big")
        expect(crc == right, f"the CRC {right.hex()} of a chunk", crc.hex())
        chunks.append((head[4:], body))
        place += 12 + length
    return chunks


def _inflate(compressed: bytes, size: int) -> bytes:
    machine = zlib.decompressobj()
    try:
        pixels = machine.decompress(compressed, size + 1)
    except zlib.error as problem:
        raise Unexpected(f"expected a zlib stream of pixels, found: {problem}") from None
    expect(len(pixels) == size and machine.eof, f"{size} bytes of pixels", "more or fewer")
    return pixels


def _unfiltered(filters: NDArray[np.uint8], rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo the filter of every row; a row may be predicted from the one above, so they go in order."""
    expect(bool((filters <= 4).all()), "row filters from 0 to 4", f"{int(filters.max(initial=0))}")
    pixels = np.empty_like(rows)
    above = np.zeros(rows.shape[1:], dtype=np.uint8)
    for place, kind in enumerate(filters.tolist()):
        pixels[place] = _FILTERS[kind](rows[place], above)
        above = pixels[place]
    return pixels


def _none(row: Row, above: Row) -> Row:  # noqa: ARG001  # every filter is called alike
    return row


def _sub(row: Row, above: Row) -> Row:  # noqa: ARG001
    return np.cumsum(row, axis=0, dtype=np.uint8)


def _up(row: Row, above: Row) -> Row:
    return row + above


def _average(row: Row, above: Row) -> Row:
    """Each byte is predicted by the mean of its left and upper neighbours: serial along the row."""
    values, over = row.reshape(-1).tolist(), above.reshape(-1).tolist()
    left = [0] * _CHANNELS
    for place, value in enumerate(values):
        values[place] = (value + (left[place % _CHANNELS] + over[place]) // 2) & 255
        left[place % _CHANNELS] = values[place]
    return np.array(values, dtype=np.uint8).reshape(row.shape)


def _paeth(row: Row, above: Row) -> Row:
    """Each byte is predicted by the neighbour nearest to left + up - corner; ties: left, then up."""
    values, over = row.reshape(-1).tolist(), above.reshape(-1).tolist()
    for place, value in enumerate(values):
        up = over[place]
        left, corner = (values[place - _CHANNELS], over[place - _CHANNELS]) if place >= _CHANNELS else (0, 0)
        by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        nearer, least = (left, by_left) if by_left <= by_up else (up, by_up)
        values[place] = (value + (nearer if least <= by_corner else corner)) & 255
    return np.array(values, dtype=np.uint8).reshape(row.shape)


_FILTERS = (_none, _sub, _up, _average, _paeth)
