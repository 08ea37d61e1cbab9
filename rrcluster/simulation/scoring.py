"""What clients tell beside update and choice, where identifiers read it: their losses, or a projection of an update."""

from dataclasses import replace
from typing import Any

import numpy as np

from rrcluster.clusters.choice import FAR
from rrcluster.errors import ConfigError
from rrcluster.methods.method import Algorithm, Clients, Tools, projects
from rrcluster.privacy.identifier_noise import ByLossIdentifier, ProjectionIdentifier
from rrcluster.types import Array

Mechanism = Any  # a mechanism, or what stands for one in an audit


def check_scores(algorithm: Algorithm, mechanism: Mechanism) -> None:
    """Refuse identifiers that read what the method does not have."""
    identifier = getattr(mechanism, "identifier", None)
    if isinstance(identifier, ByLossIdentifier) and not algorithm.explores:
        raise ConfigError(
            f"identifier = {identifier.rule} draws a cluster by the client's losses, and the scores of algorithm = "
            f"{algorithm.name} are not losses; use identifier = kary or gaussian, or a method that chooses by loss."
        )
    if isinstance(identifier, ProjectionIdentifier) != (projects(algorithm) and identifier is not None):
        raise ConfigError(
            f"algorithm = {algorithm.name} with {type(identifier).__name__}: projections are made by r-dpcfl and read "
            "by identifier = projection; use both or neither."
        )


def with_projections(clients: Clients, algorithm: Algorithm, mechanism: Mechanism, *, tools: Tools) -> Clients:
    """The clients with their projections, where identifiers read them."""
    if projects(algorithm) and _reads(mechanism):
        return replace(clients, projections=algorithm.project(clients, tools=tools))
    return clients


def told_scores(scores: Array, clients: Clients, mechanism: Mechanism) -> Array | None:
    """(n, w) what the identifiers read: projections, or the guided losses that the choice was made from; or None."""
    if not _reads(mechanism):
        return None
    if clients.projections is not None:
        return clients.projections
    return np.where(np.isfinite(scores), scores, FAR)  # a model that diverged is a bad one, not a broken report


def _reads(mechanism: Mechanism) -> bool:
    return bool(getattr(mechanism, "score_width", 0))
