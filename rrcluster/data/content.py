"""The bytes of a data file, plain or gzip: read with a bound, never trusted, every failure a `DataError`."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from rrcluster.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BEST_RATIO = 1032  # deflate cannot shrink more than this, so a gzip file bounds what it may declare
_CHUNK = 1 << 20


class Unexpected(Exception):
    """What was expected and what was found, before the file's name is known."""


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
    """The decompressed stream of a file (gzip is told by content, not name) and the most bytes it can yield."""
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
