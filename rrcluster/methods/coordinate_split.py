"""The split of a model's coordinates: shared by all, clustered, or personal (never leaving the client)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.models.model import Model
from rrcluster.types import Array, Coordinates, Models


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of places in the flat parameter vector."""

    shared: Array  # indices
    clustered: Array
    personal: Array

    @classmethod
    def all_shared(cls, model: Model) -> "Split":
        """One model for everybody."""
        return cls(np.arange(model.num_parameters), _NONE, _NONE)

    @classmethod
    def all_clustered(cls, model: Model) -> "Split":
        """One whole model per cluster."""
        return cls(_NONE, np.arange(model.num_parameters), _NONE)

    @classmethod
    def with_head(cls, model: Model, *, head: str) -> "Split":
        """Everything below the model's last layer is shared; the last layer itself is `head`: clustered or personal."""
        last = model.head
        below = np.setdiff1d(np.arange(model.num_parameters), last)
        if not len(below):
            raise ConfigError(
                f"model {model.name} has a single layer, so nothing would be shared below its head; use a model with "
                "more layers, such as cnn."
            )
        return cls(below, last if head == "clustered" else _NONE, last if head == "personal" else _NONE)

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of a report."""
        return Coordinates(len(self.shared), len(self.clustered))

    @property
    def num_parameters(self) -> int:
        """d."""
        return len(self.shared) + len(self.clustered) + len(self.personal)

    def models(self, vectors: Array) -> Models:
        """k full vectors (k, d) as models; the shared part comes from the first one."""
        return Models(vectors[0, self.shared].astype(np.float64), vectors[:, self.clustered].astype(np.float64))

    def vectors(self, models: Models, clusters: Array | None = None) -> Array:
        """Full float32 vectors (n, d) for the given clusters (default: one per cluster); personal places are zero."""
        full = np.zeros((models.num_clusters, self.num_parameters), dtype=np.float32)
        shared, clustered = self._places
        full[:, shared], full[:, clustered] = models.shared, models.clustered
        return full if clusters is None else full[clusters]

    def report(self, change: Any) -> Any:
        """The reported part of a change: (n, d) -> (n, d_s + d_c), array or tensor.

        Personal coordinates are dropped.
        """
        return change if self._reported is None else change[:, self._reported]

    @cached_property
    def _places(self) -> tuple[Any, Any]:
        return _places(self.shared), _places(self.clustered)

    @cached_property
    def _reported(self) -> Array | None:
        """The reported places; None if these are all places in order."""
        places = np.concatenate([self.shared, self.clustered])
        return None if len(places) == self.num_parameters and (places[1:] > places[:-1]).all() else places


def _places(indices: Array) -> Any:
    """The indices, as a slice where they are consecutive, which makes copying several times faster."""
    if len(indices) and (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


_NONE = np.zeros(0, dtype=np.int64)
