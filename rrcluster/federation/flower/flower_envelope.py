"""A message's bytes in Flower's records, and back."""

import os
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

from rrcluster.errors import ProtocolError

_RECORD, _CONTENT, _NONCE = "letter", "content", "nonce"


def wrap(content: bytes) -> Any:
    """These bytes as a record.

    Flower calls a message by the hash of what it holds, and takes the answer of whoever names it. A random number
    makes the name one that only its receiver knows.
    """
    return RecordDict({_RECORD: ConfigRecord({_CONTENT: content, _NONCE: os.urandom(16)})})


def unwrap(message: Any, *, longest: int) -> bytes:
    """The bytes in a message of Flower's; ProtocolError if there are none, or too many."""
    record = message.content.config_records.get(_RECORD, {}) if message.has_content() else {}
    content = record.get(_CONTENT)
    if not isinstance(content, bytes) or len(content) > longest:
        raise ProtocolError("a message holds no bytes, or more than agreed.")
    return content


def fetch(client: Any, node: Any, run_id: int, tree: Any, *, tries: int | None = None) -> Any:
    """A message whose parts are at the SuperLink. What it holds is the sender's: any error may come of reading it.

    ObjectPullError where a part is not there after so many tries; None: as many as Flower makes in some minutes.
    """
    pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
    limit = {} if tries is None else {"max_tries_per_object": tries}
    contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull, **limit)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=tree.object_id)
    )
    message: Any = inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id  # not part of what was sent
    return message
