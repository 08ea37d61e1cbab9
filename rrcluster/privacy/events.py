"""The cost of one round: an event has an adjacency, a sampling law, noise and a dominating pair.

An event describes a mechanism's release. Accountants never see a mechanism: they compose the loss distribution or the
RDP of its event, or refuse it. `noise_multiplier` is always noise std
L2 sensitivity *under the event's own adjacency*.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from rrcluster import checks
from rrcluster.errors import ConfigError, UnsupportedEvent
from rrcluster.privacy import profiles
from rrcluster.privacy.profiles import Array

if TYPE_CHECKING:
    from rrcluster.privacy.pld import LossDistribution

ADD_REMOVE = "add-remove"
REPLACE_ONE = "replace-one"
WHOLE_ORDERS = (*range(2, 129), 160, 192, 256, 384, 512)  # orders of the theorem in the paper
# Closer to 1, the rounding error of keep_probability would dominate the privacy loss.
_MIN_LEAVE_PROBABILITY = 1e-9


@dataclass(frozen=True)
class FoldedChoice:
    """A choice without additional cost: one cluster, or a Gaussian release folded into the updates'."""

    largest_loss: ClassVar[float] = 0.0  # of the choice alone
    is_free: ClassVar[bool] = True  # it costs nothing beside the updates' Gaussian

    def gaussian_delta(self, epsilon: Array, noise_multiplier: float) -> Array:
        """Profile of the Gaussian release alone."""
        return profiles.gaussian_delta(epsilon, noise_multiplier)

    def rdp(self, orders: ArrayLike) -> Array:
        """0 at every order."""
        return np.zeros_like(np.asarray(orders, dtype=np.float64))

    def dp_events(self) -> list[Any]:
        """None."""
        return []

    def check(self) -> None:
        """Accept: every folded choice can be accounted."""


@dataclass(frozen=True)
class KaryChoice:
    """k-ary randomised response: the true cluster with probability p, each other one with (1 - p) / (k - 1)."""

    keep_probability: float
    num_clusters: int

    is_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.count(num_clusters=self.num_clusters, at_least=2)
        if not 1 / self.num_clusters <= self.keep_probability < 1:
            raise ConfigError(
                f"keep_probability = {self.keep_probability} must be at least 1/k = {1 / self.num_clusters:.4g} "
                "and less than 1."
            )

    @property
    def largest_loss(self) -> float:
        """ln(p / r), r the probability of one given other cluster."""
        return profiles.kary_loss(self.keep_probability, self.num_clusters)

    def gaussian_delta(self, epsilon: Array, noise_multiplier: float) -> Array:
        """Profile of the response followed by the Gaussian release."""
        p, k = self.keep_probability, self.num_clusters
        return profiles.kary_gaussian_delta(epsilon, noise_multiplier, keep_probability=p, num_clusters=k)

    def rdp(self, orders: ArrayLike) -> Array:
        """RDP of the response alone, exact."""
        return profiles.kary_rdp(orders, keep_probability=self.keep_probability, num_clusters=self.num_clusters)

    def dp_events(self) -> list[Any]:
        """The response: uniform with a probability, else the truth."""
        import dp_accounting as dp

        k = self.num_clusters
        return [dp.RandomizedResponseDpEvent((1 - self.keep_probability) * k / (k - 1), k)]

    def check(self) -> None:
        """Refuse a choice that is practically public."""
        if 1 - self.keep_probability < _MIN_LEAVE_PROBABILITY:
            raise UnsupportedEvent(
                f"keep_probability = {self.keep_probability!r} leaves less than {_MIN_LEAVE_PROBABILITY} for "
                "the other clusters: the choice is practically public; raise the identifier noise."
            )


Choice = FoldedChoice | KaryChoice  # what making the clients' choices private costs beside the updates (replace-one)
FOLDED = FoldedChoice()


@dataclass(frozen=True)
class PoissonGaussian:
    """Each client joins the round with probability `sample_rate`, on its own; one Gaussian release of the sum."""

    noise_multiplier: float
    sample_rate: float

    adjacency: ClassVar[str] = ADD_REMOVE
    sampling: ClassVar[str] = "Poisson"

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.rate(sample_rate=self.sample_rate)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Events of one kind are ordered by noise and sample rate."""
        return (type(self),)

    @property
    def plain_gaussian(self) -> bool:
        """Whether the round is one Gaussian release to everybody, without sampling."""
        return self.sample_rate == 1

    def seen(self) -> "PoissonGaussian":
        """The event towards an observer of participation, from whom sampling hides nothing (zero-out)."""
        return replace(self, sample_rate=1.0)

    def at_most(self, noise_multiplier: float) -> "PoissonGaussian":
        """The same event with no more noise than this: it costs at least as much."""
        return replace(self, noise_multiplier=min(self.noise_multiplier, noise_multiplier))

    def check(self) -> None:
        """Every such event can be accounted."""

    def loss_distribution(self, *, coarse: bool) -> "LossDistribution":
        """Privacy loss distribution of one round, pessimistic."""
        from rrcluster.privacy.pld import poisson_pld

        return poisson_pld(self, coarse=coarse)

    def rdp(self) -> tuple[Sequence[float], Array]:
        """(orders, RDP) of one round: Mironov, Talwar, Zhang 2019 (arXiv 1908.10530), by dp-accounting."""
        return _sampled_rdp(self)

    def dp_event(self) -> Any:
        """The event of dp-accounting."""
        import dp_accounting as dp

        gaussian = dp.GaussianDpEvent(self.noise_multiplier)
        return gaussian if self.sample_rate == 1 else dp.PoissonSampledDpEvent(self.sample_rate, gaussian)

    def dp_accountant(self, accountant: str) -> tuple[str | None, str | None]:
        """The dp-accounting class that gives epsilon by our accountant of this name, or None; and any difference."""
        return ("PLDAccountant" if accountant == "pld" else "RdpAccountant"), None

    def printed_rdp(self) -> tuple[Sequence[float], Array]:
        """Raise: the paper's bound does not cover this event."""
        raise UnsupportedEvent(
            "the paper's bound (Wang et al. 2019, Theorem 9) is for fixed-size cohorts under replace-one, "
            f"and this event is {self.sampling} sampling under {self.adjacency}; use the accountant "
            "'pld' or 'rdp'."
        )


@dataclass(frozen=True)
class FixedSize:
    """A cohort of exactly `cohort_size` of `num_clients` clients: a private choice, then a Gaussian release.

    Several Gaussian releases on the same cohort fold into one: 1/z^2 = sum of 1/z_i^2.
    """

    noise_multiplier: float
    cohort_size: int
    num_clients: int
    choice: Choice = FOLDED  # cost of the private choices

    adjacency: ClassVar[str] = REPLACE_ONE
    sampling: ClassVar[str] = "fixed-size without replacement"

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.count(cohort_size=self.cohort_size)
        checks.count(num_clients=self.num_clients)
        if self.cohort_size > self.num_clients:
            raise ConfigError(
                f"cohort_size = {self.cohort_size} is more than num_clients = {self.num_clients}; lower sample_rate to "
                "at most 1."
            )

    @property
    def sample_rate(self) -> float:
        """The fraction of clients in a cohort."""
        return self.cohort_size / self.num_clients

    @property
    def kind(self) -> tuple[Any, ...]:
        """Events of one kind are ordered by noise and sample rate; with costly choices no event is above another."""
        return (type(self), self.num_clients, None if self.choice.is_free else self)

    @property
    def plain_gaussian(self) -> bool:
        """Whether the round is one Gaussian release to everybody, without sampling."""
        return self.sample_rate == 1 and self.choice.is_free

    def seen(self) -> "FixedSize":
        """The event towards an observer of participation, from whom sampling hides nothing."""
        return replace(self, cohort_size=self.num_clients)

    def at_most(self, noise_multiplier: float) -> "FixedSize":
        """The same event with no more noise than this: it costs at least as much."""
        return replace(self, noise_multiplier=min(self.noise_multiplier, noise_multiplier))

    def check(self) -> None:
        """Raise UnsupportedEvent where the choice cannot be accounted."""
        self.choice.check()

    def loss_distribution(self, *, coarse: bool) -> "LossDistribution":
        """Privacy loss distribution of one round, pessimistic."""
        from rrcluster.privacy.pld import fixed_size_pld

        return fixed_size_pld(self, coarse=coarse)

    def rdp(self) -> tuple[Sequence[float], Array]:
        """(orders, RDP) of one round: Wang et al. 2019, Theorem 27 by dp-accounting; Theorem 9 where the choice costs.

        dp-accounting does not double the sensitivity under replace-one, and our multiplier is relative to the
        replace-one sensitivity already, so it goes in unchanged.
        """
        if not self.choice.is_free:
            orders, rdp = self.printed_rdp()
            return orders, np.asarray(np.minimum(rdp, self._cohort_rdp(np.array(orders))))
        return _sampled_rdp(self)

    def dp_event(self) -> Any:
        """The event of dp-accounting."""
        import dp_accounting as dp

        released = [*self.choice.dp_events(), dp.GaussianDpEvent(self.noise_multiplier)]
        inside = dp.ComposedDpEvent(released) if len(released) > 1 else released[0]
        return dp.SampledWithoutReplacementDpEvent(self.num_clients, self.cohort_size, inside)

    def dp_accountant(self, accountant: str) -> tuple[str | None, str | None]:
        """The dp-accounting class that gives epsilon by `rdp`, or None; and any difference."""
        if not self.choice.is_free:
            return None, _NO_CHOICE
        return "RdpAccountant", None if accountant == "rdp" else _NO_PLD

    def printed_rdp(self) -> tuple[Sequence[float], Array]:
        """(whole orders, RDP) by the theorem that the paper prints (Wang et al. 2019, Theorem 9): valid, and loose."""
        return WHOLE_ORDERS, profiles.fixed_size_rdp(WHOLE_ORDERS, self._cohort_rdp, self.sample_rate)

    def _cohort_rdp(self, orders: ArrayLike) -> Array:
        """RDP of choice and updates together, on the whole cohort: the sum, by adaptive composition."""
        return profiles.gaussian_rdp(orders, self.noise_multiplier) + self.choice.rdp(orders)


RELATIONS = {ADD_REMOVE: "ADD_OR_REMOVE_ONE", REPLACE_ONE: "REPLACE_ONE"}  # their names in dp-accounting


def _sampled_rdp(event: "RoundEvent") -> tuple[Sequence[float], Array]:
    """The orders, and the RDP of a sampled round at each: dp-accounting's, at most its RDP without sampling.

    An order is dropped where the series does not converge, or where rounding gives a negative value.
    """
    import dp_accounting as dp

    orders = dp.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    with _without_convergence_warnings():
        relation = dp.NeighboringRelation[RELATIONS[event.adjacency]]
        rdp = dp.rdp.RdpAccountant(orders, relation).compose(event.dp_event()).rdp
    sound = np.where(rdp >= 0, rdp, np.inf)  # false for NaN
    return orders, np.asarray(np.minimum(sound, profiles.gaussian_rdp(orders, event.noise_multiplier)))


@contextlib.contextmanager
def _without_convergence_warnings() -> Iterator[None]:
    """Silence dp-accounting's warning about omitted orders; omitting one only makes the bound looser."""

    def keep(record: logging.LogRecord) -> bool:
        return "failed to converge" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


RoundEvent = PoissonGaussian | FixedSize

REPETITION_LAWS = {"geometric": 1.0, "logarithmic": 0.0}  # law of the number of repetitions -> its shape


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best, by score, of a random number of independent runs of `num_rounds` rounds each; only the best is shown.

    The number of runs follows `law` (a truncated negative binomial of shape 1 or 0) with mean `mean_repetitions`,
    whatever the data are, and is secret too. The score is released by each run, or public.
    """

    run: RoundEvent  # the cost of one round of one run
    num_rounds: int
    mean_repetitions: float
    law: str

    plain_gaussian: ClassVar[bool] = False  # a selection is not one Gaussian release

    def __post_init__(self) -> None:
        checks.in_full_precision(self)
        checks.count(num_rounds=self.num_rounds)
        checks.one_of(REPETITION_LAWS, law=self.law)
        if checks.positive(mean_repetitions=self.mean_repetitions) <= 1:
            raise ConfigError(
                f"mean_repetitions = {self.mean_repetitions:g} must be more than 1: with one run there is nothing to "
                "select from."
            )

    @property
    def adjacency(self) -> str:
        """The adjacency of its runs."""
        return self.run.adjacency

    @property
    def sampling(self) -> str:
        """The sampling of its runs."""
        return self.run.sampling

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of every round."""
        return self.run.noise_multiplier

    def seen(self) -> "RepeatAndSelect":
        """The event towards an observer of participation in every run."""
        return replace(self, run=self.run.seen())

    def at_most(self, noise_multiplier: float) -> "RepeatAndSelect":
        """The same event with no more noise than this: it costs at least as much."""
        return replace(self, run=self.run.at_most(noise_multiplier))

    def check(self) -> None:
        """Raise UnsupportedEvent where a run cannot be accounted."""
        self.run.check()

    def loss_distribution(self, *, coarse: bool) -> "LossDistribution":  # noqa: ARG002
        """UnsupportedEvent: no loss distribution of a selection is known."""
        raise UnsupportedEvent(_ONLY_RDP)

    def rdp(self) -> tuple[Sequence[float], Array]:
        """(orders, RDP) of the whole selection."""
        from rrcluster.privacy.selection import selected_rdp

        orders, one_round = self.run.rdp()
        return orders, selected_rdp(orders, one_round * self.num_rounds, self)

    def dp_event(self) -> Any:
        """The event of dp-accounting."""
        from dp_accounting.dp_event import RepeatAndSelectDpEvent, SelfComposedDpEvent

        one_run = SelfComposedDpEvent(self.run.dp_event(), self.num_rounds)
        return RepeatAndSelectDpEvent(one_run, self.mean_repetitions, REPETITION_LAWS[self.law])

    def dp_accountant(self, accountant: str) -> tuple[str | None, str | None]:
        """That of a run: dp-accounting's own accountant for RDP supports selections."""
        return self.run.dp_accountant(accountant)

    def printed_rdp(self) -> tuple[Sequence[float], Array]:
        """Raise: the paper has no bound for a selection."""
        raise UnsupportedEvent(_ONLY_RDP)


Event = RoundEvent | RepeatAndSelect
EVENTS: tuple[type[Event], ...] = (PoissonGaussian, FixedSize, RepeatAndSelect)  # no subclasses

_NO_PLD = (
    "dp-accounting has no privacy loss distribution for cohorts of fixed size: it recomputes the epsilon of the "
    "accountant rdp."
)
_NO_CHOICE = (
    "no accountant of dp-accounting takes a randomised response and a Gaussian on one cohort of fixed size; the event "
    "describes the round, and only rrcluster computes its epsilon."
)
_ONLY_RDP = (
    "the cost of selecting the best of a random number of runs is known for Renyi DP only (Papernot, Steinke 2022); "
    "use the accountant 'rdp'."
)
