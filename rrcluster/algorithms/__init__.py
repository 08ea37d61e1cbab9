"""Federated methods, one short file each, and which mechanisms and rebalancings each may be used with."""

from rrcluster.algorithms.algorithm import Algorithm, Clients, Tools, Trained, names
from rrcluster.algorithms.baselines import LocalOnly, Oracle
from rrcluster.algorithms.fedavg import FedAvg
from rrcluster.algorithms.fedcam import FedCAM
from rrcluster.algorithms.fedper import FedPer
from rrcluster.algorithms.fedprox import FEDPROX
from rrcluster.algorithms.fesem import FeSEM
from rrcluster.algorithms.ifca import IFCA
from rrcluster.algorithms.mrmtl import MRMTL
from rrcluster.algorithms.r_dpcfl import RDPCFL

ALGORITHMS: dict[str, Algorithm] = names(
    [
        IFCA(),
        IFCA("ifca-shared", share_base=True),
        FeSEM(),
        FeSEM("fesem-last", last_layer=True),
        FedCAM(),
        FedCAM("fedcam-fesem", by_distance=True),
        RDPCFL(),
        FedAvg(),
        FEDPROX,
        FedPer(),
        MRMTL(),
        LocalOnly(),
        Oracle(),
    ]
)

__all__ = [
    "ALGORITHMS",
    "FEDPROX",
    "IFCA",
    "MRMTL",
    "RDPCFL",
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
