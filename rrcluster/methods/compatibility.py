"""Which method goes with which mechanism and rebalancing; every other pair is refused with its reason."""

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods import ALGORITHMS
from rrcluster.privacy.events import LOSS_RULES

# Methods whose clients remember something from their own earlier rounds.
REMEMBERING = frozenset({"fedper", "mr-mtl", "fesem", "fesem-last", "fedcam-fesem"})

_MEMORY = (
    "its clients remember earlier rounds, and under fixed-size sampling one client's taking part shows in who else "
    "took part, hence in their memory, which the proof does not cover; use mechanism = joint, where memory is fine"
)

_ROWS = {
    "joint": "it releases one noisy row per client, and under add-remove the number of rows itself tells; use "
    "mechanism = identifier",
    "none": "its server clusters rows by their known noise, and there is none; use mechanism = identifier with a large "
    "epsilon, or ifca",
}


def check_applies(
    algorithm: str, mechanism: str, rebalance: str, min_cluster_size: int, *, identifier: str = "gaussian"
) -> None:
    """Raise where the combination has no guarantee (PrivacyError) or no meaning (ConfigError).

    | | joint | identifier | none |
    | --- | --- | --- | --- |
    | fedavg, fedprox | B = 0 | B = 0 | B = 0 |
    | fedper, mr-mtl | B = 0 | refused: memory | B = 0 |
    | ifca, ifca-shared, fedcam | none, coin, shrinkage | none, exact, shrinkage | none, exact |
    | fesem, fesem-last, fedcam-fesem | none, coin, shrinkage | refused: memory | none, exact |
    | r-dpcfl | refused: needs per-client rows | none, exact, shrinkage | refused: no noise to cluster through |
    | oracle | none, shrinkage | none, shrinkage | none |
    | local | refused: releases nothing | refused | B = 0 |

    `identifier` by loss goes with methods whose scores are losses (or that have nothing to choose), `projection` with
    r-dpcfl alone. Rebalancings that a mechanism has no use for are refused by the plan itself.
    """
    if algorithm == "local" and mechanism != "none":
        raise PrivacyError(
            f"algorithm = local releases nothing, so mechanism = {mechanism} has nothing to do; use mechanism = none."
        )
    if algorithm in REMEMBERING and mechanism == "identifier":
        raise PrivacyError(f"algorithm = {algorithm} with mechanism = identifier: {_MEMORY}.")
    check_identifier(algorithm, mechanism, identifier)
    moves = rebalance in ("coin", "exact") or min_cluster_size > 0
    if moves and ALGORITHMS[algorithm].num_clusters(2) == 1:
        raise ConfigError(f"algorithm = {algorithm} has one model: there is nothing to rebalance; set B to 0.")
    if moves and algorithm == "oracle":
        raise ConfigError("algorithm = oracle is given the true clusters, which rebalancing would undo; set B to 0.")


def check_identifier(algorithm: str, mechanism: str, identifier: str) -> None:
    """Raise where these identifiers read what the method does not have, or the other way round."""
    if algorithm == "r-dpcfl" and mechanism != "identifier":
        raise PrivacyError(f"algorithm = r-dpcfl with mechanism = {mechanism}: {_ROWS[mechanism]}.")
    if mechanism != "identifier":
        return
    if (algorithm == "r-dpcfl") != (identifier == "projection"):
        raise ConfigError(
            f"algorithm = {algorithm} with identifier = {identifier}: r-dpcfl is the method that clusters clients by "
            "private projections of their updates, and no other makes them; use both (identifier = projection) or "
            "neither."
        )
    chooses = ALGORITHMS[algorithm].num_clusters(2) > 1
    if identifier in LOSS_RULES and chooses and not ALGORITHMS[algorithm].explores:
        raise ConfigError(
            f"identifier = {identifier} draws a cluster by the client's losses, and the scores of algorithm = "
            f"{algorithm} are not losses; use identifier = kary or gaussian, or a method that chooses by loss (ifca)."
        )


def check_init(algorithm: str, init: str) -> None:
    """Raise where an initialisation other than `independent` has no meaning (ConfigError).

    | | kmeans++, warm |
    | --- | --- |
    | ifca, ifca-shared, fedcam, fesem, fesem-last, fedcam-fesem | yes |
    | fedavg, fedprox, fedper, mr-mtl, local | refused: one model |
    | oracle | refused: its clusters are given |
    | r-dpcfl | refused: its server makes the clusters |

    Mechanism and rebalancing do not matter: the rounds of an initialisation are ordinary rounds. Methods that choose by
    distance do so here too, once a client remembers something; before that they choose by loss.
    """
    if init == "independent":
        return
    if ALGORITHMS[algorithm].num_clusters(2) == 1:
        raise ConfigError(
            f"algorithm = {algorithm} has one model, so init = {init} has none to tell apart; leave it out."
        )
    if algorithm == "r-dpcfl":
        raise ConfigError(
            f"algorithm = r-dpcfl clusters clients on the server, so init = {init} has nothing to do; leave it out."
        )
    if algorithm == "oracle":
        raise ConfigError(
            f"algorithm = oracle is given the true clusters, so init = {init} has nothing to do; leave it out."
        )
