"""A member's own write-ahead ledger: which attempts it joined, and in which it revealed.

A server that is not trusted cannot be a client's accountant. The ledger is on the client's disk, spans federations, and
is written before anything leaves the client. It refuses an attempt that was joined before (a replay, or a daemon that
died in it and lost its secrets) and more reveals than the federation's plan has releases.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rrcluster.errors import PrivacyError, ProtocolError, RunFolderError
from rrcluster.storage import append_line, drop_torn_line, explain_write, make_folders, read_json_lines

_WAY_OUT = "the budget spent is unknown; restore the file from a copy, or leave the federation."


class ClientLedger:
    """Attempts of one member, on disk. It only ever grows."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or start one."""
        make_folders(path.parent)
        self._path = path
        if path.exists():
            drop_torn_line(path)
        lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT) if path.exists() else []
        self._joined = {_entry(path, line) for line in lines if "joined" in line}
        self._revealed = Counter(_entry(path, line)[0] for line in lines if "revealed" in line)

    def revealed(self, federation: bytes) -> int:
        """Releases of this federation that the member took part in."""
        return self._revealed[federation.hex()]

    def join(self, federation: bytes, round_index: int, attempt: int) -> None:
        """Before anything that depends on data leaves the member; ProtocolError for an attempt that was joined before.

        Attempts only go forwards: (round, attempt) must be later than every one joined.
        """
        entry = (federation.hex(), round_index, attempt)
        earlier = [(r, a) for name, r, a in self._joined if name == entry[0]]
        if earlier and (round_index, attempt) <= max(earlier):
            raise ProtocolError(
                f"round {round_index}, attempt {attempt} is not later than the last one joined; the server must start "
                "a new attempt."
            )
        self._append({"joined": True}, entry)
        self._joined.add(entry)

    def reveal(self, federation: bytes, round_index: int, attempt: int, *, limit: int) -> None:
        """Before anything is revealed; PrivacyError beyond the releases that the plan allows."""
        entry = (federation.hex(), round_index, attempt)
        if entry not in self._joined:
            raise ProtocolError("this attempt was never joined, so there is nothing to reveal.")
        if self._revealed[entry[0]] >= limit:
            raise PrivacyError(
                f"this client has taken part in the {limit} releases that were agreed on; enrol again under a new "
                "budget."
            )
        self._append({"revealed": True}, entry)
        self._revealed[entry[0]] += 1

    def _append(self, what: dict[str, bool], entry: tuple[str, int, int]) -> None:
        federation, round_index, attempt = entry
        line = json.dumps({**what, "federation": federation, "round": round_index, "attempt": attempt})
        with explain_write(self._path):
            append_line(self._path, line)  # on disk when it returns


def _entry(path: Path, line: Mapping[str, Any]) -> tuple[str, int, int]:
    """Federation, round and attempt of a line."""
    entry = line.get("federation"), line.get("round"), line.get("attempt")
    if tuple(map(type, entry)) != (str, int, int):
        raise RunFolderError(f"{path}: a line holds no attempt; {_WAY_OUT}")
    return cast(tuple[str, int, int], entry)
