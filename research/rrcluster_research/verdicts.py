"""Verdicts on the paper's claims, from the runs that have finished, by paired t-tests over seeds.

Two methods of one seed have the same clients, partition and first models.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rrcluster.report.tables import TextTable
from rrcluster.report.values import Estimate, estimate
from rrcluster_research.read_reproduction import MeasuredColumn, Reproduced

LEVEL = 0.05


@dataclass(frozen=True)
class PairedDifference:
    """A mean difference, positive where the first method is better, and one-sided p-values of no difference."""

    difference: Estimate
    p_higher: float
    p_lower: float


def compare(better: Mapping[int, float], worse: Mapping[int, float], *, measure: str) -> PairedDifference | None:
    """The difference over the seeds that both have; None with fewer than two of them. Lower losses are better."""
    sign = -1.0 if measure == "loss" else 1.0
    differences = [sign * (better[seed] - worse[seed]) for seed in sorted(better) if seed in worse]
    mean = estimate(differences)
    if mean is None or mean.count < 2:
        return None
    p_higher = _p_value(differences)
    return PairedDifference(mean, p_higher, 1.0 - p_higher)


def compare_rows(
    reproduced: Reproduced, pair: tuple[str, str], column: MeasuredColumn, mechanism: str, measure: str | None = None
) -> PairedDifference | None:
    """The difference of two rows in one column; None where one of them has too few runs."""
    first, second = reproduced.row(pair[0]), reproduced.row(pair[1])
    if first is None or second is None:
        return None
    one, two = (reproduced.values(row, column, mechanism, measure) for row in (first, second))
    return compare(one, two, measure=measure or reproduced.measure)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's method, which bounds the probability of any false positive."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _p_value(differences: Sequence[float]) -> float:
    """P(T >= t) for the paired t statistic; by the sign alone if all differences are equal."""
    from scipy.special import stdtr

    n = len(differences)
    mean = math.fsum(differences) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (n - 1))
    if spread == 0:
        return 0.5 if mean == 0 else float(mean < 0)
    return float(stdtr(n - 1, -mean / (spread / math.sqrt(n))))


HOLDS, PARTLY, FAILS, UNKNOWN = "holds", "holds partly", "does not hold", "not yet measured"
_SHOWN = 0.0005  # of accuracy: smaller differences print as 0.0 points


@dataclass(frozen=True)
class CellCount:
    """The number of a claim's cells, and of those in which it is true."""

    cells: int
    differences: tuple[float, ...]  # of the measured cells
    higher: int  # significantly
    lower: int  # significantly
    least: float = 0.0  # smaller differences of means do not count, unless significant

    @property
    def above(self) -> int:
        """Cells in which the mean is higher, significantly or not."""
        return max(self.higher, sum(difference > 0 and difference >= self.least for difference in self.differences))


def verdict_table(measured: Mapping[str, Reproduced], claims: Mapping[str, Sequence[Mapping[str, Any]]]) -> TextTable:
    """One line per claim, by name of the study; a study without runs counts as not measured."""
    rows = []
    for name, entries in claims.items():
        rows += [
            _line(measured[name], claim)
            if name in measured
            else (claim["text"], f"{name}: {claim['where']}", _kind(claim), "none yet", UNKNOWN)
            for claim in entries
        ]
    small = any(reproduced.about["quick"] for reproduced in measured.values())
    quick = " Quick versions: too small to settle anything." if small else ""
    return TextTable(
        title="The paper's claims",
        columns=("Claim", "In the paper", "Mechanism", "Evidence here", "Verdict"),
        rows=tuple(rows),
        note="Holds: significantly better in every cell (one-sided paired t-tests over seeds at 5%, adjusted by Holm's "
        "method within the claim). Does not hold: significantly better in no cell, and not better at all (by 0.1 "
        "points of accuracy, rounded) in at least half of them. Otherwise it holds partly. Claims about some budget "
        f"need one cell; claims of being competitive, none that is significantly worse.{quick}",
        diagnostic=frozenset({3, 4}),
        text_columns=frozenset(range(5)),
    )


def count(reproduced: Reproduced, claim: Mapping[str, Any]) -> CellCount:
    """Compare every pair of the claim in every column of its mechanism."""
    columns = [column for column in reproduced.columns if claim["mechanism"] in column.mechanisms]
    places = [(tuple(pair), column) for pair in claim["pairs"] for column in columns]
    compared = [compare_rows(reproduced, pair, column, claim["mechanism"], claim["measure"]) for pair, column in places]
    measured = [one for one in compared if one is not None]
    return CellCount(
        cells=len(places),
        differences=tuple(one.difference.mean for one in measured),
        higher=sum(p < LEVEL for p in holm([one.p_higher for one in measured])),
        lower=sum(p < LEVEL for p in holm([one.p_lower for one in measured])),
        least=0.0 if _in_loss(reproduced, claim) else _SHOWN,
    )


def verdict(counted: CellCount, needs: str) -> str:
    """holds, holds partly, does not hold, or not yet measured."""
    measured = len(counted.differences)
    if measured == 0:
        return UNKNOWN
    if needs == "some":
        return HOLDS if counted.higher else PARTLY if counted.above else FAILS
    if needs == "not worse":
        return FAILS if counted.lower == measured else PARTLY if counted.lower else HOLDS
    if counted.higher == counted.cells:
        return HOLDS
    return FAILS if counted.higher == 0 and 2 * counted.above <= measured else PARTLY


def _line(reproduced: Reproduced, claim: Mapping[str, Any]) -> tuple[str, ...]:
    counted = count(reproduced, claim)
    where = f"{reproduced.about['name']}: {claim['where']}"
    return (claim["text"], where, _kind(claim), _evidence(reproduced, claim, counted), verdict(counted, claim["needs"]))


def _kind(claim: Mapping[str, Any]) -> str:
    return {"none": "no noise"}.get(claim["mechanism"], str(claim["mechanism"]))


def _evidence(reproduced: Reproduced, claim: Mapping[str, Any], counted: CellCount) -> str:
    measured = len(counted.differences)
    if measured == 0:
        return "; ".join(["none yet", *_published(reproduced, claim)])
    loss = _in_loss(reproduced, claim)
    low, high = (edge(counted.differences) * (1 if loss else 100) for edge in (min, max))
    left = "" if measured == counted.cells else f" ({counted.cells - measured} more not measured)"
    spread = f"{low:+.4g} to {high:+.4g} of loss" if loss else f"{low:+.1f} to {high:+.1f} points"
    text = (
        f"better in {counted.above} of {measured} cells{left}, significantly in {counted.higher}, significantly worse "
        f"in {counted.lower}; differences {spread}; {reproduced.num_seeds} seeds"
    )
    return "; ".join([text, *_published(reproduced, claim)])


def _in_loss(reproduced: Reproduced, claim: Mapping[str, Any]) -> bool:
    return bool((claim["measure"] or reproduced.measure) == "loss")


def _published(reproduced: Reproduced, claim: Mapping[str, Any]) -> list[str]:
    """In how many cells the published numbers agree with the claim."""
    agree: list[bool] = []
    for first, second in claim["pairs"]:
        one, two = reproduced.row(first), reproduced.row(second)
        if one is None or two is None or claim["measure"] is not None:
            continue
        columns = [column for column in reproduced.columns if claim["mechanism"] in column.mechanisms]
        agree += [gap > 0 for column in columns if (gap := reproduced.published_gap(one, two, column)) is not None]
    return [f"published numbers: {sum(agree)} of {len(agree)} cells"] if agree else []
