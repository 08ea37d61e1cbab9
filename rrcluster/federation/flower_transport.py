"""Flower as the transport of a federation: its SuperLink queues messages, its Fleet API carries them.

The SuperLink listens on the loopback interface, in memory, and nginx (deploy/nginx-flower.conf) faces the network. Its
nodes come from the roster: they are registered by their public keys at every start. No code travels: the serving
process takes the place of a server app, and a member's node, unlike Flower's own, runs no code from the server: it
passes bytes to the daemon's socket.
"""

import asyncio
import contextlib
import io
import logging
import os
import signal
import ssl
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rrcluster.errors import ConfigError, ProtocolError, RoundError, install_extra
from rrcluster.federation.certificates import issue_server, make_authority, read_public_key
from rrcluster.federation.children import Process, start_module, stop_processes, watch_parent
from rrcluster.federation.messages import LONGEST_LETTER, Letter
from rrcluster.federation.tls_transport import ARRIVAL, USUAL_ADDRESS, TlsNode
from rrcluster.federation.transports import Reach
from rrcluster.storage import make_subfolder

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")  # read on import of Flower
os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")  # at INFO it logs who takes part, and when
# no proxy for this machine's own calls
os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))

try:
    import httpx
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.app.message import remove_content_from_message
    from flwr.common.constant import HEARTBEAT_PATIENCE
    from flwr.common.serde import message_to_proto, run_from_proto
    from flwr.proto import control_pb2, fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
    from flwr.supercore import interceptors
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.inflatable import inflatable_object, inflatable_protobuf_utils, inflatable_utils
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.retry import RetryInvoker, constant
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
except ImportError as error:
    raise ConfigError(
        f"a federation over Flower needs it; {install_extra('flower')} with `-c constraints-flower.txt`, in an "
        "environment of its own."
    ) from error

HEARTBEAT = 10.0  # seconds, Flower's minimum; a killed node can be back after twice that
_LOG = logging.getLogger("rrcluster")


@dataclass
class FleetNode(TlsNode):
    """The connection between a SuperLink, behind nginx, and one daemon."""

    poll_seconds: float = 0.5

    async def _stay(self) -> None:
        """Keep one connection, in a thread."""
        self._ended = threading.Event()
        try:
            await asyncio.to_thread(self._poll, self._ended)
        finally:
            self._ended.set()

    def client(self) -> Any:
        """A client of Flower's Fleet API with the node's key."""
        client = FleetHttpClient.from_server_address(
            self.server,
            insecure=False,
            root_certificates=self.ca.read_bytes(),
            interceptors=[
                interceptors.RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self.key, self.key.public_key()),
            ],
            retry_invoker=RetryInvoker(lambda: constant(0.5), httpx.TransportError, max_tries=3, max_time=10.0),
        )
        client._client.follow_redirects = False  # a redirect could point into the member's network
        return client

    def activate(self, client: Any) -> Any:
        """The SuperLink's number for this node's key; an HTTP error if the key is not in the roster."""
        public = public_key_to_bytes(self.key.public_key())
        activated = client.ActivateNode(fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
        return node_pb2.Node(node_id=activated.node_id)

    def _poll(self, ended: threading.Event) -> None:
        """Fetch messages until `ended` is set by a signal, or because the SuperLink no longer knows the node."""
        with self.client() as client:
            node = self.activate(client)
            _LOG.info("connected to %s", self.server)
            beating = threading.Thread(target=self._beat_for, args=(client, node, ended), daemon=True)
            beating.start()
            try:
                while not ended.is_set():
                    pulled = client.PullMessages(fleet_pb2.PullMessagesRequest(node=node))
                    for tree in pulled.message_object_trees:
                        self._answer_one(client, node, pulled.messages_list[0].metadata.run_id, tree)
                    if not pulled.messages_list:
                        ended.wait(self.poll_seconds)
            finally:
                ended.set()
                beating.join()
                with contextlib.suppress(Exception):  # the server notices later in any case
                    client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node.node_id))

    def _beat_for(self, client: Any, node: Any, ended: threading.Event) -> None:
        """Send heartbeats, also while the daemon computes."""
        beat = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT)
        while not ended.wait(HEARTBEAT / 2):
            try:
                known = client.SendNodeHeartbeat(beat).success
            except httpx.TransportError:  # the server is busy; if it is gone, fetching messages will show it
                continue
            except Exception:  # a restarted server does not know its nodes
                known = False
            if not known:
                ended.set()

    def _answer_one(self, client: Any, node: Any, run_id: int, tree: Any) -> None:
        """Handle one message: fetch it, ask the daemon, send the answer."""
        message = fetch(client, node, run_id, tree)
        reply = Message(wrap(self._content_of_answer(message)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, own_tree = inflatable_object.get_all_nested_objects(reply), inflatable_object.get_object_tree(reply)
        pushed = client.PushMessages(
            fleet_pb2.PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[own_tree],
                clientapp_runtime_list=[0.0],  # the server must not learn the computing time
            )
        )
        push = inflatable_protobuf_utils.make_push_object_fn_protobuf(
            client.PushObject, node, run_id, pushed.session_id
        )
        inflatable_utils.push_objects(objects, push, object_ids_to_push=set(pushed.objects_to_push))

    def _content_of_answer(self, message: Any) -> bytes:
        try:
            content = unwrap(message, longest=LONGEST_LETTER)
        except ProtocolError as error:
            _LOG.warning("a message was not handed to the daemon: %s", error)
            return Letter("away").encode()
        return asyncio.run(self._ask_daemon(content, message.metadata.ttl))


_RECORD, _CONTENT, _NONCE = "letter", "content", "nonce"


def wrap(content: bytes) -> Any:
    """Wrap these bytes as a Flower record.

    Flower identifies a message by its hash, and accepts an answer from anybody who knows it. A random number makes the
    hash unpredictable to all but the receiver.
    """
    return RecordDict({_RECORD: ConfigRecord({_CONTENT: content, _NONCE: os.urandom(16)})})


def unwrap(message: Any, *, longest: int) -> bytes:
    """The bytes in a Flower message; ProtocolError if there are none, or too many."""
    record = message.content.config_records.get(_RECORD, {}) if message.has_content() else {}
    content = record.get(_CONTENT)
    if not isinstance(content, bytes) or len(content) > longest:
        raise ProtocolError("a message holds no bytes, or more than agreed.")
    return content


def fetch(client: Any, node: Any, run_id: int, tree: Any, *, tries: int | None = None) -> Any:
    """Fetch a message whose parts are at the SuperLink. Its content is untrusted: reading it may raise any error.

    ObjectPullError if a part is missing after `tries` attempts; None: as many as Flower makes in some minutes.
    """
    pull = inflatable_protobuf_utils.make_pull_object_fn_protobuf(client.PullObject, node, run_id)
    limit = {} if tries is None else {"max_tries_per_object": tries}
    contents = inflatable_utils.pull_objects(
        [part.object_id for part in inflatable_object.iterate_object_tree(tree)], pull, **limit
    )
    client.ConfirmMessageReceived(
        message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=tree.object_id)
    )
    message: Any = inflatable_utils.inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id  # not part of the message as sent
    return message


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


@dataclass
class SuperLink:
    """A SuperLink as a child process, with the run that messages belong to."""

    node_keys: Mapping[int, str]  # place in the roster -> public key of the member's node, in OpenSSH format
    folder: Path  # for its certificates and its log
    port: int

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.port}"
        self.trusted = self.folder / "superlink" / "ca.pem"  # signs its certificate, for clients on this machine
        self.node_ids: dict[int, int] = {}  # place in the roster -> the node's number at this SuperLink
        self.grid: Any = None
        self.process: Process | None = None
        self._ended = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __enter__(self) -> "SuperLink":
        """Start the process, register the roster's nodes, and open a run."""
        own = make_subfolder(self.folder / "superlink", private=True)
        if self.trusted.exists():
            issue_server(own, own, hosts=["127.0.0.1"])
        else:
            make_authority(own, own, name="superlink", hosts=["127.0.0.1"])
        with TemporaryDirectory(dir=own) as name:
            secret = Path(name) / "secret"
            secret.write_bytes(os.urandom(32))
            self.process = self._launch(secret)
            try:
                self._wait()
                with _client(ControlHttpClient, self) as control:
                    for place, key in self.node_keys.items():
                        public = public_key_to_bytes(read_public_key(key))
                        request = control_pb2.RegisterNodeRequest(public_key=public)
                        self.node_ids[place] = control.RegisterNode(request).node_id
                    control.StartRun(control_pb2.StartRunRequest(fab=_fab()))
                self._open_run(secret.read_bytes())
            except BaseException as error:
                self.stop()
                if isinstance(error, httpx.HTTPError):
                    raise self._not_started() from error
                raise
        return self

    def node_times(self) -> dict[int, tuple[float, float]]:
        """For each place, when its node was last activated and last heard from, by this machine's clock."""
        with _client(ControlHttpClient, self) as control:
            nodes = {info.node_id: info for info in control.ListNodes(control_pb2.ListNodesRequest()).nodes_info}
        known = {place: nodes[number] for place, number in self.node_ids.items() if number in nodes}
        return {
            place: (
                datetime.fromisoformat(info.last_activated_at).timestamp(),
                info.online_until - HEARTBEAT_PATIENCE * info.heartbeat_interval,
            )
            for place, info in known.items()
            if info.last_activated_at
        }

    def stop(self) -> None:
        """End the run and the process; all queued messages are lost."""
        self._ended.set()
        with contextlib.suppress(Exception):  # there may be none yet
            self.grid.close()
        stop_processes([self.process] if self.process else [])

    def _launch(self, secret: Path) -> Process:
        own = self.trusted.parent
        return start_module(
            "rrcluster.federation.flower_transport",
            str(os.getpid()),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-certfile", str(own / "server.pem"), "--ssl-keyfile", str(own / "server.key")),
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
            while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
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
        signing = interceptors.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)
        with _client(RuntimeHttpClient, self, signing) as runtime:
            task = runtime.AcquireTask(runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        self.grid = HttpGrid(self.address, root_certificates=self.trusted.read_bytes(), token=task.token)
        # Flower's own invoker retries for ever, and ends the process on a refusal
        self.grid._retry_invoker = RetryInvoker(lambda: constant(0.2), httpx.TransportError, max_tries=3, max_time=5.0)
        taken = self.grid._runtime_client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
        self.grid.set_run(run_from_proto(taken.run))
        TaskIdentity.task_id, TaskIdentity.run_id = taken.task_id, taken.run.run_id  # messages carry these
        TaskIdentity.node_id = taken.context.node_id
        self._ended = threading.Event()
        beat = self.grid._runtime_client.SendTaskHeartbeat
        threading.Thread(target=_beat, args=(beat, self._ended), daemon=True).start()


def _beat(send: Callable[[Any], Any], ended: threading.Event) -> None:
    """Keep the run open. Failures are left to the sender of the next message, which fails too."""
    while not ended.wait(HEARTBEAT):
        with contextlib.suppress(Exception):
            send(runtime_pb2.SendTaskHeartbeatRequest())


def _client(kind: Any, link: SuperLink, *more: Any) -> Any:
    return kind.from_server_address(
        link.address,
        insecure=False,
        root_certificates=link.trusted.read_bytes(),
        interceptors=[interceptors.RuntimeVersionHttpInterceptor(component_name="rrcluster"), *more],
    )


def _fab() -> Any:
    """The app bundle that Flower requires of a run: a name and nothing to execute."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr("pyproject.toml", _APP)
    return fab_pb2.Fab(content=content.getvalue())


_NO_LINK = "the SuperLink does not answer; see superlink.log, then serve again."


@dataclass
class FlowerTransport:
    """Members that are reached over a SuperLink; see `Transport`.

    A dead SuperLink is a RoundError: `serve` ends, and starts another one on its next start.
    """

    link: SuperLink
    seconds: float  # until a round's deadline; messages expire with it, and late answers are refused
    poll_seconds: float = 0.2
    _stayed: set[int] = field(default_factory=set, init=False)

    def ask(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers that came in time."""
        answers: dict[int, bytes] = {}
        self._stayed = set()
        if not messages:
            return answers
        began, deadline = time.time(), time.monotonic() + self.seconds
        arriving: dict[int, Any] = {}  # replies whose parts are still arriving
        try:
            asked = self._push(messages)
            while (asked or arriving) and time.monotonic() < deadline:
                arriving |= self._pull(asked)
                answers |= self._fetch(arriving)
                time.sleep(self.poll_seconds if asked or arriving else 0.0)
            if silent := set(asked.values()) | set(arriving):
                self._stayed = self._connected_since(began) & silent
        except httpx.HTTPError:
            raise RoundError(_NO_LINK) from None
        return answers

    def stayed(self) -> set[int]:
        """Members whose nodes have stayed connected since the last question, by their heartbeats."""
        return self._stayed

    def _connected_since(self, began: float) -> set[int]:
        """Nodes activated before this time and heard from since now; waits for their heartbeats."""
        now = time.time()
        time.sleep(HEARTBEAT + 1.0)
        times = self.link.node_times()
        return {place for place, (activated, heard) in times.items() if activated < began and heard >= now}

    def wait_for_nodes(self, places: Collection[int], seconds: float) -> set[int]:
        """Wait until the nodes of these members are connected; those that are after `seconds`.

        RoundError where the SuperLink is gone.
        """
        deadline = time.monotonic() + seconds
        try:
            while (online := self._online(places)) != set(places) and time.monotonic() < deadline:
                time.sleep(self.poll_seconds)
        except httpx.HTTPError:
            raise RoundError(_NO_LINK) from None
        return online

    def _online(self, places: Collection[int]) -> set[int]:
        nodes = set(self.link.grid.get_node_ids())
        return {place for place in places if self.link.node_ids[place] in nodes}

    def _push(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Places by message number; a node that never connected gets no message."""
        sent = [
            Message(wrap(content), self.link.node_ids[place], "query", ttl=self.seconds)
            for place, content in messages.items()
        ]
        numbers = self.link.grid.push_messages(sent)
        return {number: place for number, place in zip(numbers, messages, strict=True) if number}

    def _pull(self, asked: dict[str, int]) -> dict[int, Any]:
        """The parts of replies that have arrived, by place; removes them from `asked`."""
        if not asked:
            return {}
        pulled = self.link.grid._runtime_client.PullMessages(
            runtime_pb2.PullAppMessagesRequest(message_ids=list(asked))
        )
        arrived = {}
        for reply, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            place = asked.pop(reply.metadata.reply_to_message_id)
            if reply.metadata.src_node_id == self.link.node_ids[place]:  # otherwise it is in another member's name
                arrived[place] = tree
        return arrived

    def _fetch(self, arriving: dict[int, Any]) -> dict[int, bytes]:
        """Replies that are complete; removes them from `arriving`. No member's reply can delay the others."""
        grid, answers = self.link.grid, {}
        for place, tree in list(arriving.items()):
            try:
                message = fetch(grid._runtime_client, grid.node, grid.run.run_id, tree, tries=1)
                answers[place] = unwrap(message, longest=LONGEST_LETTER)
            except inflatable_utils.ObjectPullError:
                continue
            except httpx.TransportError:
                raise
            except Exception:  # any failure: the member has dropped out
                pass
            del arriving[place]
        return answers


@contextmanager
def open_flower(reach: Reach) -> Iterator[FlowerTransport]:
    """The SuperLink of a federation, and the transport over it; it stops on leaving.

    Members without a node key cannot be reached.
    """
    keys = {place: member.node_key for place, member in enumerate(reach.agreement.members) if member.node_key}
    host, _, port = (reach.address or USUAL_ADDRESS).rpartition(":")
    if host != "127.0.0.1" or not port.isdigit():
        raise ConfigError(
            f"address = {reach.address!r}: a SuperLink lets strangers start runs, so it listens at 127.0.0.1:PORT, and "
            "nginx faces the network (deploy/nginx-flower.conf)."
        )
    with SuperLink(keys, reach.folder.private, int(port)) as link:
        transport = FlowerTransport(link, reach.seconds)
        transport.wait_for_nodes(keys, min(ARRIVAL, reach.seconds))
        yield transport


if __name__ == "__main__":  # Flower's own program, until its parent ends
    parent = int(sys.argv.pop(1))
    watch_parent(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
    flower_superlink()
