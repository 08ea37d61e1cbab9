"""Validation of clients' reports: the only code, with the mechanisms, that reads them raw.

Every report becomes a row of float64 numbers, or of float32 numbers if it was sent so (their values are the same, and
everything computed from them is float64), or zero; row by row, whatever its container and dtype. Stacking reports in
one array may change their common type, but no row's value.

A report that cannot be used (non-finite, wrong shape or dtype, cluster out of range) is marked invalid, and a second
one under the same id is left out; neither raises nor is ever described in a log: a hostile client must not stop the
round nor appear in an error text. Mistakes of the *caller* about the whole round (lengths that do not match) do raise,
without the number of reports: under Poisson sampling that number is private.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.clip import norms, norms_on_device
from rrcluster.privacy.slots import Slots
from rrcluster.types import Array


@dataclass(frozen=True)
class Reports:
    """The clients' reports of one round. Raw and private: only a mechanism reads them."""

    updates: Any = field(repr=False)  # (n, d_s + d_c): an array, a tensor, or a sequence of rows of any kind
    choices: Any = field(repr=False)  # (n,) clusters
    destinations: Any = field(default=None, repr=False)  # (n,) destinations of the coins; None: the choices
    client_ids: Any = field(default=None, repr=False)  # (n,) integers or texts; not distinct if one reports twice
    evaluations: Any = field(default=None, repr=False)  # (n, 2) accuracy, and loss as a share of the loss bound
    unique: bool = False  # the caller guarantees one report per client, without ids


def join_reports(parts: Sequence[Reports]) -> Reports:
    """The reports of all parts of a cohort, in order; there must be at least one part."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in ("updates", "choices", "destinations", "client_ids", "evaluations"):
        values = [as_numpy(getattr(part, name)) for part in parts]
        if all(isinstance(value, np.ndarray) for value in values):
            columns[name] = np.concatenate(values)
        elif not any(value is None for value in values):
            columns[name] = [row for value in values for row in value]
    return Reports(**columns)


@dataclass(frozen=True)
class MessageSum:
    """The exact sum of a round's messages, over any order and any parts. Raw: only for a mechanism."""

    total: Array = field(repr=False)  # in units of the messages' grid


@dataclass(frozen=True)
class NoisySum:
    """The sum of a round's messages with noise: all that a secure aggregation shows the server."""

    total: Array  # in units of the messages' grid


@dataclass(frozen=True)
class CheckedReports:
    """One round's reports after checking: invalid rows are zero in every field.

    Updates on a device come with their norms, and rows whose norm is not finite are not yet marked invalid:
    `with_norms` does that, once the sums have been fetched together with the norms.
    """

    updates: Any  # (n, d) float: numpy, or a torch tensor on its device
    choices: Array  # (n,) int64, the clients' clusters
    destinations: Array  # (n,) int64, the blocks of their updates
    valid: Array  # (n,) bool
    norms: Any  # (n,) float64, of the updates, on their device
    evaluations: Array  # (n, 2) accuracy and loss in [0, 1]

    def with_norms(self, norms: Array) -> "CheckedReports":
        """The same with these norms on the host: a row of infinite norm is invalid."""
        valid = self.valid & np.isfinite(norms)
        return CheckedReports(
            updates=_zero_unless(valid, self.updates),
            choices=np.where(valid, self.choices, 0),
            destinations=np.where(valid, self.destinations, 0),
            valid=valid,
            norms=np.where(valid, norms, 0.0),
            evaluations=np.where(valid[:, None], self.evaluations, 0.0),
        )

    def padded(self, length: int) -> "CheckedReports":
        """The same reports followed by invalid ones up to `length`: clients that dropped out."""
        after = (0, length - len(self.valid))
        columns = {name: np.pad(part, (after, *[(0, 0)] * (part.ndim - 1))) for name, part in vars(self).items()}
        return CheckedReports(**columns)


def check_distinct(reports: Reports) -> None:
    """Refuse reports without ids that are not declared unique: a client that reports twice would count twice."""
    if reports.client_ids is None and not reports.unique:
        raise PrivacyError(
            "a secure release needs client_ids, so that a client that reports twice counts once; give them, "
            "or unique=True if the transport guarantees one report per client."
        )


def only_from_slot(reports: Reports, slots: Slots, round_index: int) -> Reports:
    """The reports with an impossible choice, hence the zero message, wherever a client is not in the round's slot.

    Cohorts already respect the cap on participations; this enforces it where messages enter the sum.
    """
    if reports.client_ids is None:
        raise PrivacyError("a plan with slots needs client_ids: a client counts in the rounds of its slot alone.")
    ids = _one_each(reports.client_ids, "client_ids", "id", None)
    numbered = isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu"
    eligible = slots.of(ids if numbered else [_identity(client) for client in ids]) == round_index % slots.count
    if eligible.all():
        return reports
    choices = _one_each(reports.choices, "choices", "cluster", len(eligible))
    return replace(reports, choices=[choice if fits else -1 for choice, fits in zip(choices, eligible, strict=True)])


def check_reports(reports: Reports, *, width: int, num_clusters: int, on_device: bool = False) -> CheckedReports:
    """Turn raw reports into arrays, marking unusable ones.

    Of several reports with one client id the first is kept, valid or not, and the others are left out: one client is
    one row. Finite evaluations are clipped to [0, 1]; others make the report invalid. With `on_device` a torch tensor
    of updates stays on its device.
    """
    rows, usable = _rows(reports.updates, width, on_device=on_device)
    natural, known = _clusters(reports.choices, num_clusters, "choices", len(rows))
    target, reachable = (
        (natural, known)
        if reports.destinations is None
        else _clusters(reports.destinations, num_clusters, "destinations", len(rows))
    )
    judged, sensible = _evaluations(reports.evaluations, len(rows))
    valid = usable & known & reachable & sensible
    if (first := _first_of_each(reports.client_ids, len(rows))) is not None:
        natural, target, valid, judged = natural[first], target[first], valid[first], judged[first]
        rows = rows[first]
    rows, natural, target = _zero_unless(valid, rows), np.where(valid, natural, 0), np.where(valid, target, 0)
    if not isinstance(rows, np.ndarray):
        return CheckedReports(rows, natural, target, valid, norms_on_device(rows), judged)
    return CheckedReports(rows, natural, target, valid, 0.0, judged).with_norms(norms(rows))


def as_numpy(values: Any) -> Any:
    """A torch tensor as a numpy array on the host; anything else as it is. Types that numpy lacks become float32."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu().resolve_conj().resolve_neg()
    return (_exact_float(tensor) if tensor.is_floating_point() else tensor).numpy()


def _exact_float(table: Any) -> Any:
    """The same numbers as float32 or float64: float32 represents every shorter floating-point type exactly."""
    if isinstance(table, np.ndarray):
        return table if table.dtype in (np.float32, np.float64) else table.astype(np.float64)
    return table if str(table.dtype) in ("torch.float32", "torch.float64") else table.float()


def _zero_unless(valid: Array, rows: Any) -> Any:
    """The rows, with invalid ones set to zero."""
    if valid.all():
        return rows
    if isinstance(rows, np.ndarray):
        return np.where(valid[:, None], rows, 0.0)
    import torch

    return torch.where(torch.as_tensor(valid, device=rows.device)[:, None], rows, 0.0)


def _rows(updates: Any, width: int, name: str = "updates", *, on_device: bool = False) -> tuple[Any, Array]:
    stays = on_device and hasattr(updates, "detach") and _floating_table(updates)
    try:
        with np.errstate(over="ignore"):
            updates = _exact_float(updates.detach()) if stays else _unmasked(as_numpy(updates))
            updates = _exact_float(updates) if _floating_table(updates) else updates
    except Exception as error:  # such as a sparse tensor
        raise ConfigError(f"{name} must be a dense array, a tensor or a sequence of rows.") from error
    if _floating_table(updates):
        if updates.shape[1] != width:
            raise ConfigError(
                f"{name} have {updates.shape[1]} coordinates, the plan has {width}; see plan.coordinates."
            )
        return updates, np.ones(len(updates), dtype=bool)
    if not _listed(updates):
        raise ConfigError(f"{name} must be an (n, {width}) array or a sequence of rows, not {type(updates).__name__}.")
    rows, usable = np.zeros((len(updates), width)), np.zeros(len(updates), dtype=bool)
    for place, update in enumerate(updates):
        row = _numbers(update)
        if row is not None and row.shape == (width,):
            rows[place], usable[place] = row, True
    return rows, usable


def _unmasked(values: Any) -> Any:
    """A plain array; masked entries become None."""
    if isinstance(values, np.ma.MaskedArray):
        plain = np.array(values.data, dtype=object)
        plain[np.ma.getmaskarray(values)] = None
        return plain
    return np.asarray(values) if isinstance(values, np.ndarray) else values


def _evaluations(values: Any, length: int) -> tuple[Array, Array]:
    if values is None:
        return np.zeros((length, 2)), np.ones(length, dtype=bool)
    rows, usable = _rows(values, 2, "evaluations")
    if len(rows) != length:
        raise ConfigError("evaluations must hold one pair per update; give as many as there are updates.")
    finite = usable & np.isfinite(rows).all(axis=1)
    return np.clip(np.where(finite[:, None], rows, 0.0).astype(np.float64), 0.0, 1.0), finite


def _clusters(values: Any, num_clusters: int, name: str, length: int) -> tuple[Array, Array]:
    values = _one_each(values, name, "cluster", length)
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values, (values >= 0) & (values < num_clusters)
    clusters, known = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=bool)
    for place, value in enumerate(values):
        cell = _numbers(value)
        if cell is not None and cell.shape == () and 0 <= cell < num_clusters and cell == np.floor(cell):
            clusters[place], known[place] = int(cell), True
    return clusters, known


def _first_of_each(client_ids: Any, length: int) -> Array | None:
    """Places of the first report under each id, in order; None where ids are missing, or all differ.

    Integers are the same id whatever their type; a text is a different id than the number it spells, so nobody shadows
    another. Ids must be authenticated by the caller: a client that can claim another's can silence it.
    """
    if client_ids is None:
        return None
    ids = _one_each(client_ids, "client_ids", "id", length)
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.ndim == 1 and len(np.unique(ids)) == length:
        return None
    first: dict[int | str | bytes, int] = {}
    for place, value in enumerate(ids):
        first.setdefault(_identity(value), place)
    return np.fromiter(first.values(), dtype=np.int64, count=len(first))


def _identity(value: Any) -> int | str | bytes:
    """The canonical form of an id, the same for every type it may have."""
    if type(value) is str or type(value) is int:  # nearly always, and once for each client of a round
        return value
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise ConfigError("client_ids must be whole numbers or texts; give each client one.")


def _floating_table(updates: Any) -> bool:
    """Whether this is an (n, d) array or tensor of floating-point numbers."""
    if isinstance(updates, np.ndarray):
        return updates.dtype.kind == "f" and updates.ndim == 2
    return hasattr(updates, "detach") and bool(updates.is_floating_point()) and updates.ndim == 2


def _listed(values: Any) -> bool:
    """Whether this is a sequence of values."""
    if isinstance(values, Sequence):
        return not isinstance(values, (str, bytes))
    return isinstance(values, np.ndarray) and values.ndim > 0


def _one_each(values: Any, name: str, what: str, length: int | None) -> Any:
    """A sequence of `length` values, one per update; ConfigError for any other input."""
    values = _unmasked(as_numpy(values))
    if not _listed(values) or length not in (None, len(values)):
        raise ConfigError(f"{name} must hold one {what} per update; give as many as there are updates.")
    return values


def _numbers(value: Any) -> Array | None:
    """A client's numbers as float64, or None. They must neither stop the round nor appear in an error.

    A number has the same value whatever type the caller's stacking gave it: a boolean, an integer, a complex number
    without imaginary part, an object or a text. One client's odd value must not make the others' unusable.
    """
    try:
        with np.errstate(all="ignore"):
            cell = np.asarray(as_numpy(value))
            if cell.dtype.kind in "fiub":
                return cell.astype(np.float64)
            if cell.dtype.kind in "cOUS":
                return np.array([_number(entry) for entry in cell.ravel().tolist()], dtype=np.float64).reshape(
                    cell.shape
                )
            return None
    except Exception:  # a hostile object may raise anything
        return None


_TRUTH = {"True": 1.0, "False": 0.0}


def _number(entry: Any) -> float:
    """One number as a float; raises for anything else."""
    if isinstance(entry, (complex, np.complexfloating)):
        if entry.imag != 0:
            raise ValueError
        return float(entry.real)
    if isinstance(entry, (str, bytes)):
        text = entry.decode() if isinstance(entry, bytes) else entry
        return _TRUTH[text] if text in _TRUTH else float(text)
    return float(entry)
