"""What everybody in a federation has agreed to: its settings and its roster, by one digest that each operator signs.

The digest is in every message. A server that changes a setting, adds a client or exchanges a key has another digest,
and no client that signed the first one answers it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rrcluster import checks
from rrcluster.errors import ConfigError, ProtocolError
from rrcluster.secagg.masks import KEY_BYTES, SIGNATURE_BYTES, digest
from rrcluster.version import __version__

_LONGEST_NAME = 64


@dataclass(frozen=True)
class Member:
    """One operator of the federation: a name, an identity key, and how many clients its daemon hosts at most."""

    name: str
    identity: bytes  # Ed25519 public key
    num_clients: int  # a public constant: the numbers that its clients may have

    def __post_init__(self) -> None:
        checks.count(num_clients=self.num_clients)
        if not (0 < len(self.name) <= _LONGEST_NAME and self.name.isascii() and self.name.isprintable()):
            raise ConfigError(f"name = {self.name[:_LONGEST_NAME]!r} must be up to {_LONGEST_NAME} printable letters.")
        if len(self.identity) != KEY_BYTES:
            raise ConfigError(f"the identity of {self.name} has {len(self.identity)} bytes, not {KEY_BYTES}.")


@dataclass(frozen=True)
class Agreement:
    """Settings and roster of one federation. Public."""

    settings: Mapping[str, Any]  # of the run, by name, as in config.yaml
    members: tuple[Member, ...]
    least_honest: int  # members whose noise a sum must hold
    most_colluders: int  # members that may work for the server

    def __post_init__(self) -> None:
        checks.count(least_honest=self.least_honest, at_least=2)
        checks.count(most_colluders=self.most_colluders, at_least=0)
        for what, values in (
            ("names", [member.name for member in self.members]),
            ("identities", [member.identity for member in self.members]),
        ):
            if len(set(values)) != len(values):
                raise ConfigError(f"two members have the same {what[:-3]}; every member needs one of its own.")
        if self.least_survivors > len(self.members):
            raise ConfigError(
                f"least_honest = {self.least_honest} and most_colluders = {self.most_colluders} need "
                f"{self.least_survivors} members, and {len(self.members)} are enrolled; lower them or enrol more."
            )

    @property
    def least_survivors(self) -> int:
        """Members that must be left when a sum is unmasked."""
        return self.least_honest + self.most_colluders

    @property
    def num_clients(self) -> int:
        """Clients of all members."""
        return sum(member.num_clients for member in self.members)

    def first_client(self, place: int) -> int:
        """The number of a member's first client; its others follow."""
        return sum(member.num_clients for member in self.members[:place])

    @cached_property
    def digest(self) -> bytes:
        """Of all of this and of the version of the package, whose arithmetic all must share."""
        facts = {
            "version": __version__,
            "settings": dict(self.settings),
            "least_honest": self.least_honest,
            "most_colluders": self.most_colluders,
            "members": [[member.name, member.identity.hex(), member.num_clients] for member in self.members],
        }
        return digest(b"rrcluster federation 1", json.dumps(facts, sort_keys=True).encode())

    def sign(self, identity: Ed25519PrivateKey) -> bytes:
        """An operator's consent to settings and roster."""
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
                f"{self.members[place].name} has not signed these settings and this roster; ask its operator to enrol "
                "again."
            ) from None
