"""Samplers of cohorts. Each sampler belongs to a mechanism, whose event names the same law.

Amplification holds only towards observers who do not know who took part: a cohort that is sampled is secret.

>>> cohort = PoissonSampler(0.5, num_clients=10).draw(8, rng=np.random.default_rng(0))
>>> bool(set(cohort.tolist()) <= set(range(8)))
True
>>> FixedSizeSampler(3, num_clients=10).draw(10, rng=np.random.default_rng(0)).size
3
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rrcluster import checks
from rrcluster.entropy import check_secure
from rrcluster.errors import PrivacyError
from rrcluster.privacy.slots import ONE_SLOT, Slots
from rrcluster.rng import Rng
from rrcluster.types import Array


class Sampler(Protocol):
    """Draws cohorts from a population of clients numbered from 0."""

    @property
    def expected_size(self) -> float:
        """Expected number of clients in a cohort: a public constant."""

    def check_population(self, population: int) -> None:
        """Refuse a population that the guarantee does not cover."""

    def draw(self, population: int, *, rng: Rng, round_index: int | None = None, names: tuple[str, ...] = ()) -> Array:
        """Sorted numbers of the cohort of a round; `round_index` matters with several slots only.

        `names` of the clients, if they have any, decide their slots.
        """


@dataclass(frozen=True)
class PoissonSampler:
    """Each eligible client joins independently with probability `sample_rate`, a declared constant.

    The guarantee covers populations of at most `num_clients`; the actual number is as private as their members. With
    several slots, everybody in slot `round_index` mod b takes part: PrivacyError for a rate below 1, whose event would
    be cheaper.
    """

    sample_rate: float
    num_clients: int  # a declared bound, on which expectations are based
    secure: bool = False  # use only the operating system's generator: a cohort that can be drawn again is no secret
    slots: Slots = ONE_SLOT

    def __post_init__(self) -> None:
        checks.rate(sample_rate=self.sample_rate)
        checks.count(num_clients=self.num_clients)
        if self.slots.count > 1 and self.sample_rate != 1:
            raise PrivacyError(
                f"sample_rate = {self.sample_rate:g} with {self.slots.count} slots: everybody of a round's slot takes "
                "part; use sample_rate = 1, or one slot."
            )

    @property
    def expected_size(self) -> float:
        """q M / b, from the declared constants."""
        return self.sample_rate * self.num_clients / self.slots.count

    def check_population(self, population: int) -> None:
        """PrivacyError for more clients than the declared bound."""
        if population > self.num_clients:
            raise PrivacyError(
                f"num_clients = {self.num_clients} was declared as a bound and the population has more clients; "
                "declare a bound that holds for every population that could have been used."
            )

    def draw(self, population: int, *, rng: Rng, round_index: int | None = None, names: tuple[str, ...] = ()) -> Array:
        """A Binomial(population, q) number, then a uniform subset: independent coins at the cohort's cost."""
        self.check_population(population)
        if self.secure:
            check_secure(rng)
        if self.slots.count > 1:
            if round_index is None:
                raise PrivacyError("a plan with slots draws the cohort of a given round; pass its round_index.")
            return self.slots.eligible(names or population, round_index)
        size = int(rng.binomial(population, self.sample_rate))
        return np.sort(rng.choice(population, size=size, replace=False, shuffle=False))


@dataclass(frozen=True)
class FixedSizeSampler:
    """Exactly `cohort_size` of `num_clients` clients, uniformly, without replacement."""

    cohort_size: int
    num_clients: int
    secure: bool = False  # use only the operating system's generator: a cohort that can be drawn again is no secret

    def __post_init__(self) -> None:
        checks.count(num_clients=self.num_clients)
        checks.count(cohort_size=self.cohort_size)

    @property
    def expected_size(self) -> float:
        """The cohort's exact size."""
        return float(self.cohort_size)

    def check_population(self, population: int) -> None:
        """PrivacyError for any number but the declared one, which is part of the event and public."""
        if population != self.num_clients:
            raise PrivacyError(
                f"num_clients = {self.num_clients} was declared but the population has {population}; fixed-size "
                "sampling is accounted for the declared number. Declare the true one, or use `joint` (Poisson)."
            )

    def draw(
        self,
        population: int,
        *,
        rng: Rng,
        round_index: int | None = None,  # noqa: ARG002 (all rounds alike)
        names: tuple[str, ...] = (),  # noqa: ARG002 (no slots)
    ) -> Array:
        """A uniform subset of the declared population."""
        self.check_population(population)
        if self.secure:
            check_secure(rng)
        return np.sort(rng.choice(population, size=self.cohort_size, replace=False, shuffle=False))
