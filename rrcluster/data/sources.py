"""The datasets we know, as data; where their files are looked for; what is here.

Nothing in this module touches the network: `rrcluster.data.download.get` does, and only when asked.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from rrcluster import checks
from rrcluster.data import idx
from rrcluster.errors import DataError

ENVIRONMENT = "RRCLUSTER_DATA"
_BUNDLED = Path(__file__).parent / "bundled"
_DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset: digest and size of its content, and of the compressed file as published."""

    name: str  # without .gz: a plain and a gzip copy are both accepted
    sha256: str  # of the content: the bytes after gunzip, if it is a gzip file
    bytes: int  # of the content
    download_sha256: str = ""  # of the .gz file as published
    download_bytes: int = 0


@dataclass(frozen=True)
class Source:
    """A dataset: what it is, under which licence, of which files, and where they are published."""

    name: str
    description: str
    licence: str
    files: tuple[SourceFile, ...] = ()
    urls: tuple[str, ...] = ()  # folders that publish `<file name>.gz`, in the order they are tried
    debian: str = ""  # the Debian package that installs the files under /usr/share/datasets/<name>
    bundled: bool = False


@dataclass(frozen=True)
class FileReport:
    """What `check` found out about one file; `path` is None and `bytes` 0 when it is not here."""

    file: str
    present: bool
    path: Path | None
    bytes: int
    sha256_ok: bool


@dataclass(frozen=True)
class SourceReport:
    """One row of `list_sources`; `where` is a folder, or 'bundled', 'generated' or 'not here'."""

    name: str
    where: str
    bytes: int  # of the files here, or else of the download
    licence: str
    description: str


SOURCES: dict[str, Source] = {
    "fashion-mnist": Source(
        name="fashion-mnist",
        description="70,000 grey images of clothing, 28x28, 10 classes (60,000 train, 10,000 test)",
        licence="MIT, (c) 2017 Zalando SE",
        files=(
            SourceFile(
                name="train-images-idx3-ubyte",
                sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                bytes=47_040_016,
                download_sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                download_bytes=26_421_880,
            ),
            SourceFile(
                name="train-labels-idx1-ubyte",
                sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                bytes=60_008,
                download_sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                download_bytes=29_515,
            ),
            SourceFile(
                name="t10k-images-idx3-ubyte",
                sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                bytes=7_840_016,
                download_sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                download_bytes=4_422_102,
            ),
            SourceFile(
                name="t10k-labels-idx1-ubyte",
                sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                bytes=10_008,
                download_sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                download_bytes=5_148,
            ),
        ),
        urls=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        debian="dataset-fashion-mnist",
    ),
    "fashion-mini": Source(
        name="fashion-mini",
        description="11,000 images of fashion-mnist (10,000 train, 1,000 test), class-balanced, bundled",
        licence="MIT, (c) 2017 Zalando SE",
        files=(
            SourceFile(
                name="fashion-mini.xz",
                sha256="114c180c107ad6e5e94fca5a72daa7b8bd0f4e377dcdd55e9c9fcbec6cc064c2",
                bytes=3_910_208,
            ),
        ),
        bundled=True,
    ),
    "synthetic": Source(
        name="synthetic",
        description="linear regression with one true parameter vector per group, generated from the seed",
        licence="none needed (generated)",
    ),
}


def source(name: str) -> Source:
    """The dataset called `name`; a `ConfigError` that lists the known ones otherwise."""
    return SOURCES[checks.one_of(SOURCES, data=name)]


def cache_folder(name: str) -> Path:
    """The user's cache folder of a dataset: $XDG_CACHE_HOME (or ~/.cache)/rrcluster/<name>."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rrcluster" / name


def download_folder(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Where `get` puts the files: <name>/ in `folder` or in $RRCLUSTER_DATA, else the user's cache folder."""
    root = folder or os.environ.get(ENVIRONMENT)
    return _folder(root) / name if root else cache_folder(name)


def _folder(root: str | os.PathLike[str]) -> Path:
    try:
        return Path(root).expanduser()
    except RuntimeError:  # ~somebody, who is not here
        raise DataError(f"{root}: there is no such home folder; write the folder out.") from None


def search_path(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders in which the files of a dataset are looked for, first to last.

    An explicit `folder` is the only place, with or without a subfolder <name>; without one: $RRCLUSTER_DATA
    (the same two), the user's cache folder, and the folder of Debian's package.
    """
    if source(name).bundled:
        return (_BUNDLED,)
    root = folder or os.environ.get(ENVIRONMENT)
    named = (_folder(root) / name, _folder(root)) if root else ()
    return named if folder else (*named, cache_folder(name), _DEBIAN / name)


def find_file(place: Path, file: str) -> Path | None:
    """The gzip or plain copy of `file` in the folder `place`, if there is one."""
    try:
        return next((path for path in (place / f"{file}.gz", place / file) if path.is_file()), None)
    except OSError:  # a folder we may not look into holds nothing for us
        return None


def locate(name: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Path per file name, all from the first folder of the search path that has them all.

    A `DataError` that says where we looked, and how to get the files, when no folder has.
    """
    wanted = [file.name for file in source(name).files]
    looked = []
    for place in search_path(name, folder):
        found = {file: path for file in wanted if (path := find_file(place, file))}
        if len(found) == len(wanted):
            return found
        missing = ", ".join(file for file in wanted if file not in found)
        looked.append(f"{place} (no {missing if found else 'such files'})")
    raise DataError(f"{name} is not here; looked in {'; '.join(looked)}. {ways_out(name)}")


def ways_out(name: str) -> str:
    """How a user can get a dataset that is missing or damaged, in one sentence."""
    debian = SOURCES[name].debian
    ways = [f"run `rrcluster data get {name}`"]
    ways += [f"run `apt-get install {debian}`"] if debian else []
    ways += [f"set {ENVIRONMENT}=folder to a folder that has the files"]
    return f"To get it, {', or '.join(ways)}."


def check(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[FileReport, ...]:
    """One row per file of the dataset: is it here, where, how large, and is its content what it should be.

    Looks at the first folder of the search path that has all files, else the first that has any. Never raises
    for a damaged file: that is a row with `sha256_ok` False. A generated dataset has no rows.
    """
    files = source(name).files
    places = search_path(name, folder)
    counts = [sum(find_file(place, file.name) is not None for file in files) for place in places]
    place = places[counts.index(max(counts))]
    return tuple(_check_file(file, find_file(place, file.name)) for file in files)


def list_sources(folder: str | os.PathLike[str] | None = None) -> tuple[SourceReport, ...]:
    """One row per known dataset: where it is, its size, licence and description. Checks no digests."""
    return tuple(_list_source(entry, folder) for entry in SOURCES.values())


def _check_file(file: SourceFile, path: Path | None) -> FileReport:
    if path is None:
        return FileReport(file=file.name, present=False, path=None, bytes=0, sha256_ok=False)
    try:
        matches = idx.content_sha256(path, most=file.bytes) == file.sha256
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
            where, size = "not here", sum(file.download_bytes for file in entry.files)
    where = "bundled" if entry.bundled and where != "not here" else where
    return SourceReport(entry.name, where, size, entry.licence, entry.description)
