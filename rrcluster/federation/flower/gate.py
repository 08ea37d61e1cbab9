"""The gate in front of a SuperLink: passes the calls that nodes make, and nothing else.

A SuperLink has one port for everything, and whoever reaches it may list nodes and start runs. So it listens on the
loopback interface, and this program, or nginx (deploy/nginx.conf), faces the network. A node makes eight calls; what
fetches code (get-run, get-fab) and what registers nodes is not among them.
"""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import tyro
import uvicorn

from rrcluster.federation.flower.children import watch_parent

PASSED = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    )
)
_OWN = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"keep-alive"})
LONGEST_BODY = 2**30

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gate:
    """An ASGI application."""

    def __init__(self, link: str, trusted: Path, *, longest: int = LONGEST_BODY) -> None:
        """Pass calls on to the SuperLink at this address, whose certificate is `trusted`."""
        context = ssl.create_default_context(cafile=str(trusted))
        limits = httpx.Limits(keepalive_expiry=2.0)  # before the SuperLink ends an idle connection, after 5 s
        self._client = httpx.AsyncClient(base_url=f"https://{link}", verify=context, timeout=60.0, limits=limits)
        self._longest = longest

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if scope["method"] != "POST" or path not in PASSED:  # the path that is checked is the path that is passed on
            await _respond(send, 403, b"")
            return
        body = bytearray()
        more = True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            more = part.get("more_body", False)
            if len(body) > self._longest:
                await _respond(send, 413, b"")
                return
        headers = [(name, value) for name, value in scope["headers"] if name not in _OWN]
        try:
            answer = await self._client.post(path, content=bytes(body), headers=headers)
        except httpx.HTTPError:
            await _respond(send, 503, b"")
            return
        await _respond(send, answer.status_code, answer.content, answer.headers.get("content-type", ""))


async def _respond(send: Send, status: int, body: bytes, kind: str = "text/plain") -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(
    host: str, port: int, certificate: Path, key: Path, link: str, trusted: Path, parent: int | None = None
) -> None:
    """Stand between the network and a SuperLink.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        certificate: The server's certificate, a PEM file.
        key: Its private key.
        link: Address of the SuperLink, host:port.
        trusted: Certificate of the SuperLink.
        parent: Process whose end ends this one.
    """
    settings = uvicorn.Config(
        Gate(link, trusted),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,  # it would say who takes part
        log_level="error",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    watch_parent(parent, lambda: setattr(server, "should_exit", True))
    server.run()


if __name__ == "__main__":
    tyro.cli(main)
