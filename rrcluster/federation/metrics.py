"""Figures for monitoring a federation, in the text format of Prometheus. All of them are public.

Sampled cohorts are secret, so the figures then omit who answered and when: the duration of a round depends on who took
part.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.federation.agreement import Agreement
from rrcluster.privacy.ledger import read_charges
from rrcluster.storage import read_json_lines

_HELP = {
    "up": "1 while the program runs.",
    "rounds_planned": "Rounds of the training.",
    "rounds_done": "Rounds released.",
    "releases_allowed": "Releases that everybody signed: rounds and reserve.",
    "releases_charged": "Releases charged to the ledger.",
    "reserve_left": "Releases in reserve that are still unused.",
    "finished": "1 once the models are released.",
    "released_size": "Clients in the last release, with its noise.",
    "expected_size": "Expected number of clients in a round.",
    "members": "Members in the roster.",
    "members_needed": "Members without which no round is released.",
    "members_connected": "Members that answered the last message.",
    "attempts": "Attempts at rounds so far.",
    "last_message_seconds": "End of the last message, in seconds since 1970.",
    "last_release_seconds": "Time of the last release, in seconds since 1970.",
    "attempts_joined": "Attempts that this member took part in.",
    "attempts_allowed": "Attempts that this member signed.",
    "refused": "Messages that the daemon refused since it started.",
}


def metrics_text(values: Mapping[str, float]) -> str:
    """The figures in Prometheus's text format."""
    return "".join(
        f"# HELP rrcluster_{name} {_HELP[name]}\n# TYPE rrcluster_{name} gauge\nrrcluster_{name} {float(value)!r}\n"
        for name, value in values.items()
    )


def server_figures(agreement: Agreement, run: Path, expected: float, status: Mapping[str, Any]) -> dict[str, float]:
    """The progress of a training; `status` is the public part of the last message's outcome."""
    ledger, lines, about = run / "ledger.jsonl", run / "rounds.jsonl", agreement.guarantee
    charged = len(read_charges(ledger)) if ledger.exists() else 0
    rounds = read_json_lines(lines, damaged="stop") if lines.exists() else []
    figures = {
        "up": 1.0,
        "rounds_planned": about["num_rounds"],
        "rounds_done": len(rounds),
        "releases_allowed": about["num_releases"],
        "releases_charged": charged,
        "reserve_left": about["num_releases"] - about["num_rounds"] - max(0, charged - len(rounds)),
        "finished": (run / "models.safetensors").exists(),
        "expected_size": expected,
        "members": len(agreement.members),
        "members_needed": agreement.needed_members,
    }
    if rounds:
        figures["released_size"] = sum(rounds[-1]["sizes"])
    if "attempt" in status:
        figures["attempts"] = status["attempt"] + 1
    if "answered" in status:  # participation is public
        figures |= {"members_connected": len(status["answered"]), "last_message_seconds": status["at"]}
        figures |= {"last_release_seconds": lines.stat().st_mtime} if rounds else {}
    return figures


@contextmanager
def show_figures(port: int | None, file: Path) -> Iterator[None]:
    """Answer GET /metrics with this file and GET /health with a word, on the loopback interface alone."""

    class Answers(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            there = self.path == "/health" or (self.path == "/metrics" and file.exists())
            self.send_response(200 if there else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            with suppress(OSError):  # the reader has gone
                self.end_headers()
                self.wfile.write(b"" if not there else b"ok\n" if self.path == "/health" else file.read_bytes())

        def log_message(self, *_: Any) -> None:
            """Nobody needs to know."""

    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics = {port}: this port cannot be used ({error}); choose another.") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        yield
        server.shutdown()
