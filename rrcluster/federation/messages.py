"""Messages between server and clients: a name, some facts and arrays, as the bytes of a safetensors file.

Nothing in a message is executed. A message is refused before parsing if it is longer than agreed, and after parsing
unless it has exactly the expected arrays, in shape and type.

Rounds: the server's task to clients, and their reports. Models travel as float32, as engines use. Secure aggregation:
its stages as letters; bytes travel as arrays, each with the agreed length.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rrcluster.client import ClientKeys
from rrcluster.errors import ProtocolError
from rrcluster.federation.secagg.masks import KEY_BYTES, SIGNATURE_BYTES, Words, digest
from rrcluster.federation.secagg.secure_client import ENVELOPE_BYTES, AdvertisedKeys, RevealedShares
from rrcluster.mixed.answers import TableQuestion
from rrcluster.mixed.facts import Facts
from rrcluster.mixed.questions import Form
from rrcluster.privacy.mechanism import Mechanism
from rrcluster.privacy.reports import Reports, as_numpy
from rrcluster.server.choice import ChoiceRules
from rrcluster.server.server import Guidance
from rrcluster.server.survey import SurveyQuestion, survey_size
from rrcluster.storage import parse_json, to_json
from rrcluster.types import Array, Coordinates, Models

LONGEST_LETTER = 2**31  # bytes of a message in either direction
_LONGEST_HEADER = 2**20  # for names, facts and shapes; long content belongs in arrays


@dataclass(frozen=True)
class Letter:
    """One message. Its content about clients is private: no log or error shows it."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def encode(self) -> bytes:
        """The message as bytes."""
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        return save(arrays, metadata={"name": self.name, "facts": to_json(dict(self.facts))})

    def expect(self, name: str, **wanted: tuple[str, tuple[int | None, ...]]) -> "Letter":
        """The letter itself, if it has this name and exactly these arrays: type and shape, None for any length.

        The type is numpy's letter with the size ("f4", "i8", "u4").
        """
        if self.name != name or set(self.arrays) != set(wanted):
            raise ProtocolError(f"the message is not the expected {name}.")
        for array, (kind, shape) in wanted.items():
            values = self.arrays[array]
            fits = len(values.shape) == len(shape) and all(
                length in (None, actual) for length, actual in zip(shape, values.shape, strict=True)
            )
            if values.dtype != np.dtype(kind) or not fits:
                raise ProtocolError(f"{array} of the message {name} has another type or shape than agreed.")
        return self


def decode(content: bytes, *, longest: int) -> Letter:
    """The message in these bytes; ProtocolError if they are too many, or not a message."""
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


_WORD = 1000  # bytes of an answer in one word


def declined(content: bytes) -> bool:
    """Whether an answer declines: the daemon refuses, or its node cannot reach it.

    Long answers are not parsed, and an unreadable one declines nothing.
    """
    if len(content) > _WORD:
        return False
    try:
        return decode(content, longest=_WORD).name in ("refused", "away")
    except ProtocolError:
        return False


_Shape = tuple[str, tuple[int | None, ...]]


def task(
    name: str,
    guidance: Guidance,
    mechanism: Mechanism,
    facts: dict[str, Any],
    *,
    keys: ClientKeys | None,
    **more: Array,
) -> Letter:
    """The server's task to the clients of a round; `keys` only in seeded runs, which must match the simulator."""
    rules = guidance.rules
    arrays: dict[str, Array] = {
        "shared": guidance.models.shared.astype(np.float32),
        "clustered": guidance.models.clustered.astype(np.float32),
        "prices": np.asarray(rules.prices, dtype=np.float64),
        "transition": np.asarray(rules.transition, dtype=np.float64),
    }
    if mechanism.loss_bound is not None:
        arrays["average shared"] = guidance.average.shared.astype(np.float32)
        arrays["average clustered"] = guidance.average.clustered.astype(np.float32)
    if guidance.question is not None:
        arrays |= guidance.question.arrays()
    own_facts = {
        "round": guidance.round_index,
        "temperature": rules.temperature,
        "num_open": rules.num_open,
        "keys": None if keys is None else asdict(keys),
    }
    return Letter(name, {**own_facts, **facts}, {**arrays, **more})


def task_digest(letter: Letter, *apart: str) -> bytes:
    """The digest of a task, which must be the same for all members; arrays that differ by member are left out."""
    arrays = [part for name in sorted(set(letter.arrays) - set(apart)) for part in _named_bytes(name, letter)]
    return digest(letter.name.encode(), json.dumps(dict(letter.facts), sort_keys=True).encode(), *arrays)


def _named_bytes(name: str, letter: Letter) -> tuple[bytes, bytes]:
    values = np.ascontiguousarray(letter.arrays[name])
    return f"{name} {values.dtype} {values.shape}".encode(), values.tobytes()


def read_task(
    letter: Letter,
    name: str,
    mechanism: Mechanism,
    *,
    stage: str | None = None,
    form: Form | None = None,
    **more: _Shape,
) -> tuple[Guidance, ClientKeys | None]:
    """Parse a task; ProtocolError unless every part has the shape that the agreed settings imply.

    `stage` is the agreed survey's question in the round, `form` the agreed questionnaire.
    """
    if stage == "start" and "centres" not in letter.arrays:
        stage = None  # the survey could not tell groups: clients choose and train as without one
    k, width = mechanism.num_clusters, mechanism.coordinates
    models = _shapes_of_models(k, width) if form is None else _shapes_of_facts(letter)
    shapes = models | {"prices": ("f8", (k,)), "transition": ("f8", (k, k))}
    if mechanism.loss_bound is not None:
        shapes |= {f"average {part}": shape for part, shape in models.items()}
    if stage is not None:
        sketched, _ = survey_size(width.clustered, k)
        shapes |= {
            "start": ("f4", (width.clustered,)),
            "basis": ("f8", (sketched, None)),
            "centres": ("f8", (None, None)),
        }
    arrays, facts = letter.expect(name, **shapes, **more).arrays, letter.facts
    try:
        rules = ChoiceRules(
            arrays["prices"],
            float(facts["temperature"]),
            arrays["transition"],
            None if facts["num_open"] is None else int(facts["num_open"]),
        )
        keys = None if facts["keys"] is None else _client_keys(facts["keys"])
        round_index = int(facts["round"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ProtocolError(f"the message {name} lacks facts of the agreement.") from None
    _check_sensible(name, arrays, rules)
    question: SurveyQuestion | TableQuestion | None
    question = None if form is None else _table_question(arrays, form, round_index)
    if stage is not None:
        start, basis, centres = (arrays[part] for part in ("start", "basis", "centres"))
        question = asked = SurveyQuestion(stage, start, basis, centres, mechanism.update_clip)
        _check_question(asked, k)
    average = "average " if mechanism.loss_bound is not None else ""
    return (
        Guidance(
            round_index,
            Models(arrays["shared"], arrays["clustered"]),
            Models(arrays[f"{average}shared"], arrays[f"{average}clustered"]),
            rules,
            question,
        ),
        keys,
    )


def _shapes_of_models(k: int, width: Coordinates) -> dict[str, _Shape]:
    return {"shared": ("f4", (width.shared,)), "clustered": ("f4", (k, width.clustered))}


def _client_keys(facts: Mapping[str, Any]) -> ClientKeys:
    return ClientKeys(**{part: (int(key[0]), int(key[1])) for part, key in facts.items()})


def _shapes_of_facts(letter: Letter) -> dict[str, _Shape]:
    """Shapes for a questionnaire: models, which clients do not read, and facts, which are checked afterwards."""
    axes_by_name = {name: letter.arrays[name].ndim for name in Facts().tensors() if name in letter.arrays}
    models: dict[str, _Shape] = {"shared": ("f4", (None,)), "clustered": ("f4", (None, None))}
    return models | {name: ("f8", (None,) * axes) for name, axes in axes_by_name.items()}


def _table_question(arrays: Mapping[str, Array], form: Form, round_index: int) -> TableQuestion:
    """The question of a round; ProtocolError for facts that do not belong to this form."""
    if round_index >= form.num_rounds or not set(Facts().tensors()) <= set(arrays):
        raise ProtocolError("the question is not one of the agreed ones.")
    question = TableQuestion(form, form.stage(round_index), Facts.from_tensors(arrays))
    if not question.fits:
        raise ProtocolError(f"the facts of round {round_index} have other shapes than those of the agreed questions.")
    return question


def _check_sensible(name: str, arrays: Mapping[str, Array], rules: ChoiceRules) -> None:
    """Reject guidance that violates the protocol, before it costs an attempt."""
    finite = all(np.isfinite(values).all() for values in arrays.values())
    sensible = 0 <= rules.temperature < math.inf
    opened = rules.num_open is None or 1 <= rules.num_open <= len(rules.prices)
    coins = finite and (rules.transition >= 0).all() and np.allclose(rules.transition.sum(axis=1), 1.0)
    if not (finite and sensible and opened and coins):
        raise ProtocolError(f"the message {name} contains models or rules that the agreed settings cannot produce.")


def _check_question(question: SurveyQuestion, num_clusters: int) -> None:
    """Reject questions that no survey asks; stage, scale and sketch width come from the agreement."""
    (width, r), stage, centres = question.basis.shape, question.stage, question.centres
    directions = survey_size(len(question.start), num_clusters)[1]
    fits = directions <= r <= width if stage == "spread" else r == directions
    least, most = {"centres": (directions, directions), "start": (1, num_clusters)}.get(stage, (0, 0))
    if not fits or not least <= len(centres) <= most or centres.shape[1] != r:
        raise ProtocolError(f"the question {stage} of a survey has another shape than agreed.")
    if not (np.isfinite(centres).all() and np.allclose(question.basis.T @ question.basis, np.eye(r), atol=1e-8)):
        raise ProtocolError(f"the question {stage} has directions that are not orthonormal.")


def longest_answer(mechanism: Mechanism, num_clients: int, num_members: int) -> int:
    """The most bytes of an answer from a member with so many clients: a report of all of them, or a masked sum."""
    width = mechanism.coordinates.width
    per_client, masked = 4 * width + 3 * 8 + 2 * 8, 4 * mechanism.num_clusters * (width + 4)
    per_member = 8 + max(ENVELOPE_BYTES, 2 * (8 + KEY_BYTES))
    return num_clients * per_client + masked + num_members * per_member + _LONGEST_HEADER


def report_letter(reports: Reports) -> Letter:
    """Clients' reports in plain mode. Raw and private: for a trusted server."""
    arrays: dict[str, Array] = {
        "updates": np.asarray(as_numpy(reports.updates), dtype=np.float32),
        "choices": np.asarray(reports.choices, dtype=np.int64),
        "clients": np.asarray(reports.client_ids, dtype=np.int64),
    }
    if reports.destinations is not None:
        arrays["destinations"] = np.asarray(reports.destinations, dtype=np.int64)
    if reports.evaluations is not None:
        arrays["evaluations"] = np.asarray(reports.evaluations, dtype=np.float64)
    return Letter("report", {}, arrays)


def read_report(letter: Letter, mechanism: Mechanism) -> dict[str, Array]:
    """The arrays of a report; the mechanism checks their values."""
    n = len(letter.arrays.get("clients", ()))
    shapes: dict[str, _Shape] = {
        "updates": ("f4", (n, mechanism.coordinates.width)),
        "choices": ("i8", (n,)),
        "clients": ("i8", (n,)),
    }
    if mechanism.flips_coins:
        shapes["destinations"] = ("i8", (n,))
    if mechanism.loss_bound is not None:
        shapes["evaluations"] = ("f8", (n, 2))
    return dict(letter.expect("report", **shapes).arrays)


PLACES: _Shape = ("i8", (None,))
_MOST_PLACES = 2**20
_ADVERTISED = dict.fromkeys(("mask key", "envelope key", "commitment"), KEY_BYTES) | {"signature": SIGNATURE_BYTES}


def byte_rows(values: Sequence[bytes], width: int) -> Array:
    """(n, width) as an array of bytes."""
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), width)


def _table(name: str, values: Mapping[int, bytes], width: int, *, places: str = "places") -> dict[str, Array]:
    """Byte strings by place."""
    return {places: np.array(list(values), dtype=np.int64), name: byte_rows(list(values.values()), width)}


def rows(width: int) -> _Shape:
    """The array type and shape for `expect`."""
    return ("u1", (None, width))


def _by_place(letter: Letter, places: str, values: str) -> dict[int, bytes]:
    """The rows of a table by place; ProtocolError unless there is one row for each place, and no place twice."""
    numbers, table = _places(letter, places), letter.arrays[values]
    if not len(numbers) == len(set(numbers)) == len(table):
        raise ProtocolError(f"{values} of the message {letter.name} are not one for each place.")
    return {place: row.tobytes() for place, row in zip(numbers, table, strict=True)}


def _places(letter: Letter, name: str) -> list[int]:
    """The places in a letter; ProtocolError for more than any federation has, which would fill the memory."""
    if len(letter.arrays[name]) > _MOST_PLACES:
        raise ProtocolError(f"{name} of the message {letter.name} number more than {_MOST_PLACES}.")
    return [int(place) for place in letter.arrays[name].tolist()]


# Messages from the server, by stage: facts and arrays beside those of the attempt.


def tell_keys(keys: Mapping[int, AdvertisedKeys]) -> dict[str, Array]:
    """Stage `share`: the keys of a client's neighbours."""
    columns = list(zip(*map(astuple, keys.values()), strict=True)) or [()] * len(_ADVERTISED)
    tables = {name: byte_rows(column, _ADVERTISED[name]) for name, column in zip(_ADVERTISED, columns, strict=True)}
    return {"places": np.array(list(keys), dtype=np.int64), **tables}


def read_keys(letter: Letter) -> dict[int, AdvertisedKeys]:
    """Parse the keys at the client."""
    letter.expect("share", places=PLACES, **{name: rows(width) for name, width in _ADVERTISED.items()})
    parts = [_by_place(letter, "places", name) for name in _ADVERTISED]
    return {place: AdvertisedKeys(*(part[place] for part in parts)) for place in parts[0]}


def tell_envelopes(envelopes: Mapping[int, bytes]) -> dict[str, Array]:
    """Stages `share` (a client's answer, by receiver) and `mask` (to a client, by sender)."""
    fitting = {place: envelope for place, envelope in envelopes.items() if len(envelope) == ENVELOPE_BYTES}
    return _table("envelopes", fitting, ENVELOPE_BYTES)


ENVELOPES: dict[str, _Shape] = {"places": PLACES, "envelopes": rows(ENVELOPE_BYTES)}


def read_envelopes(letter: Letter) -> dict[int, bytes]:
    """Parse envelopes; the caller checks shapes, since it knows the rest of the letter."""
    return _by_place(letter, "places", "envelopes")


def tell_signatures(signatures: Mapping[int, bytes]) -> dict[str, Array]:
    """Stage `reveal`: the signatures on the list of survivors."""
    return _table("signatures", signatures, SIGNATURE_BYTES)


def read_signatures(letter: Letter) -> dict[int, bytes]:
    """Parse the signatures at the client."""
    return _by_place(letter.expect("reveal", places=PLACES, signatures=rows(SIGNATURE_BYTES)), "places", "signatures")


# Answers from clients, by stage.


def keys_letter(keys: AdvertisedKeys) -> Letter:
    """Stage `advertise`."""
    parts = zip(_ADVERTISED, astuple(keys), strict=True)
    return Letter("keys", {}, {name: np.frombuffer(value, dtype=np.uint8) for name, value in parts})


def unopened_letter(senders: Sequence[int]) -> Letter:
    """Stage `mask`, instead of words: the senders of envelopes that cannot be opened."""
    return Letter("unopened", {}, {"senders": np.array(senders, dtype=np.int64)})


def read_unopened(letter: Letter) -> set[int]:
    """Parse the unopened senders at the server."""
    return set(_places(letter.expect("unopened", senders=PLACES), "senders"))


def shares_letter(shares: RevealedShares) -> Letter:
    """Stage `reveal`."""
    seeds = _table("seeds", shares.seeds, KEY_BYTES, places="seeds of")
    return Letter("shares", {}, seeds | _table("keys", shares.keys, KEY_BYTES, places="keys of"))


def _read_advertised(letter: Letter, _: int) -> AdvertisedKeys:
    arrays = letter.expect("keys", **{name: ("u1", (width,)) for name, width in _ADVERTISED.items()}).arrays
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


READ_ANSWER: dict[str, Callable[[Letter, int], Any]] = {  # stage -> parser of its answer, given the width of a message
    "advertise": _read_advertised,
    "share": _read_sent,
    "mask": _read_masked,
    "sign": _read_signature,
    "reveal": _read_revealed,
}
