"""The registry of datasets: one entry for each, with all that other modules need to know about it.

An image dataset is added by one module with a function that loads it, and one entry in catalogue.toml. Imports nothing
heavy, so that settings can be read without loading numpy.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrcluster.registry import Entry


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset: digest and size of its content, and of the compressed file as published."""

    name: str  # without .gz: a plain and a gzip copy are both accepted
    sha256: str = ""  # of the content: the bytes after gunzip, if it is a gzip file; "" where none is known
    bytes: int = 0  # of the content; 0 where it is not known
    download_sha256: str = ""  # of the .gz file as published
    download_bytes: int = 0
    md5: str = ""  # of the content, where its publisher gives no other digest


@dataclass(frozen=True)
class Source:
    """A dataset: what it is, how it is loaded and divided, its licence, its files, and where they are published."""

    name: str
    label: str  # in tables and figures
    description: str
    licence: str
    num_classes: int = 0  # 0: regression
    usual_model: str = "linear"  # `--model auto`
    load: str = ""  # "module:function", of a folder; "" where the data is generated
    partitions: tuple[str, ...] = ()  # the usual one first; () where the data draws its own groups
    reuse: bool = False  # whether every group uses all images, where there are too few to deal out
    files: tuple[SourceFile, ...] = ()
    urls: tuple[str, ...] = ()  # folders that publish `<file name>.gz`, in the order they are tried
    debian: str = ""  # the Debian package that installs the files under /usr/share/datasets/<name>
    bundled: bool = False
    alternatives: tuple[tuple[SourceFile, ...], ...] = ()  # other sets of files that hold the same data
    folder: str = ""  # the folder its files are kept in; default: its name
    inside: tuple[str, ...] = ()  # folders that its archives unpack to
    how: str = ""  # how to get the files, where `rrcluster data get` cannot

    @property
    def forms(self) -> tuple[tuple[SourceFile, ...], ...]:
        """Every set of files that holds the data, the usual one first."""
        return (self.files, *self.alternatives)


IMAGE_PARTITIONS = ("rotation", "rotation-imbalanced", "dirichlet", "label-flip")


def _read(entry: Any) -> Any:
    """Lists as tuples, and tables in them as files."""
    if isinstance(entry, list):
        return tuple(map(_read, entry))
    return SourceFile(**entry) if isinstance(entry, dict) else entry


SOURCES: dict[str, Source] = {
    name: Source(name, **{field: _read(value) for field, value in entry.items()})
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}

ENTRIES = tuple(
    Entry(
        source.name,
        "rrcluster.data.catalogue:SOURCES",
        source.label,
        {"usual_model": source.usual_model, "num_classes": source.num_classes},
    )
    for source in SOURCES.values()
)
