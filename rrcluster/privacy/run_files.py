"""What the files of a run folder say of its cost. Read in an order in which a folder that is being written agrees."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from rrcluster.errors import RunFolderError
from rrcluster.privacy.ledger import read_charges
from rrcluster.registry import MECHANISMS
from rrcluster.settings import REMOVED, PrivacySettings
from rrcluster.storage import MAX_BYTES, WAY_OUT, open_plain, parse_json, read_json_lines, read_mapping

ALIKE = 1e-6  # relative: what the arithmetic of another machine or library may differ by
_NEGLIGIBLE = 1e-12  # absolute: of the least deltas, which are rounding errors far below 1e-10


@dataclass(frozen=True)
class RunFiles:
    """The contents of these files, and what follows from one of them alone."""

    folder: Path
    stated: Mapping[str, Any]
    config: Mapping[str, Any]  # empty in a folder of `rr.Server`
    summary: Mapping[str, Any]  # empty until the run ends
    released: tuple[int, str]  # rounds, by the file that shows most
    charges: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "RunFiles":
        """Read them, the ledger last."""
        stated = read_mapping(folder / "privacy.json")
        paths = [folder / name for name in ("config.yaml", "summary.json")]
        config, summary = (read_mapping(path) if os.path.lexists(path) else {} for path in paths)
        released = max((count, name) for name, count in _released(folder, summary).items())
        ledger = folder / "ledger.jsonl"
        return cls(folder, stated, config, summary, released, read_charges(ledger) if os.path.lexists(ledger) else [])

    @cached_property
    def settings(self) -> PrivacySettings | None:
        """The privacy settings. None without any, of version 0.1, and for a mechanism that is not known here."""
        known = self.config.get("mechanism", "joint") in MECHANISMS and not self.config.keys() & REMOVED.keys()
        if not self.config or not known:
            return None
        names = [setting.name for setting in fields(PrivacySettings) if setting.name in self.config]
        try:
            return PrivacySettings(**{name: self.config[name] for name in names})
        except (TypeError, ValueError) as error:
            raise self.refusal("config.yaml", f"cannot be used ({' '.join(str(error).split())})") from error

    @property
    def selected(self) -> bool:
        """Whether the run is the outcome of a private selection, which was charged as a whole."""
        return "selection" in self.stated

    @property
    def among_members(self) -> Mapping[str, Any] | None:
        """What a federation states whose members make the noise; None for any other run."""
        about = self.stated.get("federation")
        return about if isinstance(about, Mapping) and about.get("mode") == "secure" else None

    @property
    def delta(self) -> Any:
        """The delta of the accountant; a secure federation states more, for colluders that happen to be neighbours."""
        return self.stated.get("delta") if self.among_members is None else self.config.get("delta")

    def refusal(self, name: str, what: str) -> RunFolderError:
        """The error that names a file, what is wrong with it, and the way out."""
        return RunFolderError(f"{self.folder / name}: {what}, so the run's cost is unknown. {WAY_OUT}")

    def check(self, name: str, found: Any, due: Any, *, by: str) -> None:
        """Refuse a file that has another value than `by` gives."""
        different = _difference("", found, due)
        if different is not None:
            where, value, other = different
            raise self.refusal(name, f"has {where} = {value!r:.60}, and {by} gives {other!r:.60}")


def _released(folder: Path, summary: Mapping[str, Any]) -> dict[str, int]:
    """How many rounds were released, by every file that shows it."""
    path = folder / "rounds.jsonl"
    lines = read_json_lines(path, damaged="stop") if os.path.lexists(path) else []
    return {
        "summary.json": _whole(summary.get("rounds_done")),
        "models.safetensors": int((folder / "models.safetensors").exists()),
        "checkpoint/": _checkpoint_round(folder / "checkpoint" / "state.safetensors"),
        "rounds.jsonl": max((_whole(line.get("round")) + 1 for line in lines), default=0),
    }


def _checkpoint_round(path: Path) -> int:
    """The round that a checkpoint is at; 0 where there is none, or it is not ours to read."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(length, MAX_BYTES)).decode())
            file.seek(header["numbers"]["data_offsets"][0], os.SEEK_CUR)
            return int.from_bytes(file.read(8), "little")
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def _difference(name: str, found: Any, due: Any) -> tuple[str, Any, Any] | None:
    """(name, found, due) of the first value that is not what is due. What one side does not have is not compared."""
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(due, Mapping) and isinstance(found, Mapping):
        names = [key for key in due if key in found and key != "reason"]  # words, which versions choose
        parts = [(f"{name}.{key}".lstrip("."), found[key], due[key]) for key in names]
    elif isinstance(due, list) and isinstance(found, list):
        parts = [(name, *pair) for pair in zip(found, due, strict=False)]
    elif not _alike(found, due):
        return name, found, due
    return next((different for each in parts if (different := _difference(*each)) is not None), None)


def _alike(found: Any, due: Any) -> bool:
    if isinstance(found, (int, float)) and isinstance(due, (int, float)):
        return math.isclose(found, due, rel_tol=ALIKE, abs_tol=_NEGLIGIBLE)
    return bool(found == due)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
