"""`rrcluster federation init` and `enrol`: from a settings file to an agreement that every operator has signed."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rrcluster.cli.terminal import read_yaml, say
from rrcluster.errors import ConfigError
from rrcluster.federation.agreement import Agreement, Member, SampleShape, read_sent
from rrcluster.federation.federation_folder import FederationFolder, parse_with_folder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.privacy.cost import epsilon_text, risk_text
from rrcluster.report.values import field_text
from rrcluster.settings import FIELDS

if TYPE_CHECKING:
    from rrcluster.federation.agreed_run import AgreedRun


@dataclass(frozen=True)
class InitCommand:
    """Start a federation: a folder with the draft of the agreement, an empty roster, a certificate authority.

    usage: rrcluster federation init FOLDER SETTINGS.yaml [OPTIONS], and later: init FOLDER --close. SETTINGS.yaml has
    one `setting: value` per line, as for `rrcluster run`. With `data: members` every member supplies its own data: then
    the settings declare what all tables share (features, target, classes or regression, categories, scale, missing), or
    --input-shape and --num-classes describe arrays. The name of a dataset instead makes a rehearsal.

    rrcluster federation init trial settings.yaml --mode secure --least-honest 6 --most-colluders 1

    rrcluster federation init trial --close
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """Folder of the federation."""
    settings: Annotated[Path | None, tyro.conf.Positional] = None
    """YAML file of settings."""
    name: str | None = None
    """Name of this training; default: the folder's. Every training of the same members needs a new name."""
    mode: Literal["plain", "secure"] = "secure"
    """secure: the server sees only sums, with noise from the members; plain: it is trusted with raw reports."""
    least_honest: int = 0
    """secure: the number of members whose noise every sum must contain; each member's noise is calibrated to it."""
    most_colluders: int = 0
    """secure: the number of members that may collude with the server without risk to anybody's data."""
    least_members: int = 0
    """plain: members that must be connected; with fewer, a round is not charged; default: more than half."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Names and addresses of the server, for its certificate."""
    input_shape: tuple[int, ...] = ()
    """data: members, as arrays: shape of one sample."""
    num_classes: int | None = None
    """data: members, as arrays: number of classes; 0 for regression."""
    close: bool = False
    """Close the roster: calibrate the noise, state the guarantee, write agreement.json."""
    new_certificate: bool = False
    """Issue a new certificate of the server for --hosts, signed by the same authority."""


@dataclass(frozen=True)
class EnrolCommand:
    """Enrol a member, or sign; at the server, add requests and signatures.

    A member's operator: rrcluster federation enrol MEMBER --name NAME --clients N makes keys and request.json, which
    goes to the server's operator. Later: enrol MEMBER --agree agreement.json shows the agreement, checks that its
    settings give the guarantee it states, and signs (consent.json). At the server: enrol FOLDER --accept REQUEST ...
    and enrol FOLDER --consent CONSENT ...

    rrcluster federation enrol north --name north --clients 200 --lifetime-epsilon 8

    rrcluster federation enrol trial --accept north/request.json

    rrcluster federation enrol north --agree trial/agreement.json --yes
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """The member's folder; at the server, the federation's."""
    name: str | None = None
    """Public name of the member."""
    clients: int | None = None
    """The most clients the member hosts over all rounds: a public constant."""
    lifetime_epsilon: float | None = None
    """Refuse to sign a training that would bring the epsilon of all trainings together above this."""
    agree: Path | None = None
    """Sign this agreement."""
    yes: bool = False
    """Sign without asking."""
    accept: tuple[Path, ...] = ()
    """At the server: add these requests to the roster, or these signatures."""
    consent: tuple[Path, ...] = ()
    """At the server: add these signatures. Daemons present theirs when rounds begin, so files are rarely needed."""
    close: bool = False
    """At the server: then close the roster, like `init --close`, and check the folder."""


def init(arguments: list[str]) -> int:
    """Run `init`."""
    command = parse_with_folder(InitCommand(), arguments, "init")
    folder = FederationFolder(command.folder)
    if command.close:
        return _close(folder)
    if command.new_certificate:
        from rrcluster.federation.certificates import issue_server

        issue_server(folder.path, folder.private, hosts=command.hosts)
        say(f"{folder.private / 'server.pem'}: a new certificate for {', '.join(command.hosts)}.")
        return 0
    if command.settings is None:
        raise ConfigError("init needs a file of settings: `rrcluster federation init FOLDER SETTINGS.yaml`.")
    settings, samples = _settings(read_yaml(str(command.settings)), command)
    name, numbers = command.name or command.folder.resolve().name, ("least_honest", "most_colluders", "least_members")
    draft: dict[str, Any] = {entry: getattr(command, entry) for entry in ("mode", *numbers)} | {"settings": settings}
    FederationFolder.create(command.folder, name=name, samples=samples, hosts=command.hosts, **draft)
    say(f"{command.folder}: a federation without members. Keep {folder.private} to yourself. Next, every member:")
    say("  rrcluster federation join MEMBER --name NAME --clients N")
    return 0


def _settings(options: Mapping[str, Any], command: InitCommand) -> tuple[dict[str, Any], SampleShape]:
    """The settings of the draft, and the shape of samples."""
    from rrcluster.federation.agreed_settings import MEMBERS, check_settings, register_members, table_shape
    from rrcluster.runs.config import from_flat

    if command.mode == "secure" and command.least_honest < 2:
        raise ConfigError(
            "mode = secure needs --least-honest, of how many members the noise protects everybody (2 or more), and "
            "--most-colluders, how many may work for the server; every member signs both."
        )
    if command.mode == "secure" and command.least_members:
        raise ConfigError("--least-members is about mode = plain; secure has --least-honest and --most-colluders.")
    register_members()
    columns = {name: value for name, value in options.items() if FIELDS.get(name) == "columns"}
    settings = {name: value for name, value in options.items() if name not in columns}
    if "data" not in settings:
        raise ConfigError(f"the settings need data: {MEMBERS} (every member brings its own), or a dataset's name.")
    if not settings.keys() & {"participation", "sample_rate", "slots"} and settings.get("mechanism") in (None, "joint"):
        settings["participation"] = "everybody"
        say("participation = everybody: a network shows who takes part, so epsilon should not rest on that secret.")
    check_settings(settings, secure=command.mode == "secure")
    proposed = settings.get("algorithm") != "mixed-effects" and not columns.get("regression")
    if proposed and "private_evaluation" not in settings and settings.get("mechanism") in (None, "joint"):
        say(
            "private_evaluation is not among the settings, so nobody will learn how good the models are: add "
            "`private_evaluation: 0.25`, which is paid for by the same epsilon and shown in the report."
        )
    config = from_flat(settings, source=str(command.settings))
    arrays = bool(command.input_shape) and command.num_classes is not None
    if settings["data"] == MEMBERS:
        if arrays and not columns:
            return settings, SampleShape(command.input_shape, command.num_classes or 0)
        return settings, table_shape(columns)
    if columns or arrays:
        raise ConfigError(f"data = {settings['data']} is a dataset with samples of its own; leave their shape out.")
    from rrcluster.federation.agreed_run import samples_of

    return settings, samples_of(config)


def _close(folder: FederationFolder) -> int:
    draft = folder.open_draft()
    if folder.closed:
        raise ConfigError(f"{folder.path}: the roster is already closed; a new training needs a new folder.")
    from rrcluster.federation.agreed_run import AgreedRun, close

    agreement = close(draft)
    agreed = AgreedRun.build(agreement, trains=False)
    folder.save_agreement(agreement)
    show_agreement(agreed)
    say(f"{folder.path / 'agreement.json'}: send it to every member. Next, every member:")
    say("  rrcluster federation sheet agreement.json    (what it means, in words)")
    say("  rrcluster federation sign MEMBER agreement.json")
    return 0


def enrol(arguments: list[str]) -> int:
    """Run `enrol`, `join`, `accept` or `sign`."""
    command = parse_with_folder(EnrolCommand(), arguments, "enrol")
    if command.accept or command.consent:
        return _collect(command)
    if command.agree is not None:
        return _agree(command, command.agree)
    if command.name is None or command.clients is None:
        raise ConfigError("a new member needs --name and --clients, how many clients it hosts at most.")
    folder = MemberFolder.create(
        command.folder, name=command.name, num_clients=command.clients, lifetime=command.lifetime_epsilon
    )
    say(f"{folder.path}: keys of {command.name}, which stay here. Send {folder.path / 'request.json'} to the")
    say(f"server's operator, and read its fingerprint to them over the telephone: {folder.request().fingerprint}")
    return 0


def _collect(command: EnrolCommand) -> int:
    """At the server: add requests and consents."""
    folder = FederationFolder(command.folder)
    documents = [read_sent(path) for path in (*command.accept, *command.consent)]
    for facts in documents:
        if "signature" in facts:
            say(f"{folder.add_consent(facts).name} has signed.")
            continue
        member = Member.of_facts(facts)
        folder.accept(member)
        say(f"{member.name}: {member.num_clients} clients, fingerprint {member.fingerprint} (compare it by telephone)")
    if command.close:
        from rrcluster.federation.commands.check import check

        _close(folder)
        check([str(folder.path)])
    if any("signature" in facts for facts in documents):
        missing = folder.missing_consents(folder.agreement())
        done = f"Everybody has signed. Next: rrcluster federation serve {folder.path}"
        say(f"Still missing: {', '.join(missing)}" if missing else done)
    return 0


def _agree(command: EnrolCommand, path: Path) -> int:
    """At a member: show the agreement, check it and sign it."""
    folder = MemberFolder(command.folder)
    folder.identity()
    agreement = Agreement.read(path)
    from rrcluster.federation.agreed_run import AgreedRun
    from rrcluster.federation.client_ledger import agree_to

    agreed = AgreedRun.build(agreement, trains=False)
    show_agreement(agreed)
    if not command.yes and not _confirmed():
        say("Nothing was signed.")
        return 1
    total = agree_to(folder, agreed)
    folder.save_consent(agreement)
    say(f"All trainings of these clients together: epsilon = {epsilon_text(total)}.")
    say(f"Signed. The daemon shows {folder.path / 'consent.json'} when rounds begin. Next:")
    say(f"  rrcluster federation client {folder.path} --data FILE --client-column COLUMN --server HOST:PORT")
    return 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("no terminal to ask on; read the agreement, then sign it with --yes.")
    sys.stderr.write("Sign this? Compare the digest with the server's operator, then type yes: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "yes"


def show_agreement(agreed: "AgreedRun") -> None:
    """The agreement as an operator reads it before signing."""
    agreement, guarantee = agreed.agreement, agreed.guarantee()
    write = sys.stdout.write
    write(f"{agreement.name}, mode {agreement.mode}: {len(agreement.members)} members, digest\n")
    write(f"  {agreement.digest.hex()}\n")
    if agreement.secure:
        guarantee["most_colluders"] = agreement.most_colluders
    for name, value in guarantee.items():
        text = field_text(name, value) if isinstance(value, float) else value
        write(f"  {name.replace('_', ' ')}: {text}\n")
    event = agreed.plan.event if agreed.secure is None else agreed.secure.event_towards_members
    write(f"  {risk_text(agreed.risk(event), guarantee['adjacency'], sampled=event.seen() != event)}\n")
    for member in agreement.members:
        write(f"  {member.name}: {member.num_clients} clients, fingerprint {member.fingerprint}\n")
    if guarantee["rehearsal"]:
        write("  A rehearsal: its noise is seeded and protects nobody.\n")
