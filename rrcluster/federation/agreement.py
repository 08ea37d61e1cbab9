"""The agreement of a federation: settings, roster and guarantee, under one digest that each operator signs.

The digest is in every message. A server that changes a setting, adds a client or exchanges a key has another digest,
and no client that signed the first one answers it. Both sides compute with nothing but the agreement (agreed_run.py),
and recompute the numbers that an operator reads before signing.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rrcluster import __version__, checks
from rrcluster.errors import ConfigError, ProtocolError
from rrcluster.federation.secagg.masks import KEY_BYTES, SIGNATURE_BYTES, digest
from rrcluster.storage import parse_json, read_text

MODES = ("plain", "secure")
MOVED = "moved.json"  # marks a folder that was moved elsewhere and must not be used here
_LONGEST_KEY = 2000
_LARGEST_SAMPLES = 10**8  # inputs x classes: bounds the memory that a received agreement can claim
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also valid as the name of a folder


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name = {name[:64]!a} must be up to 64 letters, digits, dots, dashes or underscores.")


@dataclass(frozen=True)
class Member:
    """One operator of the federation: a name, an identity key, and the most clients its daemon hosts."""

    name: str
    identity: bytes  # Ed25519 public key
    num_clients: int  # a public constant: the size of its range of client numbers
    node_key: str = ""  # public key of its network node in OpenSSH format; empty where the transport needs none

    def __post_init__(self) -> None:
        checks.count(num_clients=self.num_clients)
        _check_name(self.name)
        if len(self.identity) != KEY_BYTES:
            raise ConfigError(f"the identity of {self.name} has {len(self.identity)} bytes instead of {KEY_BYTES}.")
        if len(self.node_key) > _LONGEST_KEY or not (self.node_key.isascii() and self.node_key.isprintable()):
            raise ConfigError(f"the node key of {self.name} must be one line as in node.pub; enrol again.")

    @property
    def fingerprint(self) -> str:
        """128 bits to compare by telephone, too many for anybody to find a second key with the same ones."""
        return digest(b"member", self.identity, self.node_key.encode()).hex()[:32]

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "identity": self.identity.hex()}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Member":
        """The inverse of `facts`; ConfigError unless every value has its type."""
        entries = _typed(facts, {"name": str, "identity": str, "num_clients": int, "node_key": str}, "a member")
        try:
            identity = bytes.fromhex(entries["identity"])
        except ValueError:
            raise ConfigError(f"the identity of {entries['name'][:64]!r} is not in hexadecimal digits.") from None
        return cls(entries["name"], identity, entries["num_clients"], entries["node_key"])


@dataclass(frozen=True)
class SampleShape:
    """What the samples of every member look like, all of it public, and the rules that turn columns into inputs."""

    input_shape: tuple[int, ...]
    num_classes: int  # 0: regression
    ids: bool = False  # whether inputs are ids (characters, words) rather than numbers
    columns: Mapping[str, Any] = field(default_factory=dict)  # column rules that all tables share

    def __post_init__(self) -> None:
        if not self.input_shape:
            raise ConfigError("input_shape is empty; give the shape of a sample, such as 7 or 28 28.")
        for length in self.input_shape:
            checks.count(input_shape=length)
        checks.count(num_classes=self.num_classes, at_least=0)
        if math.prod(self.input_shape) * max(self.num_classes, 1) > _LARGEST_SAMPLES:
            raise ConfigError(
                f"input_shape = {list(self.input_shape)[:4]} with num_classes = {self.num_classes:.3g} is more than a "
                f"network here may have, {_LARGEST_SAMPLES:.0e} weights in its last layer; declare smaller samples."
            )

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "SampleShape":
        """The inverse of `facts`."""
        entries = _typed(facts, {"input_shape": list, "num_classes": int, "ids": bool, "columns": dict}, "samples")
        return cls(tuple(entries["input_shape"]), entries["num_classes"], entries["ids"], entries["columns"])


@dataclass(frozen=True)
class Agreement:
    """Settings, roster and guarantee of one training. Public."""

    name: str  # different for every training of the same members
    settings: Mapping[str, Any]  # those that affect results, by name, as in config.yaml
    samples: SampleShape
    members: tuple[Member, ...]
    mode: str = "plain"  # secure: the server sees only sums, with noise from the members
    least_honest: int = 0  # secure: the number of members whose noise a sum must contain
    most_colluders: int = 0  # secure: members that may collude with the server
    least_members: int = 0  # plain: members that must be connected; with fewer, a round is neither charged nor released
    # shown to operators before signing, recomputed by everybody
    guarantee: Mapping[str, Any] = field(default_factory=dict)
    authority: str = ""  # the certificate, in PEM, that signs the server's; empty: no network

    def __post_init__(self) -> None:
        _check_name(self.name)
        checks.one_of(MODES, mode=self.mode)
        checks.count(least_honest=self.least_honest, at_least=2 if self.secure else 0)
        checks.count(most_colluders=self.most_colluders, at_least=0)
        checks.count(least_members=self.least_members, at_least=0)
        if not self.secure and self.least_survivors:
            raise ConfigError("least_honest and most_colluders apply to mode = secure; leave them out in plain mode.")
        if self.secure and self.least_members:
            raise ConfigError(
                "least_members applies to mode = plain; in secure mode use least_honest and most_colluders."
            )
        for what, values in (
            ("names", [member.name for member in self.members]),
            ("identities", [member.identity for member in self.members]),
            ("node keys", [member.node_key for member in self.members if member.node_key]),
        ):
            if len(set(values)) != len(values):
                raise ConfigError(f"two members have the same {what}; every member needs its own.")
        if self.least_members > len(self.members):
            raise ConfigError(
                f"least_members = {self.least_members} is more than the {len(self.members)} members that are enrolled; "
                "enrol more, or init another folder with fewer, which takes the same requests."
            )
        if self.least_survivors > len(self.members):
            raise ConfigError(
                f"least_honest = {self.least_honest} and most_colluders = {self.most_colluders} need "
                f"{self.least_survivors} members, and {len(self.members)} are enrolled; enrol more, or init another "
                "folder with lower ones, which takes the same requests."
            )

    @property
    def secure(self) -> bool:
        """Whether the server may see only sums."""
        return self.mode == "secure"

    @property
    def least_survivors(self) -> int:
        """The fewest members that must remain when a sum is unmasked."""
        return self.least_honest + self.most_colluders

    @property
    def needed_members(self) -> int:
        """The fewest members for a charged round: connected in plain mode, surviving in secure mode."""
        return self.least_survivors if self.secure else max(self.least_members, 1)

    @property
    def num_clients(self) -> int:
        """The total number of clients."""
        return sum(member.num_clients for member in self.members)

    def first_client(self, place: int) -> int:
        """The number of a member's first client; its others follow."""
        return sum(member.num_clients for member in self.members[:place])

    def place_of(self, identity: bytes) -> int:
        """A member's place in the roster, by its key; ConfigError for an unknown key."""
        for place, member in enumerate(self.members):
            if member.identity == identity:
                return place
        raise ConfigError(
            f"the roster of {self.name} does not have this identity key; send request.json to the server's operator, "
            "and wait for an agreement that has it."
        )

    def facts(self) -> dict[str, Any]:
        """The agreement as plain data, with the package version, since both sides must use the same arithmetic."""
        return {
            "format": "rrcluster-agreement/3",
            "version": __version__,
            "name": self.name,
            "mode": self.mode,
            "settings": dict(self.settings),
            "samples": asdict(self.samples),
            "least_honest": self.least_honest,
            "most_colluders": self.most_colluders,
            "least_members": self.least_members,
            "guarantee": dict(self.guarantee),
            "authority": self.authority,
            "members": [member.facts() for member in self.members],
        }

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Agreement":
        """The inverse of `facts`; ConfigError for another version or unknown entries."""
        kinds = {name: type(value) for name, value in _EMPTY.facts().items()}
        entries = _typed(facts, kinds, "the agreement")
        if entries["version"] != __version__:
            raise ConfigError(
                f"the agreement was made by rrcluster {str(entries['version'])[:40]}, and this is {__version__}; all "
                "sides need the same version."
            )
        return cls(
            entries["name"],
            entries["settings"],
            SampleShape.of_facts(entries["samples"]),
            tuple(Member.of_facts(member) for member in entries["members"]),
            entries["mode"],
            entries["least_honest"],
            entries["most_colluders"],
            entries["least_members"],
            entries["guarantee"],
            entries["authority"],
        )

    @classmethod
    def read(cls, path: Path) -> "Agreement":
        """Read an agreement from a file; ConfigError for damaged files and for folders that were moved."""
        if (path.parent / MOVED).exists():
            raise ConfigError(f"{path.parent} was moved by `backup --move`, and continues where it was restored.")
        return cls.of_facts(read_sent(path))

    @cached_property
    def digest(self) -> bytes:
        """The digest of all facts."""
        return digest(b"rrcluster federation 2", json.dumps(self.facts(), sort_keys=True).encode())

    def sign(self, identity: Ed25519PrivateKey) -> bytes:
        """An operator's consent to settings, roster and guarantee."""
        return identity.sign(digest(b"consent", self.digest))

    def check_consent(self, place: int, signature: bytes) -> None:
        """Refuse a consent that is not this member's, or that is for another agreement."""
        try:
            if len(signature) != SIGNATURE_BYTES:
                raise InvalidSignature
            key = Ed25519PublicKey.from_public_bytes(self.members[place].identity)
            key.verify(signature, digest(b"consent", self.digest))
        except InvalidSignature:
            raise ProtocolError(
                f"{self.members[place].name} has not signed these settings and this roster; ask its operator to sign "
                "with `rrcluster federation sign FOLDER agreement.json`."
            ) from None


_EMPTY = Agreement("none", {}, SampleShape((1,), 0), ())


def read_sent(path: Path) -> dict[str, Any]:
    """The facts in a received file."""
    try:
        facts = parse_json(read_text(path))
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        raise ConfigError(f"{path}: is missing or cannot be read; get the file again from its sender.")
    return facts


def signature_of(consent: Mapping[str, Any]) -> bytes:
    """The signature in a consent; empty bytes where it is not hexadecimal."""
    try:
        return bytes.fromhex(str(consent.get("signature")))
    except ValueError:
        return b""


def _typed(facts: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """The facts, after checking that they have exactly these names and types."""
    if not isinstance(facts, Mapping) or set(facts) != set(kinds):
        raise ConfigError(f"{what} lacks an entry or has one too many; all sides need the same version of rrcluster.")
    for name, kind in kinds.items():
        if type(facts[name]) is not kind:
            raise ConfigError(f"{what}: {name} should be {kind.__name__}, found {type(facts[name]).__name__}.")
    return dict(facts)
