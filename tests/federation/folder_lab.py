"""Federations on disk, made by the commands; daemons as threads of the test."""

import contextlib
import shutil
import tempfile
import threading
import time
from pathlib import Path

import yaml

from rrcluster.cli import main
from rrcluster.federation.member_daemon import LONGEST_TASK, open_daemon
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.federation.unix_socket import serve
from rrcluster.settings import ColumnSettings

REHEARSAL = {
    "data": "fashion-mini",
    "samples_per_client": 8,
    "num_clusters": 2,
    "num_rounds": 2,
    "noise_multiplier": 1.0,
    "sample_rate": 0.5,
    "local_epochs": 1,
    "delta": 1e-3,
}
SECURE = {"secure": True, "participation": "everybody", "reserve_rounds": 2}
HONEST = ["--mode", "secure", "--least-honest", "2", "--most-colluders", "0"]


@contextlib.contextmanager
def short_folder():
    """A folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="rr-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def do(*arguments):
    status = main(["federation", *map(str, arguments)])
    assert status == 0, arguments


def enrolled(base, settings, *options, counts=(10, 12, 8), lifetime=None):
    """A federation whose roster is complete and open."""
    trial = base / "trial"
    (base / "settings.yaml").write_text(yaml.safe_dump(settings))
    do("init", trial, base / "settings.yaml", *options)
    for place, count in enumerate(counts):
        limit = [] if lifetime is None else ["--lifetime-epsilon", lifetime]
        do("enrol", base / f"m{place}", "--name", f"m{place}", "--clients", count, *limit)
        do("enrol", trial, "--accept", base / f"m{place}" / "request.json")
    return trial


def signed(base, settings, *options, counts=(10, 12, 8), lifetime=None):
    """A federation that everybody has signed."""
    trial = enrolled(base, settings, *options, counts=counts, lifetime=lifetime)
    do("init", trial, "--close")
    for place in range(len(counts)):
        do("enrol", base / f"m{place}", "--agree", trial / "agreement.json", "--yes")
        do("enrol", trial, "--consent", base / f"m{place}" / "consent.json")
    return trial


@contextlib.contextmanager
def listening(folders, *, data=None, columns=None, engine=None):
    """The daemons of these members, until the test is done with them."""
    stop, threads, daemons = threading.Event(), [], []
    for folder in folders:
        daemon = open_daemon(
            MemberFolder(folder), data, columns or ColumnSettings(), engine=engine or ("auto" if data else "batched")
        )
        arguments = {"longest": LONGEST_TASK, "stop": stop, "figures": daemon.figures}
        thread = threading.Thread(target=serve, args=(folder / "daemon.sock", daemon.answer), kwargs=arguments)
        thread.start()
        threads.append(thread)
        daemons.append(daemon)
    try:
        while not all((folder / "daemon.sock").exists() for folder in folders):
            time.sleep(0.01)
        yield daemons
    finally:
        stop.set()
        for thread in threads:
            thread.join()
