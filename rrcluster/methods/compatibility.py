"""Which method goes with which mechanism and rebalancing; every other pair is refused with its reason."""

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods import ALGORITHMS


def check_applies(algorithm: str, mechanism: str, min_cluster_size: int) -> None:
    """Raise where the combination has no guarantee (PrivacyError) or no meaning (ConfigError).

    | | joint | identifier | none |
    | --- | --- | --- | --- |
    | fedavg, fedprox | B = 0 | B = 0 | B = 0 |
    | fedper, mr-mtl | B = 0 | refused: memory | B = 0 |
    | ifca, ifca-shared, fedcam | coins | exact | exact |
    | fesem, fesem-last, fedcam-fesem | coins | refused: memory | exact |
    | oracle | B = 0 | B = 0 | B = 0 |
    | local | refused: releases nothing | refused | B = 0 |

    Memory is refused by the simulator, which knows the model and so how much a client remembers.
    """
    if algorithm == "local" and mechanism != "none":
        raise PrivacyError(
            f"algorithm = local releases nothing, so mechanism = {mechanism} has nothing to do; use mechanism = none."
        )
    if min_cluster_size and ALGORITHMS[algorithm].num_clusters(2) == 1:
        raise ConfigError(f"algorithm = {algorithm} has one model: there is nothing to rebalance; set B to 0.")
    if min_cluster_size and algorithm == "oracle":
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
        raise ConfigError(f"algorithm = {algorithm} has one model, so init = {init} has no effect; remove init.")
    if algorithm == "oracle":
        raise ConfigError(
            f"algorithm = oracle is given the true clusters, so init = {init} has no effect; remove init."
        )
