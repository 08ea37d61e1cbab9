"""Where a secure run belongs: to one folder on one machine, so that a copy of it is not taken for the run itself.

A secure run that is copied and resumed twice makes two sets of releases with fresh noise each. Each folder would state
the cost of one; together they cost more. Seeded runs repeat the identical releases, and may be copied.
"""

import hashlib
import platform
import secrets
from pathlib import Path
from typing import Any

from rrcluster.errors import PrivacyError
from rrcluster.storage import explain_write, read_mapping, replace_file, to_json

ADOPTED = (
    "Adopted: this copy goes on by itself, and if the run it was copied from, or another copy, goes on too, their "
    "releases add up to more than the epsilon that any of them states."
)
_NAME = "place.json"  # in checkpoint/


def bind(folder: Path) -> None:
    """Write down that the run belongs to this folder, here."""
    path = folder / "checkpoint" / _NAME
    with explain_write(path):
        replace_file(path, to_json(_place(folder, secrets.token_hex(16))), mode=0o600)


def check_place(folder: Path) -> None:
    """Refuse a folder that the run was not started in (or adopted by)."""
    path = folder / "checkpoint" / _NAME
    there = read_mapping(path) if path.exists() else {}
    here = _place(folder, str(there.get("nonce")))
    changed = [name for name in ("host", "device", "inode") if there.get(name) != here[name]]
    if changed:
        problem = "does not say where it was started" if not there else f"was started elsewhere (other {changed[0]})"
        raise PrivacyError(
            f"{folder}: this secure run {problem}: it looks like a copy. If the original, or another copy, is resumed "
            "too, both release, and together they cost more than either states. If this is the only one that will go "
            "on, say so: `rrcluster run --resume FOLDER --adopt` (adopt=True in Python)."
        )


def _place(folder: Path, nonce: str) -> dict[str, Any]:
    """Device and inode of the folder, which a move within a disk keeps, and the machine's name, not to be read back."""
    status = folder.stat()
    host = hashlib.blake2b(f"{nonce} {platform.node()}".encode(), digest_size=16).hexdigest()
    return {"nonce": nonce, "host": host, "device": status.st_dev, "inode": status.st_ino}
