"""Who may continue a run: one process at a time and, in secure mode, one folder on one machine.

Two processes would charge and release the same rounds side by side. A secure run that is copied and resumed twice makes
two sets of releases with fresh noise each: each folder would state the cost of one, and together they cost more. Seeded
runs repeat the identical releases, and may be copied.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import secrets
import weakref
from pathlib import Path
from typing import Any

from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.storage import explain_write, make_subfolder, open_plain, read_mapping, replace_file, to_json


class FolderLock:
    """An advisory lock on a file in the folder, held until `release`; the kernel drops it when the process dies."""

    def __init__(self, path: Path) -> None:
        """Take the lock. RunFolderError if another process (or another run of this one) has it."""
        self.path, self.folder = path, path.parent
        try:
            make_subfolder(path.parent, private=True)
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RunFolderError(
                f"{path.parent.parent}: cannot be written ({error.strerror}). Check its permissions."
            ) from error
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.lstat()):  # removed by its earlier holder
                raise FileNotFoundError
        except OSError as error:
            self._close()
            raise RunFolderError(
                f"{path.parent.parent}: in use by another process. Wait for it to finish, or choose another folder "
                "with --out."
            ) from error

    def remove(self) -> None:
        """Release the lock and leave no trace of it, unless its folder has other files."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        self.release()

    @property
    def held(self) -> bool:
        """Whether `release` has not been called yet."""
        return self._close.alive

    def release(self) -> None:
        """Release the lock."""
        self._close()


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
