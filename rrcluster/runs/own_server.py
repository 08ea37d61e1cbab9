"""`rr.Server`: the server's half of a private federation, for a system that has its own clients and its own loop.

    with rr.Server(plan, models, folder="federation") as server:
        while not server.finished:
            ids = server.cohort()                        # whom to ask this round
            guidance = server.guidance                   # what to send them: models, prices, coins
            server.finish(updates, choices, destinations=destinations, client_ids=ids)

The server, not the caller, enforces the guarantee: cohorts come from the plan's sampler, once per round; reports of
other clients, and second reports, are ignored; every release is charged on disk first; and the plan's last round is
final. A killed process resumes from the folder. A round that it had already charged gets fresh noise and a new charge.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rrcluster.entropy import SecureStreams, StreamSource
from rrcluster.errors import ConfigError, PrivacyError, RunFolderError
from rrcluster.privacy.ledger import Ledger
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import NoisySum, Reports
from rrcluster.privacy.statement import statement
from rrcluster.rng import Streams
from rrcluster.runs.fingerprint import last_audit, plain_digest
from rrcluster.runs.folder import RunFolder
from rrcluster.runs.lock import FolderLock, bind, check_place
from rrcluster.server.server import Charge, FinishedRound, Guidance, RoundServer, attempt_round
from rrcluster.server.state import ServerState
from rrcluster.settings import ServerSettings, changed
from rrcluster.simulation.clients import ClientMemory
from rrcluster.storage import make_folders, write_json
from rrcluster.types import Array, Models, Release


class Server:
    """The server's half of every round of a plan, with its ledger and its state in a folder.

    `models` (k, d_s + d_c) are the first ones, a row per cluster, shared coordinates first. `settings` are those of
    `ServerSettings` by name (`server_lr`, `exploration`, ...). A secure plan draws from the operating system; any other
    needs a `seed`, and its releases are for research only. A copy of a secure folder is continued only with `adopt`.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        models: Any,
        *,
        folder: str | Path,
        seed: int | None = None,
        adopt: bool = False,
        **settings: Any,
    ) -> None:
        """Start a federation in a new folder, or continue the one in it."""
        if plan.mechanism.slots.count > 1:
            raise PrivacyError(
                f"participation with {plan.mechanism.slots.count} slots builds each round's noise on that of rounds "
                "before, which this server does not keep; use participation = poisson or everybody."
            )
        self.plan = plan
        self._streams = _streams(plan, seed)
        first = _first_models(models, plan)
        self._server = RoundServer(plan, _settings(settings), explores=True, first_models=lambda: first)
        made_by = {"config": plain_digest([asdict(self._server.settings), first.rows.tolist()])}
        self._folder = _open(Path(folder), plan, adopt=adopt)
        try:
            # secure also where it is seeded: clients of a real system do not repeat a round exactly, so its repeat is
            # a new release
            ledger = Path(folder) / "ledger.jsonl"
            self._ledger = Ledger(ledger, secure=True, limit=plan.num_releases, made_by=made_by)
            saved = self._folder.load_state(last_charged=self._ledger.last_round)
            self._state: ServerState = self._server.first_state() if saved is None else saved[0]
        except BaseException:
            self._folder.release()
            raise
        self._cohort: Array | None = None

    def __enter__(self) -> "Server":
        """Return the server."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the folder's lock."""
        self.close()

    def close(self) -> None:
        """Release the folder's lock."""
        self._folder.release()

    @property
    def round_index(self) -> int:
        """The next round, from 0."""
        return self._state.round_index

    @property
    def finished(self) -> bool:
        """Whether the plan allows no further release."""
        t, plan = self._state.round_index, self.plan
        return t >= plan.num_rounds or not self._ledger.affords(t, limit=plan.num_releases)

    @property
    def epsilon(self) -> float | None:
        """The cost of the whole plan at `plan.delta`, whenever it is stopped; None without privacy."""
        return self.plan.epsilon() if self.plan.private else None

    @property
    def models(self) -> Array:
        """(k, d_s + d_c) the models for release: the average over the last rounds, made of releases."""
        return self._state.average.rows

    @property
    def guidance(self) -> Guidance:
        """The guidance for this round's clients: models (`vectors`), and the rule for choosing (`choose`)."""
        return self._server.tell(self._state)

    def cohort(self) -> Array:
        """The clients of this round, drawn once by the plan's sampler: sorted numbers from 0 to M - 1. Secret.

        Clients that do not answer are absent; nobody replaces them.
        """
        self._check_open()
        if self._cohort is None:
            rng = self._streams("cohort", self._ledger.num_charged)
            self._cohort = self.plan.sampler.draw(self.plan.mechanism.num_clients, rng=rng)
        return self._cohort

    def finish(
        self, updates: Any, choices: Any, *, client_ids: Any, destinations: Any = None, evaluations: Any = None
    ) -> Release:
        """Charge the round, release it, move the models, and save everything: returns a public `Release`.

        One row per answering client: `updates` (n, d_s + d_c), raw; `choices` (n,); its number in `client_ids`; and,
        for plans with B above 0, the `destinations` of `guidance.choose`. Reports with numbers outside of the cohort
        are left out.
        """
        if self.plan.mechanism.flips_coins and destinations is None:
            raise ConfigError(
                f"min_cluster_size (B) = {self.plan.mechanism.min_cluster_size} needs the destinations of "
                "clients' coins, but none were given; pass those of guidance.choose."
            )
        moved = destinations if self.plan.mechanism.flips_coins else None
        parts = (updates, choices, moved, list(client_ids), evaluations)
        return self._finish(Reports(*_of_cohort(parts, self._drawn())))

    def finish_sum(self, total: Array) -> Release:
        """As `finish`, from the noisy sum of the cohort's messages of a secure aggregation."""
        self._drawn()
        return self._finish(NoisySum(total))

    def _finish(self, reports: Reports | NoisySum) -> Release:
        t, state = self._state.round_index, self._state
        rng = self._streams("release", self._ledger.num_charged)  # by the number of the release: never drawn twice
        charge = Charge(self._ledger, t, self.plan)

        def collect(_: Guidance, charge: Charge) -> Reports | NoisySum:
            charge()
            return reports

        self._cohort = None
        state, release = attempt_round(self._server, collect, state, charge, rng)
        self._folder.add_round(FinishedRound(t, state, release))
        self._folder.save_state(state, ClientMemory(0))
        self._state = state
        return release

    def _check_open(self) -> None:
        if self._folder.lock is None or not self._folder.lock.held:
            raise RunFolderError(f"{self._folder.path}: this server was closed; make a new one on the same folder.")
        if self.finished:
            raise PrivacyError(
                f"the plan's {self.plan.num_rounds} rounds ({self._ledger.num_charged} of "
                f"{self.plan.num_releases} releases) are done, and its epsilon covers no further one; use "
                "`models`, or start a new folder with a new plan and budget."
            )

    def _drawn(self) -> Array:
        self._check_open()
        if self._cohort is None:
            raise PrivacyError(
                f"round {self.round_index} has no cohort yet; ask `cohort()` first, and only those clients: epsilon is "
                "for cohorts drawn by the plan's sampler."
            )
        return self._cohort


def _streams(plan: PrivacyPlan, seed: int | None) -> StreamSource:
    if plan.secure:
        if seed is not None:
            raise ConfigError("a secure plan draws from the operating system and takes no seed; leave seed out.")
        return SecureStreams()
    if seed is None:
        raise ConfigError(
            "a plan without secure=True is for research and needs a seed; build it with secure=True to release for "
            "real."
        )
    return Streams(seed)


def _settings(changes: dict[str, Any]) -> ServerSettings:
    settings = changed(ServerSettings(), changes)
    if settings.init == "survey":
        raise ConfigError("init = survey asks clients for more than a choice and an update; use independent.")
    return settings


def _first_models(models: Any, plan: PrivacyPlan) -> Models:
    rows = np.asarray(models, dtype=np.float64)
    k, d = plan.mechanism.num_clusters, plan.mechanism.coordinates
    if rows.shape != (k, d.width) or not np.isfinite(rows).all():
        raise ConfigError(
            f"models must be finite numbers of shape {(k, d.width)}, a row per cluster; found {rows.shape}."
        )
    return Models(rows[0, : d.shared].copy(), rows[:, d.shared :].copy())


def _open(path: Path, plan: PrivacyPlan, *, adopt: bool) -> RunFolder:
    """Open the folder under its lock: new, or of an earlier process with the same plan."""
    if (path / "config.yaml").exists():
        raise RunFolderError(f"{path} holds a run of rr.run; choose another folder.")
    make_folders(path)
    folder = RunFolder(path, FolderLock(path / "checkpoint" / "lock"))
    try:
        exists = (path / "privacy.json").exists()
        if exists:
            folder.check_statement(statement(plan))
        elif os.path.lexists(path / "ledger.jsonl"):
            raise RunFolderError(f"{path}: a ledger without privacy.json; restore that file, or choose another folder.")
        if plan.secure and exists and not adopt:
            check_place(path)
        elif plan.secure:
            bind(path)
        if not exists:
            write_json(path / "privacy.json", statement(plan) | ({"audit": last_audit()} if plan.secure else {}))
    except BaseException:
        folder.release()
        raise
    return folder


def _of_cohort(parts: tuple[Any, ...], cohort: Array) -> tuple[Any, ...]:
    """The reports of the cohort's members; unknown numbers are ignored, because anybody can send one."""
    members = set(cohort.tolist())
    ids = parts[3]
    if any(part is not None and len(part) != len(ids) for part in parts):
        raise ConfigError("updates, choices, destinations, client_ids and evaluations must have one row per client.")
    if ids and all(_number(client) is None for client in ids):
        raise ConfigError("client_ids must be the whole numbers that cohort() gave; none of these is one.")
    places = [place for place, client in enumerate(ids) if _number(client) in members]
    if len(places) == len(ids):
        return parts
    return tuple(None if part is None else _rows(part, places) for part in parts)


def _number(client: Any) -> int | None:
    return int(client) if isinstance(client, (int, np.integer)) and not isinstance(client, bool) else None


def _rows(part: Any, places: list[int]) -> Any:
    return part[places] if hasattr(part, "shape") else [part[place] for place in places]
