"""Every term of every bound, as printed beside as corrected, over a range of B."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rrcluster.theory.assumptions import Failure, failed_run
from rrcluster.theory.corollary import many_rounds, many_rounds_printed
from rrcluster.theory.lemma import misassignment, misassignment_printed
from rrcluster.theory.round import one_round, one_round_printed
from rrcluster.theory.setting import Setting

ROUND_TERMS = ("contraction", "own_noise", "bias", "wrong_noise", "privacy_noise", "floor")


@dataclass(frozen=True)
class Term:
    """One term in both forms; infinite or NaN where a form has no value."""

    part: str  # lemma, round or run
    name: str
    printed: float
    corrected: float


@dataclass(frozen=True)
class Comparison:
    """All terms at one B, and the assumptions of the corrected forms that fail there."""

    min_cluster_size: int
    terms: tuple[Term, ...]
    failed: tuple[Failure, ...]


def compare(setting: Setting, min_cluster_sizes: Iterable[int]) -> tuple[Comparison, ...]:
    """One comparison per B; the rest of the setting stays."""
    return tuple(_at(replace(setting, min_cluster_size=size)) for size in min_cluster_sizes)


def _at(setting: Setting) -> Comparison:
    pairs = (
        ("lemma", ("choice", "identifier", "rebalance", "total"), misassignment_printed, misassignment),
        ("round", ROUND_TERMS, one_round_printed, one_round),
        ("run", ("rate", "num_rounds", "final_error", "failure_probability"), many_rounds_printed, many_rounds),
    )
    terms = []
    for part, names, as_printed, as_corrected in pairs:
        printed, corrected = as_printed(setting), as_corrected(setting)
        terms += [Term(part, name, getattr(printed, name), getattr(corrected, name)) for name in names]
    return Comparison(setting.min_cluster_size, tuple(terms), failed_run(setting))
