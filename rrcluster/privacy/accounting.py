"""The cost of a run: (epsilon, delta) of an event repeated over rounds, by an accountant chosen by name.

Every accountant gives an upper bound under the event's own adjacency, or refuses. No accountant falls back to another:
`account` shows them side by side. Noise multipliers above `MAX_MULTIPLIER` are accounted as `MAX_MULTIPLIER` (more
noise never costs more).
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rrcluster import checks
from rrcluster.errors import ConfigError, UnsupportedEvent
from rrcluster.privacy.events import Event

if TYPE_CHECKING:
    from rrcluster.privacy.pld import LossDistribution
    from rrcluster.privacy.profiles import Array


class Composed(NamedTuple):
    """One event, prepared for composition."""

    epsilon: Callable[[int, float], float]  # (num_rounds, delta) -> epsilon
    delta: Callable[[int, float], float]  # (num_rounds, epsilon) -> delta


MIN_MULTIPLIER, MAX_MULTIPLIER = 0.01, 1e6
MIN_DELTA = 1e-10  # composing loss distributions has rounding errors of about 1e-13 in delta
MAX_PLD_ROUNDS = 100_000
_ONE_AT_A_TIME = threading.RLock()
_PROFILE = (0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # epsilons of a profile, relative to the stated one
_LEAST_RDP = 1e-15


@dataclass(frozen=True)
class Accountant:
    """A bound on epsilon; `prepare(event, coarse)` computes the part that does not depend on rounds and delta."""

    description: str
    prepare: Callable[[Event, bool], Composed]


@dataclass(frozen=True)
class AccountRow:
    """One accountant's epsilon, or None and the reason why it does not apply."""

    accountant: str
    epsilon: float | None
    reason: str | None


def epsilon(event: Event, *, num_rounds: int, delta: float, accountant: str = "pld") -> float:
    """Upper bound on epsilon after `num_rounds` rounds of `event`, at `delta`, under its own adjacency.

    0 rounds cost 0; `math.inf` when no finite epsilon holds at this delta. A "round" of `RepeatAndSelect` is a
    whole selection. Raises `UnsupportedEvent`, with the reason and what to use instead, where the accountant has no
    sound bound.
    """
    return epsilon_at(event, num_rounds=num_rounds, delta=delta, accountant=accountant, coarse=False)


def epsilon_at(event: Event, *, num_rounds: int, delta: float, accountant: str, coarse: bool) -> float:
    """As `epsilon`; `coarse` trades tightness for speed and is still an upper bound."""
    checks.one_of(ACCOUNTANTS, accountant=accountant)
    rounds = checks.count(num_rounds=num_rounds, at_least=0)
    check_delta(delta)
    if not rounds:
        return 0.0
    with _ONE_AT_A_TIME:  # runs of a sweep request the same numbers at once
        return _cached_epsilon(accountant, event, coarse, rounds, delta)


@lru_cache(maxsize=4096)
def _cached_epsilon(accountant: str, event: Event, coarse: bool, num_rounds: int, delta: float) -> float:
    return _prepared(accountant, event, coarse).epsilon(num_rounds, delta)


def profile(event: Event, *, num_rounds: int, around: float, accountant: str = "pld") -> list[tuple[float, float]]:
    """(epsilon, delta) pairs that all hold at once, at multiples of the epsilon `around`; the accountant's own deltas.

    Pairs whose delta is below what the accountant can tell from 0 are left out.
    """
    if not 0 < around < math.inf:
        return []
    with _ONE_AT_A_TIME:
        pairs = _profile(accountant, event, num_rounds, around)
    least = _least_delta(num_rounds) if accountant == "pld" else 0.0
    return [(at, delta) for at, delta in pairs if least < delta <= 1]


@lru_cache(maxsize=4096)
def _profile(accountant: str, event: Event, num_rounds: int, around: float) -> list[tuple[float, float]]:
    delta_at = _prepared(accountant, event, False).delta
    return [(share * around, delta_at(num_rounds, share * around)) for share in _PROFILE]


def delta_at(event: Event, *, num_rounds: int, epsilon: float, accountant: str = "pld") -> float:
    """Upper bound on delta at a given epsilon >= 0; under `pld` with an allowance for rounding."""
    with _ONE_AT_A_TIME:
        delta = _prepared(accountant, event, False).delta(num_rounds, epsilon)
    return delta + (_least_delta(num_rounds) if accountant == "pld" else 0.0)


def account(event: Event, *, num_rounds: int, delta: float) -> list[AccountRow]:
    """Every accountant's epsilon for the same run, default first; a refusal becomes a row with its reason."""

    def row(name: str) -> AccountRow:
        try:
            return AccountRow(name, epsilon(event, num_rounds=num_rounds, delta=delta, accountant=name), None)
        except UnsupportedEvent as refusal:
            return AccountRow(name, None, str(refusal))

    return [row(name) for name in ACCOUNTANTS]


def check_delta(delta: float) -> float:
    """Refuse a delta outside (0, 1)."""
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:
        raise ConfigError(f"delta = {delta!r} must be greater than 0 and less than 1; 1 / (10 num_clients) is usual.")
    return delta


@lru_cache(maxsize=4)
def _prepared(accountant: str, event: Event, coarse: bool) -> Composed:
    if not isinstance(event, Event):
        raise UnsupportedEvent(f"{type(event).__name__} is not an event any accountant here knows.")
    if event.noise_multiplier < MIN_MULTIPLIER:
        raise UnsupportedEvent(
            f"noise_multiplier = {event.noise_multiplier:.4g} is below {MIN_MULTIPLIER}: practically no "
            "noise, without a meaningful epsilon; raise the noise, or run without privacy (mechanism = none)."
        )
    event.check()
    return ACCOUNTANTS[accountant].prepare(event.at_most(MAX_MULTIPLIER), coarse)


def _prepare_pld(event: Event, coarse: bool) -> Composed:
    if event.plain_gaussian:
        z = event.noise_multiplier
        return Composed(partial(_gaussian_epsilon, z), partial(_gaussian_delta, z))
    distribution = cache(lambda: event.loss_distribution(coarse=coarse))  # built on first use
    composed = lru_cache(maxsize=1)(lambda num_rounds: distribution().self_compose(num_rounds))
    return Composed(
        partial(_pld_epsilon, composed, float(getattr(event, "sample_rate", 1.0))),
        lambda num_rounds, epsilon: float(composed(num_rounds).get_delta_for_epsilon(epsilon)),
    )


def _gaussian_epsilon(noise_multiplier: float, num_rounds: int, delta: float) -> float:
    """Without sampling, T Gaussians are one with multiplier z / sqrt(T): closed form of Balle, Wang 2018."""
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(divide="ignore"):  # far in the tail it takes the logarithm of a delta that rounds to 0
        return float(get_epsilon_gaussian(noise_multiplier / math.sqrt(num_rounds), delta))


def _gaussian_delta(noise_multiplier: float, num_rounds: int, epsilon: float) -> float:
    from rrcluster.privacy.profiles import gaussian_delta

    return float(gaussian_delta(epsilon, noise_multiplier / math.sqrt(num_rounds)))


def _least_delta(num_rounds: int) -> float:
    """The smallest delta that `pld` resolves: rounding errors grow with the number of compositions."""
    return MIN_DELTA * max(1.0, num_rounds / 1000)


def _pld_epsilon(
    composed: "Callable[[int], LossDistribution]", sample_rate: float, num_rounds: int, delta: float
) -> float:
    """Epsilon of the composed distribution; 0 where a client takes part at all with probability at most delta.

    Given that it is in no cohort its data changes nothing, so the two outputs are within num_rounds * sample_rate of
    each other in total variation: (0, delta)-DP, whatever the noise.
    """
    least = _least_delta(num_rounds)
    if delta < least:
        raise UnsupportedEvent(
            f"delta = {delta:.3g} is below {least:.3g}, where the accountant 'pld' would report rounding "
            "errors; raise delta, or use the accountant 'rdp'."
        )
    if num_rounds > MAX_PLD_ROUNDS:
        raise UnsupportedEvent(
            f"{num_rounds} releases are more than the {MAX_PLD_ROUNDS} that the accountant 'pld' composes in "
            "reasonable time and memory; lower num_rounds or reserve_rounds, or use the accountant 'rdp'."
        )
    if num_rounds * sample_rate <= delta:
        return 0.0
    return float(composed(num_rounds).get_epsilon_for_delta(delta))


def _prepare_rdp(event: Event, coarse: bool) -> Composed:  # noqa: ARG001 (as fast as it gets)
    orders, rdp = event.rdp()
    return Composed(partial(_rdp_epsilon, orders, rdp), partial(_rdp_delta, orders, rdp))


def _rdp_epsilon(orders: Sequence[float], rdp: "Array", num_rounds: int, delta: float) -> float:
    """Improved conversion (Canonne, Kamath, Steinke 2020, arXiv 2004.00010v4, Proposition 12)."""
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(orders, rdp * num_rounds, delta)[0])


def _rdp_delta(orders: Sequence[float], rdp: "Array", num_rounds: int, epsilon: float) -> float:
    """Delta by the improved conversion; a divergence that rounds to 0, on which it fails, is raised to `_LEAST_RDP`."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    return float(compute_delta(orders, np.maximum(rdp * num_rounds, _LEAST_RDP), epsilon)[0])


def _prepare_paper(event: Event, coarse: bool) -> Composed:  # noqa: ARG001 (as fast as it gets)
    orders, rdp = event.printed_rdp()
    return Composed(partial(_classic_epsilon, orders, rdp), partial(_classic_delta, orders, rdp))


def _classic_epsilon(orders: Sequence[float], rdp: "Array", num_rounds: int, delta: float) -> float:
    """Classic conversion (Mironov 2017, arXiv 1702.07476v3, Proposition 3)."""
    return float(np.min(num_rounds * rdp + math.log(1 / delta) / (np.array(orders) - 1)))


def _classic_delta(orders: Sequence[float], rdp: "Array", num_rounds: int, epsilon: float) -> float:
    return float(np.exp(min(0.0, np.min((np.array(orders) - 1) * (num_rounds * rdp - epsilon)))))


ACCOUNTANTS: dict[str, Accountant] = {
    "pld": Accountant("privacy loss distributions, composed numerically: the tightest bound we know", _prepare_pld),
    "rdp": Accountant("Renyi DP with the improved conversion: fast, classic, somewhat loose", _prepare_rdp),
    "paper": Accountant(
        "the bound printed in the paper (Wang et al. 2019, Theorem 9): fixed-size cohorts under replace-one "
        "only; valid but loose, with a floor that no noise gets below",
        _prepare_paper,
    ),
}
