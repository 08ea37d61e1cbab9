"""The figures of a report, in order, and how they are saved."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rrcluster.report.comparisons import draw_over_epsilon, draw_over_size, draw_worst_decile
from rrcluster.report.confusion import draw_confusion
from rrcluster.report.curves import draw_accuracy
from rrcluster.report.drawing import Drawing
from rrcluster.report.folders import RunGroup
from rrcluster.report.sizes import draw_rebalanced, draw_sizes
from rrcluster.storage import write_file

FIGURES: dict[str, Callable[[Sequence[RunGroup]], list[Drawing]]] = {
    "accuracy": draw_accuracy,
    "privacy-utility": partial(draw_over_epsilon, name="accuracy", called="privacy-utility"),
    "worst-decile": draw_worst_decile,
    "clustering": partial(draw_over_epsilon, name="clustering_accuracy", called="clustering"),
    "min-cluster-size": draw_over_size,
    "confusion": draw_confusion,
    "rebalanced": draw_rebalanced,
    "sizes": draw_sizes,
}


def draw_figures(groups: Sequence[RunGroup]) -> tuple[Drawing, ...]:
    """Every figure that the runs have values for. Needs matplotlib (`ConfigError` without it)."""
    return tuple(drawing for make in FIGURES.values() for drawing in make(groups))


def save_figures(drawings: Sequence[Drawing], folder: Path) -> tuple[Path, ...]:
    """Write each figure as PNG and PDF."""
    return tuple(
        write_file(folder / f"{drawing.name}.{kind}", content)
        for drawing in drawings
        for kind, content in (("png", drawing.png), ("pdf", drawing.pdf))
    )
