"""Datasets, partitions and the federated arrays the engine trains on.

Names are imported when they are first used: settings read the catalogue, which needs no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rrcluster.data.arrays import from_arrays, from_rows
    from rrcluster.data.build import PARTITIONS, load_dataset, load_federated
    from rrcluster.data.catalogue import SOURCES
    from rrcluster.data.federated import Cohort, FederatedData, TestSet
    from rrcluster.data.frames import from_frame
    from rrcluster.data.images import ImageDataset
    from rrcluster.data.sources import check, get, list_sources
    from rrcluster.data.synthetic import LinearProblem, linear_regression

_HOMES = {
    "PARTITIONS": "build",
    "SOURCES": "catalogue",
    "Cohort": "federated",
    "FederatedData": "federated",
    "ImageDataset": "images",
    "LinearProblem": "synthetic",
    "TestSet": "federated",
    "check": "sources",
    "from_arrays": "arrays",
    "from_frame": "frames",
    "from_rows": "arrays",
    "get": "sources",
    "linear_regression": "synthetic",
    "list_sources": "sources",
    "load_dataset": "build",
    "load_federated": "build",
}

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Cohort",
    "FederatedData",
    "ImageDataset",
    "LinearProblem",
    "TestSet",
    "check",
    "from_arrays",
    "from_frame",
    "from_rows",
    "get",
    "linear_regression",
    "list_sources",
    "load_dataset",
    "load_federated",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rrcluster.data' has no attribute {name!r}")
    return getattr(import_module(f"rrcluster.data.{_HOMES[name]}"), name)
