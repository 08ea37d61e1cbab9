"""One plan per run: sampler, clip, noise and event come out of the same settings, so they cannot disagree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.clip import LARGEST_COHORT
from rrcluster.privacy.evaluation import check_evaluation
from rrcluster.privacy.events import RoundEvent
from rrcluster.privacy.identifier import GaussianIdentifier, IdentifierMechanism, KaryIdentifier, split_budget
from rrcluster.privacy.joint import JointMechanism
from rrcluster.privacy.plain import NoneMechanism
from rrcluster.privacy.sampling import Sampler
from rrcluster.privacy.selection import Selection, check_covered
from rrcluster.types import Coordinates

Mechanism = JointMechanism | IdentifierMechanism | NoneMechanism

MECHANISMS: dict[str, type[Mechanism]] = {
    "joint": JointMechanism,
    "identifier": IdentifierMechanism,
    "none": NoneMechanism,
}
MAX_ROUNDS = 1_000_000
MIN_CLIP = 1e-30
IDENTIFIERS = ("gaussian", "kary")
REBALANCINGS = ("none", "exact", "coin", "shrinkage", "auto")

# The law each mechanism samples by, and the relation it protects. Settings may assert these, not contradict them.
SAMPLING = {"joint": "poisson", "identifier": "fixed-size", "none": "fixed-size"}
ADJACENCY = {"joint": "add-remove", "identifier": "replace-one"}

_REFUSED = {
    ("joint", "exact"): "exact rebalancing reads raw counts, and under add-remove one client then moves up to 3C of "
    "the sums instead of C (Theorem 2); use rebalance = coin, or mechanism = identifier",
    (
        "identifier",
        "coin",
    ): "clients choose before their identifiers are privatised, so a coin could not act on what is "
    "released; use rebalance = exact, or mechanism = joint",
    ("none", "coin"): "without privacy the exact rule needs no coins; use rebalance = exact",
    ("none", "shrinkage"): "shrinkage weighs means by their noise, and there is none; use rebalance = none or exact",
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
        identifier_share: float = 0.5,
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
        taming). For `identifier` the noise multiplier is that of the whole round, split by `identifier_share` (with
        k-ary identifiers: of the Gaussian ones that keep a choice as often). `sampling` and `adjacency` may be given to
        assert what the mechanism must have; a contradiction raises PrivacyError. `private_evaluation` above 0 (in units
        of the clip) adds accuracy and loss, the latter clipped at `evaluation_loss_bound`, to every `joint` release.
        `secure` noise is an exact discrete Gaussian from the operating system; the noise is calibrated for num_rounds +
        `reserve_rounds` releases.
        """
        checks.one_of(MECHANISMS, mechanism=mechanism)
        checks.count(num_clients=num_clients)
        checks.rate(sample_rate=sample_rate)
        checks.count(num_rounds=num_rounds)
        if num_rounds > MAX_ROUNDS:
            raise ConfigError(f"num_rounds = {num_rounds} is more than {MAX_ROUNDS}, the most that is accounted.")
        if not MIN_CLIP <= checks.positive(update_clip=update_clip) <= 1 / MIN_CLIP:
            raise ConfigError(
                f"update_clip = {update_clip:g} must lie between {MIN_CLIP:g} and {1 / MIN_CLIP:g}; beyond, sums leave "
                "the range of floating-point numbers."
            )
        checks.count(reserve_rounds=reserve_rounds, at_least=0)
        rebalance = resolve_rebalance(mechanism, rebalance, min_cluster_size)
        _check_assertions(mechanism, sampling, adjacency)
        check_evaluation(mechanism, private_evaluation)
        if checks.count(num_clusters=num_clusters) > num_clients:
            raise ConfigError(f"num_clusters (k) = {num_clusters} is more than num_clients = {num_clients}; lower k.")
        _check_room(num_clusters, min_cluster_size, sample_rate * num_clients)
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
            make = _identifier_maker(common, update_clip, sample_rate, identifier, identifier_share)
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
        """How many releases the plan allows and `epsilon()` covers: its rounds and the reserve."""
        return self.num_rounds + self.reserve_rounds

    def epsilon(self, *, num_rounds: int | None = None, accountant: str | None = None) -> float:
        """Cost of `num_rounds` releases (default: all that the plan allows) at `delta`; or of a whole selection."""
        from rrcluster.privacy.accounting import epsilon

        if self.selection is not None:
            return epsilon(self.selection.event, num_rounds=1, delta=self.delta, accountant=accountant or "rdp")
        rounds = self.num_releases if num_rounds is None else num_rounds
        return epsilon(self.event, num_rounds=rounds, delta=self.delta, accountant=accountant or self.accountant)


def resolve_rebalance(mechanism: str, rebalance: str, min_cluster_size: int) -> str:
    """The rebalancing that `auto` stands for, and a refusal of what would void the guarantee or mean nothing.

    auto: none when B = 0, otherwise coin under `joint` and exact elsewhere.
    """
    checks.one_of(REBALANCINGS, rebalance=rebalance)
    checks.count(min_cluster_size=min_cluster_size, at_least=0)
    if rebalance == "auto":
        if min_cluster_size == 0:
            return "none"
        return "coin" if mechanism == "joint" else "exact"
    if (mechanism, rebalance) in _REFUSED:
        raise PrivacyError(f"rebalance = {rebalance} with mechanism = {mechanism}: {_REFUSED[mechanism, rebalance]}.")
    if rebalance in ("none", "shrinkage") and min_cluster_size > 0:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} has no effect with rebalance = {rebalance}; set B to 0, or "
            "rebalance to auto."
        )
    return rebalance


def check_delta(delta: float, num_clients: int) -> None:
    """Refuse delta > 1/M: publishing one random client's data outright would satisfy it."""
    checks.positive(delta=delta)
    if delta > 1 / num_clients:
        raise PrivacyError(
            f"delta = {delta:g} is more than 1/num_clients = {1 / num_clients:g}: publishing one random client's data "
            f"outright would satisfy it. Use at most {1 / (10 * num_clients):g} (1/(10 M))."
        )


def _cohort_size(sample_rate: float, num_clients: int) -> int:
    return max(1, round(sample_rate * num_clients))


def _check_assertions(mechanism: str, sampling: str | None, adjacency: str | None) -> None:
    own = SAMPLING[mechanism]
    if sampling is not None and sampling != own:
        raise PrivacyError(
            f"sampling = {sampling} does not belong to mechanism = {mechanism}, whose guarantee is for {own} cohorts; "
            "leave sampling out, or choose the mechanism that has it (joint: poisson, identifier: fixed-size)."
        )
    if adjacency is not None and adjacency != ADJACENCY.get(mechanism):
        raise PrivacyError(
            f"adjacency = {adjacency} is not what mechanism = {mechanism} protects "
            f"({ADJACENCY.get(mechanism, 'nothing')}); joint: add-remove, identifier: replace-one."
        )


def _check_room(num_clusters: int, min_cluster_size: int, expected_cohort: float) -> None:
    if expected_cohort > LARGEST_COHORT:
        raise ConfigError(
            f"a cohort of {expected_cohort:g} clients is more than sums can hold ({LARGEST_COHORT}); lower sample_rate."
        )
    if num_clusters * min_cluster_size > expected_cohort:
        raise ConfigError(
            f"min_cluster_size (B) = {min_cluster_size} needs {num_clusters * min_cluster_size} clients for "
            f"{num_clusters} clusters, but a cohort has {expected_cohort:g}; lower B to at most "
            f"{int(expected_cohort // num_clusters)} or raise sample_rate."
        )


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


def _identifier_maker(
    common: dict[str, Any], update_clip: float, sample_rate: float, identifier: str, identifier_share: float
) -> Callable[[float], IdentifierMechanism]:
    k = common["num_clusters"]
    if k > 1 and identifier_share <= 0:
        raise PrivacyError(
            f"identifier_share = {identifier_share} leaves the choices unprotected; use a share between 0 and 1."
        )

    def make(whole_round: float) -> IdentifierMechanism:
        sigma_s, sigma_theta = split_budget(whole_round, identifier_share=identifier_share if k > 1 else 0.0)
        return IdentifierMechanism(
            **common,
            update_clip=update_clip,
            noise_multiplier=sigma_theta,
            identifier=_identifier(identifier, sigma_s, k) if k > 1 else None,
            cohort_size=_cohort_size(sample_rate, common["num_clients"]),
        )

    return make


def _identifier(kind: str, sigma_s: float, num_clusters: int) -> GaussianIdentifier | KaryIdentifier:
    if kind == "gaussian":
        return GaussianIdentifier(sigma_s)
    from rrcluster.privacy.profiles import keep_probability

    return KaryIdentifier(keep_probability(sigma_s, num_clusters))


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
