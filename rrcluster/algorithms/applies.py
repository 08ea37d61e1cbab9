"""Which method goes with which mechanism and rebalancing; every other pair is refused with its reason."""

from rrcluster.algorithms import ALGORITHMS
from rrcluster.errors import ConfigError, PrivacyError

# Methods whose clients remember something from their own earlier rounds.
REMEMBERING = frozenset({"fedper", "mr-mtl", "fesem", "fesem-last", "fedcam-fesem"})

_MEMORY = (
    "its clients remember earlier rounds, and under fixed-size sampling one client's taking part shows in who else "
    "took part, hence in their memory, which the proof does not cover; use mechanism = joint, where memory is fine"
)


def check_applies(algorithm: str, mechanism: str, rebalance: str, min_cluster_size: int) -> None:
    """Raise where the combination has no guarantee (PrivacyError) or no meaning (ConfigError).

    | | joint | identifier | none |
    | --- | --- | --- | --- |
    | fedavg, fedprox | B = 0 | B = 0 | B = 0 |
    | fedper, mr-mtl | B = 0 | refused: memory | B = 0 |
    | ifca, ifca-shared, fedcam | none, coin, shrinkage | none, exact, shrinkage | none, exact |
    | fesem, fesem-last, fedcam-fesem | none, coin, shrinkage | refused: memory | none, exact |
    | oracle | none, shrinkage | none, shrinkage | none |
    | local | refused: releases nothing | refused | B = 0 |

    Rebalancings that a mechanism has no use for are refused by the plan itself.
    """
    if algorithm == "local" and mechanism != "none":
        raise PrivacyError(
            f"algorithm = local releases nothing, so mechanism = {mechanism} has nothing to do; use mechanism = none."
        )
    if algorithm in REMEMBERING and mechanism == "identifier":
        raise PrivacyError(f"algorithm = {algorithm} with mechanism = identifier: {_MEMORY}.")
    moves = rebalance in ("coin", "exact") or min_cluster_size > 0
    if moves and ALGORITHMS[algorithm].num_clusters(2) == 1:
        raise ConfigError(f"algorithm = {algorithm} has one model: there is nothing to rebalance; set B to 0.")
    if moves and algorithm == "oracle":
        raise ConfigError("algorithm = oracle is given the true clusters, which rebalancing would undo; set B to 0.")


def check_init(algorithm: str, init: str) -> None:
    """Raise where an initialisation other than `independent` has no meaning (ConfigError).

    | | kmeans++, warm |
    | --- | --- |
    | ifca, ifca-shared, fedcam, fesem, fesem-last, fedcam-fesem | yes |
    | fedavg, fedprox, fedper, mr-mtl, local | refused: one model |
    | oracle | refused: its clusters are given |

    Mechanism and rebalancing do not matter: the rounds of an initialisation are ordinary rounds. Methods that choose by
    distance do so here too, once a client remembers something; before that they choose by loss.
    """
    if init == "independent":
        return
    if ALGORITHMS[algorithm].num_clusters(2) == 1:
        raise ConfigError(
            f"algorithm = {algorithm} has one model, so init = {init} has none to tell apart; leave it out."
        )
    if algorithm == "oracle":
        raise ConfigError(
            f"algorithm = oracle is given the true clusters, so init = {init} has nothing to do; leave it out."
        )
