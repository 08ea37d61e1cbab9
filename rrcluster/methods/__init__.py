"""Federated methods, one short file each. A name is added with `rrcluster.register("method", ...)`."""

from collections.abc import Iterator, Mapping

from rrcluster import registry
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.methods.baselines import LOCAL, ORACLE
from rrcluster.methods.fedavg import FEDAVG
from rrcluster.methods.fedcam import FEDCAM, FEDCAM_FESEM
from rrcluster.methods.fedper import FEDPER, FEDPER_MEMORYLESS
from rrcluster.methods.fedprox import FEDPROX
from rrcluster.methods.fesem import FESEM, FESEM_LAST, FESEM_MEMORYLESS
from rrcluster.methods.ifca import IFCA, IFCA_SHARED
from rrcluster.methods.method import Clients, Method, Tools, Trained
from rrcluster.methods.mixed_effects import MIXED_EFFECTS
from rrcluster.methods.mrmtl import MRMTL

_CLUSTERED = (IFCA, IFCA_SHARED, FESEM, FESEM_LAST, FESEM_MEMORYLESS, FEDCAM, FEDCAM_FESEM)
_ALL = (*_CLUSTERED, FEDAVG, FEDPROX, FEDPER, FEDPER_MEMORYLESS, MIXED_EFFECTS, MRMTL, LOCAL, ORACLE)
OURS: dict[str, Method] = {method.name: method for method in _ALL}


class _Registered(Mapping[str, Method]):
    """Every method by name, built-in or registered."""

    def __getitem__(self, name: str) -> Method:
        """The method; KeyError for an unknown name."""
        if name not in registry.METHODS:
            raise KeyError(name)
        method: Method = registry.METHODS.load(name)
        return method

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        return iter(registry.METHODS)

    def __len__(self) -> int:
        """The number of methods."""
        return sum(1 for _ in registry.METHODS)


METHODS: Mapping[str, Method] = _Registered()
"""Every method by name: ours, and those that were registered."""

__all__ = ["METHODS", "OURS", "Clients", "Method", "Tools", "Trained"]


def check_applies(method: Method, mechanism: str, min_cluster_size: int) -> None:
    """Raise where the combination has no guarantee (PrivacyError) or no meaning (ConfigError).

    | | joint | identifier | none |
    | --- | --- | --- | --- |
    | fedavg, fedprox | B = 0 | B = 0 | B = 0 |
    | fedper | B = 0 | memoryless | B = 0 |
    | mr-mtl | B = 0 | refused: memory | B = 0 |
    | fedper-memoryless | B = 0 | B = 0 | B = 0 |
    | ifca, ifca-shared, fedcam | coins | exact | exact |
    | fesem | coins | memoryless | exact |
    | fesem-memoryless | coins | exact | exact |
    | fesem-last, fedcam-fesem | coins | refused: memory | exact |
    | mixed-effects | B = 0 | refused: sums | B = 0 |
    | oracle | B = 0 | B = 0 | B = 0 |
    | local | refused: releases nothing | refused | B = 0 |

    Memory is refused by the simulator, which knows the model and so how much a client remembers; a config takes the
    memoryless form of a method by itself, where there is one.
    """
    if not method.reports and mechanism != "none":
        raise PrivacyError(
            f"algorithm = {method.name} releases nothing, so mechanism = {mechanism} has nothing to do; use mechanism "
            "= none."
        )
    if method.asks and mechanism not in ("joint", "none"):
        raise ConfigError(
            f"algorithm = {method.name} needs the sum of a cohort's answers, which mechanism = {mechanism} "
            "does not release; use mechanism = joint."
        )
    if min_cluster_size and method.one_model:
        raise ConfigError(f"algorithm = {method.name} has one model: there is nothing to rebalance; set B to 0.")
    if min_cluster_size and not method.compares_models:
        raise ConfigError(
            f"algorithm = {method.name} is given the true clusters, which rebalancing would undo; set B to 0."
        )


def check_init(method: Method, init: str, mechanism: str = "joint", min_cluster_size: int = 0) -> None:
    """Raise where a survey has no meaning (ConfigError): it opens clusters for methods that choose by loss only."""
    if init != "survey":
        return
    if method.one_model:
        raise ConfigError(f"algorithm = {method.name} has one model, so init = {init} has no effect; remove init.")
    if not method.compares_models:
        raise ConfigError(f"algorithm = {method.name} is given its clusters, so init = {init} does nothing; remove it.")
    if mechanism == "identifier":
        raise ConfigError(
            "init = survey sums answers by the clients' own choices, but mechanism = identifier moves "
            "clients at random; use mechanism = joint, or another init."
        )
    if min_cluster_size:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} would fill clusters that init = survey keeps closed; set B to "
            "0, or use another init."
        )
    if not method.chooses_by_loss:
        raise ConfigError(
            "init = survey only works for methods whose clients choose by loss, unlike algorithm = "
            f"{method.name}; use ifca, or another init."
        )


def allows_survey(method: Method, mechanism: str, min_cluster_size: int) -> bool:
    """Whether `init = survey` has a meaning."""
    try:
        check_init(method, "survey", mechanism, min_cluster_size)
    except ConfigError:
        return False
    return True
