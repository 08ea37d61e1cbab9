"""A real browser without a driver: Chromium spoken to over a pipe, in the words of its DevTools protocol."""

import base64
import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LIMIT = 60  # seconds for any one answer
FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions --disable-sync "
    "--disable-background-networking --disable-component-update --remote-debugging-pipe"
)


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless browser; everything it complains about is in `complaints`."""

    def __init__(self, executable: str, profile: Path) -> None:
        reads, child_writes = os.pipe()
        child_reads, writes = os.pipe()
        self._in, self._out = os.fdopen(reads, "rb", buffering=0), os.fdopen(writes, "wb", buffering=0)
        high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64) for number in (child_reads, child_writes)]
        arguments = [executable, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, number, place) for number, place in zip(high, (3, 4), strict=True)]
        self._process = os.posix_spawn(executable, arguments, os.environ, file_actions=actions)
        for number in (child_reads, child_writes, *high):
            os.close(number)
        self._rest, self._count, self._session = b"", 0, None
        self._events: list[dict] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        self._in.close()
        self._out.close()

    def ask(self, method: str, **parameters: object) -> dict:
        """Send one command and wait for its answer."""
        self._count += 1
        message: dict = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        number = self._count
        answer = self._wait(lambda entry: entry.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, mobile: bool = False) -> None:
        """Show a file at a width, and wait until it is loaded."""
        self.open_address(page.resolve().as_uri(), width=width, height=height, dark=dark, mobile=mobile)

    def open_address(
        self, address: str, *, width: int, height: int = 900, dark: bool = False, mobile: bool = False
    ) -> None:
        """The same for an address."""
        self.complaints.clear()
        self._events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=address)
        if not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._wait(lambda entry: entry.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> object:
        """The value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        sent = [event for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def shoot(self, path: Path) -> None:
        """A picture of the whole page."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _wait(self, wanted: object) -> dict:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            while b"\0" not in self._rest:
                piece = self._in.read(1 << 16)
                assert piece, "the browser went away"
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\0")
            entry = json.loads(line)
            self._events.append(entry)
            self._note(entry)
            if wanted(entry):
                return entry
        raise TimeoutError(f"no answer from the browser in {LIMIT} s")

    def _note(self, entry: dict) -> None:
        method, told = entry.get("method"), entry.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        if method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        if method == "Network.loadingFailed":
            self.complaints.append(told["errorText"])
