"""What lets a reader check a stated epsilon: bounds from both sides, its whole profile, and how to recompute it."""

import math
from typing import Any

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy.accounting import epsilon, profile
from rrcluster.privacy.events import Event
from rrcluster.privacy.recompute import recompute


def evidence(event: Event, *, num_rounds: int, delta: float, accountant: str) -> dict[str, Any]:
    """As plain data: `bracket`, `profile`, `recompute`; `mu` where the whole run is one Gaussian, and so mu-GDP.

    `bracket` holds the least and the most that epsilon can be for the accounted pair, all rounding included; a `reason`
    where there is no loss distribution to bound. `profile` are (epsilon, delta) that hold together with the stated.
    """
    stated = epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    pairs = profile(event, num_rounds=num_rounds, around=stated, accountant=accountant)
    return {
        "bracket": _bracket(event, num_rounds, delta),
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
