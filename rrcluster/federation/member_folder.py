"""The folder of a member's operator, mode 0700: keys, the signed agreement, the ledger, and the daemon's state.

identity.key, node.key   the member's keys; they never leave this folder
request.json             for the server's operator: name, public keys, number of clients
agreement.json           what the operator signed; consent.json is the signature
ledger.jsonl             attempts joined, and what every training costs
clients.json             which client has which number: private, and never sent
withdrawn.txt            clients that take no part any more, one name a line
memory.safetensors       what clients remember between rounds, for methods that need it
released/                the models handed out
daemon.sock              where the daemon listens, mode 0600
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rrcluster import storage
from rrcluster.errors import ConfigError, DataError, RunFolderError
from rrcluster.federation.agreement import Agreement, Member, signature_of
from rrcluster.federation.certificates import authority_of, new_identity, new_node_key, read_identity, write_secret
from rrcluster.types import Array


@dataclass(frozen=True)
class MemberFolder:
    """A member's files. Only its operator may read them."""

    path: Path

    @classmethod
    def create(cls, path: Path, *, name: str, num_clients: int, lifetime: float | None) -> "MemberFolder":
        """Create a member: its keys, and its request."""
        if (path / "identity.key").exists():
            raise RunFolderError(f"{path} already contains a member's keys; choose another folder.")
        Member(name, bytes(32), num_clients)  # checked before anything is written
        with storage.explain_write(path):
            storage.make_folders(path.parent)
            storage.make_subfolder(path, private=True)
        private, public = new_node_key()
        write_secret(path / "node.key", private)
        storage.write_json(path / "member.json", {"name": name, "lifetime_epsilon": lifetime})
        write_secret(path / "identity.key", new_identity())
        storage.write_file(path / "node.pub", public + "\n")
        folder = cls(path)
        member = Member(name, folder.identity().public_key().public_bytes_raw(), num_clients, public)
        storage.write_json(path / "request.json", member.facts())
        return folder

    def identity(self) -> Ed25519PrivateKey:
        """The key that signs."""
        return read_identity(self.path / "identity.key")

    def settings(self) -> dict[str, Any]:
        """The operator's own settings: name, lifetime budget, and the data of the daemon's last start."""
        return storage.read_mapping(self.path / "member.json")

    def change_settings(self, **changes: Any) -> None:
        """Remember some of them for the next start."""
        self._private_file("member.json", storage.to_json({**self.settings(), **changes}))

    def request(self) -> Member:
        """The request sent to the server's operator."""
        return Member.of_facts(storage.read_mapping(self.path / "request.json"))

    def save_consent(self, agreement: Agreement) -> None:
        """Sign an agreement, and store both."""
        identity = self.identity()
        member = agreement.members[agreement.place_of(identity.public_key().public_bytes_raw())]
        if member != self.request():
            raise ConfigError(
                f"the roster has {member.name} with {member.num_clients} clients and fingerprint {member.fingerprint}, "
                "which is not what request.json asked for; do not sign it."
            )
        storage.write_json(self.path / "agreement.json", agreement.facts())
        if agreement.authority:
            storage.write_file(self.path / "ca.pem", agreement.authority)
        signature = agreement.sign(identity).hex()
        storage.write_json(self.path / "consent.json", {"name": member.name, "signature": signature})

    def agreement(self) -> Agreement:
        """The signed agreement; ConfigError where the signature is missing or of another agreement."""
        return self._signed_by(self.identity().public_key().public_bytes_raw())

    def _signed_by(self, identity: bytes) -> Agreement:
        path = self.path / "agreement.json"
        if not path.exists():
            raise ConfigError(
                f"{self.path}: nothing is signed yet; get agreement.json, then `rrcluster federation enrol "
                f"{self.path} --agree agreement.json`."
            )
        agreement = Agreement.read(path)
        consent = storage.read_mapping(self.path / "consent.json")
        agreement.check_consent(agreement.place_of(identity), signature_of(consent))
        return agreement

    def check_authority(self, ca: Path) -> None:
        """Refuse a certificate of another authority than the agreed one, whose owner could read the node's messages.

        Public files suffice: a node may not read identity.key.
        """
        if ca.exists() and (self.path / "agreement.json").exists():
            authority = self._signed_by(self.request().identity).authority
            if authority and authority_of(ca) != authority:
                raise ConfigError(
                    f"{ca}: is not the certificate of the agreement's authority, so somebody else may answer in "
                    "the server's name; remove it and sign the agreement again, which writes it."
                )

    def numbers(self, names: Sequence[str], *, most: int) -> Array:
        """(n,) the number of each client: its earlier one, or the next free one.

        A number is never reassigned, so that one number stands for one person. DataError beyond `most`; RunFolderError
        where clients.json is lost, or an old copy: clients would change places.
        """
        if len(set(names)) < len(names):
            raise DataError("two clients of the data have the same name; one name stands for one person.")
        if any("\n" in name for name in names):
            raise DataError("a client's name has a line break; withdrawn.txt has one name per line: remove it.")
        path = self.path / "clients.json"
        numbers: dict[str, Any] = storage.read_mapping(path) if path.exists() else {}
        if len(numbers) < max(self.settings().get("numbered", 0), not path.exists() and self._took_part()):
            raise RunFolderError(
                f"{path}: is lost, or an old copy, so clients would change numbers, and two people would count as one; "
                "restore it, or enrol again in a new folder."
            )
        for name in names:
            numbers.setdefault(name, len(numbers))
        if len(numbers) > most:
            raise DataError(
                f"{len(numbers)} clients have been hosted here, those that left included, and {most} were enrolled; "
                "enrol with more clients in the next training."
            )
        self._private_file("clients.json", json.dumps(numbers))
        self.change_settings(numbered=len(numbers))
        return np.array([numbers[name] for name in names], dtype=np.int64)

    def _took_part(self) -> bool:
        """Whether the ledger has an attempt, after which clients must have numbers."""
        path = self.path / "ledger.jsonl"
        return path.exists() and any("attempt" in line for line in storage.read_json_lines(path, damaged="refuse"))

    def withdraw(self, names: Sequence[str]) -> None:
        """Withdraw clients from the next round on."""
        numbers = storage.read_mapping(self.path / "clients.json") if (self.path / "clients.json").exists() else {}
        for name in names:
            if name not in numbers:
                raise DataError(f"{self.path}: has never hosted a client of that name; check the spelling.")
        lines = sorted({*self._withdrawn_names(), *names})
        self._private_file("withdrawn.txt", "".join(f"{name}\n" for name in lines))

    def withdrawn(self) -> set[int]:
        """Numbers of withdrawn clients, read again for every round. DataError for a name without a number."""
        names = self._withdrawn_names()
        if not names:
            return set()
        numbers: Mapping[str, Any] = storage.read_mapping(self.path / "clients.json")
        if not numbers.keys() >= set(names):
            raise DataError(f"{self.path / 'withdrawn.txt'}: a name belongs to no client, whose withdrawal is lost.")
        return {int(numbers[name]) for name in names}

    def _withdrawn_names(self) -> list[str]:
        path = self.path / "withdrawn.txt"
        return [name for name in storage.read_plain(path).decode().split("\n") if name] if path.exists() else []

    def _private_file(self, name: str, content: str | bytes) -> None:
        with storage.explain_write(self.path / name):
            storage.replace_file(self.path / name, content, mode=0o600)
