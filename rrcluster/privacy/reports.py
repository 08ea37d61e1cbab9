"""Check what clients sent. The only code, with the mechanisms, that reads raw reports.

A report that cannot be used (non-finite, wrong shape or dtype, cluster out of range) is marked invalid, and a second
one under the same id is left out; neither raises nor is ever described in a log: what a hostile client sends must not
stop the round nor show in an error text. What the *caller* gets wrong for the whole round (lengths that do not match)
does raise, without saying how many reports there are: under Poisson sampling that number is private.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError
from rrcluster.privacy.clip import norms
from rrcluster.types import Array


@dataclass(frozen=True)
class Reports:
    """One round's reports after checking: invalid rows are zero in every field."""

    updates: Array  # (n, d) float
    choices: Array  # (n,) int64, where the client says it belongs
    destinations: Array  # (n,) int64, the block its update goes to
    valid: Array  # (n,) bool

    def padded(self, length: int) -> "Reports":
        """The same reports followed by invalid ones up to `length`: clients that dropped out."""
        missing = length - len(self.valid)
        return Reports(
            updates=np.pad(self.updates, ((0, missing), (0, 0))),
            choices=np.pad(self.choices, (0, missing)),
            destinations=np.pad(self.destinations, (0, missing)),
            valid=np.pad(self.valid, (0, missing)),
        )


def check_reports(
    updates: Any,
    choices: Any,
    *,
    width: int,
    num_clusters: int,
    destinations: Any = None,
    client_ids: Any = None,
) -> Reports:
    """Turn raw reports into arrays, marking those that cannot be used.

    `updates` is an (n, width) numpy or torch array, or a sequence of n rows of any kind; `choices` n cluster numbers;
    `destinations` where updates go when a coin moved the client (default: the choice). Of several reports with one
    client id the first is kept, valid or not, and the others are left out: one client is one row.
    """
    rows, usable = _rows(updates, width)
    natural, known = _clusters(choices, num_clusters, "choices", len(rows))
    target, reachable = (
        (natural, known) if destinations is None else _clusters(destinations, num_clusters, "destinations", len(rows))
    )
    valid = usable & known & reachable
    if (kept := _first_of_each(client_ids, len(rows))) is not None:
        rows, natural, target, valid = rows[kept], natural[kept], target[kept], valid[kept]
    valid &= np.isfinite(norms(np.where(valid[:, None], rows, 0.0)))
    return Reports(
        updates=np.where(valid[:, None], rows, 0.0),
        choices=np.where(valid, natural, 0),
        destinations=np.where(valid, target, 0),
        valid=valid,
    )


def as_numpy(values: Any) -> Any:
    """A torch tensor as a numpy array on the host, bfloat16 (which numpy lacks) as float32; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _rows(updates: Any, width: int) -> tuple[Array, Array]:
    updates = as_numpy(updates)
    if isinstance(updates, np.ndarray) and updates.dtype.kind == "f" and updates.ndim == 2:
        if updates.shape[1] != width:
            raise ConfigError(
                f"updates have {updates.shape[1]} coordinates, the plan has {width}; see plan.coordinates."
            )
        return updates, np.ones(len(updates), dtype=bool)
    if not _listed(updates):
        raise ConfigError(f"updates must be an (n, {width}) array or a sequence of rows, not {type(updates).__name__}.")
    rows, usable = np.zeros((len(updates), width)), np.zeros(len(updates), dtype=bool)
    for place, update in enumerate(updates):
        row = _array(update)
        if row is not None and row.shape == (width,) and row.dtype.kind in "fiu":
            with np.errstate(over="ignore"):  # a wider float that does not fit becomes infinite, hence invalid
                rows[place], usable[place] = row, True
    return rows, usable


def _clusters(values: Any, num_clusters: int, name: str, length: int) -> tuple[Array, Array]:
    values = as_numpy(values)
    if not _listed(values) or len(values) != length:
        raise ConfigError(f"{name} must hold one cluster per update; give as many as there are updates.")
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values, (values >= 0) & (values < num_clusters)
    clusters, known = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=bool)
    for place, value in enumerate(values):
        cell = _array(value)
        if cell is not None and cell.shape == () and cell.dtype.kind in "iu" and 0 <= cell < num_clusters:
            clusters[place], known[place] = cell, True
    return clusters, known


def _first_of_each(client_ids: Any, length: int) -> Array | None:
    """Places of the first report under each id, in order; None where ids are not given."""
    if client_ids is None:
        return None
    ids = as_numpy(client_ids)
    if not _listed(ids) or len(ids) != length:
        raise ConfigError("client_ids must hold one id per update; give as many as there are updates.")
    first: dict[str, int] = {}
    for place, value in enumerate(ids):
        first.setdefault(str(value), place)
    return np.fromiter(first.values(), dtype=np.int64, count=len(first))


def _listed(values: Any) -> bool:
    """Whether these are several values in order."""
    if isinstance(values, Sequence):
        return not isinstance(values, (str, bytes))
    return isinstance(values, np.ndarray) and values.ndim > 0


def _array(value: Any) -> Array | None:
    try:
        return np.asarray(as_numpy(value))
    except Exception:  # whatever a client sent, it is one invalid report and not the end of the round
        return None
