"""Evidence for a stated epsilon: bounds from both sides, its whole profile, and how to recompute it.

`recompute` describes the event as a `DpEvent` of dp-accounting in plain data; docs/privacy.md, "Recomputing epsilon",
rebuilds it in four lines. Where dp-accounting has no accountant for the event, or none that bounds it as we do, the
description says so.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy.accounting import MAX_MULTIPLIER, epsilon, profile
from rrcluster.privacy.events import REPETITION_LAWS, Event
from rrcluster.privacy.ledger import describe

_RELATIONS = {"add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}
_NO_PLD = (
    "dp-accounting has no privacy loss distribution for cohorts of fixed size: it recomputes the epsilon of the "
    "accountant rdp."
)
_NO_CHOICE = (
    "no accountant of dp-accounting takes a randomised response and a Gaussian on one cohort of fixed size; the event "
    "describes the round, and only rrcluster computes its epsilon."
)
_NO_REPEATS = "dp-accounting does not compose several selections; the event describes them."


def recompute(event: Event, *, num_rounds: int, accountant: str) -> dict[str, Any]:
    """The event of all rounds, the relation, and the class of dp-accounting that gives `accountant`'s epsilon.

    `accountant` is None with a `reason` where there is none; also with an accountant, `reason` says what differs.
    """
    plain = describe(event.at_most(MAX_MULTIPLIER))
    if plain["type"] not in _ROUNDS:
        return {"accountant": None, "reason": f"dp-accounting has no event for {plain['type']}."}
    described, by, reason = _ROUNDS[plain["type"]](plain, accountant)
    if num_rounds > 1 and plain["type"] == "RepeatAndSelect":
        by, reason = None, _NO_REPEATS
    made: dict[str, Any] = {
        "library": "dp-accounting",
        "event": {"class": "SelfComposedDpEvent", "event": described, "count": num_rounds},
        "neighboring_relation": _RELATIONS[plain["adjacency"]],
        "accountant": by,
        "reason": reason,
    }
    if by == "PLDAccountant":
        made["value_discretization_interval"] = _interval(event)
    return made


def _poisson(plain: Mapping[str, Any], accountant: str) -> tuple[dict[str, Any], str | None, str | None]:
    by = "PLDAccountant" if accountant == "pld" else "RdpAccountant"
    described = _gaussian(plain)
    if plain["sample_rate"] < 1:
        described = {
            "class": "PoissonSampledDpEvent",
            "sampling_probability": plain["sample_rate"],
            "event": described,
        }
    return described, by, None


def _fixed_size(plain: Mapping[str, Any], accountant: str) -> tuple[dict[str, Any], str | None, str | None]:
    inside, choice = _gaussian(plain), plain["choice"]
    if choice:
        k = choice["num_clusters"]
        response = {
            "class": "RandomizedResponseDpEvent",
            "noise_parameter": (1 - choice["keep_probability"]) * k / (k - 1),
            "num_buckets": k,
        }
        inside = {"class": "ComposedDpEvent", "events": [response, inside]}
    described = {
        "class": "SampledWithoutReplacementDpEvent",
        "source_dataset_size": plain["num_clients"],
        "sample_size": plain["cohort_size"],
        "event": inside,
    }
    if choice:
        return described, None, _NO_CHOICE
    return described, "RdpAccountant", None if accountant == "rdp" else _NO_PLD


def _selection(plain: Mapping[str, Any], accountant: str) -> tuple[dict[str, Any], str | None, str | None]:
    run = plain["run"]
    one, by, reason = _ROUNDS["FixedSize" if "cohort_size" in run else "PoissonGaussian"](run, accountant)
    described = {
        "class": "RepeatAndSelectDpEvent",
        "event": {"class": "SelfComposedDpEvent", "event": one, "count": plain["num_rounds"]},
        "mean": plain["mean_repetitions"],
        "shape": REPETITION_LAWS[plain["law"]],
    }
    return described, by, reason


def _gaussian(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {"class": "GaussianDpEvent", "noise_multiplier": plain["noise_multiplier"]}


@lru_cache(maxsize=4096)
def _interval(event: Event) -> float:
    from rrcluster.privacy.pld import grid_profile

    return grid_profile(event.at_most(MAX_MULTIPLIER)).step


_ROUNDS = {"PoissonGaussian": _poisson, "FixedSize": _fixed_size, "RepeatAndSelect": _selection}


def evidence(event: Event, *, num_rounds: int, delta: float, accountant: str) -> dict[str, Any]:
    """As plain data: `bracket`, `profile`, `recompute`; `mu` where the whole run is one Gaussian, and so mu-GDP.

    `bracket` holds the least and the most that epsilon can be for the accounted pair, all rounding included; a `reason`
    where there is no loss distribution to bound. `profile` lists further (epsilon, delta) pairs that hold at the same
    time.
    """
    return {
        "bracket": _bracket(event, num_rounds, delta),
        **derived(event, num_rounds=num_rounds, delta=delta, accountant=accountant),
    }


def derived(event: Event, *, num_rounds: int, delta: float, accountant: str) -> dict[str, Any]:
    """The evidence without its bracket, which takes as long as everything else."""
    stated = epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    pairs = profile(event, num_rounds=num_rounds, around=stated, accountant=accountant)
    return {
        "profile": [{"epsilon": at, "delta": its_delta} for at, its_delta in pairs],
        **({"mu": math.sqrt(num_rounds) / event.noise_multiplier} if event.plain_gaussian else {}),
        "recompute": recompute(event, num_rounds=num_rounds, accountant=accountant),
    }


def _bracket(event: Event, num_rounds: int, delta: float) -> dict[str, Any]:
    from rrcluster.privacy.bracket import bracket

    try:
        ends = bracket(event, num_rounds=num_rounds, delta=delta)
    except UnsupportedEvent as refusal:
        return {"least": None, "most": None, "reason": str(refusal)}
    return {"least": ends.least, "most": None if math.isinf(ends.most) else ends.most, "reason": None}
