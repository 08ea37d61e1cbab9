"""Federated methods, one short file each. A name is added with `rrcluster.register("method", ...)`."""

from collections.abc import Iterator, Mapping

from rrcluster import registry
from rrcluster.methods.baselines import LOCAL, ORACLE
from rrcluster.methods.fedavg import FEDAVG
from rrcluster.methods.fedcam import FEDCAM, FEDCAM_FESEM
from rrcluster.methods.fedper import FEDPER, FEDPER_MEMORYLESS
from rrcluster.methods.fedprox import FEDPROX
from rrcluster.methods.fesem import FESEM, FESEM_LAST, FESEM_MEMORYLESS
from rrcluster.methods.ifca import IFCA, IFCA_SHARED
from rrcluster.methods.method import Clients, Method, Tools, Trained
from rrcluster.methods.mixed_effects import MIXED_EFFECTS
from rrcluster.methods.mrmtl import MRMTL

_CLUSTERED = (IFCA, IFCA_SHARED, FESEM, FESEM_LAST, FESEM_MEMORYLESS, FEDCAM, FEDCAM_FESEM)
_ALL = (*_CLUSTERED, FEDAVG, FEDPROX, FEDPER, FEDPER_MEMORYLESS, MIXED_EFFECTS, MRMTL, LOCAL, ORACLE)
OURS: dict[str, Method] = {method.name: method for method in _ALL}


class _Registered(Mapping[str, Method]):
    """Every method by name: ours, and those that were registered."""

    def __getitem__(self, name: str) -> Method:
        """The method; KeyError for a name that is not known."""
        if name not in registry.METHODS:
            raise KeyError(name)
        method: Method = registry.METHODS.load(name)
        return method

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(registry.METHODS)

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in registry.METHODS)


METHODS: Mapping[str, Method] = _Registered()
"""Every method by name: ours, and those that were registered."""

__all__ = ["METHODS", "OURS", "Clients", "Method", "Tools", "Trained"]
