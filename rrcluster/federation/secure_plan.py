"""From a privacy plan to a federation whose server sees only sums, with noise from the members.

The guarantee is under *zero-out*: the neighbour takes part with a zero message (privacy/discrete.py, docs/privacy.md).
It holds towards everybody, the server included, where a member may collude; where none may, it does not hold towards
the members, each of which can subtract its own share of the noise. Everybody takes part in every round: the server sees
participation, so nothing is amplified by sampling.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from rrcluster.errors import ConfigError, PrivacyError, RoundError
from rrcluster.federation.agreement import Agreement
from rrcluster.federation.secagg.terms import Terms
from rrcluster.privacy.accounting import epsilon
from rrcluster.privacy.discrete import DEVIATIONS, SUM_BITS, bits_needed, discrete_gaussian, finest_grid, share_sigma
from rrcluster.privacy.events import PoissonGaussian
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.privacy.reports import NoisySum
from rrcluster.types import Array

_MOST_MEMBERS = 1000  # a round of 1,000 was measured; one of 5,000 gave no result in a quarter of an hour


@dataclass(frozen=True)
class SecurePlan:
    """A plan on a grid whose sums fit the words of the aggregation, its terms, and the noise share of one member."""

    plan: PrivacyPlan
    terms: Terms
    sigma: int  # std of one member's share, in grid steps

    @classmethod
    def build(cls, plan: PrivacyPlan, agreement: Agreement) -> "SecurePlan":
        """PrivacyError where the plan's claim would not hold under it, ConfigError where sums would not fit."""
        mechanism: Any = plan.mechanism
        _check_plan(plan, agreement)
        clip, members = mechanism.update_clip, len(agreement.members)
        largest = max(clip, mechanism.count_weight, mechanism.evaluation_weight / 2)
        bits = finest_grid(
            num_messages=agreement.num_clients,
            longest=largest / clip,
            noise_std=mechanism.noise_std / clip,
            least_honest=agreement.least_honest,
            num_shares=members,
        )
        mechanism = replace(mechanism, grid_bits=bits)
        sigma = share_sigma(mechanism.noise_std, mechanism.step, least_honest=agreement.least_honest)
        units = math.ceil(largest / mechanism.step)
        needed = bits_needed(num_messages=agreement.num_clients, largest=units, sigma=sigma, num_shares=members)
        assert needed <= SUM_BITS, "finest_grid allows for the worst step"
        terms = Terms.for_clients(
            tuple(member.identity for member in agreement.members),
            settings=agreement.digest,
            width=mechanism.message_width,
            least_survivors=agreement.least_survivors,
            most_colluders=agreement.most_colluders,
        )
        return cls(replace(plan, mechanism=mechanism), terms, sigma)

    def noise_share(self) -> Array:
        """(message_width,) integers: the noise that one member adds to the sum of its clients' messages."""
        return discrete_gaussian(self.sigma, self.terms.width)

    def checked_sum(self, total: Array) -> NoisySum:
        """The noisy sum for release; RoundError if clients' messages and members' noise cannot give it.

        Within 16 standard deviations of the noise of all members, every size lies between 0 and the number of clients,
        and every coordinate, and the norm of the sums of updates, is at most as many clips. Shares are subgaussian: an
        honest sum is refused with probability at most 2 exp(-128) per coordinate, and by its norm with exp(-128), since
        noise of d coordinates is then at most sqrt(d) + 16 standard deviations long (Laurent and Massart 2000, Lemma
        1). It reads the noisy sum alone: the decision is post-processing.
        """
        mechanism: Any = self.plan.mechanism
        n, k, d = mechanism.num_clients, mechanism.num_clusters, mechanism.coordinates
        widths = d.shared + k * d.clustered, k, 2
        weights = mechanism.update_clip, mechanism.count_weight, mechanism.evaluation_weight / 2
        clip, counted, evaluated = (n * math.ceil(weight / mechanism.step) for weight in weights)
        std = self.sigma * math.sqrt(self.terms.num_clients)
        most = np.repeat([clip, counted, evaluated], widths) + DEVIATIONS * std
        least = np.repeat([-clip, 0, -evaluated], widths) - DEVIATIONS * std
        longest = clip + std * (DEVIATIONS + math.sqrt(widths[0]))
        norm = np.linalg.norm(total[: widths[0]].astype(np.float64))
        if (total < least).any() or (total > most).any() or norm > longest:
            raise RoundError(
                f"the noisy sum is impossible for {n} clients and the noise of {self.terms.num_clients} members: one "
                "of them added something else, and nobody can tell which. It is charged, and not released; ask "
                "the members' operators, then serve again."
            )
        return NoisySum(total)

    @property
    def least_honest(self) -> int:
        """Members whose noise is in every sum."""
        return self.terms.least_survivors - self.terms.most_colluders

    @property
    def towards(self) -> str:
        """The parties towards whom the plan's epsilon holds."""
        if self.terms.most_colluders:
            return "everybody, the server included"
        return "the server and observers of the models, but not the members, which know their own noise"

    @property
    def event_towards_members(self) -> PoissonGaussian:
        """A round as seen by a member that subtracts its own noise share.

        That is the plan's event where a member may collude, and one with less noise where none may.
        """
        shares, event = min(self.least_honest, self.terms.least_survivors - 1), cast(PoissonGaussian, self.plan.event)
        return replace(event, noise_multiplier=event.noise_multiplier * math.sqrt(shares / self.least_honest))

    def epsilon_towards_members(self) -> float:
        """Epsilon of all rounds, towards one member."""
        plan, event = self.plan, self.event_towards_members
        return epsilon(event, num_rounds=plan.num_participations, delta=plan.delta, accountant=plan.accountant)

    @property
    def delta(self) -> float:
        """The plan's delta plus the probability that a sparse graph of members is not safe."""
        return self.plan.delta + self.terms.failure_probability

    @property
    def assumed(self) -> str:
        """The assumptions of the claim."""
        colluders = self.terms.most_colluders
        return (
            f"at least {self.least_honest} members follow the protocol, at most {colluders} work for the server, and "
            "the cryptography holds"
        )


def _check_plan(plan: PrivacyPlan, agreement: Agreement) -> None:
    mechanism: Any = plan.mechanism
    if (members := len(agreement.members)) > _MOST_MEMBERS:
        raise ConfigError(f"{members} members are more than the {_MOST_MEMBERS} of mode = secure; let each host more.")
    if not plan.private or not hasattr(mechanism, "grid_bits"):
        raise PrivacyError(
            f"mechanism = {mechanism.name} needs single reports, but a secure aggregation shows the server "
            "only sums; use mechanism = joint."
        )
    if not plan.secure:
        raise PrivacyError("noise shares are exact and drawn from the operating system; build the plan with secure.")
    if not plan.event.plain_gaussian or mechanism.slots.count > 1:
        raise PrivacyError(
            "the server of a federation sees who takes part, so sampling hides nothing from it, and members do "
            "not store the noise of earlier rounds; use participation = everybody."
        )
    if mechanism.num_clients != agreement.num_clients:
        raise PrivacyError(
            f"the plan is for {mechanism.num_clients} clients and the roster has {agreement.num_clients}; declare that "
            "number as num_clients."
        )
