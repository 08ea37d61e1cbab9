"""IFCA (Ghosh et al. 2020): k models; a client belongs to the one with the least loss on its own data."""

from functools import partial

from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Method

IFCA = Method("ifca", chooses_by_loss=True)

# Weight sharing, section 5 of their paper: a shared base, and a last layer per cluster.
IFCA_SHARED = Method("ifca-shared", split=partial(Split.with_head, head="clustered"), chooses_by_loss=True)
