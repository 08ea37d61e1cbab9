"""Ours beside the paper's, from a folder that `rrcluster reproduce` has filled. Nothing is computed anew."""

from rrcluster.report.reproduction.page import ReproductionReport, make_reproduction, write_verdicts
from rrcluster.report.reproduction.read import Reproduced, is_reproduction, read_reproduction

__all__ = [
    "Reproduced",
    "ReproductionReport",
    "is_reproduction",
    "make_reproduction",
    "read_reproduction",
    "write_verdicts",
]
