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

    usage: rrcluster federation backup FOLDER COPY. What a member joined, or a server released, after the copy was made
    is not in it, so a restored copy takes no part in trainings that it has signed: their whole cost counts. To use a
    folder on another machine stop its program and add --move: then the copy goes on, and the original refuses. Keep the
    copy as secret as the folder: it has its keys.

    rrcluster federation backup north /backup/north-2026-11-19

    rrcluster federation backup north /media/north --move
    """

    folder: Folder = Path()
    """What is copied."""
    copy: Folder = Path()
    """Where to; a folder that is not there yet."""
    move: bool = False
    """The copy takes the original's place."""


@dataclass(frozen=True)
class RestoreCommand:
    """Make a folder from a copy that `backup` made. Each copy can be restored once: two would spend one budget twice.

    rrcluster federation restore /backup/north-2026-11-19 north --nothing-signed-since
    """

    copy: Folder = Path()
    """The copy."""
    folder: Folder = Path()
    """The folder to be made."""
    nothing_signed_since: bool = False
    """Of a member's copy: it has signed no training after the copy was made, whose cost nothing here would know."""


def backup(arguments: list[str]) -> int:
    """Run `backup`."""
    command = parse(BackupCommand(), arguments, prog="rrcluster federation backup")
    if not any((command.folder / name).exists() for name in ("identity.key", "federation.json")):
        raise ConfigError(f"{command.folder} is no folder of a federation or of a member; name one, and where to copy.")
    if (command.folder / MOVED).exists():
        raise ConfigError(f"{command.folder} was moved already; back up the folder that was restored from it.")
    lock = FolderLock(command.folder / "daemon.lock") if command.move else None  # no daemon runs
    names = _copied(command.folder, command.copy, leave=() if command.move else ("checkpoint",))
    if command.move:
        write_json(command.folder / MOVED, {"to": str(command.copy)})
    write_json(command.copy / _LIST, {"moved": command.move, "files": names})
    del lock  # which releases it, as an error does
    say(f"{command.copy}: {len(names)} files. It has keys: keep it to yourself.")
    return 0


def restore(arguments: list[str]) -> int:
    """Run `restore`."""
    command = parse(RestoreCommand(), arguments, prog="rrcluster federation restore")
    if (command.copy / _USED).exists():
        raise ConfigError(f"{command.copy} was restored before, and two folders of one budget would spend it twice.")
    if not (command.copy / _LIST).exists():
        raise ConfigError(f"{command.copy} is no copy that `rrcluster federation backup` made, or not a whole one.")
    if command.folder == Path() or command.folder.exists():
        raise RunFolderError(f"{command.folder} is there already; name a folder that is not: nothing is overwritten.")
    about = read_mapping(command.copy / _LIST)
    there = {name: sha256(path.read_bytes()).hexdigest() for name, path in _files(command.copy) if name != _LIST}
    if there != about.get("files"):
        raise RunFolderError(f"{command.copy}: files are missing or damaged; restore an earlier copy.")
    if "identity.key" in there and not (about.get("moved") or command.nothing_signed_since):
        raise ConfigError(
            f"{command.copy} does not know what was signed after it was made, which would be spent twice; give "
            "--nothing-signed-since if that is nothing, or enrol as a new member."
        )
    with explain_write(command.copy):
        (command.copy / _LIST).rename(command.copy / _USED)  # before anything else: better none than two
    _copied(command.copy, command.folder, leave=(_USED,))
    if (command.folder / "ledger.jsonl").exists() and not about.get("moved"):
        seal(command.folder / "ledger.jsonl")
        say("Trainings that it had signed count in whole, and it takes no part in them any more.")
    say(f"{command.folder}: restored. Check it: rrcluster federation check {command.folder}")
    return 0


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every regular file with its name in the folder; no sockets, links and locks."""
    for path in sorted(folder.rglob("*")):
        if stat.S_ISREG(path.lstat().st_mode) and path.suffix != ".lock" and path.name != "lock":
            yield str(path.relative_to(folder)), path


def _copied(source: Path, target: Path, *, leave: tuple[str, ...]) -> dict[str, str]:
    """Copy all but what is in folders, or files, of these names; the digests of what was copied."""
    if target == Path() or target.exists():
        raise RunFolderError(f"{target} is there already; name a folder that is not.")
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
