"""FedAvg (McMahan et al. 2017): one model for everybody; the mean of the clients' updates moves it."""

from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Method, only_cluster

FEDAVG = Method("fedavg", split=Split.all_shared, scores=only_cluster, one_model=True)
