"""Choosing the best of several private runs, and its cost.

Papernot and Steinke 2022 ("Hyperparameter tuning with Renyi differential privacy", arXiv 2110.03620v2): draw the number
of runs at random, make that many runs with independent noise, show the best one, and nothing of the others, not even
how many there were. The cost is a small multiple of one run's, whatever number was drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rrcluster.errors import PrivacyError
from rrcluster.privacy.events import REPETITION_LAWS, RepeatAndSelect, RoundEvent

if TYPE_CHECKING:
    from rrcluster.privacy.profiles import Array
    from rrcluster.rng import Rng


@dataclass(frozen=True)
class Selection:
    """The selection that a run was part of: its cost, score and candidate settings. Public."""

    event: RepeatAndSelect
    score: str  # its origin in words
    among: tuple[str, ...]  # one line per setting
    charges: int = 1  # above 1: earlier secure selections were stopped, and their draws cannot be repeated


def stopping_probability(event: RepeatAndSelect) -> float:
    """The parameter gamma of the law whose mean is `mean_repetitions`; by bisection from below, so never fewer runs."""
    if event.law == "geometric":
        return 1 / event.mean_repetitions
    low, high = 0.0, 1.0
    while high - low > 1e-15 * high and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _logarithmic_mean(middle) >= event.mean_repetitions else (low, middle)
    return low


def draw_repetitions(event: RepeatAndSelect, *, rng: "Rng") -> int:
    """The number of runs: at least one. Secret: the guarantee is towards those who do not know it.

    Geometric: P(n) = gamma (1 - gamma)^(n - 1). Logarithmic: P(n) = (1 - gamma)^n
    (n log(1
    gamma)).
    """
    gamma = stopping_probability(event)
    return int(rng.geometric(gamma) if event.law == "geometric" else rng.logseries(1 - gamma))


def selected_rdp(orders: Sequence[float], rdp: "Array", event: RepeatAndSelect) -> "Array":
    """RDP of the selection from that of one whole run, at each order (arXiv 2110.03620v2, Theorem 2).

    eps' = eps + (1 + shape) min over orders l of ((1 - 1/l) eps(l) + log(1/gamma) / l) + log(mean) / (order - 1); a
    lower order never costs more than a higher one. dp-accounting's `RepeatAndSelectDpEvent` computes the same (tested).
    """
    import numpy as np

    lam, gamma, shape = np.asarray(orders, dtype=float), stopping_probability(event), REPETITION_LAWS[event.law]
    extra = (1 + shape) * np.min((1 - 1 / lam) * rdp + math.log(1 / gamma) / lam)
    raised = rdp + extra + math.log(_mean(event, gamma)) / (lam - 1)
    by_order = np.argsort(lam)
    least_above = np.minimum.accumulate(raised[by_order][::-1])[::-1]
    result = np.empty_like(raised)
    result[by_order] = least_above
    return result


def worst_run(runs: Sequence[tuple[RoundEvent, int]]) -> tuple[RoundEvent, int]:
    """One (event, number of rounds) that costs at least as much as each of `runs`, at every order.

    Least noise, largest cohort share, most rounds: Renyi divergences of sampled Gaussians are monotone in each.
    """
    events = [event for event, _ in runs]
    if len({event.kind for event in events}) > 1:
        raise PrivacyError(
            "the settings to select among have guarantees of different kinds (mechanism, identifier or number of "
            "clients), and no single one covers them all; select among settings of one mechanism."
        )
    noise = min(event.noise_multiplier for event in events)
    return max(events, key=lambda event: event.sample_rate).at_most(noise), max(rounds for _, rounds in runs)


def check_covered(event: RepeatAndSelect, run: RoundEvent, num_rounds: int) -> None:
    """Refuse a run that costs more than its selection was charged for."""
    if worst_run([(event.run, event.num_rounds), (run, num_rounds)]) != (event.run, event.num_rounds):
        raise PrivacyError(
            "this run costs more than the selection was charged for (less noise, a larger cohort or more rounds); "
            "charge the worst of the settings."
        )


def _mean(event: RepeatAndSelect, gamma: float) -> float:
    return 1 / gamma if event.law == "geometric" else _logarithmic_mean(gamma)


def _logarithmic_mean(gamma: float) -> float:
    return (1 / gamma - 1) / math.log(1 / gamma)
