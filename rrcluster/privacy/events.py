"""What one round costs, as data: an event knows its adjacency, its sampling and its noise; accountants interpret it.

An event is what a mechanism says it did. No accountant looks at a mechanism, so the two can only agree or refuse.
`noise_multiplier` is always noise std / L2 sensitivity *under the event's own adjacency*.
"""

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar

from rrcluster import checks
from rrcluster.errors import ConfigError

ADD_REMOVE = "add-remove"
REPLACE_ONE = "replace-one"
LOSS_RULES = ("exponential", "permute-and-flip")  # how a choice by loss is made private


@dataclass(frozen=True)
class PoissonGaussian:
    """Each client joins the round with probability `sample_rate`, on its own; one Gaussian release of the sum."""

    noise_multiplier: float
    sample_rate: float

    adjacency: ClassVar[str] = ADD_REMOVE
    sampling: ClassVar[str] = "Poisson"

    def __post_init__(self) -> None:
        _in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.rate(sample_rate=self.sample_rate)


@dataclass(frozen=True)
class FixedSizeGaussian:
    """A cohort of exactly `cohort_size` of `num_clients` clients; the round is dominated by one Gaussian.

    Several Gaussian releases on the same cohort fold into one: 1/z^2 = sum of 1/z_i^2.
    """

    noise_multiplier: float
    cohort_size: int
    num_clients: int

    adjacency: ClassVar[str] = REPLACE_ONE
    sampling: ClassVar[str] = "fixed-size without replacement"

    def __post_init__(self) -> None:
        _in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        _check_cohort(self.cohort_size, self.num_clients)


@dataclass(frozen=True)
class FixedSizeKary:
    """As `FixedSizeGaussian`, preceded by k-ary randomised response on the client's choice.

    The response keeps the true choice with probability `keep_probability` and answers each other cluster with
    (1 - keep_probability) / (num_clusters - 1); the updates are released with `noise_multiplier`.
    """

    noise_multiplier: float
    keep_probability: float
    num_clusters: int
    cohort_size: int
    num_clients: int

    adjacency: ClassVar[str] = REPLACE_ONE
    sampling: ClassVar[str] = "fixed-size without replacement"

    def __post_init__(self) -> None:
        _in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.count(num_clusters=self.num_clusters, at_least=2)
        _check_cohort(self.cohort_size, self.num_clients)
        if not 1 / self.num_clusters <= self.keep_probability < 1:
            raise ConfigError(
                f"keep_probability = {self.keep_probability} must be at least 1/k = {1 / self.num_clusters:.4g} "
                "and less than 1."
            )


@dataclass(frozen=True)
class FixedSizeByLoss:
    """As `FixedSizeGaussian`, preceded by a private choice among the client's clipped losses (privacy/by_loss.py).

    `rule` is the exponential mechanism or permute-and-flip, both at `identifier_epsilon`: a loss at the bound is
    exp(-identifier_epsilon / 2) times as good as one at 0. The updates are released with `noise_multiplier`.
    """

    noise_multiplier: float
    rule: str
    identifier_epsilon: float
    num_clusters: int
    cohort_size: int
    num_clients: int

    adjacency: ClassVar[str] = REPLACE_ONE
    sampling: ClassVar[str] = "fixed-size without replacement"

    def __post_init__(self) -> None:
        _in_full_precision(self)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.one_of(LOSS_RULES, rule=self.rule)
        checks.positive(identifier_epsilon=self.identifier_epsilon)
        checks.count(num_clusters=self.num_clusters, at_least=2)
        _check_cohort(self.cohort_size, self.num_clients)


RoundEvent = PoissonGaussian | FixedSizeGaussian | FixedSizeKary | FixedSizeByLoss

REPETITION_LAWS = {"geometric": 1.0, "logarithmic": 0.0}  # law of the number of repetitions -> its shape


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best, by score, of a random number of independent runs of `num_rounds` rounds each; only the best is shown.

    The number of runs follows `law` (a truncated negative binomial of shape 1 or 0) with mean `mean_repetitions`,
    whatever the data are, and is never shown either. The score is part of what each run releases, or public.
    """

    run: RoundEvent  # what one round of one run costs
    num_rounds: int
    mean_repetitions: float
    law: str

    def __post_init__(self) -> None:
        _in_full_precision(self)
        checks.count(num_rounds=self.num_rounds)
        checks.one_of(REPETITION_LAWS, law=self.law)
        if checks.positive(mean_repetitions=self.mean_repetitions) <= 1:
            raise ConfigError(
                f"mean_repetitions = {self.mean_repetitions:g} must be more than 1: with one run there is nothing to "
                "select from."
            )

    @property
    def adjacency(self) -> str:
        """That of every run."""
        return self.run.adjacency

    @property
    def sampling(self) -> str:
        """That of every run."""
        return self.run.sampling


Event = RoundEvent | RepeatAndSelect


def _in_full_precision(event: Any) -> None:
    """Make every number Python's own: a half-precision one equals it, and would be accounted in half precision."""
    for part in fields(event):
        value = getattr(event, part.name)
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        object.__setattr__(event, part.name, int(value) if isinstance(value, Integral) else float(value))


def _check_cohort(cohort_size: int, num_clients: int) -> None:
    checks.count(cohort_size=cohort_size)
    checks.count(num_clients=num_clients)
    if cohort_size > num_clients:
        raise ConfigError(
            f"cohort_size = {cohort_size} is more than num_clients = {num_clients}; lower sample_rate to at most 1."
        )
