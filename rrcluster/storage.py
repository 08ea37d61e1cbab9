"""Files on disk: atomic durable writes, appended lines, text read as plain data, and the cache folder.

Every file of a run folder goes through here, and so do reports and caches. A run folder may come from anyone: nothing
in it is executed, a small file cannot expand to fill the memory, and links, pipes and devices in it are not opened.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rrcluster.errors import RunFolderError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 1 << 26  # limit of one text file: 64 MiB, far more than any file of a run
MAX_DEPTH = 20  # limit of nested YAML or JSON
WAY_OUT = "Restore the file, or run again with the same settings."
_LARGEST = 2**63
_TEMPORARY = re.compile(r"\.(.+)\.\d+-\d+\.tmp")  # names of `replace_file`'s temporary files


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a whole file and the folders above it, by `replace_file`; errors name the way out."""
    with explain_write(path):
        make_folders(path.parent)
        replace_file(path, content)
    return path


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file."""
    write_file(path, to_json(value))


def to_json(value: Any) -> str:
    """The text of a JSON file."""
    return json_text(value, indent=2) + "\n"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Plain data as JSON; a number that is not finite becomes null, because JSON has none."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), indent=indent, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_json(path: Path, value: Any) -> None:
    """Append one line of JSON, not flushed: `sync_file` does that before a checkpoint that includes it."""
    with explain_write(path):
        append_line(path, json_text(value), flush=False)


@contextlib.contextmanager
def explain_write(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunFolderError that names the file and the way out."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}). Free some disk space or fix the permissions and try again, "
            "or choose another folder with --out."
        ) from error


def make_folders(path: Path) -> None:
    """Create a folder and those above it; each new one is flushed into its parent."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def make_subfolder(path: Path, *, private: bool = False) -> Path:
    """Create a folder inside a run folder, or use the existing one; links are refused.

    A private folder, and the files in it, are closed to everybody but their owner, even if they were open before.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700 if private else 0o777)
        sync_folder(path.parent)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise RunFolderError(f"{path}: a link or a file where a folder should be; remove it, or choose another folder.")
    if private:
        path.chmod(0o700)
        for entry in path.iterdir():
            if stat.S_ISREG(entry.lstat().st_mode):
                entry.chmod(0o600)
    return path


def open_plain(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file of a run folder. OSError for a link, which is not followed, and for anything but a regular file."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            reason = "a link, which is not followed" if error.errno == errno.ELOOP else "not a regular file"
            raise OSError(error.errno, reason, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the advisory lock of a file, `.lock` beside it: OSError for a link or anything but a regular file there."""
    descriptor = open_plain(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_plain(path: Path) -> bytes:
    """The bytes of a file of a run folder. OSError if it cannot be read, ValueError if it is far too long."""
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return _at_most(file.read(MAX_BYTES + 1))


def read_tensors(path: Path) -> "tuple[dict[str, NDArray[Any]], dict[str, str]]":
    """The tensors and metadata of a safetensors file, through one descriptor: the checked file is the one read."""
    from safetensors.numpy import load

    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        content = file.read()
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
    return load(content), dict(header.get("__metadata__") or {})


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Replace the content of `path`, flushed to disk.

    Even after a crash, a reader finds the old file or the new one, never half of one. OSError if that failed; then the
    old file is still there. A process killed meanwhile leaves a temporary file: see `drop_temporaries`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", buffering=0) as file:
            _write_all(file.fileno(), content.encode() if isinstance(content, str) else content)
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, text: str, *, flush: bool = True) -> None:
    """Append one line and, with `flush`, flush it to disk; the folder's entry too when the file is new.

    OSError if that failed; then the file is truncated to its earlier length, as far as the disk allows. A process
    killed meanwhile leaves at most a torn last line: see `drop_torn_line`.
    """
    new, line = not path.exists(), (text + "\n").encode()
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            _write_all(file.fileno(), line)
            if flush:
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise
    if new and flush:
        sync_folder(path.parent)


def drop_torn_line(path: Path) -> None:
    """Remove a last line without newline, which a crash during `append_line` leaves."""
    with os.fdopen(open_plain(path, os.O_RDWR), "rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)
            os.fsync(file.fileno())


def drop_temporaries(folder: Path, names: Collection[str]) -> None:
    """Remove temporary files that killed processes left while replacing one of `names`: no other file."""
    for path in folder.iterdir():
        temporary = _TEMPORARY.fullmatch(path.name)
        if temporary and temporary[1] in names and stat.S_ISREG(path.lstat().st_mode):
            path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a file that was written without flushing."""
    _sync(open_plain(path, os.O_RDONLY))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that new and renamed files survive a power failure."""
    _sync(os.open(folder, os.O_RDONLY))


def _sync(descriptor: int) -> None:
    """Flush the file or folder of an open descriptor, and close it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def printable(text: str) -> str:
    """A text from an untrusted source for the terminal: without control characters, which could move the cursor."""
    return "".join(mark if mark.isprintable() or mark in "\n\u00a0" else "?" for mark in text)


def read_mapping(path: Path) -> dict[str, Any]:
    """The named values in a JSON or YAML file of a run folder, by the ending of its name."""
    parse, kind = (parse_yaml, "YAML") if path.suffix == ".yaml" else (parse_json, "JSON")
    text = _read_run_file(path)
    try:
        value = parse(text)
    except ValueError as error:
        raise RunFolderError(f"{path}: not valid {kind}; the file is damaged. {WAY_OUT}") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}: expected named values; the file is damaged. {WAY_OUT}")
    return {str(name): entry for name, entry in value.items()}


def read_json_lines(path: Path, *, damaged: Literal["refuse", "stop"], way_out: str = WAY_OUT) -> list[dict[str, Any]]:
    """The JSON objects of a file of a run folder, one per line; blank lines do not count.

    A last line without newline was torn by a crash, or is being written: it is always left out. At any other line that
    is not a JSON object, "refuse" raises, and "stop" returns the lines before it: right where a power failure may have
    damaged lines that were appended without flushing.
    """
    entries = []
    for number, line in enumerate(_read_run_file(path, way_out).split("\n")[:-1], start=1):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
            if not isinstance(entry, dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            if damaged == "stop":
                break
            raise RunFolderError(f"{path}, line {number}: not a JSON object; the file is damaged. {way_out}") from error
        entries.append(entry)
    return entries


def read_text(path: Path) -> str:
    """The UTF-8 text of a file named by a person. OSError if it cannot be read, ValueError if it is not text."""
    with path.open("rb") as file:
        return _at_most(file.read(MAX_BYTES + 1)).decode("utf-8")


def _at_most(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return content


def parse_json(text: str) -> Any:
    """The value of a JSON text; ValueError if it is invalid, or has more than `MAX_DEPTH` levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level, depth = [value], 0
    while level := [
        part
        for node in level
        if isinstance(node, (dict, list))
        for part in (node.values() if isinstance(node, dict) else node)
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
    return value


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, plain values only (`safe_load`); ValueError if it is invalid.

    Refused: anchors (a few lines of nested ones expand to more values than fit in memory), more than `MAX_DEPTH`
    levels, duplicate keys (the first would be dropped silently), and integers beyond 64 bits (a long one cannot even be
    printed in an error message).
    """
    import yaml

    try:
        _refuse_yaml_bombs(text)
        _refuse_duplicate_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        value = yaml.safe_load(text)
        _refuse_long_numbers(value)
    except (yaml.YAMLError, RecursionError, AttributeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    return value


def cache_folder(*parts: str) -> Path:
    """A folder in the user's cache: $XDG_CACHE_HOME or ~/.cache, then rrcluster/<parts>. It may not exist yet.

    OSError if the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache").joinpath("rrcluster", *parts)
    except RuntimeError as error:
        raise OSError("this user has no home folder; set XDG_CACHE_HOME") from error


def _read_run_file(path: Path, way_out: str = WAY_OUT) -> str:
    try:
        return read_plain(path).decode("utf-8")
    except FileNotFoundError as error:
        raise RunFolderError(f"{path}: missing, so the run folder is incomplete. {way_out}") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: not text; the file is damaged. {way_out}") from error
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error


def _write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; the operating system may accept a part, and reports an error only at the next one."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _refuse_yaml_bombs(text: str) -> None:
    """Scan a YAML text event by event, before any value is built from it."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it uses YAML anchors; write each value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


def _refuse_duplicate_keys(node: Any) -> None:
    """Refuse duplicate keys in a YAML text, before mappings are built from it."""
    if node is None or isinstance(node.value, str):
        return
    parts = [part for pair in node.value for part in pair] if node.id == "mapping" else node.value
    keys = [key.value for key, _ in node.value if isinstance(key.value, str)] if node.id == "mapping" else []
    if twice := [key for key in keys if keys.count(key) > 1][:1]:
        raise ValueError(f"it has {twice[0][:80]!r} twice; keep one of them")
    for part in parts:
        _refuse_duplicate_keys(part)


def _refuse_long_numbers(value: Any) -> None:
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError("it contains an integer of more than 64 bits")
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(parts, (list, tuple, set)) else ():
        _refuse_long_numbers(part)
