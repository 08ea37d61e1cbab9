"""A local page that follows runs while they go. It reads run folders, answers on loopback alone, and writes nothing.

Of a secure run it shows the round and the epsilon only: how long rounds take depends on who takes part. Whoever can
read the folder can watch the times of its files all the same (docs/threat-model.md).
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rrcluster.errors import RRClusterError
from rrcluster.report.folders import Run, read_run, run_folders
from rrcluster.storage import printable

_POINTS = 200  # of a curve: more do not fit a screen
HOST = "127.0.0.1"


def snapshot(paths: Iterable[Path]) -> dict[str, Any]:
    """The state of every run at these paths, as the page shows it. A folder that cannot be read yet says so."""
    runs: list[dict[str, Any]] = []
    unread: list[str] = []
    for path in paths:
        try:
            folders = run_folders(path)
        except RRClusterError:
            folders = []
            unread.append(printable(str(path)))
        for folder in folders:
            try:
                runs.append(_shown(read_run(folder)))
            except RRClusterError:
                unread.append(printable(str(folder)))
    return {"runs": runs, "unread": unread, "load": os.getloadavg()[0], "processors": os.cpu_count()}


def _shown(run: Run) -> dict[str, Any]:
    """What the page may show of a run."""
    public: dict[str, Any] = {
        "name": printable(str(run.path)),
        "secure": bool(run.privacy.get("secure")),
        "private": run.private,
        "status": run.status,
        "round": run.rounds[-1].round_index + 1 if run.rounds else 0,
        "rounds": run.privacy.get("num_rounds") or run.config.get("num_rounds"),
        "epsilon": run.epsilon,
        "delta": run.delta,
    }
    if public["secure"]:
        return public
    measured = _thinned([point for point in run.diagnostics if point.accuracy is not None])
    done, seconds = public["round"], run.seconds
    left = (public["rounds"] - done) * seconds / done if seconds and done and run.status == "unfinished" else None
    return public | {
        "label": printable(run.label),
        "seed": run.seed,
        "sizes": list(run.rounds[-1].sizes) if run.rounds else [],
        "released_accuracy": run.private_accuracy,
        "diagnostic": [[point.round_index + 1, point.accuracy] for point in measured],
        "seconds_left": left,
    }


def _thinned(points: list[Any]) -> list[Any]:
    """At most so many points, the last among them."""
    step = -(-len(points) // _POINTS) or 1
    return points[(len(points) - 1) % step :: step]


class LivePage(ThreadingHTTPServer):
    """Serves the page on loopback, to whoever has the token in its address."""

    daemon_threads = True

    def __init__(self, paths: Iterable[Path], *, port: int = 0) -> None:
        """Start to listen; port 0 takes a free one."""
        self.paths, self.token = tuple(paths), secrets.token_urlsafe(16)
        self.page, self.policy = _page()
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage

    def do_GET(self) -> None:
        """The page, or the state of the runs."""
        asked = urlsplit(self.path)
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            return self._send(HTTPStatus.FORBIDDEN, b"unknown host", "text/plain")
        given = parse_qs(asked.query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return self._send(HTTPStatus.FORBIDDEN, b"wrong token: open the address that was printed", "text/plain")
        if asked.path == "/state":
            content = json.dumps(snapshot(self.server.paths), allow_nan=False, default=str).encode()
            return self._send(HTTPStatus.OK, content, "application/json")
        if asked.path == "/":
            return self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        return self._send(HTTPStatus.NOT_FOUND, b"nothing here", "text/plain")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address holds the token."""


def _page() -> tuple[bytes, str]:
    """The page with its style and script inline, and a policy that allows these two and nothing else."""
    package = resources.files("rrcluster.report")
    parts = {name: package.joinpath(f"live.{name}").read_text(encoding="utf-8") for name in ("css", "js", "html")}
    hashes = {name: base64.b64encode(hashlib.sha256(parts[name].encode()).digest()).decode() for name in ("css", "js")}
    page = parts["html"].replace("/*style*/", parts["css"]).replace("/*script*/", parts["js"])
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes['css']}'; script-src 'sha256-{hashes['js']}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy
