"""Bytes that are on the disk when a function returns, whole or not at all."""

import contextlib
import os
from pathlib import Path


def append_line(path: Path, text: str) -> None:
    """Append one line and flush it to the disk, the folder's entry too when the file is new.

    OSError if that failed; then the file is cut back to what it was, as far as the disk allows. A process killed
    meanwhile leaves at most a torn last line: see `drop_torn_line`.
    """
    new, line = not path.exists(), (text + "\n").encode()
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            write_all(file.fileno(), line)
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise
    if new:
        sync_folder(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; the operating system may take them in parts, and says why it stops only at the next part."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` hold `content`: after a crash too, a reader finds the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            write_all(file.fileno(), content)
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end: what a crash in the middle of `append_line` leaves. One system call."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("rb+") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def drop_temporaries(folder: Path) -> None:
    """Remove what `replace_file` left behind when its process was killed."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a file that was written without."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries: new and renamed files are there after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
