"""The messages of a secure aggregation as letters. Bytes travel as arrays of bytes, each with the length agreed on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from rrcluster.errors import ProtocolError
from rrcluster.federation.wire import Letter
from rrcluster.secagg.masks import KEY_BYTES, SIGNATURE_BYTES, Words
from rrcluster.secagg.secure_client import ENVELOPE_BYTES, AdvertisedKeys, RevealedShares
from rrcluster.types import Array

_Shape = tuple[str, tuple[int | None, ...]]
PLACES: _Shape = ("i8", (None,))
_MOST_PLACES = 2**20
_ADVERTISED: dict[str, _Shape] = {
    "mask key": ("u1", (KEY_BYTES,)),
    "envelope key": ("u1", (KEY_BYTES,)),
    "commitment": ("u1", (KEY_BYTES,)),
    "signature": ("u1", (SIGNATURE_BYTES,)),
}


def byte_rows(values: Sequence[bytes], width: int) -> Array:
    """(n, width) as an array of bytes."""
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), width)


def rows(width: int) -> _Shape:
    """What `expect` asks of such an array."""
    return ("u1", (None, width))


def _by_place(letter: Letter, places: str, values: str) -> dict[int, bytes]:
    """The rows of a table by place; ProtocolError unless there is one row for each place, and no place twice."""
    numbers, table = _places(letter, places), letter.arrays[values]
    if not len(numbers) == len(set(numbers)) == len(table):
        raise ProtocolError(f"{values} of the message {letter.name} are not one for each place.")
    return {place: row.tobytes() for place, row in zip(numbers, table, strict=True)}


def _places(letter: Letter, name: str) -> list[int]:
    """The places in a letter; ProtocolError for more than any federation has: a long list would fill the memory."""
    if len(letter.arrays[name]) > _MOST_PLACES:
        raise ProtocolError(f"{name} of the message {letter.name} are more than {_MOST_PLACES}.")
    return [int(place) for place in letter.arrays[name].tolist()]


# What the server sends, by stage: the facts and arrays beside those of the attempt.


def tell_keys(keys: Mapping[int, AdvertisedKeys]) -> dict[str, Array]:
    """Stage `share`: the keys of a client's neighbours."""
    return {
        "places": np.array(list(keys), dtype=np.int64),
        "mask keys": byte_rows([each.mask_key for each in keys.values()], KEY_BYTES),
        "envelope keys": byte_rows([each.envelope_key for each in keys.values()], KEY_BYTES),
        "commitments": byte_rows([each.commitment for each in keys.values()], KEY_BYTES),
        "signatures": byte_rows([each.signature for each in keys.values()], SIGNATURE_BYTES),
    }


def read_keys(letter: Letter) -> dict[int, AdvertisedKeys]:
    """The same at the client."""
    letter.expect(
        "share",
        **{"places": PLACES, "mask keys": rows(KEY_BYTES), "envelope keys": rows(KEY_BYTES)},
        commitments=rows(KEY_BYTES),
        signatures=rows(SIGNATURE_BYTES),
    )
    names = ("mask keys", "envelope keys", "commitments", "signatures")
    parts = [_by_place(letter, "places", name) for name in names]
    return {place: AdvertisedKeys(*(part[place] for part in parts)) for place in parts[0]}


def tell_envelopes(envelopes: Mapping[int, bytes]) -> dict[str, Array]:
    """Stages `share` (a client's answer, by receiver) and `mask` (to a client, by sender)."""
    fitting = {place: envelope for place, envelope in envelopes.items() if len(envelope) == ENVELOPE_BYTES}
    return {
        "places": np.array(list(fitting), dtype=np.int64),
        "envelopes": byte_rows(list(fitting.values()), ENVELOPE_BYTES),
    }


ENVELOPES: dict[str, _Shape] = {"places": PLACES, "envelopes": rows(ENVELOPE_BYTES)}


def read_envelopes(letter: Letter) -> dict[int, bytes]:
    """The same where it arrives; shapes are checked by the caller, who knows what else the letter holds."""
    return _by_place(letter, "places", "envelopes")


def tell_signatures(signatures: Mapping[int, bytes]) -> dict[str, Array]:
    """Stage `reveal`: who signed the list of survivors."""
    return {
        "places": np.array(list(signatures), dtype=np.int64),
        "signatures": byte_rows(list(signatures.values()), SIGNATURE_BYTES),
    }


def read_signatures(letter: Letter) -> dict[int, bytes]:
    """The same at the client."""
    return _by_place(letter.expect("reveal", places=PLACES, signatures=rows(SIGNATURE_BYTES)), "places", "signatures")


# What a client answers, by stage.


def keys_letter(keys: AdvertisedKeys) -> Letter:
    """Stage `advertise`."""
    parts = zip(_ADVERTISED, astuple(keys), strict=True)
    return Letter("keys", {}, {name: np.frombuffer(value, dtype=np.uint8) for name, value in parts})


def unopened_letter(senders: Sequence[int]) -> Letter:
    """Stage `mask`, in place of words: whose envelopes cannot be opened."""
    return Letter("unopened", {}, {"senders": np.array(senders, dtype=np.int64)})


def read_unopened(letter: Letter) -> set[int]:
    """The same at the server."""
    return set(_places(letter.expect("unopened", senders=PLACES), "senders"))


def shares_letter(shares: RevealedShares) -> Letter:
    """Stage `reveal`."""
    arrays = {}
    for name, given in (("seeds", shares.seeds), ("keys", shares.keys)):
        arrays[f"{name} of"] = np.array(list(given), dtype=np.int64)
        arrays[name] = byte_rows(list(given.values()), KEY_BYTES)
    return Letter("shares", {}, arrays)


def _read_advertised(letter: Letter, _: int) -> AdvertisedKeys:
    arrays = letter.expect("keys", **_ADVERTISED).arrays
    return AdvertisedKeys(*(arrays[name].tobytes() for name in _ADVERTISED))


def _read_sent(letter: Letter, _: int) -> dict[int, bytes]:
    return read_envelopes(letter.expect("envelopes", **ENVELOPES))


def _read_masked(letter: Letter, width: int) -> Words:
    return letter.expect("masked", words=("u4", (width,))).arrays["words"]


def _read_signature(letter: Letter, _: int) -> bytes:
    return letter.expect("signature", signature=("u1", (SIGNATURE_BYTES,))).arrays["signature"].tobytes()


def _read_revealed(letter: Letter, _: int) -> RevealedShares:
    shape = rows(KEY_BYTES)
    letter.expect("shares", **{"seeds of": PLACES, "seeds": shape, "keys of": PLACES, "keys": shape})
    return RevealedShares(*(_by_place(letter, f"{name} of", name) for name in ("seeds", "keys")))


READ_ANSWER: dict[str, Callable[[Letter, int], Any]] = {  # stage -> its answer; the number is the width of a message
    "advertise": _read_advertised,
    "share": _read_sent,
    "mask": _read_masked,
    "sign": _read_signature,
    "reveal": _read_revealed,
}
