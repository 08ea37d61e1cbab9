"""A local page that follows runs live. It reads run folders, answers on loopback alone, and writes nothing.

Of a secure run it shows the round and the epsilon only: how long rounds take depends on who takes part. Anybody who can
read the folder can still watch its files' times (docs/threat-model.md).
"""

import base64
import hashlib
import hmac
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rrcluster.errors import RRClusterError
from rrcluster.privacy.cost import epsilon_text
from rrcluster.report.folders import NoRunYet, Run, read_run, run_folders
from rrcluster.report.series import base_look
from rrcluster.report.values import delta_text, groups_text, thinned
from rrcluster.settings import data_label
from rrcluster.storage import printable

_POINTS = 200  # of a curve: more do not fit a screen
_READ = ("config.yaml", "privacy.json", "summary.json", "rounds.jsonl", "diagnostics.jsonl", "ledger.jsonl")
_STALE = 3.0  # seconds for which an unreadable folder keeps its last state
_SILENT = 30.0  # seconds after which the page shows how long an unfinished run has not written
_WATCHED = 3.0  # seconds without a request after which the page counts as closed
HOST = "127.0.0.1"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


FileState = tuple[int, int] | None  # time of its last change in nanoseconds, and size
# folder -> state of its files, its card, and the time
Shown = dict[Path, tuple[list[FileState], dict[str, Any], float]]


def snapshot(paths: Iterable[Path], shown: Shown | None = None) -> dict[str, Any]:
    """The state of every run at these paths, as the page shows it: paths without a run yet are in `not_begun`, folders
    that cannot be read, and why, in `unread`.

    What did not change since an earlier snapshot with the same `shown` is not read again.
    """
    shown = {} if shown is None else shown
    runs: list[dict[str, Any]] = []
    not_begun: list[str] = []
    unread: list[str] = []
    for path in paths:
        try:
            folders = run_folders(path, reproduced=True)
        except NoRunYet:
            folders = []
            not_begun.append(printable(str(path)))
        except RRClusterError as error:
            folders = []
            unread.append(printable(str(error)))
        for folder in folders:
            state = [_file_state(folder / name) for name in _READ]
            before, now = shown.get(folder), time.monotonic()
            try:
                card = _shown(read_run(folder)) if before is None or before[0] != state else before[1]
                shown[folder] = state, card, now
            except RRClusterError as error:  # the last state is shown for a moment, unless the folder is damaged
                if before is None or now - before[2] > _STALE:
                    shown.pop(folder, None)
                    unread.append(printable(str(error)))
            if folder in shown:
                runs.append(_with_silence(shown[folder][1], state) | {"report": report_of(folder) is not None})
    runs.sort(key=lambda run: bool(run["status"] != "unfinished"))  # unfinished runs first
    # depends on how long rounds take
    load = None if unread or any(run["secure"] for run in runs) else os.getloadavg()[0]
    return {"runs": runs, "not_begun": not_begun, "unread": unread, "load": load, "processors": os.cpu_count()}


def report_of(folder: Path) -> Path | None:
    """The report page of a run: in its folder, or in one above, for all seeds or a whole table."""
    beside = (folder, folder.parent, folder.parent.parent)
    return next((path for place in beside if (path := place / "report.html").is_file()), None)


def _with_silence(card: dict[str, Any], state: list[FileState]) -> dict[str, Any]:
    """The card with the seconds since its folder changed, if they are many: a killed run looks like a slow one."""
    if card["secure"]:
        return card
    seconds = time.time() - max((entry[0] / 1e9 for entry in state if entry), default=math.inf)
    return card | {"silent": seconds if seconds > _SILENT and card["status"] == "unfinished" else None}


def _file_state(path: Path) -> FileState:
    """A value that changes whenever the file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _shown(run: Run) -> dict[str, Any]:
    """The facts of a run that the page may show."""
    public: dict[str, Any] = {
        "name": printable(str(run.path)),
        "label": printable(run.label),
        "data": printable(data_label(str(run.config.get("data", "")))),
        "secure": bool(run.privacy.get("secure")),
        "private": run.private,
        "status": run.status,
        "round": run.rounds[-1].round_index + 1 if run.rounds else 0,
        "rounds": run.privacy.get("num_rounds") or run.config.get("num_rounds"),
        "epsilon": epsilon_text(run.epsilon, private=run.private),
        "delta": None if run.delta is None else delta_text(run.delta),
    }
    if public["secure"]:
        return public
    measure = "accuracy" if any(point.accuracy is not None for point in run.diagnostics) else "loss"
    measured = thinned([point for point in run.diagnostics if getattr(point, measure) is not None], most=_POINTS)
    done, seconds = public["round"], run.seconds
    left = (public["rounds"] - done) * seconds / done if seconds and done and run.status == "unfinished" else None
    released = [entry.accuracy for entry in run.rounds if entry.accuracy is not None]
    return public | {
        "colour": base_look(run.config).colour,
        "seed": run.seed,
        "survey_rounds": _survey_rounds(run),
        "groups": groups_text(run.summary),
        "sizes": list(run.rounds[-1].sizes) if run.rounds else [],
        "verdict": printable(run.verdict),
        "judged_rows": run.judged_rows,
        "released_accuracy": run.private_accuracy or (released[-1] if run.private and released else None),
        "measure": measure,
        "diagnostic": [[point.round_index + 1, getattr(point, measure)] for point in measured],
        "seconds_left": left,
    }


def _survey_rounds(run: Run) -> int:
    """The rounds of a run's survey; 0 without one."""
    begins = run.privacy.get("initialisation")
    rounds = begins.get("rounds") if isinstance(begins, dict) and begins.get("init") == "survey" else None
    return rounds if isinstance(rounds, int) else 0


class LivePage(ThreadingHTTPServer):
    """Serves the page on loopback, to requests with the token in its address."""

    daemon_threads = True

    def __init__(self, paths: Iterable[Path], *, port: int = 0) -> None:
        """Start to listen; port 0 takes a free one."""
        self.paths, self.token = list(paths), secrets.token_urlsafe(16)
        self.doing = ""  # the state of the next run, if the serving program knows it
        self.page, self.policy = _page()
        self._shown: Shown = {}
        self._reading = threading.Lock()  # requests come in separate threads
        self._answered, self._last_answer = threading.Event(), -math.inf
        super().__init__((HOST, port), _Handler)

    def state(self) -> bytes:
        """The runs as they are now, as JSON."""
        with self._reading:
            state = snapshot(self.paths, self._shown) | {"doing": printable(self.doing)}
        return json.dumps(state, allow_nan=False, default=str).encode()

    def report(self, name: str) -> bytes | None:
        """The report of a run that is shown under this name; None where there is none."""
        with self._reading:
            folder = next((folder for folder in self._shown if printable(str(folder)) == name), None)
        page = None if folder is None else report_of(folder)
        return None if page is None else page.read_bytes()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Meanwhile the page shows what the next run waits for."""
        self.doing = text
        try:
            yield
        finally:
            self.doing = ""

    def note_answer(self) -> None:
        """Record that a client has seen the state."""
        self._last_answer = time.monotonic()
        self._answered.set()

    @contextmanager
    def beside(self) -> Iterator["LivePage"]:
        """Serve in a thread while something else runs; open pages see the final state before the server stops."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            if time.monotonic() - self._last_answer < _WATCHED:
                self._answered.clear()
                self._answered.wait(_WATCHED)
            self.shutdown()
            self.server_close()
            thread.join()

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage

    def do_GET(self) -> None:
        """Serve the page, or the state of the runs."""
        url = urlsplit(self.path)
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            return self._send(HTTPStatus.FORBIDDEN, b"unknown host", "text/plain")
        token = parse_qs(url.query).get("token", [""])[0]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._send(HTTPStatus.FORBIDDEN, b"wrong token: open the address that was printed", "text/plain")
        if url.path == "/state":
            self._send(HTTPStatus.OK, self.server.state(), "application/json")
            return self.server.note_answer()
        folder = parse_qs(url.query).get("run", [""])[0]
        if url.path == "/report" and (page := self.server.report(folder)) is not None:
            return self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", policy=_REPORT_POLICY)
        if url.path == "/":
            return self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        return self._send(HTTPStatus.NOT_FOUND, b"nothing here", "text/plain")

    def _send(self, status: HTTPStatus, content: bytes, kind: str, *, policy: str | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy or self.server.policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address contains the token."""


def _page() -> tuple[bytes, str]:
    """The page with its style and script inline, and a policy that allows these two and nothing else."""
    package = resources.files("rrcluster.report")
    parts = {name: package.joinpath(f"live.{name}").read_text(encoding="utf-8") for name in ("css", "js", "html")}
    page = parts["html"].replace("/*style*/", parts["css"]).replace("/*script*/", parts["js"])
    policy = (
        f"default-src 'none'; style-src {content_hash(parts['css'])}; script-src {content_hash(parts['js'])}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def content_hash(text: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
