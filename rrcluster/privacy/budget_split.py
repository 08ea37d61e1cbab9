"""How a round's budget under `identifier` is split between identifiers and updates, and what each part then is."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.events import LOSS_RULES, REPLACE_ONE
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.identifier_noise import (
    AnyIdentifier,
    ByLossIdentifier,
    GaussianIdentifier,
    KaryIdentifier,
    ProjectionIdentifier,
    clear_choice_probability,
)
from rrcluster.privacy.profiles import keep_probability
from rrcluster.privacy.relation import identifier_sensitivity
from rrcluster.types import Coordinates

AUTO_SHARES = tuple(float(share) for share in np.linspace(0.05, 0.95, 91))


def split_budget(whole_round: float, *, identifier_share: float) -> tuple[float, float]:
    """(sigma_s, sigma_theta) whose fold is `whole_round`: 1/z^2 = 2/sigma_s^2 + 1/sigma_theta^2.

    `identifier_share` of 1/z^2 goes to the identifiers; 0.5 is the equal split.
    """
    checks.fraction(identifier_share=identifier_share)
    sensitivity = identifier_sensitivity(adjacency=REPLACE_ONE)
    identifier = math.inf if identifier_share == 0 else sensitivity * whole_round / math.sqrt(identifier_share)
    return identifier, whole_round / math.sqrt(1 - identifier_share)


def resolve_share(
    identifier_share: float | str, whole_round: Callable[[], float], *, num_clusters: int, **settings: Any
) -> float:
    """The share as a number: as given, or by `auto_share` at the noise `whole_round()` that is calibrated anyway."""
    if not isinstance(identifier_share, str):
        return checks.fraction(identifier_share=identifier_share)
    if identifier_share != "auto":
        raise ConfigError(f"identifier_share = {identifier_share!r} must be auto or a number from 0 to 1.")
    return auto_share(whole_round(), num_clusters=num_clusters, **settings) if num_clusters > 1 else 0.5


def make_identifier(kind: str, sigma_s: float, *, num_clusters: int, loss_bound: float) -> AnyIdentifier:
    """The identifier that stands where Gaussian noise of std `sigma_s` on one-hot choices would.

    `kary` keeps a choice as often as that. By loss, epsilon = 2 / z_s with z_s = sigma_s / sqrt(2): the exponential
    mechanism's zCDP, at most epsilon^2 / 8, is then at most the Gaussian's 1 / (2 z_s^2). `projection` has multiplier
    z_s itself. What any of them costs is up to its own event; this only says which ones are offered together.
    """
    z_s = sigma_s / identifier_sensitivity(adjacency=REPLACE_ONE)
    if kind in LOSS_RULES:
        return ByLossIdentifier(kind, 2 / z_s, loss_bound)
    if kind == "kary":
        return KaryIdentifier(keep_probability(sigma_s, num_clusters))
    return ProjectionIdentifier(z_s) if kind == "projection" else GaussianIdentifier(sigma_s)


def split_error(
    share: float,
    whole_round: float,
    *,
    kind: str,
    num_clusters: int,
    coordinates: Coordinates,
    cohort: int,
    rounds: int,
) -> float:
    """What `auto` minimises: squared bias from misassigned clients plus the updates' noise, in units of (2C)^2.

    tau^2 + (d_c k^2 + d_s) z^2 / (m^2 R (1 - share)): tau is the probability that even a clear choice is not kept, and
    those who are misassigned pull a cluster's mean away by at most 2C each; the noise of a mean of m / k clients
    averages over the R = T / 2 rounds whose models are handed out, and bias does not. Public quantities only.
    """
    sigma_s, sigma_theta = split_budget(whole_round, identifier_share=share)
    identifier = make_identifier(kind, sigma_s, num_clusters=num_clusters, loss_bound=1.0)
    misassigned = 1 - clear_choice_probability(identifier, num_clusters)
    width = coordinates.clustered * num_clusters**2 + coordinates.shared
    return misassigned**2 + width * sigma_theta**2 / (cohort**2 * max(1.0, rounds / 2))


def auto_share(
    whole_round: float, *, kind: str, num_clusters: int, coordinates: Coordinates, cohort: int, rounds: int
) -> float:
    """The share from 0.05 to 0.95, in steps of 0.01, with the least `split_error`; the smallest among equals."""
    settings: dict[str, Any] = {
        "kind": kind,
        "num_clusters": num_clusters,
        "coordinates": coordinates,
        "cohort": cohort,
        "rounds": rounds,
    }
    return min(AUTO_SHARES, key=lambda share: split_error(share, whole_round, **settings))


def identifier_maker(
    common: dict[str, Any], *, cohort_size: int, kind: str, identifier_share: float, loss_bound: float
) -> Callable[[float], IdentifierMechanism]:
    """Noise multiplier of the whole round -> the mechanism, its budget split by `identifier_share`."""
    k = common["num_clusters"]
    checks.positive(identifier_loss_bound=loss_bound)
    if k > 1 and identifier_share <= 0:
        raise PrivacyError(
            f"identifier_share = {identifier_share} leaves the choices unprotected; use a share between 0 and 1."
        )

    def make(whole_round: float) -> IdentifierMechanism:
        sigma_s, sigma_theta = split_budget(whole_round, identifier_share=identifier_share if k > 1 else 0.0)
        identifier = make_identifier(kind, sigma_s, num_clusters=k, loss_bound=loss_bound) if k > 1 else None
        return IdentifierMechanism(
            **common, noise_multiplier=sigma_theta, identifier=identifier, cohort_size=cohort_size
        )

    return make
