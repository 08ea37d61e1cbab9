"""FedProx (Li et al. 2020): FedAvg whose clients are held near the server's model while they train.

Local objective F_i(w) + (mu / 2) ||w - w_t||^2; mu is the setting `proximal`, 0.01 unless given.
"""

from rrcluster.methods.fedavg import FedAvg

FEDPROX = FedAvg("fedprox", proximal=0.01)
