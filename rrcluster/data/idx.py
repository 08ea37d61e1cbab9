"""The idx file format of MNIST and its descendants: read and written, never trusted.

An idx file is two zero bytes, a type code, the number of axes, one big-endian 32-bit length per axis and the
values, big-endian, row by row; usually inside gzip. `read` believes nothing it has not checked: a damaged or
hostile file gives a `DataError` that names the file, what was expected, what was found and the way out.
Memory is spent only on bytes that are really there.
"""

import gzip
import hashlib
import os
import struct
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rrcluster.data.content import expect, opened, read_exactly, reporting
from rrcluster.errors import DataError
from rrcluster.storage import replace_file

WAY_OUT = "Get a good copy with `rrcluster data get fashion-mnist`"

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CODES = {np.dtype(name).newbyteorder("="): code for code, name in _DTYPES.items()}


def read(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike = np.uint8,
    shape: tuple[int | None, ...] | None = None,
    way_out: str = WAY_OUT,
) -> NDArray[Any]:
    """The array in the idx file at `path`, plain or gzip (told by content, not name), in native byte order.

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


def write(path: str | os.PathLike[str], values: NDArray[Any]) -> None:
    """Write `values` as an idx file, gzip if the name ends in .gz; atomically, the same bytes every time."""
    path = Path(path)
    content = header(values) + _big_endian(values)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    replace_file(path, content)


def header(values: NDArray[Any]) -> bytes:
    """The idx header that declares the type and shape of `values`."""
    code = _CODES.get(values.dtype.newbyteorder("="))
    if code is None or values.ndim > 255:
        raise DataError(f"idx files cannot hold {values.dtype} with {values.ndim} axes; use one of {_known_types()}.")
    return struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)


def sha256(values: NDArray[Any]) -> str:
    """The sha256 of the decompressed idx file that holds `values`; `read` is strict, so there is only one."""
    digest = hashlib.sha256(header(values))
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


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None:
        return True
    return len(found) == len(wanted) and all(w in (None, f) for f, w in zip(found, wanted, strict=True))


def _spell(shape: tuple[int | None, ...] | None) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in shape or ()) + ")"


def _known_types() -> str:
    return ", ".join(np.dtype(name).name for name in _DTYPES.values())


def _big_endian(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder(">"), copy=False).tobytes()
