"""Correlated noise, and rounds that are about to be released, as named arrays for the private part of a run folder."""

from typing import Any

import numpy as np

from rrcluster.privacy.correlation import PastNoise
from rrcluster.privacy.ledger import DrawnRound
from rrcluster.types import Models


def past_tensors(past: PastNoise | None) -> dict[str, Any]:
    """The noise that later rounds build on; nothing where there is none."""
    return {} if past is None else {"noise.round": np.array([past.round_index]), "noise.vectors": past.vectors}


def read_past(tensors: dict[str, Any]) -> PastNoise | None:
    """The inverse of `past_tensors`."""
    if "noise.vectors" not in tensors:
        return None
    return PastNoise(int(tensors["noise.round"][0]), tensors["noise.vectors"])


def drawn_tensors(drawn: DrawnRound) -> dict[str, Any]:
    """A round that is about to be charged and released."""
    round_and_sum = {"round": np.array([drawn.round_index]), "total": drawn.total}
    models = {"models.shared": drawn.models.shared, "models.clustered": drawn.models.clustered}
    return round_and_sum | models | past_tensors(drawn.past) | dict(drawn.memory)


def read_drawn(tensors: dict[str, Any]) -> DrawnRound:
    """The inverse of `drawn_tensors`."""
    past = read_past(tensors)
    if past is None:
        raise ValueError("a drawn round without its noise")
    memory = {name: values for name, values in tensors.items() if name.startswith("memory.")}
    models = Models(tensors["models.shared"], tensors["models.clustered"])
    return DrawnRound(int(tensors["round"][0]), tensors["total"], past, models, memory)
