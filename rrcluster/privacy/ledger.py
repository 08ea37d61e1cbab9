"""The write-ahead ledger: a round is charged, and the charge is on disk, before its release is made.

A crash can therefore cost budget, never hide it. With seeded noise a repeated round reproduces the identical release,
so repeating a charged round is charged once.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.privacy.events import Event
from rrcluster.reading import plain_json, read_text


class Ledger:
    """Charges of one run, in memory and, where a path is given, on disk.

    The one object here with state: it only ever grows. A charge whose event differs from the first one's is refused,
    because the accountant composes one event.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open a ledger; an existing file is read back and goes on."""
        self._path = path
        self._charges: dict[int, dict[str, Any]] = {} if path is None or not path.exists() else _read(path)

    def charge(self, round_index: int, event: Event | None) -> None:
        """Record that round `round_index` is about to be released at the cost of `event` (None: nothing private).

        A selection among runs is one charge, of "round" 0, before the first of them.
        """
        entry = {"round": round_index, "event": None if event is None else describe(event)}
        if self._charges and next(iter(self._charges.values()))["event"] != entry["event"]:
            raise PrivacyError(
                f"round {round_index}: this run was already charged with another event; a plan may not change within "
                "a run. Start a new run."
            )
        if round_index in self._charges:
            return
        if self._path is not None:
            _append(self._path, entry)
        self._charges[round_index] = entry

    @property
    def num_charged(self) -> int:
        """How many rounds have been charged: what the accountant must compose."""
        return len(self._charges)

    def check_covers(self, num_rounds: int) -> None:
        """Refuse a ledger that lacks a charge for one of the first `num_rounds` rounds, which were released."""
        missing = next((index for index in range(num_rounds) if index not in self._charges), None)
        if missing is not None:
            raise RunFolderError(
                f"{self._path}: round {missing} was released but its charge is gone; the ledger is damaged and the "
                "budget spent is unknown. Start a new run."
            )


def describe(event: Event) -> dict[str, Any]:
    """An event as plain data, its adjacency and sampling beside its fields."""
    return {
        "type": type(event).__name__,
        **asdict(event),
        "adjacency": event.adjacency,
        "sampling": event.sampling,
    }


def _append(path: Path, entry: dict[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunFolderError(
            f"{path}: the charge could not be written ({error.strerror}), so the round was not released; free the disk "
            "or its permissions and resume."
        ) from error


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """Read charges back. A torn last line (a crash while writing) was charged but never released: it is dropped.

    Dropping it is safe: `charge` returns, and a release is made, only after the whole line is on disk.
    """
    try:
        text = read_text(path)
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(path, len(whole.encode()))
    except (OSError, ValueError) as error:
        raise _damaged(str(path)) from error
    charges: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(whole.split("\n")[:-1], start=1):
        charge = _charge(line)
        if charge is None or (charges and next(iter(charges.values()))["event"] != charge["event"]):
            raise _damaged(f"{path}, line {number}")
        charges[charge["round"]] = charge
    return charges


def _charge(line: str) -> dict[str, Any] | None:
    """What one line says, None if it is no charge."""
    try:
        entry = plain_json(line)
        round_index, event = entry["round"], entry["event"]
    except (ValueError, KeyError, TypeError):
        return None
    whole = isinstance(round_index, int) and not isinstance(round_index, bool) and round_index >= 0
    return {"round": round_index, "event": event} if whole else None


def _damaged(where: str) -> RunFolderError:
    return RunFolderError(
        f"{where}: not a charge like the others; the ledger is damaged, the budget spent unknown. Start a new run."
    )
