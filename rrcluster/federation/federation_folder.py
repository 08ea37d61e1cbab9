"""The folder of the server's operator.

federation.json   the draft: settings, and the roster so far
agreement.json    what everybody signs, once the roster is closed; public, like all files here but server/
consents/         one signature per member
ca.pem            the certificate of the federation's authority
server/           mode 0700: keys, the number of the next attempt, who answered last
run/              the run folder, as of `rrcluster run`
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rrcluster import storage
from rrcluster.cli.terminal import Parsed, parse
from rrcluster.errors import ConfigError, ProtocolError, RunFolderError
from rrcluster.federation.agreement import Agreement, Member, SampleShape, signature_of
from rrcluster.federation.certificates import authority_of, make_authority
from rrcluster.privacy.cost import Cost, folder_cost

_DRAFT = "federation.json"
METRICS = "metrics.prom"  # in server/


def parse_with_folder(default: Parsed, arguments: Sequence[str], action: str) -> Parsed:
    """The options of an action whose first argument is a folder."""
    command: Any = parse(default, arguments, prog=f"rrcluster federation {action}")
    if command.folder == Path():
        raise ConfigError(f"{action} needs a folder first: `rrcluster federation {action} FOLDER`.")
    return cast(Parsed, command)


@dataclass(frozen=True)
class FederationFolder:
    """The folder's files. None of them contains client data."""

    path: Path

    @classmethod
    def create(
        cls, path: Path, *, name: str, samples: SampleShape, hosts: Sequence[str], **draft: Any
    ) -> "FederationFolder":
        """Create a federation without members, and its certificates; `draft`: the other entries of the agreement."""
        if (path / _DRAFT).exists():
            raise RunFolderError(
                f"{path} already contains a federation; choose another folder, and accept the requests there."
            )
        with storage.explain_write(path):
            storage.make_folders(path)
            private = storage.make_subfolder(path / "server", private=True)
        folder = cls(path)
        empty = Agreement(name, {}, samples, ()).facts()  # checks name and samples
        make_authority(path, private, name=name, hosts=hosts)
        authority = authority_of(path / "ca.pem")
        folder._save({**empty, **draft, "authority": authority})
        return folder

    @property
    def private(self) -> Path:
        """The private files, mode 0700."""
        return self.path / "server"

    @property
    def run(self) -> Path:
        """The default run folder."""
        return self.path / "run"

    def cost(self) -> Cost | None:
        """The training's cost, from a consistent run folder; None before it has begun."""
        return folder_cost(self.run) if (self.run / "config.yaml").exists() else None

    @property
    def closed(self) -> bool:
        """Whether the agreement exists."""
        return (self.path / "agreement.json").exists()

    def draft(self) -> dict[str, Any]:
        """The draft as plain data."""
        if not (self.path / _DRAFT).exists():
            raise RunFolderError(f"{self.path}: no federation here; start one with `rrcluster federation init`.")
        return storage.read_mapping(self.path / _DRAFT)

    def _save(self, draft: Mapping[str, Any]) -> None:
        storage.write_json(self.path / _DRAFT, draft)

    def members(self) -> tuple[Member, ...]:
        """The roster so far."""
        return tuple(Member.of_facts(member) for member in self.draft()["members"])

    def accept(self, member: Member) -> None:
        """Add a member to the roster, or replace the entry of its name; refused once there is an agreement."""
        if self.closed:
            raise ConfigError(
                f"{self.path}: the roster is closed, and its members are signing it. Members join with "
                "the next training: `rrcluster federation init` in a new folder."
            )
        others = tuple(other for other in self.members() if other.name != member.name)
        if any(other.identity == member.identity for other in others):
            raise ConfigError(f"{member.name} has the identity key of another member; every member needs its own.")
        self._save({**self.draft(), "members": [other.facts() for other in (*others, member)]})

    def open_draft(self) -> Agreement:
        """The draft with its roster, as an agreement without a guarantee yet."""
        return Agreement.of_facts({**self.draft(), "guarantee": {}})

    def save_agreement(self, agreement: Agreement) -> None:
        """Close the roster."""
        if self.closed:
            raise ConfigError(f"{self.path}: the roster is already closed; a new training needs a new folder.")
        storage.write_json(self.path / "agreement.json", agreement.facts())

    def agreement(self) -> Agreement:
        """The agreement that everybody signs."""
        path = self.path / "agreement.json"
        if not path.exists():
            self.draft()
            raise ConfigError(
                f"{self.path}: the roster is still open; accept all members, then `rrcluster federation init "
                f"{self.path} --close`."
            )
        return Agreement.read(path)

    def add_consent(self, consent: Mapping[str, Any]) -> Member:
        """Store a member's signature; ProtocolError if it is not on this agreement."""
        agreement = self.agreement()
        places = [place for place, member in enumerate(agreement.members) if member.name == consent.get("name")]
        if not places or not isinstance(consent.get("signature"), str):
            raise ProtocolError("the consent is from nobody in the roster; ask for consent.json again.")
        agreement.check_consent(places[0], signature_of(consent))
        member = agreement.members[places[0]]
        storage.write_json(self.path / "consents" / f"{member.name}.json", dict(consent))
        return member

    def missing_consents(self, agreement: Agreement) -> list[str]:
        """Names of the members without a stored signature on this agreement."""
        missing = []
        for place, member in enumerate(agreement.members):
            path = self.path / "consents" / f"{member.name}.json"
            try:
                agreement.check_consent(place, signature_of(storage.read_mapping(path)))
            except (OSError, ProtocolError, RunFolderError):
                missing.append(member.name)
        return missing

    def next_attempt(self) -> int:
        """A number greater than all earlier attempts, also after a crash: on disk before it is used."""
        path = self.private / "attempts.json"
        with storage.explain_write(path), storage.locked(path):
            number = storage.read_mapping(path).get("next", 0) if path.exists() else 0
            if type(number) is not int:
                raise RunFolderError(f"{path}: does not contain a number; write one above all attempts so far.")
            storage.replace_file(path, storage.to_json({"next": number + 1}), mode=0o600)
        return number

    def save_status(self, status: Mapping[str, Any], metrics: str) -> None:
        """Save the progress of the rounds, for the server's operator."""
        for name, content in {"status.json": json.dumps(status), METRICS: metrics}.items():
            with storage.explain_write(self.private / name):
                storage.replace_file(self.private / name, content, mode=0o600)

    def status(self) -> dict[str, Any]:
        """The saved progress; {} before the first round."""
        path = self.private / "status.json"
        return storage.read_mapping(path) if path.exists() else {}
