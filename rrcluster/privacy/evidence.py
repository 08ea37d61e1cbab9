"""Evidence for a stated epsilon: bounds from both sides, its whole profile, and how to recompute it.

`recompute` describes the event as a `DpEvent` of dp-accounting in plain data; docs/privacy.md, "Recomputing epsilon",
rebuilds it in four lines. Where dp-accounting has no accountant for the event, or none that bounds it as we do, the
description says so.

Lower and upper bounds on the epsilon of an event, all rounding errors included.

The accountant `pld` states an upper bound, computed in floating point. Here the same pair is bounded from both sides:
by masses on a grid that dominate it, and by masses that it dominates, each composed with a bound on all rounding
(docs/privacy.md, "How exact epsilon is"). Losses are weighted by exp(tilt * loss) before they are composed, so that the
error is relative to the tail that is asked for, and not to 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from rrcluster.errors import UnsupportedEvent
from rrcluster.privacy.accounting import MAX_MULTIPLIER, delta_at, epsilon, profile
from rrcluster.privacy.events import EVENTS, RELATIONS, Event, PoissonGaussian, RepeatAndSelect
from rrcluster.privacy.pld import grid_profile, poisson_step
from rrcluster.privacy.profiles import Array

_UNIT = 2.0**-53  # unit roundoff
_PER_BIT = 14  # roundings of an FFT coefficient, per bit of its length
_PER_POWER = 24  # roundings of z ** n, per unit of n
_EXACT = 1e-13  # relative error of a profile and of a weighted mass, at noise multipliers up to 1
_NEGLIGIBLE = 1e-17  # absolute error of a profile of that size
_LARGEST = 700.0  # largest exponent: beyond it exp overflows, and quotients only become smaller
_OUTSIDE = 1e-20  # of the weighted distribution, beyond the window of the FFT
_FALSE_ALARMS = {"at_1_percent": 0.01, "at_5_percent": 0.05}
_SHARES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)


@dataclass(frozen=True)
class Bracket:
    """Epsilon of the accounted pair is at least `least` and at most `most`."""

    least: float
    most: float


@lru_cache(maxsize=4096)
def bracket(event: Event, *, num_rounds: int, delta: float) -> Bracket:
    """Bounds on epsilon after `num_rounds` rounds of `event` at `delta`, under its own adjacency.

    The excess of `most` over the epsilon of `pld` is the error that rounding may have caused there. UnsupportedEvent
    where `pld` has no bound.
    """
    stated = epsilon(event, num_rounds=num_rounds, delta=delta, accountant="pld")
    event = event.at_most(MAX_MULTIPLIER)
    if event.plain_gaussian or stated in (0.0, math.inf):
        return Bracket(stated, stated)
    grid = grid_profile(event)
    error = num_rounds * _EXACT * max(1.0, event.noise_multiplier)
    least = most = 0.0
    for deltas, reverse in grid.directions():
        above = _Composed(*_dominating(deltas, reverse, grid.step), grid.step, num_rounds, stated)
        certain = num_rounds * _NEGLIGIBLE - math.expm1(num_rounds * math.log1p(-float(deltas[-1])))
        most = max(most, _crossing(above, delta - certain, stated, 1 + error)[1])
        below = _Composed(*_dominated(deltas, reverse, grid.step, num_rounds, delta), grid.step, num_rounds, stated)
        least = max(least, _crossing(below, delta, stated, 1 - error)[0])
    return Bracket(least, most)


def _above(deltas: Array, step: float, *, sign: int) -> Array:
    """Masses at step, 2 step, ... of the curve through `deltas` that is linear in exp(epsilon) between them.

    At least (sign 1) or at most (sign -1) their exact values: eight roundings of the slopes are allowed for.
    """
    slopes = np.diff(deltas) / math.expm1(step)
    before = slopes * math.exp(step)
    after = np.append(slopes[1:], 0.0)
    return np.asarray(np.maximum(after - before + sign * 8 * _UNIT * (np.abs(after) + np.abs(before)), 0.0))


def _joined(above: Array, below: Array, middle: float, step: float) -> tuple[Array, int]:
    """Masses at all losses, and the index of the first; `below` are the reverse pair's masses above 0."""
    mirrored = below * np.exp(-step * np.arange(1, len(below) + 1))
    return np.concatenate([mirrored[::-1], [middle], above]), -len(below)


def _dominating(deltas: Array, reverse: Array, step: float) -> tuple[Array, int]:
    """Masses that, with deltas[-1] at infinity, dominate the pair (connect the dots; the rest is put at 0)."""
    above, below = _above(deltas, step, sign=1), _above(reverse, step, sign=1)
    masses, first = _joined(above, below, 0.0, step)
    fewest = _joined(_above(deltas, step, sign=-1), _above(reverse, step, sign=-1), 0.0, step)[0].sum()
    masses[-first] = max(0.0, 1 - float(fewest)) + 1e-14
    return masses, first


def _dominated(deltas: Array, reverse: Array, step: float, num_rounds: int, delta: float) -> tuple[Array, int]:
    """Masses that the pair dominates: (1 - share) (chords - tail)_+ + share (1 - x)_+, with `missing` less at loss 0.

    A chord is above the convex curve by a gap. Where the gap is more than a share of the chord, above 0 the tail pays
    for the rest and below 0 the missing mass does. The share is the one that costs least at `delta`.
    """
    choices = [(share, *_excess(deltas, reverse, step, share)) for share in _SHARES]
    share, tail, missing = min(choices, key=lambda made: made[0] + num_rounds * (made[1] / delta + made[2]))
    deltas = deltas[: max(2, int(np.count_nonzero(deltas >= tail)))]
    masses, first = _joined(_above(deltas, step, sign=-1), _above(reverse, step, sign=-1), 0.0, step)
    most = _joined(_above(deltas, step, sign=1), _above(reverse, step, sign=1), 0.0, step)[0].sum()
    masses[-first] = max(0.0, 1 - float(most) - float(deltas[-1]) - missing - 1e-14)
    masses *= 1 - share
    masses[-first] += share
    return masses, first


def _excess(deltas: Array, reverse: Array, step: float, share: float) -> tuple[float, float]:
    """(tail, missing) that make up for the gaps beyond `share` of the chords."""
    over, under = _gaps(deltas, step) - share * deltas[1:], _gaps(reverse, step) - share * reverse[1:]
    tail = max(0.0, float(np.max(over))) / (1 - share)
    if under[0] > 0:
        return tail, math.inf  # nothing at loss 0 makes up for the next cell
    places = step * np.arange(1, len(under))
    missing = max(0.0, float(np.max(under[1:] / np.expm1(np.minimum(places, _LARGEST)))))
    return tail, missing + float(reverse[-1]) / math.expm1(min(step * len(under), _LARGEST))


def _gaps(deltas: Array, step: float) -> Array:
    """Upper bounds on the excess of each chord over the convex curve, which lies above its neighbours' extensions."""
    rise = np.diff(deltas)
    left = np.append(np.inf, rise[1:] - rise[:-1] * math.exp(step))
    right = np.append(rise[1:] * math.exp(-step) - rise[:-1], np.inf)
    left, right = (np.maximum(side, 0.0) + 8 * _UNIT * deltas[:-1] + 1e-300 for side in (left, right))
    return np.asarray(1 / (1 / left + 1 / right))


class _Composed:
    """The composition of masses on a grid: delta at any epsilon, and by how much rounding can have moved it."""

    def __init__(self, masses: Array, first: int, step: float, num_rounds: int, near: float) -> None:
        from scipy import fft

        losses = np.asarray((np.arange(len(masses)) + first) * step, dtype=np.float64)
        self._tilt, self._log_mass, weighted = _tilted(masses, losses, num_rounds, near)
        low, high = _window(weighted, losses - losses[0], num_rounds, step)
        size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
        transform = fft.rfft(weighted, size)
        forward = _PER_BIT * math.log2(size) * _UNIT  # error of each coefficient; the masses sum to 1
        spread = 2 * float(np.sum((np.abs(transform) + forward) ** (num_rounds - 1))) / size
        self._error = spread * (num_rounds * forward + (_PER_POWER * num_rounds + 8) * _UNIT + 2 * forward)
        composed = np.roll(fft.irfft(transform**num_rounds, size), -(low % size))[: high - low + 1]
        self._losses = (np.arange(low, high + 1) + first * num_rounds) * step
        self._weights = composed
        self._log_mass *= num_rounds

    def delta(self, epsilon: float) -> tuple[float, float]:
        """(delta, bound on its error) of the finite losses at `epsilon`."""
        start = int(np.searchsorted(self._losses, epsilon, side="right"))
        over = self._losses[start:] - epsilon
        factor = math.exp(min(_LARGEST, self._log_mass - self._tilt * epsilon))
        fading = np.exp(-self._tilt * over)
        value = float(np.sum(self._weights[start:] * fading * -np.expm1(-over)))
        return factor * value, factor * (self._error * float(np.sum(fading)) + _OUTSIDE)


def _tilted(masses: Array, loss_grid: Array, num_rounds: int, near: float) -> tuple[float, float, Array]:
    """(tilt, logarithm of the weighted total, weighted masses that sum to 1), at the best tilt for delta at `near`."""

    def chernoff(tilt: float) -> float:
        return num_rounds * math.log(float(np.sum(masses * np.exp(tilt * loss_grid)))) - tilt * near

    tilt = _least(chernoff, 200 / max(1.0, float(np.max(np.abs(loss_grid)))))
    weighted = masses * np.exp(tilt * loss_grid)
    total = float(np.sum(weighted))
    return tilt, math.log(total), weighted / total


def _window(weighted: Array, places: Array, num_rounds: int, step: float) -> tuple[int, int]:
    """(lowest, highest) index that holds the composed distribution, but for a share of `_OUTSIDE` (Chernoff)."""
    mean = float(weighted @ places)
    deviation = math.sqrt(num_rounds * float(weighted @ (places - mean) ** 2))

    def bound(sign: int, order: float) -> float:
        moment = math.log(float(np.sum(weighted * np.exp(sign * order * (places - mean)))))
        return num_rounds * mean + sign * (num_rounds * moment + math.log(2 / _OUTSIDE)) / order

    largest = min(20 / deviation, 300 / float(places[-1]))
    low = bound(-1, _least(lambda order: -bound(-1, order), largest, least=largest / 100))
    high = bound(1, _least(lambda order: bound(1, order), largest, least=largest / 100))
    return max(0, math.floor(low / step)), min((len(weighted) - 1) * num_rounds, math.ceil(high / step))


def _least(function: Callable[[float], float], most: float, least: float = 0.0) -> float:
    """Approximate minimum of a unimodal function; every argument gives a valid bound, this one a tight bound."""
    from scipy.optimize import minimize_scalar

    return float(minimize_scalar(function, bounds=(least, most), method="bounded", options={"maxiter": 15}).x)


def _crossing(composed: _Composed, delta: float, near: float, factor: float) -> tuple[float, float]:
    """Two values of epsilon >= 0, just below and just above the point where the composed delta falls to `delta`.

    The composed delta is adjusted for its error, which is added for a factor above 1 and subtracted for one below 1.
    Both are infinite if the target is not reached until far beyond `near`.
    """

    def is_over(epsilon: float) -> bool:
        value, error = composed.delta(epsilon)
        return factor * (value + (error if factor > 1 else -error)) > delta

    low = high = near
    width = 1e-10 * near
    while is_over(high):
        low, high, width = high, high + width, 8 * width
        if high > 3 * near + 1:
            return low, math.inf
    while low > 0 and not is_over(low):
        low, high, width = max(0.0, low - width), low, 8 * width
    if low == 0 and not is_over(0.0):
        return 0.0, 0.0
    while high - low > 1e-12 * near + 1e-4 * abs(high - near):
        middle = (low + high) / 2
        low, high = (middle, high) if is_over(middle) else (low, middle)
    return low, high


_NO_REPEATS = "dp-accounting does not compose several selections; the event describes them."


def recompute(event: Event, *, num_rounds: int, accountant: str) -> dict[str, Any]:
    """The event of all rounds, the relation, and the dp-accounting class that gives `accountant`'s epsilon.

    `accountant` is None with a `reason` where there is none; with an accountant, `reason` states any difference.
    """
    if type(event) not in EVENTS:
        return {"accountant": None, "reason": f"dp-accounting has no event for {type(event).__name__}."}
    from dp_accounting import SelfComposedDpEvent

    event = event.at_most(MAX_MULTIPLIER)
    by, reason = event.dp_accountant(accountant)
    if num_rounds > 1 and isinstance(event, RepeatAndSelect):
        by, reason = None, _NO_REPEATS
    made = {
        "library": "dp-accounting",
        "event": _plain(SelfComposedDpEvent(event.dp_event(), num_rounds).to_named_tuple()),
        "neighboring_relation": RELATIONS[event.adjacency],
        "accountant": by,
        "reason": reason,
    }
    if by == "PLDAccountant":
        made["value_discretization_interval"] = poisson_step(cast(PoissonGaussian, event))  # no other event has it
    return made


def _plain(part: Any) -> Any:
    """A dp-accounting event as plain data, from its named tuples."""
    if isinstance(part, list):
        return [_plain(entry) for entry in part]
    if not hasattr(part, "_asdict"):
        return part
    fields = {name: _plain(value) for name, value in part._asdict().items() if name != "module_name"}
    return {"class": fields.pop("class_name"), **fields}


def risk(
    event: Event, *, num_rounds: int, delta: float, accountant: str, failure_probability: float = 0.0
) -> dict[str, float]:
    """Bounds on the success of somebody who guesses which of two neighbours was present.

    The share of true positives at 1% and 5% false alarms, and `advantage`, the most by which true positives exceed
    false alarms. With delta(epsilon) for either order of the neighbours, true positives at a rate a of false alarms are
    at most exp(s) a + delta(s) for s >= 0, and 1 - exp(s) (1 - a - delta(-s)) for s < 0, whatever s is; the advantage
    is delta(0). The search for the best s, of the size of epsilon at `delta`, affects the tightness of a bound, not its
    validity. `failure_probability` is that of epsilon's assumptions.
    """
    around = epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    if around == 0:  # then delta(0) is at most `delta`
        bounds = {name: alarms + delta for name, alarms in _FALSE_ALARMS.items()} | {"advantage": delta}
    else:
        bounds = _risk(event, num_rounds, around, accountant)
    return {name: min(1.0, bound + failure_probability) for name, bound in bounds.items()}


@lru_cache(maxsize=4096)
def _risk(event: Event, num_rounds: int, around: float, accountant: str) -> dict[str, float]:
    furthest = min(2 * around + 1, 30.0)  # beyond 30 a bound equals 1 up to 1e-13

    def bound(alarms: float, at: float) -> float:
        delta = delta_at(event, num_rounds=num_rounds, epsilon=abs(at), accountant=accountant)
        return math.exp(at) * alarms + delta if at >= 0 else 1 - math.exp(at) * (1 - alarms - delta)

    bounds = {}
    for name, alarms in _FALSE_ALARMS.items():
        best = _least(partial(bound, alarms), min(furthest, -math.log(alarms)), least=-furthest)
        bounds[name] = bound(alarms, best)
    return bounds | {"advantage": delta_at(event, num_rounds=num_rounds, epsilon=0.0, accountant=accountant)}


def evidence(event: Event, *, num_rounds: int, delta: float, accountant: str) -> dict[str, Any]:
    """As plain data: `bracket`, `profile`, `recompute`; `mu` where the whole run is one Gaussian, and so mu-GDP.

    `bracket` has the least and the most that epsilon can be for the accounted pair, all rounding included; a `reason`
    where there is no loss distribution to bound. `profile` lists further (epsilon, delta) pairs that hold
    simultaneously.
    """
    return {
        "bracket": _bounds_of(event, num_rounds, delta),
        **derived(event, num_rounds=num_rounds, delta=delta, accountant=accountant),
    }


def derived(event: Event, *, num_rounds: int, delta: float, accountant: str) -> dict[str, Any]:
    """The evidence without its bracket, which takes as long as all the rest."""
    stated = epsilon(event, num_rounds=num_rounds, delta=delta, accountant=accountant)
    pairs = profile(event, num_rounds=num_rounds, around=stated, accountant=accountant)
    return {
        "profile": [{"epsilon": at, "delta": its_delta} for at, its_delta in pairs],
        "risk": risk(event, num_rounds=num_rounds, delta=delta, accountant=accountant),
        **({"mu": math.sqrt(num_rounds) / event.noise_multiplier} if event.plain_gaussian else {}),
        "recompute": recompute(event, num_rounds=num_rounds, accountant=accountant),
    }


def _bounds_of(event: Event, num_rounds: int, delta: float) -> dict[str, Any]:
    try:
        ends = bracket(event, num_rounds=num_rounds, delta=delta)
    except UnsupportedEvent as refusal:
        return {"least": None, "most": None, "reason": str(refusal)}
    return {"least": ends.least, "most": None if math.isinf(ends.most) else ends.most, "reason": None}
