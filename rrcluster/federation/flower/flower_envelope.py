"""A message's bytes in Flower's records, and back."""

import os
from typing import Any

from flwr.app import ConfigRecord, RecordDict

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
