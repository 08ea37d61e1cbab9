"""The SuperLink of a federation: on the loopback interface, in memory, known only to the server's own process.

It queues messages between the server and nodes. Its nodes come from the roster: they are registered by their public
keys at every start, whoever happens to be connected. It runs no app: the process that serves the federation takes its
place.
"""

import contextlib
import io
import os
import ssl
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.common.constant import HEARTBEAT_PATIENCE
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from rrcluster.errors import ConfigError
from rrcluster.federation.certificates import issue_server, make_authority
from rrcluster.federation.children import Process, free_port, start_module, stop_processes
from rrcluster.storage import make_subfolder, replace_file

_APP = """
[project]
name = "rrcluster"
version = "1.0.0"
description = "No code: the server's process and the members' nodes bring their own."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "rrcluster"
[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"
"""
_STARTING = 180.0  # seconds until a SuperLink counts as failed; long, for busy machines
_HEARTBEAT = 10.0


@dataclass
class SuperLink:
    """A SuperLink as a child process, with the run that messages belong to."""

    node_keys: Mapping[int, str]  # place in the roster -> public key of the member's node, in OpenSSH format
    folder: Path  # for its certificates and its log
    port: int = 0  # 0: any free port

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        self.node_ids: dict[int, int] = {}  # place in the roster -> the node's number at this SuperLink
        self.grid: Any = None
        self.process: Process | None = None
        self._ended = threading.Event()

    def __enter__(self) -> "SuperLink":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The address it listens on."""
        return f"127.0.0.1:{self.port}"

    @property
    def trusted(self) -> Path:
        """The certificate that signs the SuperLink's, for the gate on this machine."""
        return self.folder / "superlink" / "ca.pem"

    @property
    def nodes(self) -> Path:
        """A file with the nodes' public keys, for the gate."""
        return self.folder / "superlink" / "nodes.pem"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process, register the roster's nodes, and open a run."""
        own_folder = make_subfolder(self.folder / "superlink", private=True)
        if self.trusted.exists():
            issue_server(own_folder, own_folder, hosts=["127.0.0.1"])
        else:
            make_authority(own_folder, own_folder, name="superlink", hosts=["127.0.0.1"])
        replace_file(self.nodes, b"".join(map(_pem, self.node_keys.values())), mode=0o600)
        with TemporaryDirectory(dir=own_folder) as name:
            secret = Path(name) / "secret"
            secret.write_bytes(os.urandom(32))
            self.process = self._launch(secret)
            try:
                self._wait()
                with _client(ControlHttpClient, self) as control:
                    self.node_ids = {
                        place: control.RegisterNode(RegisterNodeRequest(public_key=_pem(key))).node_id
                        for place, key in self.node_keys.items()
                    }
                    control.StartRun(StartRunRequest(fab=_fab()))
                self._open_run(secret.read_bytes())
            except httpx.HTTPError as error:
                self.stop()
                raise self._not_started() from error
            except BaseException:
                self.stop()
                raise

    def node_times(self) -> dict[int, tuple[float, float]]:
        """For each place, when its node was last activated and last heard from, by this machine's clock."""
        with _client(ControlHttpClient, self) as control:
            nodes = {info.node_id: info for info in control.ListNodes(ListNodesRequest()).nodes_info}
        nodes_by_place = {place: nodes[number] for place, number in self.node_ids.items() if number in nodes}
        return {
            place: (
                datetime.fromisoformat(info.last_activated_at).timestamp(),
                info.online_until - HEARTBEAT_PATIENCE * info.heartbeat_interval,
            )
            for place, info in nodes_by_place.items()
            if info.last_activated_at
        }

    def stop(self) -> None:
        """End the run and the process; all queued messages are lost."""
        self._ended.set()
        if self.grid is not None:
            with contextlib.suppress(Exception):
                self.grid.close()
        if self.process is not None:
            stop_processes([self.process])

    def restart(self) -> None:
        """Restart at the same port, with new node numbers."""
        self.stop()
        self.start()

    def _launch(self, secret: Path) -> Process:
        own_folder = self.trusted.parent
        return start_module(
            "rrcluster.federation.flower.run_superlink",
            str(os.getpid()),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-certfile", str(own_folder / "server.pem"), "--ssl-keyfile", str(own_folder / "server.key")),
            *("--ssl-ca-certfile", str(self.trusted)),
            "--enable-supernode-auth",
            *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
            "--disable-runtime-dependency-installation",
            log=self.folder / "superlink.log",
            environment={"FLWR_HOME": str(secret.parent), "FLWR_LOG_LEVEL": "ERROR"},
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + _STARTING
        context = ssl.create_default_context(cafile=str(self.trusted))
        with httpx.Client(verify=context) as client:
            while time.monotonic() < deadline and self.alive:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"https://{self.address}/health").status_code == httpx.codes.OK:
                        return
                time.sleep(0.2)
        raise self._not_started()

    def _not_started(self) -> ConfigError:
        return ConfigError(f"the SuperLink did not start on port {self.port}; see {self.folder / 'superlink.log'}.")

    def _open_run(self, secret: bytes) -> None:
        """Take the run's task, as Flower's own app runner would, and ask for messages in its name."""
        protected = ["/flwr.proto.Runtime/AcquireTask"]
        signing = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)
        with _client(RuntimeHttpClient, self, signing) as runtime:
            task = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        self.grid = HttpGrid(self.address, root_certificates=self.trusted.read_bytes(), token=task.token)
        # Flower's own invoker retries for ever, and ends the process on a refusal
        self.grid._retry_invoker = RetryInvoker(lambda: constant(0.2), httpx.TransportError, max_tries=3, max_time=5.0)
        answer = self.grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        self.grid.set_run(run_from_proto(answer.run))
        TaskIdentity.task_id, TaskIdentity.run_id = answer.task_id, answer.run.run_id  # messages carry these
        TaskIdentity.node_id = answer.context.node_id
        self._ended = threading.Event()
        beat = self.grid._runtime_client.SendTaskHeartbeat
        threading.Thread(target=_beat, args=(beat, self._ended), daemon=True).start()


def _beat(send: Callable[[Any], Any], ended: threading.Event) -> None:
    """Keep the run open. Failures are left to the sender of the next message, which fails too."""
    while not ended.wait(_HEARTBEAT):
        with contextlib.suppress(Exception):
            send(SendTaskHeartbeatRequest())


def _client(kind: Any, link: SuperLink, *interceptors: Any) -> Any:
    return kind.from_server_address(
        link.address,
        insecure=False,
        root_certificates=link.trusted.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="rrcluster"), *interceptors],
    )


def _pem(key: str) -> bytes:
    """A public key in Flower's format."""
    try:
        return load_ssh_public_key(key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{key[:40]!r} is not a node's public key; its member must enrol again.") from None


def _fab() -> Any:
    """The app bundle that Flower requires of a run: a name and nothing to execute."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr("pyproject.toml", _APP)
    return Fab(content=content.getvalue())
