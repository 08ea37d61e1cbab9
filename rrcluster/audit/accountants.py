"""Check 4: accountants against closed forms, against each other, and against published values."""

import importlib.util
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from rrcluster.audit.targets import Finding
from rrcluster.privacy.composition import account_together
from rrcluster.privacy.events import FixedSize, KaryChoice, PoissonGaussian, RoundEvent

SUBJECT = "accountants"
_DELTA = 1e-4

# Bounds from privacy loss distributions on a fine grid, all losses rounded down or up, computed by a separate program:
# (event, rounds, delta) -> (lower, upper). Fixed-size values come from dominating pairs, which are not attained:
# one-sided.
ANCHORS: list[tuple[RoundEvent, int, float, float, float]] = [
    (PoissonGaussian(1.0, 0.1), 100, 1e-3, 4.7594, 4.8094),
    (PoissonGaussian(2.0, 0.1), 100, 1e-4, 1.9409, 1.9909),
    (PoissonGaussian(2.0, 0.2), 50, 1e-5, 3.4630, 3.5130),
    (FixedSize(1.0, 100, 1000), 100, 1e-3, 5.48, 5.54),
    (FixedSize(2.0, 100, 1000), 100, 1e-4, 2.14, 2.18),
]


class EpsilonOf(Protocol):
    """An accountant under audit: `rrcluster.privacy.accounting.epsilon`, or a stand-in."""

    def __call__(self, event: RoundEvent, *, num_rounds: int, delta: float, accountant: str) -> float:
        """Upper bound on epsilon."""


def check_accountants(epsilon: EpsilonOf, *, only: str | None = None) -> list[Finding]:
    """All cross-checks, or one of `CHECKS` by name. Deterministic."""
    findings, cached = [], lru_cache(maxsize=None)(epsilon)
    for name, (claim, check) in CHECKS.items():
        if only in (None, name):
            wrong = check(cached)
            holds = None if wrong == _NOT_INSTALLED else not wrong
            findings.append(Finding(SUBJECT, name, claim, wrong or "holds", holds))
    return findings


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Balle, Wang 2018, Theorem 8, solved by bisection: epsilon of one Gaussian release."""
    from scipy.special import ndtr

    def cost(eps: float) -> float:
        a, b = 1 / (2 * noise_multiplier), eps * noise_multiplier
        return float(ndtr(a - b) - math.exp(eps) * ndtr(-a - b))

    return _solve(cost, delta)


def sampled_epsilon(noise_multiplier: float, sample_rate: float, delta: float) -> float:
    """Epsilon of one Poisson-sampled Gaussian round, exactly: the worse of removing and adding the client."""
    from scipy.special import ndtr

    z, q = noise_multiplier, sample_rate

    def tail(x: float, mean: float) -> float:
        return float(ndtr(-(x - mean) / z))

    def crossing(ratio: float) -> float:  # where (1-q) + q exp((2x-1)/(2z^2)) equals ratio
        return -math.inf if ratio <= 1 - q else z * z * math.log((ratio - 1 + q) / q) + 0.5

    def removing(eps: float) -> float:
        x = crossing(math.exp(eps))
        return (1 - q) * tail(x, 0) + q * tail(x, 1) - math.exp(eps) * tail(x, 0)

    def adding(eps: float) -> float:
        x = crossing(math.exp(-eps))
        mixture = (1 - q) * (1 - tail(x, 0)) + q * (1 - tail(x, 1))
        return 1 - tail(x, 0) - math.exp(eps) * mixture if math.isfinite(x) else 0.0

    return max(_solve(removing, delta), _solve(adding, delta))


def _solve(cost: Callable[[float], float], delta: float) -> float:
    low, high = 0.0, 1.0
    if cost(low) <= delta:
        return 0.0
    while cost(high) > delta:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) > delta else (low, middle)
    return high


def _closed_forms(epsilon: EpsilonOf) -> str:
    for z, rounds in ((4.0, 1), (1.0, 1), (2.0, 9)):
        exact = gaussian_epsilon(z / math.sqrt(rounds), _DELTA)
        for event in (PoissonGaussian(z, 1.0), FixedSize(z, 50, 50)):
            computed = epsilon(event, num_rounds=rounds, delta=_DELTA, accountant="pld")
            if not exact - 1e-6 <= computed <= exact * 1.01 + 1e-3:
                return f"{computed:.5g} for {exact:.5g} without sampling, z = {z}, T = {rounds}"
    for z, q in ((1.0, 0.1), (0.7, 0.3)):
        exact = sampled_epsilon(z, q, _DELTA)
        computed = epsilon(PoissonGaussian(z, q), num_rounds=1, delta=_DELTA, accountant="pld")
        if not exact - 1e-6 <= computed <= exact * 1.01 + 1e-3:
            return f"{computed:.5g} for {exact:.5g} in one sampled round, z = {z}, q = {q}"
    return ""


def _responses(epsilon: EpsilonOf) -> str:
    """One round of k-ary randomised response and a Gaussian without sampling; RDP must be above it."""
    from scipy.special import ndtr

    for z, p, k in ((1.5, 0.6, 3), (3.0, 0.8, 2)):
        r = (1 - p) / (k - 1)
        loss = math.log(p / r)

        def gaussian(eps: float, z: float = z) -> float:
            return float(ndtr(1 / (2 * z) - eps * z) - math.exp(eps) * ndtr(-1 / (2 * z) - eps * z))

        def cost(eps: float, p: float = p, r: float = r, k: int = k, loss: float = loss) -> float:
            return p * gaussian(eps - loss) + (k - 2) * r * gaussian(eps) + r * gaussian(eps + loss)

        exact = _solve(cost, _DELTA)
        event = FixedSize(z, 50, 50, KaryChoice(p, k))
        computed = epsilon(event, num_rounds=1, delta=_DELTA, accountant="pld")
        if not exact - 1e-6 <= computed <= exact * 1.01 + 1e-3:
            return f"{computed:.5g} for {exact:.5g} in one round, z = {z}, p = {p}, k = {k}"
        for sampled, rounds in ((event, 4), (FixedSize(z, 10, 50, KaryChoice(p, k)), 4)):
            tight, loose = (
                epsilon(sampled, num_rounds=rounds, delta=_DELTA, accountant=name) for name in ("pld", "rdp")
            )
            if not tight <= loose * 1.001:
                return f"rdp {loose:.5g} below pld {tight:.5g} for {sampled}, T = {rounds}"
    return ""


def _rare(epsilon: EpsilonOf) -> str:
    """Epsilon is 0 only while a client's probability of taking part is at most delta."""
    event = PoissonGaussian(0.5, 1e-3)
    once, often = (epsilon(event, num_rounds=rounds, delta=2e-3, accountant="pld") for rounds in (1, 40))
    costs = f"{once:.4g} and {often:.4g} for 1 and 40 rounds at q = 1e-3, delta = 2e-3"
    return "" if once == 0 < often else costs


def _printed(epsilon: EpsilonOf) -> str:
    """The paper's accountant is valid, and looser than the tightest one."""
    for event, rounds, delta in ((FixedSize(2.0, 100, 1000), 100, 1e-4), (FixedSize(1.0, 50, 50), 3, 1e-3)):
        tight, loose = (epsilon(event, num_rounds=rounds, delta=delta, accountant=name) for name in ("pld", "paper"))
        if not tight <= loose * 1.001:
            return f"paper {loose:.5g} below pld {tight:.5g} for {event}, T = {rounds}"
    return ""


def _anchors(epsilon: EpsilonOf) -> str:
    for event, rounds, delta, lower, upper in ANCHORS:
        computed = epsilon(event, num_rounds=rounds, delta=delta, accountant="pld")
        if not lower <= computed <= upper:
            return f"{computed:.5g} outside {lower} to {upper} for {event}, T = {rounds}, delta = {delta:g}"
    return ""


def _ordered(epsilon: EpsilonOf) -> str:
    for event, rounds, delta, _, _ in ANCHORS:
        tight, loose = (epsilon(event, num_rounds=rounds, delta=delta, accountant=name) for name in ("pld", "rdp"))
        if not tight <= loose * 1.001:
            return f"rdp {loose:.5g} below pld {tight:.5g} for {event}, T = {rounds}"
    return ""


def _monotone(epsilon: EpsilonOf) -> str:
    base: dict[str, Any] = {"z": 1.5, "q": 0.1, "rounds": 20, "delta": 1e-4}

    def cost(accountant: str, changed: dict[str, Any]) -> float:
        s = base | changed
        event = PoissonGaussian(s["z"], s["q"])
        return epsilon(event, num_rounds=s["rounds"], delta=s["delta"], accountant=accountant)

    for accountant in ("rdp", "pld"):
        usual = cost(accountant, {})
        for name, more in {"rounds": 30, "delta": 1e-5, "q": 0.15, "z": 1.2}.items():
            if not cost(accountant, {name: more}) > usual:
                return f"{accountant}: {name} = {more} costs no more than {base[name]}"
    return ""


def _together(epsilon: EpsilonOf) -> str:
    """Several runs: Gaussians exactly; equal events as one longer run; sampled ones between looser bounds."""
    one, two, sampled = PoissonGaussian(2.0, 1.0), PoissonGaussian(3.0, 1.0), PoissonGaussian(1.5, 0.2)
    for parts, mu in ((((one, 3), (two, 5)), 3 / 4 + 5 / 9), (((one, 3), (one, 4), (two, 5)), 7 / 4 + 5 / 9)):
        exact = gaussian_epsilon(mu**-0.5, _DELTA)
        for row in account_together(parts, delta=_DELTA):
            if row.epsilon is None or not exact - 1e-9 <= row.epsilon <= exact * 1.2:
                return f"{row.epsilon} by {row.accountant} for {exact:.5g} of runs without sampling"
    tight, loose = (row.epsilon or 0.0 for row in account_together(((sampled, 20), (two, 5)), delta=_DELTA))
    alone = [
        epsilon(event, num_rounds=rounds, delta=_DELTA, accountant="pld") for event, rounds in ((sampled, 20), (two, 5))
    ]
    if not max(alone) < tight <= loose * 1.001:
        return f"{tight:.5g} by pld and {loose:.5g} by rdp of runs that each cost {alone} alone"
    return ""


_NOT_INSTALLED = "not compared: Opacus is not installed"


def _opacus(epsilon: EpsilonOf) -> str:
    if importlib.util.find_spec("opacus") is None:
        return _NOT_INSTALLED
    from opacus.accountants.analysis import rdp  # type: ignore[import-not-found,unused-ignore]

    orders = [1 + x / 10 for x in range(1, 100)] + [float(order) for order in range(12, 64)]
    for z, q, rounds in ((1.0, 0.1, 100), (2.0, 0.05, 50)):
        curve = rdp.compute_rdp(q=q, noise_multiplier=z, steps=rounds, orders=orders)
        by_opacus, _ = rdp.get_privacy_spent(orders=orders, rdp=curve, delta=_DELTA)
        by_rrcluster = epsilon(PoissonGaussian(z, q), num_rounds=rounds, delta=_DELTA, accountant="rdp")
        if abs(by_rrcluster - by_opacus) > 0.02 * by_opacus:
            return f"{by_rrcluster:.5g}, Opacus has {by_opacus:.5g} for z = {z}, q = {q}, T = {rounds}"
    return ""


CHECKS: dict[str, tuple[str, Callable[[EpsilonOf], str]]] = {
    "closed forms": ("epsilon of Gaussians and of one sampled round, exactly", _closed_forms),
    "randomised response": ("epsilon of a response and a Gaussian, exactly; RDP above it", _responses),
    "rare clients": ("epsilon 0 only for participation with probability at most delta", _rare),
    "paper's bound": ("the paper's accountant is above the tightest", _printed),
    "published values": ("within brackets computed independently", _anchors),
    "RDP above PLD": ("the looser bound is never below the tighter", _ordered),
    "monotone": ("more noise costs less; more rounds, larger cohorts and smaller delta cost more", _monotone),
    "several runs": ("costs of runs on the same clients add up", _together),
    "Opacus": ("the same RDP epsilon as Opacus", _opacus),
}
