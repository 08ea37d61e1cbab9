"""The gate in front of a SuperLink: it forwards the calls that nodes of the roster make, and nothing else.

A SuperLink has one port for everything, and anybody who reaches it may list nodes and start runs. So it listens on the
loopback interface, and this program, or nginx (deploy/nginx.conf), faces the network. A node makes eight calls; those
that fetch code (get-run, get-fab) or register nodes are not among them.

Strangers cost little: a request is authenticated by its headers before a byte of its body is read, and connections that
have shown no key of the roster are few, live for seconds, and make room for newer ones.
"""

import asyncio
import resource
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import tyro
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import verify_signature
from uvicorn.protocols.http.h11_impl import H11Protocol

from rrcluster.federation.children import watch_parent

_OF_NODES = "activate-node deactivate-node send-node-heartbeat confirm-message-received"
_OF_MESSAGES = "pull-messages pull-object push-messages push-object"
PASSED = frozenset(f"/v1/fleet/{call}" for call in f"{_OF_NODES} {_OF_MESSAGES}".split())
_OWN = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"te", b"upgrade", b"keep-alive"})
_MOST_STRANGERS = 64  # connections that have not yet shown a key of the roster
_REQUESTS_PER_NODE = 16  # at the same time
_CONNECTIONS_PER_NODE = 8  # more connections need more open files than the process may have
_HEADER_SECONDS = 10.0  # for TLS, and again for the first request's headers
_BODY_SECONDS = 300.0

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gate:
    """An ASGI application. Its memory for one node is at most two bodies of the largest size."""

    def __init__(self, link: str, trusted: Path, nodes: Path, *, longest: int, metrics: Path | None = None) -> None:
        """Forward calls of the nodes whose keys are in a file to the SuperLink, whose certificate is `trusted`.

        `metrics`: a file of figures, served to this machine.
        """
        context = ssl.create_default_context(cafile=str(trusted))
        limits = httpx.Limits(keepalive_expiry=2.0)  # shorter than the SuperLink's own limit on idle connections, 5 s
        self._client = httpx.AsyncClient(base_url=f"https://{link}", verify=context, timeout=60.0, limits=limits)
        self._longest, self._metrics = longest, metrics
        self._keys = read_keys(nodes)
        self._requests: Counter[bytes] = Counter()
        self._held: Counter[bytes] = Counter()  # bytes of bodies in memory, by node

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if scope["method"] == "GET" and path in ("/health", "/metrics"):
            await self._show(path, scope, send)
            return
        if scope["method"] != "POST" or path not in PASSED:  # the checked path is the forwarded path
            await _refuse(send, 403)
            return
        node = self._node(dict(scope["headers"]))
        if node is None:
            await _refuse(send, 401)
            return
        if (connection := scope.get("connection")) is not None:
            connection.authenticated()
        if self._requests[node] >= _REQUESTS_PER_NODE:
            await _refuse(send, 429)
            return
        self._requests[node] += 1
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                refusal = await self._read(body, node, receive)
            if refusal:
                await _refuse(send, refusal)
            else:
                await self._pass_on(path, scope, bytes(body), send)
        except TimeoutError:
            await _refuse(send, 408)
        finally:
            self._requests[node] -= 1
            self._held[node] -= len(body)

    async def _show(self, path: str, scope: dict[str, Any], send: Send) -> None:
        """Show this machine the figures and the SuperLink's health; show others only that the gate is up."""
        near = scope["client"][0] in ("127.0.0.1", "::1")
        try:
            if path == "/metrics" and (not near or self._metrics is None):
                await _refuse(send, 403)
                return
            if path == "/health" and near:
                (await self._client.get(path)).raise_for_status()
            body = b"ok\n" if self._metrics is None or path == "/health" else self._metrics.read_bytes()
            await _respond(send, 200, body, (b"content-type", b"text/plain; version=0.0.4"))
        except (httpx.HTTPError, OSError):
            await _refuse(send, 503)

    def _node(self, headers: dict[bytes, bytes]) -> bytes | None:
        """The roster's public key that signed a request; None for a stranger's."""
        try:
            name = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            timestamp = headers[TIMESTAMP_HEADER.encode()]
            age = (now() - datetime.fromisoformat(timestamp.decode("ascii"))).total_seconds()
        except (KeyError, ValueError, TypeError):
            return None
        timely = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        key = self._keys.get(name)
        return name if key is not None and timely and verify_signature(key, timestamp, signature) else None

    async def _read(self, body: bytearray, node: bytes, receive: Receive) -> int:
        """Read a node's request into `body`; the HTTP status of a refusal, or 0."""
        more = True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return 400
            content = part.get("body", b"")
            body += content
            self._held[node] += len(content)
            more = part.get("more_body", False)
            if len(body) > self._longest or self._held[node] > 2 * self._longest:
                return 413
        return 0

    async def _pass_on(self, path: str, scope: dict[str, Any], body: bytes, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name not in _OWN]
        try:
            answer = await self._client.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            await _refuse(send, 503)
            return
        kind = answer.headers.get("content-type", "").encode()
        await _respond(send, answer.status_code, answer.content, (b"content-type", kind))


def read_keys(nodes: Path) -> dict[bytes, EllipticCurvePublicKey]:
    """The keys in a file of PEM blocks, in the form that nodes use in their requests."""
    end, keys = b"-----END PUBLIC KEY-----\n", {}
    for block in nodes.read_bytes().split(end)[:-1]:
        key = load_pem_public_key(block + end)
        if isinstance(key, EllipticCurvePublicKey):
            keys[block + end] = key
    return keys


async def _respond(send: Send, status: int, body: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [header, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, status: int) -> None:
    """Refuse the request; nothing more is read from this connection."""
    await _respond(send, status, b"", (b"connection", b"close"))


class Connection(H11Protocol):  # type: ignore[misc]
    """One connection: a stranger's, which ends soon, until a request has shown a key of the roster."""

    _strangers: dict["Connection", None] = {}  # noqa: RUF012  all of this process, the oldest first

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Create it with uvicorn's arguments."""
        super().__init__(*arguments, **options)
        gate: Gate = self.config.loaded_app
        self.app = lambda scope, receive, send: gate({**scope, "connection": self}, receive, send)

    def connection_made(self, transport: Any) -> None:
        """After the TLS handshake."""
        super().connection_made(transport)
        self._strangers[self] = None
        self._ending = self.loop.call_later(_HEADER_SECONDS, transport.abort)
        if len(self._strangers) > _MOST_STRANGERS:
            next(iter(self._strangers)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, whichever side ended it."""
        self.authenticated()
        super().connection_lost(exc)

    def authenticated(self) -> None:
        """The connection belongs to a node, or has ended."""
        self._ending.cancel()
        self._strangers.pop(self, None)


class _Loop(asyncio.SelectorEventLoop):
    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        return await super().create_server(*arguments, ssl_handshake_timeout=_HEADER_SECONDS, **options)


def main(
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    link: str,
    trusted: Path,
    nodes: Path,
    longest: int,
    parent: int | None = None,
    metrics: Path | None = None,
) -> None:
    """Run the gate between the network and a SuperLink.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        certificate: The server's certificate, a PEM file.
        key: Its private key.
        link: Address of the SuperLink, host:port.
        trusted: Certificate of the SuperLink.
        nodes: Public keys of the nodes that may call, a PEM file.
        longest: Largest request body that a node needs, in bytes.
        parent: Process whose end ends this one.
        metrics: File of figures for GET /metrics from this machine.
    """
    gate = Gate(link, trusted, nodes, longest=longest, metrics=metrics)
    most = 2 * _MOST_STRANGERS + _CONNECTIONS_PER_NODE * len(read_keys(nodes)) + 128
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    settings = uvicorn.Config(
        gate,
        host=host,
        port=port,
        http=Connection,
        interface="asgi3",
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,  # it would record who takes part
        log_level="error",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    watch_parent(parent, lambda: setattr(server, "should_exit", True))
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(server.serve())


if __name__ == "__main__":
    tyro.cli(main)
