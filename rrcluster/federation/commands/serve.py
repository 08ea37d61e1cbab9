"""`rrcluster federation serve`: the rounds of a federation, through the same run folder as `rrcluster run`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import tyro

from rrcluster.cli.terminal import say, say_warnings
from rrcluster.errors import ConfigError, RoundError, RunFolderError
from rrcluster.federation.federation_folder import METRICS, FederationFolder, parse_with_folder
from rrcluster.registry import TRANSPORTS

if TYPE_CHECKING:
    from rrcluster.federation.agreed_run import AgreedRun
    from rrcluster.federation.agreement import Agreement
    from rrcluster.federation.collect import Transport
    from rrcluster.federation.deployment import Deployment
    from rrcluster.runs.config import RunConfig
    from rrcluster.runs.experiment import Experiment
    from rrcluster.runs.run import Running
    from rrcluster.types import Models

_AWAITED = 60.0  # seconds to wait for members that fetch the models
MOST_FAILURES = 3  # failed attempts at one round, each charged
GIVEN_UP = 3  # exit status for supervisors: do not restart


@dataclass(frozen=True)
class ServeCommand:
    """Run the rounds of a federation that every member has signed; the same command resumes them.

    usage: rrcluster federation serve FOLDER [OPTIONS]. A member that does not answer by the deadline is out of the
    round, and a late answer is refused. Examples:

    rrcluster federation serve trial --transport local --members /srv/members

    rrcluster federation serve trial --address 0.0.0.0:9092 --seconds 120
    """

    folder: Annotated[Path, tyro.conf.Positional] = Path()
    """Folder of the federation."""
    transport: Annotated[str, tyro.conf.arg(help_behavior_hint=TRANSPORTS.hint)] = "tls"
    """Transport to the members: local, sockets on this machine; tls, a network; flower, a network with Flower."""
    members: Path | None = None
    """local: the folder that contains each member's folder, under the member's name."""
    address: str | None = None
    """Address that members connect to, host:port; default: port 9092 on the loopback interface."""
    metrics: int | None = None
    """Also show figures under /metrics and /health at this port of the loopback interface."""
    seconds: float = 600.0
    """Deadline of every message; members that have not answered by then are out of the round."""
    without: tuple[str, ...] = ()
    """Names of members to leave out, such as those that a failed round named."""
    out: Path | None = None
    """Run folder; default: run/ in the federation's folder."""
    adopt: bool = False
    """Continue in a copy of the run folder. The releases of the copy and the original add up."""
    again: bool = False
    """Retry a round that failed three times after it was charged."""
    quiet: Annotated[bool, tyro.conf.arg(aliases=["-q"])] = False
    """Print warnings only, not a line per round."""


def serve(arguments: list[str]) -> int:
    """Run the command."""
    command = parse_with_folder(ServeCommand(), arguments, "serve")
    folder = FederationFolder(command.folder)
    agreement = folder.agreement()
    run, without = command.out or folder.run, _places(agreement, command.without)
    from rrcluster.federation.agreed_run import AgreedRun
    from rrcluster.federation.deployment import hand_out
    from rrcluster.federation.messages import longest_answer
    from rrcluster.federation.metrics import show_figures
    from rrcluster.federation.transports import Attended, Reach, open_transport

    agreed = AgreedRun.build(agreement, trains=False, out=str(run), name=agreement.name)
    most = max(member.num_clients for member in agreement.members)
    longest = longest_answer(agreed.plan.mechanism, most, len(agreement.members))
    reach = Reach(folder, agreement, command.seconds, longest, command.members, command.address)
    public = agreed.plan.event.sample_rate == 1  # whether participation is public
    shown = show_figures(command.metrics, folder.private / METRICS)
    with say_warnings(), shown, open_transport(command.transport, reach) as transport:
        size = agreed.plan.sampler.expected_size
        attended = Attended(transport, folder, agreement, names=public, run=run, expected=size)
        finished = (run / "models.safetensors").exists()
        without_members = replace(attended, without=without)
        models = _released(run) if finished else _rounds(command, agreed, without_members, run)
        have = hand_out(agreement, attended, models, patience=min(command.seconds, _AWAITED), without=without)
    say(f"Finished: {run}. {len(have)} of {len(agreement.members)} members have the models.")
    say(f"  rrcluster report {run}    tables, figures and a page")
    if lacking := [m.name for place, m in enumerate(agreement.members) if place not in {*have, *without}]:
        raise RoundError(f"{', '.join(lacking)} do not have the models yet; start their daemons, then serve again.")
    return 0


def _places(agreement: "Agreement", names: tuple[str, ...]) -> frozenset[int]:
    """The places of these members; ConfigError for an unknown name."""
    places = {member.name: place for place, member in enumerate(agreement.members)}
    if unknown := set(names) - set(places):
        raise ConfigError(f"without = {', '.join(sorted(unknown))} is not a member; members are {', '.join(places)}.")
    return frozenset(places[name] for name in names)


def _released(run: Path) -> "Models":
    """The released models of a finished training, to be sent again to members that were away."""
    from rrcluster.runs.load import load

    say(f"{run}: this training has finished; sending its models again.")
    return load(run).models


def _rounds(command: ServeCommand, agreed: "AgreedRun", transport: "Transport", run: Path) -> "Models":
    """Run the rounds; the models after the last one."""
    from rrcluster.federation.deployment import Deployment, greet
    from rrcluster.runs.progress import watch

    folder, agreement = FederationFolder(command.folder), agreed.agreement
    here = greet(agreement, transport)
    for place, signature in here.items():  # a signature from a daemon counts like the file
        folder.add_consent({"name": agreement.members[place].name, "signature": signature.hex()})
    if missing := folder.missing_consents(agreement):
        raise ConfigError(
            f"{', '.join(missing)} have not signed this agreement, or the daemons that present their "
            "signature do not answer; start them, or add consent.json with `rrcluster federation accept "
            f"{folder.path} FILE`."
        )
    needed, num_here = agreement.needed_members, len(here)
    away = ", ".join(member.name for place, member in enumerate(agreement.members) if place not in here)
    if num_here < needed:
        raise ConfigError(
            f"{num_here} of {len(agreement.members)} members answer with their signature, and {needed} are needed; "
            f"start the daemons of {away} (`rrcluster federation client MEMBER`), then serve again."
        )
    say(f"{num_here} of {len(agreement.members)} members are here{away and '; not here: '}{away}.")
    running = _start(Deployment(agreed, transport, folder.next_attempt, command.seconds), run, adopt=command.adopt)
    if running.failed_charges >= MOST_FAILURES and not command.again:
        _give_up(running)
    report = RoundReport(running, folder, public=agreed.plan.event.sample_rate == 1, quiet=command.quiet)
    try:
        return watch(running, on_round=report, progress=False).models
    except KeyboardInterrupt:
        say("Stopped. The same command continues.")
        raise SystemExit(130) from None
    except RoundError as error:
        if running.failed_charges >= MOST_FAILURES:
            say(str(error))
            _give_up(running)
        raise RoundError(
            f"{error} `rrcluster federation status {folder.path}` says who answered last. Start the missing "
            "daemons, or exclude the members named here with --without, then serve again to retry the round."
        ) from None


def _give_up(running: "Running") -> NoReturn:
    """End with a separate exit status: every further attempt would spend a release."""
    running.folder.release()
    say(
        f"error: this round was charged {running.failed_charges} times and failed each time. Find out why before it "
        "costs more: `rrcluster federation status` says who answered last. Then serve with --again."
    )
    raise SystemExit(GIVEN_UP)


@dataclass
class RoundReport:
    """Prints one line a round, and warnings.

    Made of releases, the ledger, and answers where participation is public.
    """

    running: "Running"
    folder: FederationFolder
    public: bool  # whether participation is public
    quiet: bool
    _here: frozenset[str] | None = None  # members that answered in the previous round
    _spent: int = 0  # reserve releases spent so far

    def __call__(self, round_index: int, figures: Mapping[str, float]) -> None:
        """Print the line of a round."""
        plan = self.running.experiment.plan
        sizes = [value for name, value in figures.items() if name.startswith("released/size_")]
        spent = self.running.releases_charged - round_index - 1
        here = frozenset(self.folder.status().get("answered", ())) if self.public else None
        if not self.quiet:
            came = "" if here is None else f"{len(here)} members, "
            reserve = f", {plan.num_releases - plan.num_rounds - spent} in reserve" if plan.reserve_rounds else ""
            text = " ".join(f"{size:.0f}" for size in sizes)
            say(f"round {round_index + 1}/{plan.num_rounds}: {came}sizes {text}{reserve}")
        for warning in (self._thin(sum(sizes)), self._gone(here), self._reserve(spent)):
            if warning:
                say(f"warning: round {round_index + 1}: {warning}")
        self._here, self._spent = here, spent

    def _thin(self, total: float) -> str:
        expected = self.running.experiment.plan.sampler.expected_size
        if total >= expected / 2:
            return ""
        kind = "empty" if total < expected / 10 else "thin"
        return f"{kind}: its released sizes add up to {total:.0f}, and {expected:.0f} clients are expected."

    def _gone(self, here: frozenset[str] | None) -> str:
        missing = sorted((self._here or frozenset()) - (here or frozenset()))
        return f"no answer any more from {', '.join(missing)}." if missing else ""

    def _reserve(self, spent: int) -> str:
        if spent <= self._spent:
            return ""
        plan = self.running.experiment.plan
        return f"{spent} of {plan.num_releases - plan.num_rounds} releases in reserve are used."


def _start(deployment: "Deployment", run: Path, *, adopt: bool) -> "Running":
    """Start or continue the run; a folder with another run is refused."""
    from rrcluster.runs.run import resume, start

    experiment = deployment.experiment()
    if not (run / "config.yaml").exists():
        return start(experiment)

    def same(config: "RunConfig") -> "Experiment":
        if config != experiment.config:
            raise RunFolderError(f"{run} holds a run with other settings; choose another folder with --out.")
        return experiment

    return resume(run, make=same, adopt=adopt)
