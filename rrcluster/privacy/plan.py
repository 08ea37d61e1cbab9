"""One plan per run: sampler, clip, noise and event come from the same settings, so they cannot disagree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rrcluster import checks, registry
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.clip import check_clip, check_sums_fit
from rrcluster.privacy.events import Event, RoundEvent
from rrcluster.privacy.mechanism import Mechanism, MechanismKind, PlanInputs
from rrcluster.privacy.sampling import Sampler
from rrcluster.privacy.selection import Selection, check_covered
from rrcluster.settings import PrivacySettings, ServerSettings, changed
from rrcluster.types import Coordinates


@dataclass(frozen=True)
class PrivacyPlan:
    """The plan of a run's releases: relation, sampling, noise and number of rounds.

    Make it with `PrivacyPlan.build`: clip, sampling, noise and cost come out of one place. A run is this loop:

        plan = PrivacyPlan.build(coordinates=..., num_clients=..., num_clusters=..., epsilon=4)
        for t in range(plan.num_rounds):
            cohort = plan.sampler.draw(num_clients, rng=rng)     # by the mechanism's own law; keep it secret
            reports = train(models, cohort)                      # raw: what each client sends
            ledger.charge(t, plan.event)                         # on disk before anything is revealed
            release = plan.mechanism.release(reports, rng=rng)   # clips, sums, adds noise
            del cohort, reports                                  # private: nothing below may read them
            models = move(models, release)                       # post-processing costs nothing
        plan.epsilon()                                           # of the whole plan, whenever it was stopped
    """

    mechanism: Mechanism  # the release of a round, with its noise
    num_rounds: int  # planned releases
    delta: float  # probability with which the epsilon bound may fail
    accountant: str = "pld"  # computes epsilon
    noise_multiplier: float | None = None  # calibrated, of the whole round; None under `none`
    selection: Selection | None = None  # the selection this run is part of, charged as a whole beforehand
    secure: bool = False  # exact noise from the operating system; a repeated round is a new release
    reserve_rounds: int = 0  # additional releases that the noise was calibrated for
    max_releases: int | None = None  # the budget ends here even if rounds are left; see `limited`

    def __post_init__(self) -> None:
        if self.secure and not getattr(self.mechanism, "exact_noise", False):
            raise PrivacyError(f"secure = true needs exact noise, and mechanism = {self.mechanism.name} adds none.")
        if self.selection is not None:
            check_covered(self.selection.event, self.event, self.num_participations)

    @classmethod
    def build(
        cls,
        settings: PrivacySettings | None = None,
        *,
        coordinates: Coordinates,
        num_clients: int,
        num_clusters: int,
        min_cluster_size: int = 0,
        size_floor: float | None = None,
        server: ServerSettings | None = None,
        **changes: Any,
    ) -> "PrivacyPlan":
        """Calibrate the noise to the settings' epsilon, or take their noise multiplier as given: exactly one.

        `changes` are settings by name (`epsilon=4, num_rounds=100`). `num_clients` and the sample rate are declared
        constants, not counted from data. `size_floor` is the least denominator of a cluster's mean (default: 0.6 of the
        expected cluster size; 1 without privacy). `max_epsilon` ends the plan early (`limited`). `server` says which
        models are handed out, for which correlated noise is made.
        """
        settings = changed(settings or PrivacySettings(), changes)
        delta = settings.target_delta(num_clients)
        settings = replace(settings, delta=delta)
        kind: MechanismKind = registry.MECHANISMS.load(settings.mechanism)
        check_budget(settings, num_clients, num_clusters, min_cluster_size, noisy=kind.noisy)
        if settings.participation not in kind.participations:
            raise PrivacyError(
                f"participation = {settings.participation} has no proof for mechanism = {kind.name}, whose "
                "guarantee needs its own cohorts; use mechanism = joint, or leave participation out."
            )
        inputs = PlanInputs(
            settings, coordinates, num_clusters, num_clients, min_cluster_size, size_floor, server or ServerSettings()
        )
        make = kind.maker(inputs)
        if not kind.noisy:
            plan = cls(make(0.0), settings.num_rounds, delta)
            if plan.private:
                raise PrivacyError(
                    f"mechanism = {kind.name} adds no noise and claims to be private; it cannot be both."
                )
            return plan
        noise = _resolve_noise(make, settings, delta)
        if getattr(make(noise), "exact_noise", False) != settings.secure:
            raise PrivacyError(f"secure = true needs exact noise, and mechanism = {kind.name} has none to offer.")
        plan = cls(
            make(noise),
            settings.num_rounds,
            delta,
            settings.accountant,
            noise,
            secure=settings.secure,
            reserve_rounds=settings.reserve_rounds,
        )
        check_fits = getattr(plan.mechanism, "check_fits", None)
        if check_fits is not None:
            check_fits()
        return plan.limited(settings.max_epsilon)

    @property
    def event(self) -> RoundEvent:
        """The cost of one participation: a round, with one slot. PrivacyError under `none`."""
        return self.mechanism.event

    @property
    def private(self) -> bool:
        """Whether there is a guarantee to state."""
        return self.mechanism.private

    @property
    def sampler(self) -> Sampler:
        """The law of the cohorts, which is the mechanism's."""
        return self.mechanism.sampler

    @property
    def num_releases(self) -> int:
        """The releases that the plan allows and `epsilon()` covers: rounds and reserve, up to a limit."""
        planned = self.num_rounds + self.reserve_rounds
        return planned if self.max_releases is None else min(planned, self.max_releases)

    @property
    def num_participations(self) -> int:
        """The most releases that a client takes part in: all of them, or with b slots every b-th."""
        return self.mechanism.slots.most_rounds(self.num_releases)

    @property
    def accounted(self) -> tuple[Event, int, str]:
        """The event of the cost, its most repetitions for one client, and the accountant; of the selection, if any.

        All that is stated of the plan is of these.
        """
        if self.selection is not None:
            return self.selection.event, self.selection.charges, "rdp"
        return self.event, self.num_participations, self.accountant

    @property
    def stores_rounds(self) -> bool:
        """Whether rounds are saved before their charge, to be repeated exactly: a secure plan with slots."""
        return self.secure and self.mechanism.slots.count > 1

    def with_coordinates(self, coordinates: Coordinates) -> "PrivacyPlan":
        """The same plan for reports of another shape: neither noise nor cost depends on it."""
        return replace(self, mechanism=replace(self.mechanism, coordinates=coordinates))  # type: ignore[type-var]

    def limited(self, max_epsilon: float | None) -> "PrivacyPlan":
        """The same plan, ended before the release that would bring `epsilon()` above `max_epsilon`.

        The number of releases is fixed here, before any is made, so `epsilon()` holds however the run ends.
        PrivacyError if not even one release fits.
        """
        if max_epsilon is None or not self.private or self.epsilon() <= max_epsilon:
            return self
        fits, too_many = 0, self.num_releases
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.epsilon(num_rounds=middle) <= max_epsilon:
                fits = middle
            else:
                too_many = middle
        if fits == 0:
            raise PrivacyError(
                f"max_epsilon = {max_epsilon:g} is less than one round costs, {self.epsilon(num_rounds=1):.4g}; raise "
                "it, or the noise."
            )
        return replace(self, max_releases=fits)

    def epsilon(self, *, num_rounds: int | None = None, accountant: str | None = None) -> float:
        """Cost of `num_rounds` releases (default: all that the plan allows) at `delta`; or of a whole selection."""
        from rrcluster.privacy.accounting import epsilon

        event, count, usual = self.accounted
        if num_rounds is not None and self.selection is None:
            count = self.mechanism.slots.most_rounds(num_rounds)
        return epsilon(event, num_rounds=count, delta=self.delta, accountant=accountant or usual)

    def epsilon_seen(self) -> float:
        """The cost of the whole plan towards an observer of participation, under zero-out (replace-one) neighbours.

        A client that takes part in all of its rounds is in as many Gaussians, which no sampling hides.
        """
        from rrcluster.privacy.accounting import epsilon

        event, count, accountant = self.accounted
        return epsilon(event.seen(), num_rounds=count, delta=self.delta, accountant=accountant)


def check_budget(
    settings: PrivacySettings, num_clients: int, num_clusters: int, min_cluster_size: int, *, noisy: bool
) -> None:
    """The checks that need no calibration: sizes that fit, delta, and exactly one budget."""
    _check_sizes(settings, num_clients, num_clusters, min_cluster_size)
    if noisy:
        _check_delta(settings.target_delta(num_clients), num_clients)
    if noisy and (settings.epsilon is None) == (settings.noise_multiplier is None):
        raise ConfigError(
            "give exactly one of epsilon (which calibrates the noise) and noise_multiplier (which determines epsilon)."
        )


def _check_sizes(settings: PrivacySettings, num_clients: int, num_clusters: int, min_cluster_size: int) -> None:
    """Refuse numbers that are out of range, or too few clients for the clusters."""
    checks.count(num_clients=num_clients)
    checks.count(min_cluster_size=min_cluster_size, at_least=0)
    check_clip(settings.update_clip)
    check_sums_fit(num_clients, largest=settings.update_clip, update_clip=settings.update_clip)
    if checks.count(num_clusters=num_clusters) > num_clients:
        raise ConfigError(f"num_clusters (k) = {num_clusters} is more than num_clients = {num_clients}; lower k.")
    expected = settings.cohort_share * num_clients
    if num_clusters * min_cluster_size > expected:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} needs {num_clusters * min_cluster_size} clients for "
            f"{num_clusters} clusters, but a cohort has {expected:g}; lower B to at most "
            f"{int(expected // num_clusters)} or raise sample_rate."
        )


def _check_delta(delta: float, num_clients: int) -> None:
    """Refuse delta > 1/M: publishing one random client's data outright would satisfy it."""
    if delta > 1 / num_clients:
        raise PrivacyError(
            f"delta = {delta:g} is more than 1/num_clients = {1 / num_clients:g}: publishing one random client's data "
            f"outright would satisfy it. Use at most {1 / (10 * num_clients):g} (1/(10 M))."
        )


def _resolve_noise(make: Callable[[float], Mechanism], settings: PrivacySettings, delta: float) -> float:
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    from rrcluster.privacy.calibrate import calibrate

    assert settings.epsilon is not None
    return calibrate(
        lambda noise: make(noise).event,
        epsilon=settings.epsilon,
        delta=delta,
        num_rounds=-(-(settings.num_rounds + settings.reserve_rounds) // settings.num_slots),
        accountant=settings.accountant,
    )
