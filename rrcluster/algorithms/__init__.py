"""Federated methods, one short file each."""

from rrcluster.algorithms.algorithm import Algorithm
from rrcluster.algorithms.fedavg import FedAvg
from rrcluster.algorithms.ifca import IFCA

ALGORITHMS: dict[str, Algorithm] = {"fedavg": FedAvg(), "ifca": IFCA()}

__all__ = ["ALGORITHMS", "IFCA", "Algorithm", "FedAvg"]
