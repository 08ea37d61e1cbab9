"""A member's node: fetches messages over Flower's Fleet API and passes them to the member's daemon.

Flower's own SuperNode runs the code that a server ships with every run, as a user who may read the member's data. This
node speaks the same protocol and runs none of it: bytes go to the daemon's socket, and its answer goes back. The node
has no data and the daemon no network.
"""

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_protobuf_utils as protobuf
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from rrcluster.errors import ConfigError, ProtocolError
from rrcluster.federation.messages import LONGEST_LETTER, Letter
from rrcluster.federation.unix_socket import ask_socket

HEARTBEAT = 10.0  # seconds, Flower's minimum; a killed node can be back after twice that
_LOG = logging.getLogger("rrcluster")


@dataclass(frozen=True)
class FleetNode:
    """The connection between a server and one daemon."""

    server: str  # host:port of the gate
    ca: Path  # certificates that may sign the server's
    key: ec.EllipticCurvePrivateKey
    socket: Path  # the daemon's
    poll_seconds: float = 0.5
    retry_seconds: float = 3.0

    def run(self, stop: threading.Event) -> None:
        """Stay connected until `stop` is set; every failure is retried."""
        last_error = None
        while not stop.is_set():
            try:
                with self.client() as client:
                    self._stay(client, stop)
                last_error = None
            except Exception as error:
                if str(error) != last_error:  # log each error once, not at every retry
                    last_error = str(error)
                    _LOG.warning(
                        "no connection to %s, trying every %g s: %s", self.server, self.retry_seconds, last_error
                    )
            stop.wait(self.retry_seconds)

    def client(self) -> Any:
        """A client of Flower's Fleet API with the node's key."""
        client = FleetHttpClient.from_server_address(
            self.server,
            insecure=False,
            root_certificates=self.ca.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self.key, self.key.public_key()),
            ],
            retry_invoker=RetryInvoker(lambda: constant(0.5), httpx.TransportError, max_tries=3, max_time=10.0),
        )
        client._client.follow_redirects = False  # a redirect could point into the member's network
        return client

    def activate(self, client: Any) -> Any:
        """The SuperLink's number for this node's key; an HTTP error if the key is not in the roster."""
        public = public_key_to_bytes(self.key.public_key())
        activated = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
        return Node(node_id=activated.node_id)

    def _stay(self, client: Any, stop: threading.Event) -> None:
        node, ended = self.activate(client), threading.Event()
        _LOG.info("connected to %s", self.server)
        beating = threading.Thread(target=self._beat, args=(client, node, ended), daemon=True)
        beating.start()
        try:
            while not (stop.is_set() or ended.is_set()):
                pulled = client.PullMessages(PullMessagesRequest(node=node))
                for tree in pulled.message_object_trees:
                    self._answer(client, node, pulled.messages_list[0].metadata.run_id, tree)
                if not pulled.messages_list:
                    stop.wait(self.poll_seconds)
        finally:
            ended.set()
            beating.join()
            with contextlib.suppress(Exception):  # the server notices later in any case
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _beat(self, client: Any, node: Any, ended: threading.Event) -> None:
        """Send heartbeats, also while the daemon computes."""
        beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT)
        while not ended.wait(HEARTBEAT / 2):
            try:
                registered = client.SendNodeHeartbeat(beat).success
            except httpx.TransportError:  # the server is busy; if it is gone, fetching messages will show it
                continue
            except Exception:  # a restarted server does not know its nodes
                registered = False
            if not registered:
                ended.set()

    def _answer(self, client: Any, node: Any, run_id: int, tree: Any) -> None:
        """Handle one message: fetch it, ask the daemon, send the answer."""
        message = fetch(client, node, run_id, tree)
        reply = Message(wrap(self._ask_daemon(message)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, own_tree = get_all_nested_objects(reply), get_object_tree(reply)
        pushed = client.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[own_tree],
                clientapp_runtime_list=[0.0],  # the server must not learn the computing time
            )
        )
        push = protobuf.make_push_object_fn_protobuf(client.PushObject, node, run_id, pushed.session_id)
        push_objects(objects, push, object_ids_to_push=set(pushed.objects_to_push))

    def _ask_daemon(self, message: Any) -> bytes:
        """The daemon's answer, or the word "away" if none arrives in time."""
        deadline = time.monotonic() + message.metadata.ttl
        try:
            content = unwrap(message, longest=LONGEST_LETTER)
            return ask_socket(self.socket, content, deadline=deadline, longest=LONGEST_LETTER)
        except (OSError, ProtocolError) as error:
            _LOG.warning("the daemon did not answer: %s", error)
            return Letter("away").encode()


def load_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key, from a file in OpenSSH format."""
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{path}: not a private key in OpenSSH format; give the file that enrolling made.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an elliptic-curve key (P-384), the only kind that Flower accepts.")
    return key


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
        raise ProtocolError("a message has no bytes, or more than agreed.")
    return content


def fetch(client: Any, node: Any, run_id: int, tree: Any, *, tries: int | None = None) -> Any:
    """Fetch a message whose parts are at the SuperLink. Its content is untrusted: reading it may raise any error.

    ObjectPullError if a part is missing after `tries` attempts; None: as many as Flower makes in some minutes.
    """
    pull = protobuf.make_pull_object_fn_protobuf(client.PullObject, node, run_id)
    limit = {} if tries is None else {"max_tries_per_object": tries}
    contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull, **limit)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=tree.object_id)
    )
    message: Any = inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id  # not part of the message as sent
    return message
