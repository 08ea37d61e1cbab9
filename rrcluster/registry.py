"""Registries of names: methods, datasets, models, mechanisms ... Nothing is imported before its use.

Each plug point is one table. An entry has the import path, the label in reports, and the facts needed before loading.
Names registered at run time (`rrcluster.register`), or by another package under the table's entry-point group
(`rrcluster.methods`, say), are equal to the built-in ones.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rrcluster.errors import ConfigError

# Names of the research distribution in this repository, which adds them by entry points.
IN_RESEARCH = frozenset({"reproduce", "theory", "cnn", "edges-cnn", "cifar-cnn", "lstm"})


@dataclass(frozen=True)
class Entry:
    """One name. `load` is the object itself, or "module:attribute" of it or of a mapping that contains it by name."""

    name: str
    load: Any
    label: str  # in tables and figures
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts needed before it is loaded


def _imported(where: str) -> Any:
    """The object that "module:attribute" names."""
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry:
    """The names of one plug point."""

    def __init__(self, what: str, group: str, entries: tuple[Entry, ...] | str) -> None:
        """Built-in entries, or "module:attribute" of them; those of other packages are found on first use."""
        self._what, self._group, self._home = what, group, entries
        self._entries: dict[str, Entry] = {}
        self._ours: frozenset[str] = frozenset()
        self._found: frozenset[str] = frozenset()  # built-in names, and those of installed packages
        self._searched = False

    def register(self, entry: Entry) -> None:
        """Add a name; a taken one is refused."""
        if entry.name in self._all():
            raise ConfigError(f"{self._what} {entry.name!r} is registered already; choose another name.")
        self._entries[entry.name] = entry

    def replace(self, entry: Entry) -> None:
        """Add or replace a name; built-in names are refused."""
        if self.ships(entry.name):
            raise ConfigError(f"{self._what} {entry.name!r} is a built-in name; give yours another one.")
        self._all()[entry.name] = entry

    def added(self) -> list[Entry]:
        """Entries that were registered at run time."""
        return [] if not self._searched else [entry for name, entry in self._entries.items() if name not in self._found]

    def unregister(self, name: str) -> None:
        """Remove a name."""
        self._entries.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(self._all())

    def __contains__(self, name: object) -> bool:
        """Whether the name exists."""
        return isinstance(name, str) and name in self._all()

    def ships(self, name: str) -> bool:
        """Whether the name is built in."""
        return name in self._all() and name in self._ours

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name; ConfigError with the nearest names for an unknown one."""
        entries = self._all()
        if not isinstance(name, str) or name not in entries:
            if name in IN_RESEARCH:
                raise ConfigError(
                    f"{self._what} = {name!r} comes with rrcluster-research; install it with `pip install ./research`."
                )
            near = get_close_matches(str(name), entries, n=3)
            way_out = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(entries)}."
            raise ConfigError(f"{self._what} = {name!r} is not known; {way_out}")
        return entries[name]

    def load(self, name: str) -> Any:
        """Load the object of a name."""
        where = self[name].load
        if not isinstance(where, str):
            return where
        thing = _imported(where)
        return thing[name] if isinstance(thing, Mapping) else thing

    def check(self, **setting: str) -> None:
        """A check that refuses settings whose value is not a name here."""
        for value in setting.values():
            _ = self[value]

    def label(self, name: str) -> str:
        """The name's label in reports; an unknown name is its own label."""
        entry = self._all().get(name)
        return name if entry is None else entry.label

    def fact(self, name: str, about: str, default: Any = None) -> Any:
        """A fact about a name that is available before loading."""
        entry = self._all().get(name)
        return default if entry is None else entry.facts.get(about, default)

    def hint(self, default: str) -> str:
        """The value list for `--help`: every name, and the default."""
        return f"({', '.join(self._all())}; default: {default})"

    def _all(self) -> dict[str, Entry]:
        if not self._searched:
            self._searched = True
            from importlib.metadata import entry_points

            entries: tuple[Entry, ...] = _imported(self._home) if isinstance(self._home, str) else self._home
            self._entries.update({entry.name: entry for entry in entries})
            self._ours = frozenset(self._entries)
            for point in entry_points(group=self._group):
                entry = point.load()
                self._entries.setdefault(entry.name, entry)
            self._found = frozenset(self._entries)
        return self._entries


def _entries(load: str, named: Mapping[str, tuple[str, dict[str, Any]]]) -> tuple[Entry, ...]:
    return tuple(Entry(name, load, label, facts) for name, (label, facts) in named.items())


_BY_LOSS = {"chooses_by_loss": True}  # exploration applies, because prices and softened choices are in units of a loss
_DEEP = {"splits_network": True}  # the last layer is split off, so there must be another one
METHODS = Registry(
    "algorithm",
    "rrcluster.methods",
    _entries(
        "rrcluster.methods:OURS",
        {  # line styles in figures: indices of colour, dashes and marker in rrcluster.report.drawing; plain: unexplored
            "ifca": ("IFCA", _BY_LOSS | {"look": (0, 0, 0), "plain_look": (4, 1, 0)}),
            "ifca-shared": ("IFCA (shared base)", _BY_LOSS | _DEEP | {"look": (0, 2, 1), "plain_look": (4, 3, 1)}),
            "fesem": ("FeSEM", {"look": (5, 0, 2), "memoryless": "fesem-memoryless"}),
            "fesem-last": ("FeSEM (last layer)", {"look": (5, 1, 4)}),
            "fesem-memoryless": ("FeSEM (memoryless)", {"look": (5, 2, 2)}),
            "fedcam": ("FedCAM", _BY_LOSS | {"look": (3, 0, 3), "plain_look": (3, 1, 3)}),
            "fedcam-fesem": ("FedCAM (by distance)", {"look": (3, 2, 6)}),
            "fedavg": ("FedAvg", {"look": (2, 0, 1)}),
            "fedprox": ("FedProx", {"look": (2, 1, 5)}),
            "fedper": ("FedPer", _DEEP | {"look": (5, 2, 5), "memoryless": "fedper-memoryless"}),
            "fedper-memoryless": ("FedPer (memoryless)", _DEEP | {"look": (5, 3, 5)}),
            "mr-mtl": ("MR-MTL", {"look": (5, 3, 6)}),
            "mixed-effects": ("Mixed effects", {"look": (1, 0, 0), "reads_cells": True, "usual_model": "table-linear"}),
            "local": ("Local training", {"look": (6, 3, 5)}),
            "oracle": ("Oracle", {"look": (6, 2, 2)}),
        },
    ),
)

# Networks of a single layer, and the replacement under `model = auto` for methods that split a network.
_DEEPER = {"linear": "mlp", "pooled-linear": "mlp", "edges": "edges-mlp", "edges-coarse": "edges-mlp"}
_ON_IMAGES = ("linear", "pooled-linear", "edges", "edges-coarse", "edges-mlp", "scattering", "scattering-pca", "mlp")
_NETWORKS = (*_ON_IMAGES, "table-linear", "bigram", "trigram", "fourgram")
MODELS = Registry(
    "model",
    "rrcluster.models",
    _entries(
        "rrcluster.models:OURS",
        {name: (name, {"deeper": _DEEPER[name]} if name in _DEEPER else {}) for name in _NETWORKS},
    ),
)

DATASETS = Registry("data", "rrcluster.datasets", "rrcluster.data.catalogue:ENTRIES")

MECHANISMS = Registry(
    "mechanism",
    "rrcluster.mechanisms",
    (
        Entry("joint", "rrcluster.privacy.joint:JOINT", "joint"),
        Entry("identifier", "rrcluster.privacy.identifier:IDENTIFIER", "identifier"),
        Entry("none", "rrcluster.privacy.none:NONE", "none"),
    ),
)
"""Every mechanism by name: `MECHANISMS.load("joint")` is the thing itself, iterating gives the names."""

_COMMANDS = {
    "run": "train: one run (or several seeds), with progress and a run folder",
    "update": "go on next month: train the models of a run further, on new rows",
    "sweep": "every combination of the settings in a file; or choose the best of them privately",
    "report": "tables, figures and a self-contained HTML page from run folders",
    "watch": "follow runs live on a local page",
    "assign": "which client belongs to which cluster of a run: a table, for you alone",
    "predict": "score new rows with the models of a run: classes or numbers, one for each row",
    "account": "epsilon from noise or noise from epsilon, by every accountant that applies",
    "advise": "before any data is touched: signal to noise per cluster for your M, d, k and epsilon, and B",
    "data": "list datasets and where their files are, download them, verify them",
}
_ELSEWHERE = {"update": "run_command:update"}
COMMANDS = Registry(
    "command",
    "rrcluster.commands",
    tuple(
        Entry(name, f"rrcluster.cli.{_ELSEWHERE.get(name, f'{name}_command:main')}", about)
        for name, about in _COMMANDS.items()
    ),
)
"""A command is a function of its arguments that returns the exit status; its label says what it does."""

TRANSPORTS = Registry(
    "transport",
    "rrcluster.transports",
    (
        Entry("local", "rrcluster.federation.unix_socket:open_local", "sockets of this machine"),
        Entry("tls", "rrcluster.federation.tls_transport:open_tls", "TLS over a network"),
        Entry("flower", "rrcluster.federation.flower_transport:open_flower", "Flower over a network"),
    ),
)
"""A transport is a function of a `Reach` (federation/transports.py): a context with an `ask`, as `Transport` has it."""

ACCELERATORS = Registry("accelerator", "rrcluster.accelerators", ())
"""Code for one network that computes what PyTorch does, faster: an `engine.batched.kernels.Accelerator`."""

TABLE_MAKERS = Registry("maker of tables", "rrcluster.table_makers", ())
"""A function of a dataset's entry and a folder that gives a table of the catalogue as the bytes of a CSV file."""

KINDS = {
    "method": METHODS,
    "model": MODELS,
    "dataset": DATASETS,
    "mechanism": MECHANISMS,
    "command": COMMANDS,
    "transport": TRANSPORTS,
}


def registered() -> list[tuple[str, Entry]]:
    """The program's own registrations by kind, to be sent to other processes."""
    return [(kind, entry) for kind, names in KINDS.items() for entry in names.added()]


def restore(known: Sequence[tuple[str, Entry]]) -> None:
    """Register the entries of another program."""
    for kind, entry in known:
        KINDS[kind].replace(entry)


def register(kind: str, name: str, load: Any, *, label: str | None = None, **facts: Any) -> None:
    """Register a method, model, dataset, mechanism, command or transport under a name.

    `load` is the object itself or "module:attribute". Facts: a method has `chooses_by_loss` (its scores are losses), a
    dataset `usual_model` and `num_classes`.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind = {kind!r} is not known; choose one of {', '.join(KINDS)}.")
    KINDS[kind].register(entry_of(kind, name, load, label=label, **facts))


def entry_of(kind: str, name: str, load: Any, *, label: str | None = None, **facts: Any) -> Entry:
    """The registry entry for an object, with the facts from its own attributes."""
    if kind == "method" and hasattr(load, "chooses_by_loss"):
        facts = {"chooses_by_loss": load.chooses_by_loss} | facts
    if kind == "dataset" and hasattr(load, "num_clients"):  # a population, not a function of a folder
        facts = {"num_classes": load.num_classes, "divided": False, "cells": load.columns is not None} | facts
    return Entry(name, load, label or name, facts)
