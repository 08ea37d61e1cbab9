"""Federated methods, one short file each, and which mechanisms and rebalancings each may be used with."""

from rrcluster.methods.baselines import LocalOnly, Oracle
from rrcluster.methods.fedavg import FedAvg
from rrcluster.methods.fedcam import FedCAM
from rrcluster.methods.fedper import FedPer
from rrcluster.methods.fedprox import FEDPROX
from rrcluster.methods.fesem import FeSEM
from rrcluster.methods.ifca import IFCA
from rrcluster.methods.method import Algorithm, Clients, Tools, Trained, names
from rrcluster.methods.mrmtl import MRMTL
from rrcluster.methods.r_dpcfl import RDPCFL

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
