"""Datasets, partitions and the federated arrays the engine trains on. Imports numpy only."""

from rrcluster.data.arrays import from_arrays
from rrcluster.data.build import PARTITIONS, load_dataset, load_federated
from rrcluster.data.download import get
from rrcluster.data.federated import Cohort, FederatedData, TestSet
from rrcluster.data.images import ImageDataset
from rrcluster.data.rows import from_rows
from rrcluster.data.sources import SOURCES, check, list_sources
from rrcluster.data.synthetic import LinearProblem, linear_regression

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
    "from_rows",
    "get",
    "linear_regression",
    "list_sources",
    "load_dataset",
    "load_federated",
]
