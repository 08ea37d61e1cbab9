"""One plan per run: sampler, clip, noise and event come out of the same settings, so they cannot disagree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.budget_split import identifier_maker, resolve_share
from rrcluster.privacy.evaluation import check_evaluation
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.identifier import IdentifierMechanism
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.none import NoneMechanism
from rrcluster.privacy.rules import IDENTIFIERS, check_assertions, check_delta, check_sizes, resolve_rebalance
from rrcluster.privacy.sampling import Sampler
from rrcluster.privacy.selection import Selection, check_covered
from rrcluster.types import Coordinates

Mechanism = JointMechanism | IdentifierMechanism | NoneMechanism

MECHANISMS: dict[str, type[Mechanism]] = {
    "joint": JointMechanism,
    "identifier": IdentifierMechanism,
    "none": NoneMechanism,
}


@dataclass(frozen=True)
class PrivacyPlan:
    """What will be released, under which relation and sampling, with how much noise, for how many rounds.

    Make it with `PrivacyPlan.build`. `epsilon()` is what the whole plan costs by its accountant, at `delta`.
    """

    mechanism: Mechanism
    rebalance: str
    num_rounds: int
    delta: float
    accountant: str = "pld"
    noise_multiplier: float | None = None  # what was calibrated: of the whole round; None under `none`
    selection: Selection | None = None  # the selection this run is part of, charged as a whole beforehand
    secure: bool = False  # exact noise from the operating system; a repeated round is a new release
    reserve_rounds: int = 0  # releases beyond num_rounds that the noise was calibrated for
    max_releases: int | None = None  # the budget ends here even if rounds are left; see `limited`

    def __post_init__(self) -> None:
        if self.selection is not None:
            check_covered(self.selection.event, self.event, self.num_rounds)

    @classmethod
    def build(
        cls,
        *,
        coordinates: Coordinates,
        num_clusters: int,
        num_clients: int,
        sample_rate: float,
        num_rounds: int,
        update_clip: float,
        mechanism: str = "joint",
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-4,
        count_weight: float = 0.25,
        rebalance: str = "auto",
        min_cluster_size: int = 0,
        size_floor: float | None = None,
        identifier: str = "gaussian",
        identifier_share: float | str = 0.5,
        identifier_loss_bound: float = 1.0,
        accountant: str = "pld",
        sampling: str | None = None,
        adjacency: str | None = None,
        private_evaluation: float = 0.0,
        evaluation_loss_bound: float = 4.0,
        secure: bool = False,
        reserve_rounds: int = 0,
    ) -> "PrivacyPlan":
        """Calibrate the noise to `epsilon`, or take `noise_multiplier` as given: exactly one of the two.

        `num_clients` and `sample_rate` are declared constants, not counted from data. `count_weight` is in units of the
        clip. `size_floor` defaults to 0.6 of the expected cluster size (to 1 under `none`, where no noise needs
        taming). For `identifier` the noise multiplier is that of the whole round, split by `identifier_share` as if
        identifiers were Gaussian (split.make_identifier says what stands for those), or by the formula of
        split.split_error for `auto`; `identifier_loss_bound` is how much a loss above the client's least counts, where
        identifiers read losses. `sampling` and `adjacency` may be given to
        assert what the mechanism must have; a contradiction raises PrivacyError. `private_evaluation` above 0 (in units
        of the clip) adds accuracy and loss, the latter clipped at `evaluation_loss_bound`, to every `joint` release.
        `secure` noise is an exact discrete Gaussian from the operating system; the noise is calibrated for num_rounds +
        `reserve_rounds` releases.
        """
        checks.one_of(MECHANISMS, mechanism=mechanism)
        rebalance = resolve_rebalance(mechanism, rebalance, min_cluster_size)
        check_sizes(
            num_clients=num_clients,
            num_clusters=num_clusters,
            min_cluster_size=min_cluster_size,
            sample_rate=sample_rate,
            num_rounds=num_rounds,
            update_clip=update_clip,
        )
        checks.count(reserve_rounds=reserve_rounds, at_least=0)
        check_assertions(mechanism, sampling, adjacency)
        check_evaluation(mechanism, private_evaluation)
        floor = size_floor
        if floor is None:
            floor = 1.0 if mechanism == "none" else 0.6 * sample_rate * num_clients / num_clusters
        common: dict[str, Any] = {
            "coordinates": coordinates,
            "num_clusters": num_clusters,
            "num_clients": num_clients,
            "size_floor": floor,
            "min_cluster_size": min_cluster_size,
        }
        if mechanism == "none":
            if epsilon is not None or noise_multiplier is not None or secure or reserve_rounds:
                raise PrivacyError(
                    "mechanism = none adds no noise, so no epsilon or noise_multiplier can be asked of it, nor secure "
                    "or reserve_rounds; leave them out, or use mechanism = joint."
                )
            cohort_size = _cohort_size(sample_rate, num_clients)
            return cls(NoneMechanism(**common, cohort_size=cohort_size), rebalance, num_rounds, delta)
        check_delta(delta, num_clients)
        common["exact_noise"] = secure
        if mechanism == "joint":
            make: Callable[[float], Mechanism] = _joint_maker(
                common | {"loss_bound": evaluation_loss_bound},
                update_clip,
                checks.non_negative(count_weight=count_weight),
                private_evaluation,
                sample_rate,
                rebalance,
            )
        else:
            checks.one_of(IDENTIFIERS, identifier=identifier)
            making = partial(
                identifier_maker,
                common | {"update_clip": update_clip},
                cohort_size=_cohort_size(sample_rate, num_clients),
                loss_bound=identifier_loss_bound,
            )
            # Gaussian identifiers cost the same at any share, so their noise is known before the share is.
            plain = partial(_resolve_noise, making(kind="gaussian", identifier_share=0.5), epsilon, noise_multiplier)
            share = resolve_share(
                identifier_share,
                lambda: plain(delta, num_rounds + reserve_rounds, accountant),
                kind=identifier,
                num_clusters=num_clusters,
                coordinates=coordinates,
                cohort=_cohort_size(sample_rate, num_clients),
                rounds=num_rounds,
            )
            make = making(kind=identifier, identifier_share=share)
        noise = _resolve_noise(make, epsilon, noise_multiplier, delta, num_rounds + reserve_rounds, accountant)
        return cls(
            make(noise),
            rebalance,
            num_rounds,
            delta,
            accountant,
            noise,
            secure=secure,
            reserve_rounds=reserve_rounds,
        )

    @property
    def event(self) -> RoundEvent:
        """What one round costs. PrivacyError under `none`."""
        return self.mechanism.event

    @property
    def private(self) -> bool:
        """Whether there is any guarantee to state."""
        return not isinstance(self.mechanism, NoneMechanism)

    @property
    def sampler(self) -> Sampler:
        """Who takes part in a round: the mechanism's own law."""
        return self.mechanism.sampler

    @property
    def num_releases(self) -> int:
        """How many releases the plan allows and `epsilon()` covers: its rounds and the reserve, up to a limit."""
        planned = self.num_rounds + self.reserve_rounds
        return planned if self.max_releases is None else min(planned, self.max_releases)

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

        if self.selection is not None:
            return epsilon(self.selection.event, num_rounds=1, delta=self.delta, accountant=accountant or "rdp")
        rounds = self.num_releases if num_rounds is None else num_rounds
        return epsilon(self.event, num_rounds=rounds, delta=self.delta, accountant=accountant or self.accountant)


def _cohort_size(sample_rate: float, num_clients: int) -> int:
    return max(1, round(sample_rate * num_clients))


def _joint_maker(
    common: dict[str, Any],
    update_clip: float,
    count_weight: float,
    evaluation_weight: float,
    sample_rate: float,
    rebalance: str,
) -> Callable[[float], JointMechanism]:
    if count_weight == 0 and rebalance == "coin":
        raise ConfigError("rebalance = coin needs released sizes; set count_weight above 0 (0.25 is the default).")

    def make(noise_multiplier: float) -> JointMechanism:
        return JointMechanism(
            **common,
            update_clip=update_clip,
            count_weight=count_weight * update_clip,
            evaluation_weight=evaluation_weight * update_clip,
            noise_multiplier=noise_multiplier,
            sample_rate=sample_rate,
        )

    return make


def _resolve_noise(
    make: Callable[[float], Mechanism],
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    num_rounds: int,
    accountant: str,
) -> float:
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "give exactly one of epsilon (the noise is calibrated) and noise_multiplier (epsilon follows)."
        )
    if noise_multiplier is not None:
        return checks.positive(noise_multiplier=noise_multiplier)
    from rrcluster.privacy.calibrate import calibrate

    assert epsilon is not None
    return calibrate(
        lambda noise: make(noise).event,
        epsilon=epsilon,
        delta=delta,
        num_rounds=num_rounds,
        accountant=accountant,
    )
