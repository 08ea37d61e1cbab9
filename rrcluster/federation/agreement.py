"""What everybody in a federation has agreed to: settings, roster and guarantee, by one digest that each operator signs.

The digest is in every message. A server that changes a setting, adds a client or exchanges a key has another digest,
and no client that signed the first one answers it. Everything that either side computes with is made from an agreement
alone (agreed_run.py), and the numbers that an operator reads before signing are computed again there.
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
MOVED = "moved.json"  # in a folder that was copied to be used elsewhere, and must not be used here any more
_LONGEST_KEY = 2000
_LARGEST_SAMPLES = 10**8  # inputs x classes: an agreement from a stranger must not fill the memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also that of a folder


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name = {name[:64]!a} must be up to 64 letters, digits, dots, dashes or underscores.")


@dataclass(frozen=True)
class Member:
    """One operator of the federation: a name, an identity key, and how many clients its daemon hosts at most."""

    name: str
    identity: bytes  # Ed25519 public key
    num_clients: int  # a public constant: the numbers that its clients may have
    node_key: str = ""  # public key of its network node, as OpenSSH writes it; "" where the transport needs none

    def __post_init__(self) -> None:
        checks.count(num_clients=self.num_clients)
        _check_name(self.name)
        if len(self.identity) != KEY_BYTES:
            raise ConfigError(f"the identity of {self.name} has {len(self.identity)} bytes, not {KEY_BYTES}.")
        if len(self.node_key) > _LONGEST_KEY or not (self.node_key.isascii() and self.node_key.isprintable()):
            raise ConfigError(f"the node key of {self.name} must be one line as in node.pub; enrol again.")

    @property
    def fingerprint(self) -> str:
        """To be compared by telephone: 128 bits, so that nobody finds another key with the same one."""
        return digest(b"member", self.identity, self.node_key.encode()).hex()[:32]

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "identity": self.identity.hex()}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Member":
        """Back from plain data; ConfigError unless every value is of its type."""
        named = _typed(facts, {"name": str, "identity": str, "num_clients": int, "node_key": str}, "a member")
        try:
            identity = bytes.fromhex(named["identity"])
        except ValueError:
            raise ConfigError(f"the identity of {named['name'][:64]!r} is not written in hexadecimal digits.") from None
        return cls(named["name"], identity, named["num_clients"], named["node_key"])


@dataclass(frozen=True)
class SampleShape:
    """What a sample of every member looks like: public constants, and the rules that turn columns into inputs."""

    input_shape: tuple[int, ...]
    num_classes: int  # 0: regression
    ids: bool = False  # inputs are ids (characters, words), not numbers
    columns: Mapping[str, Any] = field(default_factory=dict)  # settings of columns that all tables share

    def __post_init__(self) -> None:
        if not self.input_shape:
            raise ConfigError("input_shape is empty; say how many numbers a sample has, as 7 or 28 28.")
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
        """Back from plain data."""
        named = _typed(facts, {"input_shape": list, "num_classes": int, "ids": bool, "columns": dict}, "samples")
        return cls(tuple(named["input_shape"]), named["num_classes"], named["ids"], named["columns"])


@dataclass(frozen=True)
class Agreement:
    """Settings, roster and guarantee of one training. Public."""

    name: str  # another training of the same members has another one
    settings: Mapping[str, Any]  # that affect results, by name, as in config.yaml
    samples: SampleShape
    members: tuple[Member, ...]
    mode: str = "plain"  # secure: the server sees sums alone, with noise made by the members
    least_honest: int = 0  # secure: members whose noise a sum must hold
    most_colluders: int = 0  # secure: members that may work for the server
    least_members: int = 0  # plain: members that must be connected in a round, or it is neither charged nor released
    guarantee: Mapping[str, Any] = field(default_factory=dict)  # what operators read; computed again by everybody
    authority: str = ""  # the certificate, in PEM, that the server's must be signed by; "": no network

    def __post_init__(self) -> None:
        _check_name(self.name)
        checks.one_of(MODES, mode=self.mode)
        checks.count(least_honest=self.least_honest, at_least=2 if self.secure else 0)
        checks.count(most_colluders=self.most_colluders, at_least=0)
        checks.count(least_members=self.least_members, at_least=0)
        if not self.secure and self.least_survivors:
            raise ConfigError("least_honest and most_colluders are about mode = secure; leave them out in plain mode.")
        if self.secure and self.least_members:
            raise ConfigError(
                "least_members is about mode = plain; in secure mode least_honest and most_colluders say it."
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
        """Whether the server may see sums alone."""
        return self.mode == "secure"

    @property
    def least_survivors(self) -> int:
        """Members that must be left when a sum is unmasked."""
        return self.least_honest + self.most_colluders

    @property
    def needed_members(self) -> int:
        """Members without whom no round is charged: in plain mode connected, in secure mode survivors."""
        return self.least_survivors if self.secure else max(self.least_members, 1)

    @property
    def num_clients(self) -> int:
        """Clients of all members."""
        return sum(member.num_clients for member in self.members)

    def first_client(self, place: int) -> int:
        """The number of a member's first client; its others follow."""
        return sum(member.num_clients for member in self.members[:place])

    def place_of(self, identity: bytes) -> int:
        """A member's place in the roster, by its key; ConfigError for a stranger."""
        for place, member in enumerate(self.members):
            if member.identity == identity:
                return place
        raise ConfigError(
            f"the roster of {self.name} does not have this identity key; send request.json to the server's operator, "
            "and wait for an agreement that has it."
        )

    def facts(self) -> dict[str, Any]:
        """All of it as plain data, with the version of the package, whose arithmetic all must share."""
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
        """Back from plain data; ConfigError for another version or anything that does not belong."""
        kinds = {name: type(value) for name, value in _EMPTY.facts().items()}
        named = _typed(facts, kinds, "the agreement")
        if named["version"] != __version__:
            raise ConfigError(
                f"the agreement was made by rrcluster {str(named['version'])[:40]}, and this is {__version__}; all "
                "sides need the same version."
            )
        return cls(
            named["name"],
            named["settings"],
            SampleShape.of_facts(named["samples"]),
            tuple(Member.of_facts(member) for member in named["members"]),
            named["mode"],
            named["least_honest"],
            named["most_colluders"],
            named["least_members"],
            named["guarantee"],
            named["authority"],
        )

    @classmethod
    def read(cls, path: Path) -> "Agreement":
        """The agreement in a file; ConfigError names the file, or says that its folder is used no more."""
        if (path.parent / MOVED).exists():
            raise ConfigError(f"{path.parent} was moved by `backup --move`, and goes on where it was restored.")
        return cls.of_facts(read_sent(path))

    @cached_property
    def digest(self) -> bytes:
        """Of all of this."""
        return digest(b"rrcluster federation 2", json.dumps(self.facts(), sort_keys=True).encode())

    def sign(self, identity: Ed25519PrivateKey) -> bytes:
        """An operator's consent to settings, roster and guarantee."""
        return identity.sign(digest(b"consent", self.digest))

    def check_consent(self, place: int, signature: bytes) -> None:
        """Refuse a consent that is not this member's, or is to something else."""
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
    """The facts in a file that somebody sent."""
    try:
        facts = parse_json(read_text(path))
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        raise ConfigError(f"{path}: is not there, or cannot be read; get the file again from its sender.")
    return facts


def signature_of(consent: Mapping[str, Any]) -> bytes:
    """The signature in a consent; none that holds where it is not written in hexadecimal digits."""
    try:
        return bytes.fromhex(str(consent.get("signature")))
    except ValueError:
        return b""


def _typed(facts: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """The facts, if they have exactly these names and types."""
    if not isinstance(facts, Mapping) or set(facts) != set(kinds):
        raise ConfigError(f"{what} lacks an entry or has one too many; all sides need the same version of rrcluster.")
    for name, kind in kinds.items():
        if type(facts[name]) is not kind:
            raise ConfigError(f"{what}: {name} should be {kind.__name__}, found {type(facts[name]).__name__}.")
    return dict(facts)
