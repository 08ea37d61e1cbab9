"""One process at a time per run folder: two would charge and release the same rounds side by side."""

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from rrcluster.errors import RunFolderError
from rrcluster.storage import make_subfolder, open_plain


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
            if not os.path.samestat(os.fstat(descriptor), path.lstat()):  # removed by who had it before
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
