"""Locks on a run: one process at a time and, in secure mode, one folder on one machine.

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
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from rrcluster.errors import PrivacyError, RunFolderError
from rrcluster.storage import (
    explain_write,
    make_folders,
    make_subfolder,
    open_plain,
    read_mapping,
    replace_file,
    to_json,
)


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
        """Release the lock and remove its file, and its folder if empty."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        self.release()

    @property
    def held(self) -> bool:
        """Whether the lock is held."""
        return self._close.alive

    def release(self) -> None:
        """Release the lock."""
        self._close()


_RENEWED, _LAPSED = 5.0, 60.0  # seconds


class Lease:
    """A claim to a folder that works between machines, also on network file systems without locks: `with Lease(f)`.

    It is a file beside the folder that only one process can create, and that its living holder touches. A file
    untouched for a minute, by the clock of the waiting process, is taken over; a holder that was only asleep finds that
    at its next `check`.
    """

    def __init__(self, folder: Path) -> None:
        """A lease of a folder, which need not exist yet."""
        self._path = folder.with_name(f".{folder.name}.lease")
        self._mark = f"{platform.node()} {os.getpid()} {secrets.token_hex(8)}".encode()
        self._ended = threading.Event()

    def __enter__(self) -> "Lease":
        with explain_write(self._path):
            make_folders(self._path.parent)
            waited = False
            while not self._made():
                self._wait_until_lapsed()
                waited = True
            if waited:  # another process may have replaced the file at the same moment
                time.sleep(_RENEWED)
                self.check()
        threading.Thread(target=self._renew, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._look()[0] == self._mark:
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """RunFolderError if another process has taken it over."""
        if (holder := self._look()[0]) != self._mark:
            raise RunFolderError(f"{self._path}: taken over by {_named(holder)}, which continues this run.")

    def _made(self) -> bool:
        try:
            descriptor = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._mark)
        return True

    def _look(self) -> tuple[bytes, int]:
        """The holder and the time of the last touch; reopened, so that a network file system asks its server."""
        try:
            with os.fdopen(open_plain(self._path, os.O_RDONLY), "rb") as file:
                return file.read(1000), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return b"", 0

    def _wait_until_lapsed(self) -> None:
        first, deadline = self._look(), time.monotonic() + _LAPSED
        while (seen := self._look()) == first and first[1]:
            if time.monotonic() > deadline:
                old = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
                with contextlib.suppress(FileNotFoundError):
                    self._path.rename(old)
                    old.unlink()
                return
            time.sleep(_RENEWED / 5)
        if seen[1]:
            raise RunFolderError(f"{self._path}: in use by {_named(seen[0])}; wait for it to finish.")

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED):
            with contextlib.suppress(OSError):
                if self._look()[0] == self._mark:
                    os.utime(self._path)


def _named(mark: bytes) -> str:
    """Machine and process of a lease's holder."""
    host, process, *_ = (*mark.decode(errors="replace").split(" "), "?", "?")
    return f"process {process} of {host}"


ADOPTED = (
    "Adopted: this copy goes on by itself, and if the run it was copied from, or another copy, goes on too, their "
    "releases add up to more than the epsilon that any of them states."
)
_NAME = "place.json"  # in checkpoint/


def bind(folder: Path) -> None:
    """Record that the run belongs to this folder."""
    path = folder / "checkpoint" / _NAME
    with explain_write(path):
        replace_file(path, to_json(_place(folder, secrets.token_hex(16))), mode=0o600)


def check_place(folder: Path) -> None:
    """Refuse a folder in which the run was neither started nor adopted."""
    path = folder / "checkpoint" / _NAME
    there = read_mapping(path) if path.exists() else {}
    here = _place(folder, str(there.get("nonce")))
    changed = [name for name in ("host", "device", "inode") if there.get(name) != here[name]]
    if changed:
        problem = "does not say where it was started" if not there else f"was started elsewhere (other {changed[0]})"
        raise PrivacyError(
            f"{folder}: this secure run {problem}: it looks like a copy. If the original or another copy is "
            "resumed too, both release, and together they cost more than either states. If only this one "
            "will continue, confirm that: `rrcluster run --resume FOLDER --adopt` (adopt=True in Python)."
        )


def _place(folder: Path, nonce: str) -> dict[str, Any]:
    """Device and inode of the folder, which a move within a disk keeps, and the machine's name, irreversibly hashed."""
    status = folder.stat()
    host = hashlib.blake2b(f"{nonce} {platform.node()}".encode(), digest_size=16).hexdigest()
    return {"nonce": nonce, "host": host, "device": status.st_dev, "inode": status.st_ino}
