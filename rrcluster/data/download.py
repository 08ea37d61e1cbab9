"""Download a dataset from its publisher: checksums, a progress bar, whole files or none."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rrcluster.data.sources import FileReport, Source, SourceFile, check, download_folder, source, ways_out
from rrcluster.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress


def get(name: str, folder: str | os.PathLike[str] | None = None, progress: bool = True) -> tuple[FileReport, ...]:
    """Download the missing files of a dataset, and return the result of `check`.

    Guarantees: a file appears under its name only when complete and with the published sha256; the hosts are
    tried in order; nothing is downloaded when a good copy of every file is already in the search path, nor
    for a bundled or generated dataset. A `DataError` names every host's failure and the other ways to get the
    data; so does one for a dataset without a download.
    """
    entry = source(name)
    here = check(name, folder)
    if entry.bundled or all(row.sha256_ok for row in here):
        return here
    if not entry.urls:
        raise DataError(f"rrcluster cannot download {name}. {ways_out(name)}")
    target = download_folder(name, folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise DataError(f"{target} cannot be created: {reason}; choose a folder you can write to.") from None
    with _progress_bar(progress) as bar:
        for file in entry.files:
            _fetch(entry, file, target, bar)
    return check(name, folder or target)


def _fetch(entry: Source, file: SourceFile, target: Path, bar: "Progress | None") -> None:
    """Fetch one file from the first host that has it in the published form."""
    import pooch

    pooch.get_logger().setLevel("ERROR")  # its log lines would tear the progress bar
    failures = []
    drawn = _Bar(bar, file) if bar else False
    for folder in entry.urls:
        url = f"{folder}{file.name}.gz"
        downloader = pooch.HTTPDownloader(progressbar=drawn, timeout=30)
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{file.download_sha256}",
                fname=f"{file.name}.gz",
                path=target,
                downloader=downloader,
            )
        except (OSError, ValueError) as problem:  # network, disk; a digest that differs
            failures.append(f"{url}: {_first_line(problem)}")
        else:
            return
    raise DataError(f"{file.name} could not be downloaded: {'; '.join(failures)}. {ways_out(entry.name, tried=True)}")


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


class _Bar:
    """What pooch expects of a progress bar, drawn by rich."""

    def __init__(self, bar: "Progress", file: SourceFile) -> None:
        self._bar = bar
        self._task = bar.add_task(file.name, total=file.download_bytes)
        self.total = file.download_bytes

    def update(self, amount: int) -> None:
        """Advance by `amount` bytes."""
        self._bar.update(self._task, advance=amount)

    def reset(self) -> None:
        """Start again from zero: pooch resets a bar before it fills it for the last time."""
        self._bar.reset(self._task, total=self.total)

    def close(self) -> None:
        """Stop the clock of this file."""
        self._bar.stop_task(self._task)


@contextmanager
def _progress_bar(wanted: bool) -> "Iterator[Progress | None]":
    """A rich progress bar on standard error, or None."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield bar
