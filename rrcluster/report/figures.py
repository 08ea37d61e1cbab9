"""The figures of a report, in order, and of `rrcluster theory`; how they are saved."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.report.cluster_figures import draw_confusion, draw_rebalanced, draw_sizes
from rrcluster.report.comparisons import draw_over_epsilon, draw_over_size, draw_worst_decile
from rrcluster.report.curves import draw_accuracy
from rrcluster.report.drawing import Drawing, draw, legend, standalone_svg
from rrcluster.report.folders import RunGroup
from rrcluster.report.series import nth_look
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


Terms = Mapping[str, Sequence[float]]  # name -> value at each B


def write_bounds_figure(path: Path, sizes: Sequence[int], panels: Mapping[str, Terms]) -> None:
    """Write the figure in the format of the file's suffix: .png, .pdf or .svg. One panel per form of the bound."""
    drawing = _draw_bounds(sizes, panels)
    content = {".png": drawing.png, ".pdf": drawing.pdf, ".svg": standalone_svg(drawing).encode()}[path.suffix]
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"plot = {path} cannot be written ({error.strerror}); choose a writable folder.") from None


def _draw_bounds(sizes: Sequence[int], panels: Mapping[str, Terms]) -> Drawing:
    def paint(figure: Any) -> None:
        column = figure.subplots(len(panels), sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (form, terms) in zip(column, panels.items(), strict=True):
            for place, (name, values) in enumerate(terms.items()):
                shown = [value if math.isfinite(value) and value > 0 else math.nan for value in values]
                axes.plot(sizes, shown, label=name.replace("_", " "), **nth_look(place).style())
            axes.set_yscale("log")
            axes.set_title(f"as {form}", loc="left")
            axes.set_ylabel("term of the bound")
        column[-1].set_xlabel("least cluster size (B)")
        legend(figure, column[0])

    forms = " and ".join(f"as {form}" for form in panels)
    return draw(
        "theory",
        paint,
        height=4.2,
        caption=f"Terms of the one-round bound over B, {forms}.",
        alt=f"Charts of the terms of the one-round bound over the least cluster size B: {forms}.",
    )
