"""Messages between server and clients: a name, some facts and arrays, as the bytes of a safetensors file.

Nothing in a message is executed. A message is refused before it is parsed if it is longer than agreed, and after that
unless it holds exactly the arrays that are expected of it, in shape and type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rrcluster.errors import ProtocolError
from rrcluster.storage import parse_json, to_json
from rrcluster.types import Array

LONGEST_LETTER = 2**31  # bytes of a message, either way
_LONGEST_HEADER = 2**20  # names, facts and shapes; what is long belongs into arrays


@dataclass(frozen=True)
class Letter:
    """One message. What it says of clients is private: it is shown in no log and no error."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def encode(self) -> bytes:
        """As bytes."""
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        return save(arrays, metadata={"name": self.name, "facts": to_json(dict(self.facts))})

    def expect(self, name: str, **wanted: tuple[str, tuple[int | None, ...]]) -> "Letter":
        """Itself, if it has this name and exactly these arrays: kind of type and shape, None where any length will do.

        The kind is numpy's letter with the size ("f4", "i8", "u4").
        """
        if self.name != name or set(self.arrays) != set(wanted):
            raise ProtocolError(f"the message is not the {name} that was asked for.")
        for array, (kind, shape) in wanted.items():
            values = self.arrays[array]
            fits = len(values.shape) == len(shape) and all(
                length in (None, actual) for length, actual in zip(shape, values.shape, strict=True)
            )
            if values.dtype != np.dtype(kind) or not fits:
                raise ProtocolError(f"{array} of the message {name} has another type or shape than agreed.")
        return self


def decode(content: bytes, *, longest: int) -> Letter:
    """The message of these bytes; ProtocolError if they are too many, or none of ours."""
    if len(content) > longest:
        raise ProtocolError(f"a message of {len(content)} bytes is longer than the {longest} that it may have.")
    try:
        header = int.from_bytes(content[:8], "little")
        if header > min(_LONGEST_HEADER, len(content)):
            raise ValueError("header")
        about = parse_json(content[8 : 8 + header].decode())["__metadata__"]
        facts = parse_json(about["facts"])
        if not isinstance(facts, dict):
            raise ValueError("facts")
        return Letter(str(about["name"]), facts, load(content))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError):
        pass
    raise ProtocolError("a message cannot be read; sender and receiver must run the same version.")
