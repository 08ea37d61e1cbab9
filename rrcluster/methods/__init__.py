"""Federated methods, one short file each, and which mechanisms and rebalancings each may be used with."""

from collections.abc import Iterator, Mapping

from rrcluster import registry
from rrcluster.methods.baselines import LocalOnly, Oracle
from rrcluster.methods.fedavg import FedAvg
from rrcluster.methods.fedcam import FedCAM
from rrcluster.methods.fedper import FedPer
from rrcluster.methods.fedprox import FEDPROX
from rrcluster.methods.fesem import FeSEM
from rrcluster.methods.ifca import IFCA
from rrcluster.methods.method import Algorithm, Clients, Tools, Trained, names
from rrcluster.methods.mrmtl import MRMTL

OURS: dict[str, Algorithm] = names(
    [
        IFCA(),
        IFCA("ifca-shared", share_base=True),
        FeSEM(),
        FeSEM("fesem-last", last_layer=True),
        FedCAM(),
        FedCAM("fedcam-fesem", by_distance=True),
        FedAvg(),
        FEDPROX,
        FedPer(),
        MRMTL(),
        LocalOnly(),
        Oracle(),
    ]
)


class _Registered(Mapping[str, Algorithm]):
    """Every method by name: ours, and those that were registered."""

    def __getitem__(self, name: str) -> Algorithm:
        """The method; KeyError for a name that is not known."""
        if name not in registry.METHODS:
            raise KeyError(name)
        method: Algorithm = registry.METHODS.load(name)
        return method

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(registry.METHODS)

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in registry.METHODS)


ALGORITHMS: Mapping[str, Algorithm] = _Registered()

__all__ = [
    "ALGORITHMS",
    "FEDPROX",
    "IFCA",
    "MRMTL",
    "OURS",
    "Algorithm",
    "Clients",
    "FeSEM",
    "FedAvg",
    "FedCAM",
    "FedPer",
    "LocalOnly",
    "Oracle",
    "Tools",
    "Trained",
]
