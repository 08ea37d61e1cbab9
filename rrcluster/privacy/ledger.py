"""The write-ahead ledger: a round is charged, and the charge is on disk, before its release is made.

A crash can therefore cost budget, never hide it. What a repeated round costs depends on the noise:

- seeded: the repeat reproduces the identical release, so it is charged once. It is refused where the release could come
  out different (another version, machine or device): the noise would be the same, and the difference of two releases
  with the same noise is raw values. Charging twice would not make that private.
- secure: the repeat has fresh noise; it is a new release and is charged again.
- secure with slots, where noise is correlated over rounds: a round is written down, privately, before its charge
  (server/slotted_rounds.py). The repeat is the identical release, and is charged once.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.events import EVENTS, Choice, Event, RoundEvent
from rrcluster.storage import WAY_OUT, append_line, drop_torn_line, read_json_lines

_PARTS = (*get_args(RoundEvent), *get_args(Choice))  # of an event that has parts
_CORRUPT = "The ledger is corrupt, so the privacy budget spent is unknown; start a new run."


class Ledger:
    """Charges of one run, in memory and, where a path is given, on disk.

    The one object here with state: it only ever grows. A charge whose event differs from the first one's is refused,
    because the accountant composes one event; a charge beyond `limit` is refused because the budget ends there.
    `made_by` is everything releases depend on beside the round; its entry "config" may not change within a run.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        secure: bool = False,
        limit: int | None = None,
        made_by: Mapping[str, Any] | None = None,
        stored: bool = False,
    ) -> None:
        """Open a ledger; charges are added to those of an existing file.

        `stored`: rounds are saved before they are charged, and repeated from there.
        """
        self._path, self._secure, self._limit, self._made_by = path, secure, limit, dict(made_by or {})
        self._stored = stored
        self._event: Event | None = None
        self._cost: dict[str, Any] | None = None
        self._charges: list[dict[str, Any]] = []
        if path is not None and os.path.lexists(path):
            _drop_torn_charge(path)
            self._charges = read_charges(path)
        self._rounds = {charge["round"] for charge in self._charges}
        for charge in self._charges:
            self._check_event(charge["event"])
            if charge["made_by"].get("config") != self._made_by.get("config"):
                raise PrivacyError(
                    f"{path}: the settings have changed since round {charge['round']} was charged. A run's settings "
                    "may not change; restore them, or start a new run in another folder."
                )

    def charge(self, round_index: int, event: Event | None) -> None:
        """Record that round `round_index` is about to be released at the cost of `event` (None: nothing private).

        A selection among runs is one charge, of "round" 0, before the first of them.
        """
        if event != self._event:  # the same in every round
            self._event, self._cost = event, None if event is None else describe(event)
        cost = self._cost
        self._check_event(cost)
        if self._stored and round_index in self._rounds:
            return
        if not self._secure and round_index in self._rounds:
            self._check_repeat(round_index)
            return
        if not self.affords(round_index):
            raise PrivacyError(
                f"round {round_index} would be release {self.num_charged + 1}, but the budget covers {self._limit}; "
                "stop here, or start a new run with a new budget."
            )
        self._append({"round": round_index, "event": cost, "made_by": self._made_by})

    @property
    def secure(self) -> bool:
        """Whether a repeated round is a new release, with fresh noise, and charged again."""
        return self._secure

    @property
    def repeats_exactly(self) -> bool:
        """Whether a repeated round is the identical release, and is charged once."""
        return self._stored or not self._secure

    def charged(self, round_index: int) -> bool:
        """Whether the round was charged before."""
        return round_index in self._rounds

    @property
    def last_round(self) -> int:
        """The latest round charged, -1 before the first."""
        return max(self._rounds, default=-1)

    def times_charged(self, round_index: int) -> int:
        """The number of charges of the round: more than one if it failed, or the process died, after a charge."""
        return sum(charge["round"] == round_index for charge in self._charges)

    def affords(self, round_index: int, *, limit: int | None = None) -> bool:
        """Whether the round can be released within the limits; an exact repeat costs nothing."""
        limits = [value for value in (limit, self._limit) if value is not None]
        free = self.repeats_exactly and round_index in self._rounds
        return free or not limits or self.num_charged < min(limits)

    @property
    def num_charged(self) -> int:
        """The number of charged releases, of those that the plan allows."""
        return len(self._charges) if self._secure else len(self._rounds)

    def _check_event(self, cost: dict[str, Any] | None) -> None:
        for charge in self._charges[:1]:
            if charge["event"] != cost:
                raise PrivacyError(
                    f"round {charge['round']} was charged for a different event. A run's privacy plan may not change; "
                    "start a new run."
                )

    def _check_repeat(self, round_index: int) -> None:
        (first, *_) = (charge for charge in self._charges if charge["round"] == round_index)
        then, now = first["made_by"], self._made_by
        changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
        if changed:
            changes = ", ".join(f"{name}: {then.get(name)} -> {now.get(name)}" for name in changed)
            raise PrivacyError(
                f"round {round_index} was already charged. Running it again on a different setup ({changes}) would add "
                "the same noise to different sums and reveal their difference. Resume on the original setup, or start "
                "a new run."
            )

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is not None:
            try:
                append_line(self._path, json.dumps(entry))
            except OSError as error:
                raise RunFolderError(
                    f"{self._path}: the charge could not be written ({error.strerror}), so the round was not released. "
                    "Free some disk space or fix the permissions, then resume."
                ) from error
        self._charges.append(entry)
        self._rounds.add(entry["round"])

    def check_model(self) -> None:
        """Refuse to continue a run with another network than it was started with."""
        started = [charge["made_by"].get("model") for charge in self._charges[:1]]
        now = self._made_by.get("model")
        if started not in ([], [None], [now]):
            raise RunFolderError(
                f"{self._path}: the run was started with another model (its layers, weights or loss, digest "
                f"{started[0]}, now {now}); resume with the model that it was started with, or start a new run."
            )


def describe(event: Event) -> dict[str, Any]:
    """An event as plain data, its adjacency and sampling beside its fields."""
    return {"type": type(event).__name__, **asdict(event), "adjacency": event.adjacency, "sampling": event.sampling}


def read_event(described: Any, path: Path) -> Event:
    """The inverse of `describe`; RunFolderError where describing the event again gives a different result."""
    try:
        (kind,) = (kind for kind in EVENTS if kind.__name__ == described["type"])
        event: Event = kind(**{part.name: _part(described[part.name]) for part in fields(kind)})
        if describe(event) == described:
            return event
    except (KeyError, TypeError, ValueError):
        pass
    raise RunFolderError(f"{path}: its event is damaged or of an unknown kind, so its cost is unknown. {WAY_OUT}")


def _part(value: Any) -> Any:
    """A number or a name as it is; a mapping as the event part with these fields."""
    if not isinstance(value, dict):
        return value
    (kind,) = (kind for kind in _PARTS if {part.name for part in fields(kind)} == set(value))
    return kind(**{name: _part(inner) for name, inner in value.items()})


def read_charges(path: Path) -> list[dict[str, Any]]:
    """The charges of a file. A torn last line (a crash while writing) was never released, and does not count.

    Leaving it out is safe: `charge` returns, and a release is made, only after the whole line is on disk.
    """
    charges: list[dict[str, Any]] = []
    for number, entry in enumerate(read_json_lines(path, damaged="refuse", way_out=_CORRUPT), start=1):
        charge = _charge(entry)
        if charge is None or (charges and charges[0]["event"] != charge["event"]):
            raise RunFolderError(f"{path}, charge {number}: invalid entry. {_CORRUPT}")
        charges.append(charge)
    return charges


def _drop_torn_charge(path: Path) -> None:
    try:
        drop_torn_line(path)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error


def _charge(entry: dict[str, Any]) -> dict[str, Any] | None:
    """The charge in one line of the file, if there is one."""
    try:
        round_index, event, made_by = entry["round"], entry["event"], dict(entry.get("made_by") or {})
    except (ValueError, KeyError, TypeError):
        return None
    whole = isinstance(round_index, int) and not isinstance(round_index, bool) and round_index >= 0
    return {"round": round_index, "event": event, "made_by": made_by} if whole else None
