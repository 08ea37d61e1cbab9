"""A checklist before and during a training: its state, and the remedy for each failed line."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rrcluster import __version__
from rrcluster.errors import RRClusterError
from rrcluster.federation.agreed_run import AgreedRun
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.certificates import certificate_days, check_secret
from rrcluster.federation.client_ledger import ledger_of, signed_cost
from rrcluster.federation.federation_folder import FederationFolder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.privacy.cost import digits_up, epsilon_text
from rrcluster.runs.advise import HOPELESS, WEAK, outlook

_SOON = 30  # days
_FEW_BYTES = 2**28
_LEAST_STEP = 2.0  # in noise stds: a weaker step is noise even in the best direction


@dataclass(frozen=True)
class CheckLine:
    """One line of the checklist."""

    what: str
    passed: bool
    detail: str  # with the remedy, if it failed


def _line(what: str, check: Callable[[], str]) -> CheckLine:
    """A line from a check that returns its result, or raises with the remedy."""
    try:
        return CheckLine(what, True, check())
    except RRClusterError as error:
        return CheckLine(what, False, str(error))
    except OSError as error:
        return CheckLine(what, False, f"{error.filename or what}: {error.strerror}; restore the file.")


def _problem(text: str) -> str:
    raise RRClusterError(text)


def check_server(folder: FederationFolder) -> list[CheckLine]:
    """The checklist of the server's operator."""
    lines = [
        _line("certificates", lambda: _certificates(folder.path / "ca.pem", folder.private / "server.pem")),
        _line("keys", lambda: _keys(folder.private / "ca.key", folder.private / "server.key")),
        _line("disk", lambda: _disk(folder.path)),
    ]
    try:
        agreement = folder.agreement()
    except RRClusterError as error:
        return [*lines, CheckLine("agreement", False, str(error))]
    lines += _agreed_lines(agreement)
    lines.append(_line("consents", lambda: _consents(folder, agreement)))
    return [*lines, _line("budget", lambda: _server_budget(folder, agreement))]


def check_member(folder: MemberFolder) -> list[CheckLine]:
    """The checklist of a member's operator."""
    lines = [
        _line("keys", lambda: _keys(folder.path / "identity.key", folder.path / "node.key")),
        _line("disk", lambda: _disk(folder.path)),
    ]
    if (folder.path / "ca.pem").exists():
        lines.append(_line("certificates", lambda: _certificates(folder.path / "ca.pem")))
    try:
        agreement = folder.agreement()
        folder.check_authority(folder.path / "ca.pem")
    except RRClusterError as error:
        return [*lines, CheckLine("agreement", False, str(error))]
    lines += _agreed_lines(agreement)
    lines.append(_line("budget", lambda: _member_budget(folder, agreement)))
    return [*lines, _line("daemon", lambda: _daemon(folder))]


def _agreed_lines(agreement: Agreement) -> Iterator[CheckLine]:
    """The lines that either side can check of an agreement."""
    yield CheckLine("version", True, __version__)  # other versions cannot read the agreement
    yield CheckLine("digest", True, agreement.digest.hex())
    try:
        agreed = AgreedRun.build(agreement, trains=False)
    except RRClusterError as error:
        yield CheckLine("guarantee", False, str(error))
        return
    guarantee = agreed.guarantee()
    yield CheckLine(
        "guarantee",
        True,
        f"epsilon = {epsilon_text(guarantee['epsilon'])}, delta = {digits_up(guarantee['delta'], 2):.1e}, "
        f"{guarantee['adjacency']}, {guarantee['num_releases']} releases of {guarantee['num_clients']} clients, "
        f"towards {guarantee['towards']}",
    )
    yield _line("signal to noise", lambda: _signal(agreed))


def _signal(agreed: AgreedRun) -> str:
    """The strength of the signal under the noise; refuses settings that cannot learn."""
    plan, agreement = agreed.plan, agreed.agreement
    settings = agreed.experiment.config
    prospect = outlook(plan, update_clip=settings.privacy.update_clip, average_last=settings.server.average_last)
    members, clients = len(agreement.members), agreement.num_clients
    # extra noise of the members beyond these
    extra = math.sqrt(members / agreement.least_honest) if agreement.secure else 1.0
    noise = plan.mechanism.describe().noise["noise_std"] * extra
    over_run, size = min(prospect.over_run) / extra, min(prospect.sizes)
    one_round = size * settings.privacy.update_clip / noise
    text = (
        f"a cluster of {size:.0f} clients has {_two_digits(over_run)} over the run, and in one round "
        f"{_two_digits(one_round)} noise stds in a single direction ({clients} clients in all, noise multiplier "
        f"{plan.noise_multiplier:.3g})"
    )
    if over_run >= HOPELESS and one_round >= _LEAST_STEP:
        return f"{text}: {'enough' if over_run >= WEAK else f'weak, {WEAK:g} over the run is good'}"
    needed = math.ceil(clients * max(WEAK / over_run, _LEAST_STEP / one_round))
    many = clients // members
    return _problem(
        f"hopeless: {text}. Nothing is learnt below {HOPELESS:g} over the run or {_LEAST_STEP:g} in a round. At this "
        f"epsilon it takes about {needed} clients at least, whose updates agree. Each member hosts {many} "
        f"client{'s' if many > 1 else ''}: with --client-column the unit of privacy is the person in its data, and a "
        "member hosts thousands. Fewer clusters, a smaller network, or a larger epsilon help too."
    )


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _certificates(*paths: Path) -> str:
    lines = []
    for path in paths:
        days = certificate_days(path)
        if days < _SOON:
            _problem(
                f"{path}: ends in {days:.0f} days; `rrcluster federation init FOLDER --new-certificate --hosts ...` "
                "issues a new one for the server."
            )
        lines.append(f"{path.name} for {days:.0f} days")
    return ", ".join(lines)


def _keys(*paths: Path) -> str:
    for path in paths:
        check_secret(path)
    return ", ".join(path.name for path in paths) + " are readable by you alone"


def _disk(path: Path) -> str:
    free = shutil.disk_usage(path).free
    if free < _FEW_BYTES:
        return _problem(f"{path}: {free / 2**20:.0f} MiB are free; free at least {_FEW_BYTES / 2**20:.0f} MiB.")
    return f"{free / 2**30:.1f} GiB are free"


def _consents(folder: FederationFolder, agreement: Agreement) -> str:
    missing = folder.missing_consents(agreement)
    if missing:
        return _problem(f"{', '.join(missing)} have not signed; add their consent.json with enrol --consent.")
    return f"all {len(agreement.members)} members have signed"


def _server_budget(folder: FederationFolder, agreement: Agreement) -> str:
    most, cost = agreement.guarantee["num_releases"], folder.cost()
    spent = 0 if cost is None else cost.charged
    reserve = most - agreement.guarantee["num_rounds"]
    hint = "" if reserve else "; no attempt is in reserve (reserve_rounds), so one that fails ends the training early"
    return f"{spent} of {most} releases charged{hint}"


def _member_budget(folder: MemberFolder, agreement: Agreement) -> str:
    agreed = AgreedRun.build(agreement, trains=False)
    total, ledger = signed_cost(folder, agreed), ledger_of(folder)
    lifetime = folder.settings().get("lifetime_epsilon")
    bound = "no lifetime budget is set" if lifetime is None else f"of a lifetime budget of {lifetime:g}"
    joined = ledger.joined(agreement.digest)
    return (
        f"{joined} of {agreed.num_releases} attempts joined; epsilon {epsilon_text(total)} over all trainings, {bound}"
    )


def _daemon(folder: MemberFolder) -> str:
    from rrcluster.federation.messages import Letter, decode
    from rrcluster.federation.unix_socket import SOCKET, ask_socket

    hello = Letter("hello", {"federation": folder.agreement().digest.hex()}).encode()
    try:
        answer = ask_socket(folder.path / SOCKET, hello, deadline=time.monotonic() + 10, longest=10_000)
    except OSError:
        return _problem(f"does not answer; start it with `rrcluster federation client {folder.path}`.")
    if decode(answer, longest=10_000).name != "here":
        return _problem("answers another agreement; stop it and start it again.")
    return "answers"
