"""The bytes of a data file, plain or gzip, and the idx format of MNIST: read with a bound, never trusted.

An idx file is two zero bytes, a type code, the number of axes, one big-endian 32-bit length per axis and the
values, big-endian, row by row; usually inside gzip. A damaged or hostile file gives a `DataError` that names the file,
what was expected, what was there and the way out. Memory is spent only on bytes that are really there.
"""

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rrcluster.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BEST_RATIO = 1032  # deflate cannot shrink more than this, so a gzip file bounds what it may declare
_CHUNK = 1 << 20


class Unexpected(Exception):
    """A difference between what a file should hold and what it holds, raised where its name is not known."""


def expect(holds: bool, expected: str, found: str) -> None:
    """Raise `Unexpected` unless `holds`."""
    if not holds:
        raise Unexpected(f"expected {expected}, found {found}")


@contextmanager
def reporting(path: Path, *, kind: str, way_out: str) -> Iterator[None]:
    """Turn whatever goes wrong while reading `path` into a `DataError` with its name and the way out."""
    try:
        yield
    except Unexpected as problem:
        raise DataError(f"{path} is not the {kind} it should be: {problem}. {way_out}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is damaged: expected a whole gzip file, found: {problem}. {way_out}") from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}. {way_out}") from None


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The decompressed stream of a file (gzip is recognised by content, not name) and the most bytes it can yield."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if not compressed:
            yield file, size
            return
        with gzip.GzipFile(fileobj=file) as stream:
            yield _as_binary(stream), size * _GZIP_BEST_RATIO


def _as_binary(stream: gzip.GzipFile) -> BinaryIO:
    return stream  # type: ignore[return-value]  # GzipFile reads like a binary file; typeshed does not say so


def read_exactly(stream: IO[bytes], wanted: int) -> bytearray:
    """Up to `wanted` bytes, grown as they arrive."""
    payload = bytearray()
    while len(payload) < wanted and (chunk := stream.read(min(wanted - len(payload), _CHUNK))):
        payload += chunk
    return payload


def read_bytes(path: str | os.PathLike[str], *, most: int, kind: str, way_out: str) -> bytes:
    """The whole decompressed content of a file; a `DataError` when it is damaged or longer than `most` bytes."""
    path = Path(path)
    with reporting(path, kind=kind, way_out=way_out), opened(path) as (stream, _):
        content = read_exactly(stream, most + 1)
        expect(len(content) <= most, f"at most {most} bytes", "more")
    return bytes(content)


def content_digest(path: str | os.PathLike[str], *, most: int, algorithm: str = "sha256") -> str:
    """The digest of a file's decompressed bytes, reading no more than `most` + 1 of them.

    A longer content thus never has the digest of a file of `most` bytes. A `DataError` when it cannot be read.
    """
    digest = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    for chunk in _pieces(Path(path), most):
        digest.update(chunk)
    return digest.hexdigest()


def content_size(path: str | os.PathLike[str], *, most: int) -> int:
    """The number of a file's decompressed bytes, or `most` + 1 if there are more."""
    return sum(len(chunk) for chunk in _pieces(Path(path), most))


def _pieces(path: Path, most: int) -> Iterator[bytes]:
    left = most + 1
    with reporting(path, kind="file", way_out="Get a good copy."), opened(path) as (stream, _):
        while left and (chunk := stream.read(min(left, _CHUNK))):
            yield chunk
            left -= len(chunk)


WAY_OUT = "Get a good copy with `rrcluster data get fashion-mnist`"

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CODES = {np.dtype(name).newbyteorder("="): code for code, name in _DTYPES.items()}


def read_idx(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike = np.uint8,
    shape: tuple[int | None, ...] | None = None,
    way_out: str = WAY_OUT,
) -> NDArray[Any]:
    """The array in the idx file at `path`, plain or gzip (recognised by content, not name), in native byte order.

    Guarantees: the values have type `dtype`; the axes match `shape`, where None stands for any length; the
    file holds exactly the bytes its header declares, not one more. Anything else is a `DataError`, raised
    before memory is taken for values that cannot be in the file.
    """
    path = Path(path)
    with reporting(path, kind="idx file", way_out=f"{way_out}."), opened(path) as (stream, most):
        found_dtype, found_shape = _read_header(stream, most)
        expect(found_dtype == np.dtype(dtype), f"values of type {np.dtype(dtype)}", f"{found_dtype}")
        expect(_fits(found_shape, shape), f"shape {_spell(shape)}", f"{_spell(found_shape)}")
        declared = prod(found_shape) * found_dtype.itemsize
        expect(declared <= most, f"at most {most} bytes of values in a file of this size", f"{declared} declared")
        payload = read_exactly(stream, declared)
        expect(len(payload) == declared, f"{declared} bytes of values", f"{len(payload)}: it is cut short")
        expect(not stream.read(1), f"the end after {declared} bytes of values", "more bytes")
    values = np.frombuffer(payload, dtype=found_dtype.newbyteorder(">")).reshape(found_shape)
    return values.astype(found_dtype, copy=False)


def idx_header(values: NDArray[Any]) -> bytes:
    """The idx header that declares the type and shape of `values`."""
    code = _CODES.get(values.dtype.newbyteorder("="))
    if code is None or values.ndim > 255:
        raise DataError(f"idx files cannot hold {values.dtype} with {values.ndim} axes; use one of {_known_types()}.")
    return struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)


def idx_sha256(values: NDArray[Any]) -> str:
    """The sha256 of the decompressed idx file that holds `values`; `read_idx` is strict, so there is only one."""
    digest = hashlib.sha256(idx_header(values))
    digest.update(_big_endian(values))
    return digest.hexdigest()


def _read_header(stream: IO[bytes], most: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    expect(len(magic) == 4, "a header of at least 4 bytes", f"{len(magic)}: it is cut short")
    zeros, code, axes = struct.unpack(">HBB", magic)
    expect(zeros == 0 and code in _DTYPES, f"a magic number 0000 + type + axes ({_known_types()})", magic.hex())
    expect(4 + 4 * axes <= most, f"a header of {4 + 4 * axes} bytes", "a shorter file")
    lengths = stream.read(4 * axes)
    expect(len(lengths) == 4 * axes, f"{axes} axis lengths", f"{len(lengths)} bytes: it is cut short")
    return np.dtype(_DTYPES[code]).newbyteorder("="), struct.unpack(f">{axes}I", lengths)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))


def _spell(shape: tuple[int | None, ...] | None) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in shape or ()) + ")"


def _known_types() -> str:
    return ", ".join(np.dtype(name).name for name in _DTYPES.values())


def _big_endian(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder(">"), copy=False).tobytes()
