"""The smallest noise that keeps a run within (epsilon, delta), computed once and cached on disk.

The answer never overspends: every multiplier returned, cached ones too, has just been accounted at full resolution and
is within the target. A run does this accounting anyway, so the check is free.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rrcluster import checks
from rrcluster.errors import ConfigError, PrivacyError
from rrcluster.privacy.accounting import ACCOUNTANTS, MAX_MULTIPLIER, MIN_MULTIPLIER, check_delta, epsilon_at
from rrcluster.privacy.events import Event
from rrcluster.storage import cache_folder, parse_json, read_text, replace_file

MakeEvent = Callable[[float], Event]
Cost = Callable[[float], float]  # noise multiplier -> epsilon

TOLERANCE = 1.5e-4  # relative
_COARSE_TOLERANCE = 2e-5


@dataclass(frozen=True)
class _Point:
    multiplier: float
    epsilon: float


def calibrate(
    make_event: MakeEvent, *, epsilon: float, delta: float, num_rounds: int, accountant: str = "pld", cache: bool = True
) -> float:
    """The smallest noise multiplier z that keeps `num_rounds` rounds of `make_event(z)` within `epsilon`.

    Rounded up: z is within the target by that accountant at full resolution, and z / (1 + TOLERANCE) is
    not. Seven significant digits. `make_event` must cost less the larger the multiplier is. Raises
    `PrivacyError` when no noise reaches the target, or when practically none is needed (then the target
    protects nobody), and `UnsupportedEvent` when the accountant has no bound for the event.
    """
    checks.positive(epsilon=epsilon)
    check_delta(delta)
    checks.count(num_rounds=num_rounds)
    checks.one_of(ACCOUNTANTS, accountant=accountant)
    settings = {"epsilon": float(epsilon), "delta": delta, "num_rounds": num_rounds, "accountant": accountant}
    ask = partial(_cost, make_event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    key = _key(make_event, settings)
    known = _recall(key, partial(ask, coarse=False), epsilon) if cache else None
    if known is not None:
        return known
    _check_reachable(make_event, ask, settings)
    rough = _smallest(partial(ask, coarse=True), epsilon, start=1.0, ratio=2.0, tolerance=_COARSE_TOLERANCE)
    smallest = _smallest(
        partial(ask, coarse=False), epsilon, start=rough.multiplier, ratio=1 + TOLERANCE, tolerance=TOLERANCE
    )
    if cache:
        _remember(key, smallest.multiplier)
    return smallest.multiplier


def _cost(
    make_event: MakeEvent, multiplier: float, *, num_rounds: int, delta: float, accountant: str, coarse: bool
) -> float:
    """The cost at a multiplier; infinite where there is too little noise to construct the event, or to account it."""
    try:
        event = make_event(multiplier)
        return epsilon_at(event, num_rounds=num_rounds, delta=delta, accountant=accountant, coarse=coarse)
    except ConfigError:
        return math.inf


def _check_reachable(make_event: MakeEvent, ask: Callable[..., float], settings: dict[str, Any]) -> None:
    target, delta, name, count = (settings[key] for key in ("epsilon", "delta", "accountant", "num_rounds"))
    run = f"after {count} rounds at delta = {delta:.3g} by the accountant '{name}'"
    most = make_event(MAX_MULTIPLIER)  # raises what is wrong whatever the noise, as accounting it does
    floor = epsilon_at(most, num_rounds=count, delta=delta, accountant=name, coarse=False)
    if floor > target:
        way_out = "use the accountant 'pld', " if name != "pld" else ""
        raise PrivacyError(
            f"no noise reaches epsilon = {target:.4g} {run}: with unlimited noise the bound is still "
            f"{floor:.4g}, since a part of it does not shrink with the noise; {way_out}allow a larger "
            "epsilon, or take fewer rounds or a smaller sample_rate."
        )
    if ask(MIN_MULTIPLIER, coarse=True) <= target:
        raise PrivacyError(
            f"epsilon = {target:.4g} {run} is met with practically no noise (multiplier {MIN_MULTIPLIER}): "
            "either epsilon is too large to protect anyone, or delta is not below the chance that a given "
            "client takes part at all; lower epsilon or delta."
        )


def _smallest(ask: Cost, target: float, *, start: float, ratio: float, tolerance: float) -> _Point:
    """The upper end of a bracket [too little, enough] of relative width at most `tolerance`."""
    little, enough = _bracket(ask, target, start, ratio)
    turn = 0
    while enough.multiplier > little.multiplier * (1 + tolerance):
        at = _next(little, enough, target, tolerance, by_secant=turn % 4 != 3)
        turn += 1
        point = _Point(at, ask(at))
        little, enough = (little, point) if point.epsilon <= target else (point, enough)
    return enough


def _bracket(ask: Cost, target: float, start: float, ratio: float) -> tuple[_Point, _Point]:
    here = _Point(start, ask(start))
    while True:
        up = here.epsilon > target
        at = _round_up(here.multiplier * ratio if up else here.multiplier / ratio)
        at = min(max(at, MIN_MULTIPLIER), MAX_MULTIPLIER)
        there = _Point(at, ask(at))
        if (there.epsilon > target) != up:
            return (here, there) if up else (there, here)
        if there.multiplier == here.multiplier:
            raise PrivacyError(
                f"epsilon = {target:.4g} cannot be bracketed between noise multipliers {MIN_MULTIPLIER} and "
                f"{MAX_MULTIPLIER:.0e}; does make_event cost less the larger the multiplier is?"
            )
        here, ratio = there, ratio**2


def _next(little: _Point, enough: _Point, target: float, tolerance: float, *, by_secant: bool) -> float:
    """The next multiplier to try: just beyond the root of the log-log secant, towards the further end."""
    low, high = math.log(little.multiplier), math.log(enough.multiplier)
    root = (low + high) / 2
    if by_secant and little.epsilon < math.inf and enough.epsilon > 0:
        fall = math.log(little.epsilon / enough.epsilon)
        root = low + (high - low) * math.log(little.epsilon / target) / fall
        root += tolerance / 3 if high - root > root - low else -tolerance / 3
    margin = min(tolerance / 4, (high - low) / 4)
    return _round_up(math.exp(min(max(root, low + margin), high - margin)))


def _round_up(value: float) -> float:
    return float(Context(prec=7, rounding=ROUND_CEILING).create_decimal_from_float(value))


def _key(make_event: MakeEvent, settings: dict[str, Any]) -> str:
    """A digest of everything the answer depends on; the event at two multipliers, in case other fields follow it."""
    events = [_describe(make_event, multiplier) for multiplier in (1.0, 2.0)]
    content = {"dp-accounting": version("dp-accounting"), "events": events, **settings}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _describe(make_event: MakeEvent, multiplier: float) -> dict[str, Any] | None:
    try:
        event = make_event(multiplier)
    except ConfigError:
        return None
    return {"type": type(event).__name__, **asdict(event)}


def cache_file() -> Path:
    """The cache of calibrated multipliers: `multipliers.json` in the cache folder."""
    return cache_folder() / "multipliers.json"


def _recall(key: str, ask: Cost, target: float) -> float | None:
    """The cached multiplier, if it costs at most the target at full resolution now, and not much less."""
    multiplier = _read_cache().get(key)
    if type(multiplier) is not float or not MIN_MULTIPLIER <= multiplier <= MAX_MULTIPLIER:
        return None
    return multiplier if 0.99 * target <= ask(multiplier) <= target else None


def _remember(key: str, multiplier: float) -> None:
    """Add one multiplier to the cache; failing to write it is not an error."""
    with contextlib.suppress(OSError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({**_read_cache(), key: multiplier}, indent=1))


def _read_cache() -> dict[str, Any]:
    try:
        entries = parse_json(read_text(cache_file()))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
