"""`rrcluster federation backup` and `restore`: a copy of a folder that cannot be used beside the original."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import tyro

from rrcluster.cli.terminal import parse, say
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.federation.agreement import MOVED
from rrcluster.federation.client_ledger import seal
from rrcluster.runs.lock import FolderLock
from rrcluster.storage import explain_write, make_subfolder, read_mapping, replace_file, write_json

_LIST, _USED = "backup.json", "restored.json"
Folder = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class BackupCommand:
    """Copy the folder of a federation or of a member, with digests of its files; programs may be running.

    usage: rrcluster federation backup FOLDER COPY. The copy lacks whatever a member joins, or a server releases, after
    it was made, so a restored copy takes no part in trainings that it has signed: their whole cost counts. To move a
    folder to another machine, stop its program and add --move: then the copy continues, and the original refuses. Keep
    the copy as secret as the folder: it contains the keys.

    rrcluster federation backup north /backup/north-2026-11-19

    rrcluster federation backup north /media/north --move
    """

    folder: Folder = Path()
    """What is copied."""
    copy: Folder = Path()
    """Target folder, which must not exist yet."""
    move: bool = False
    """The copy replaces the original, which refuses from then on."""


@dataclass(frozen=True)
class RestoreCommand:
    """Restore a folder from a copy made by `backup`. Each copy can be restored once: two would spend one budget twice.

    rrcluster federation restore /backup/north-2026-11-19 north --nothing-signed-since
    """

    copy: Folder = Path()
    """The copy."""
    folder: Folder = Path()
    """The folder to create."""
    nothing_signed_since: bool = False
    """Confirm that the member signed no training since the copy was made: the copy would not know its cost."""


def backup(arguments: list[str]) -> int:
    """Run `backup`."""
    command = parse(BackupCommand(), arguments, prog="rrcluster federation backup")
    if not any((command.folder / name).exists() for name in ("identity.key", "federation.json")):
        raise ConfigError(f"{command.folder} is not the folder of a federation or of a member; give one, and a target.")
    if (command.folder / MOVED).exists():
        raise ConfigError(f"{command.folder} was moved already; back up the folder that was restored from it.")
    lock = FolderLock(command.folder / "daemon.lock") if command.move else None  # no daemon may run
    names = _copied(command.folder, command.copy, leave=() if command.move else ("checkpoint",))
    if command.move:
        write_json(command.folder / MOVED, {"to": str(command.copy)})
    write_json(command.copy / _LIST, {"moved": command.move, "files": names})
    del lock  # deleting it releases the lock, as an error does
    say(f"{command.copy}: {len(names)} files. It contains keys: keep it secret.")
    return 0


def restore(arguments: list[str]) -> int:
    """Run `restore`."""
    command = parse(RestoreCommand(), arguments, prog="rrcluster federation restore")
    if (command.copy / _USED).exists():
        raise ConfigError(f"{command.copy} was restored before; two folders with one budget would spend it twice.")
    if not (command.copy / _LIST).exists():
        raise ConfigError(f"{command.copy} is not a complete copy made by `rrcluster federation backup`.")
    if command.folder == Path() or command.folder.exists():
        raise RunFolderError(f"{command.folder} exists already; give a new folder: nothing is overwritten.")
    about = read_mapping(command.copy / _LIST)
    there = {name: sha256(path.read_bytes()).hexdigest() for name, path in _files(command.copy) if name != _LIST}
    if there != about.get("files"):
        raise RunFolderError(f"{command.copy}: files are missing or damaged; restore an earlier copy.")
    if "identity.key" in there and not (about.get("moved") or command.nothing_signed_since):
        raise ConfigError(
            f"{command.copy} does not include trainings signed after it was made, whose budget could be spent "
            "twice; give --nothing-signed-since if there were none, or enrol as a new member."
        )
    with explain_write(command.copy):
        (command.copy / _LIST).rename(command.copy / _USED)  # first of all: no restored folder is better than two
    _copied(command.copy, command.folder, leave=(_USED,))
    if (command.folder / "ledger.jsonl").exists() and not about.get("moved"):
        seal(command.folder / "ledger.jsonl")
        say("Trainings that it had signed count in full, and it can no longer take part in them.")
    say(f"{command.folder}: restored. Check it: rrcluster federation check {command.folder}")
    return 0


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every regular file and its name in the folder, without sockets, links and locks."""
    for path in sorted(folder.rglob("*")):
        if stat.S_ISREG(path.lstat().st_mode) and path.suffix != ".lock" and path.name != "lock":
            yield str(path.relative_to(folder)), path


def _copied(source: Path, target: Path, *, leave: tuple[str, ...]) -> dict[str, str]:
    """Copy everything except folders and files of these names; returns the digests of the copied files."""
    if target == Path() or target.exists():
        raise RunFolderError(f"{target} exists already; give a new folder.")
    digests = {}
    with explain_write(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        make_subfolder(target, private=True)
        for name, path in _files(source):
            if not set(Path(name).parts) & set(leave):
                copy, content = target / name, path.read_bytes()
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(copy, content, mode=stat.S_IMODE(path.stat().st_mode))
                digests[name] = sha256(content).hexdigest()
    return digests
