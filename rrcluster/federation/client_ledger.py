"""A member's own write-ahead ledger: the attempts it joined.

A server that is not trusted cannot be a client's accountant. The ledger is on the client's disk, spans federations, and
is written before anything that depends on data leaves the client. It counts *attempts*: once a masked sum is sent, the
other members can unmask it without its sender, so an attempt that fails afterwards is spent too. It refuses more of
them than the federation's plan has releases, and an attempt that is not later than the last one joined (a replay, or
one in which the daemon died and lost its secrets).
"""

import fcntl
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
        self._read()

    def _read(self) -> None:
        path = self._path
        if path.exists():
            drop_torn_line(path)
        lines = read_json_lines(path, damaged="refuse", way_out=_WAY_OUT) if path.exists() else []
        entries = [_entry(path, line) for line in lines]
        self._count = Counter(federation for federation, _, _ in entries)
        self._last = {federation: (round_index, attempt) for federation, round_index, attempt in entries}

    def joined(self, federation: bytes) -> int:
        """Attempts of this federation that the member took part in."""
        return self._count[federation.hex()]

    def join(self, federation: bytes, round_index: int, attempt: int, *, limit: int) -> None:
        """Before anything that depends on data leaves the member.

        PrivacyError beyond the releases that the plan allows; ProtocolError for an attempt that is not a later one.
        """
        with explain_write(self._path), self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed: a second daemon of the member must see this attempt
            self._read()
            self._join(federation.hex(), (round_index, attempt), limit)

    def _join(self, name: str, asked: tuple[int, int], limit: int) -> None:
        round_index, attempt = asked
        if name in self._last and asked <= self._last[name]:
            raise ProtocolError(
                f"round {round_index}, attempt {attempt} is not later than the last one joined; the server must start "
                "a new attempt."
            )
        if self._count[name] >= limit:
            raise PrivacyError(
                f"this member has joined the {limit} attempts that were agreed on; enrol again under a new budget."
            )
        line = json.dumps({"federation": name, "round": round_index, "attempt": attempt})
        append_line(self._path, line)  # on disk when it returns
        self._last[name] = asked
        self._count[name] += 1


def _entry(path: Path, line: Mapping[str, Any]) -> tuple[str, int, int]:
    """Federation, round and attempt of a line."""
    entry = line.get("federation"), line.get("round"), line.get("attempt")
    if tuple(map(type, entry)) != (str, int, int):
        raise RunFolderError(f"{path}: a line holds no attempt; {_WAY_OUT}")
    return cast(tuple[str, int, int], entry)
