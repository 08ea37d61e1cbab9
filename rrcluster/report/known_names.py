"""What reports know about the names in a run folder: labels of methods and numbers of classes of datasets.

One table per kind of name, filled by whoever registers a name. A name that is not in its table is its own label.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class KnownName:
    """A method or dataset: its name in settings, its label in tables and figures, and facts that reports use."""

    name: str
    label: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class KnownNames:
    """A table of names."""

    def __init__(self, entries: Iterable[KnownName]) -> None:
        """Start with these entries."""
        self._entries = {entry.name: entry for entry in entries}

    def __iter__(self) -> Iterator[str]:
        """Every registered name."""
        return iter(self._entries)

    def register(self, entry: KnownName) -> None:
        """Add a name, or replace its entry."""
        self._entries[entry.name] = entry

    def unregister(self, name: str) -> None:
        """Remove a name, if it is there."""
        self._entries.pop(name, None)

    def label(self, name: str) -> str:
        """The label of a name; the name itself if it is not registered."""
        return self._entries[name].label if name in self._entries else name

    def fact(self, name: str, about: str, default: Any = None) -> Any:
        """A fact about a name; `default` if it is not known."""
        return self._entries[name].facts.get(about, default) if name in self._entries else default


_BY_LOSS = {"chooses_by_loss": True}  # early rounds may explore
METHODS = KnownNames(
    (
        KnownName("ifca", "IFCA", _BY_LOSS),
        KnownName("ifca-shared", "IFCA (shared base)", _BY_LOSS),
        KnownName("fedcam", "FedCAM", _BY_LOSS),
        KnownName("fedcam-fesem", "FedCAM (by distance)"),
        KnownName("fesem", "FeSEM"),
        KnownName("fesem-last", "FeSEM (last layer)"),
        KnownName("fedavg", "FedAvg"),
        KnownName("fedprox", "FedProx"),
        KnownName("fedper", "FedPer"),
        KnownName("mr-mtl", "MR-MTL"),
        KnownName("local", "Local training"),
        KnownName("oracle", "Oracle"),
    )
)
DATASETS = KnownNames(
    (
        *(KnownName(name, name, {"num_classes": 10}) for name in ("fashion-mini", "fashion-mnist", "cifar10")),
        *(KnownName(name, name, {"num_classes": 47}) for name in ("emnist", "emnist-balanced", "emnist-bymerge")),
        KnownName("cifar100", "cifar100", {"num_classes": 100}),
    )
)
