"""`rrcluster federation check` and `status`: a checklist of a folder, and the progress of a training."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rrcluster.cli.terminal import print_json
from rrcluster.federation.federation_folder import FederationFolder, parse_with_folder
from rrcluster.federation.member_folder import MemberFolder
from rrcluster.privacy.cost import epsilon_text


@dataclass(frozen=True)
class CheckCommand:
    """A checklist of a federation's or a member's folder; exit status 1 where a line does not pass.

    Certificates and their dates, keys, versions, digests, consents, disk, budget, and whether anything can be learnt
    under the noise at all.

    rrcluster federation check trial

    rrcluster federation check north
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """Folder of the federation, or of a member."""
    json: bool = False
    """Print the list as JSON."""


@dataclass(frozen=True)
class StatusCommand:
    """The progress of a training: the round, who answered last, the budget spent.

    rrcluster federation status trial

    rrcluster federation status north
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """Folder of the federation, or of a member."""
    json: bool = False
    """Print it as JSON."""


def check(arguments: list[str]) -> int:
    """Run `check`."""
    command = parse_with_folder(CheckCommand(), arguments, "check")
    of_member = _of_member(command.folder)
    from rrcluster.federation.readiness import check_member, check_server

    lines = check_member(MemberFolder(command.folder)) if of_member else check_server(FederationFolder(command.folder))
    if command.json:
        print_json([asdict(line) for line in lines])
    else:
        width = max(len(line.what) for line in lines)
        for line in lines:
            sys.stdout.write(f"{'ok  ' if line.passed else 'FAIL'}  {line.what.ljust(width)}  {line.detail}\n")
    return 0 if all(line.passed for line in lines) else 1


def status(arguments: list[str]) -> int:
    """Run `status`."""
    command = parse_with_folder(StatusCommand(), arguments, "status")
    if _of_member(command.folder):
        figures = _member_status(MemberFolder(command.folder))
    else:
        figures = _server_status(FederationFolder(command.folder))
    if command.json:
        print_json(figures)
        return 0
    for name, value in figures.items():
        text = ", ".join(value) if isinstance(value, list) else epsilon_text(value) if type(value) is float else value
        sys.stdout.write(f"{name}: {text}\n")
    return 0


def _of_member(folder: Path) -> bool:
    if (folder / "identity.key").exists():
        return True
    FederationFolder(folder).draft()
    return False


def _server_status(folder: FederationFolder) -> dict[str, Any]:
    agreement, lines = folder.agreement(), dict[str, Any]()
    from rrcluster.federation.agreed_run import AgreedRun
    from rrcluster.federation.metrics import server_figures

    folder.cost()  # refuses an inconsistent run folder
    noted, plan = folder.status(), AgreedRun.build(agreement, trains=False).plan  # recomputes the agreement's numbers
    figures = server_figures(agreement, folder.run, plan.sampler.expected_size, noted)
    lines |= {"federation": agreement.name, "mode": agreement.mode, "members": len(agreement.members)}
    lines |= {"round": f"{figures['rounds_done']} of {figures['rounds_planned']}"}
    lines |= {
        name: figures[name.replace(" ", "_")] for name in ("releases charged", "releases allowed", "reserve left")
    }
    lines |= {"epsilon of the whole training": plan.epsilon(), "finished": figures["finished"]}
    if noted:
        lines["last message"] = f"{noted.get('stage')}, {max(0, round(time.time()) - int(noted.get('at', 0)))} s ago"
    if "answered" in noted:
        lines["answered it"] = noted["answered"]
    return lines


def _member_status(folder: MemberFolder) -> dict[str, Any]:
    agreement = folder.agreement()
    from rrcluster.federation.client_ledger import ledger_of

    return {
        "member": folder.settings().get("name"),
        "federation": agreement.name,
        "attempts joined": ledger_of(folder).joined(agreement.digest),
        "attempts allowed": agreement.guarantee["num_releases"],
        "epsilon of the whole training": float(agreement.guarantee["epsilon"]),  # as signed
        "models here": (folder.path / "released" / "models.safetensors").exists(),
    }
