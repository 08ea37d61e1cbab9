"""Ours beside the paper's, from a folder that `rrcluster reproduce` has filled. Nothing is computed anew."""

from rrcluster.paper.paper_page import ReproductionReport, make_reproduction, write_verdicts
from rrcluster.paper.read_reproduction import Reproduced, is_reproduction, read_reproduction

__all__ = [
    "Reproduced",
    "ReproductionReport",
    "is_reproduction",
    "make_reproduction",
    "read_reproduction",
    "write_verdicts",
]
