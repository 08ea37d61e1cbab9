"""The figure of `rrcluster theory`: terms of the one-round bound over the least cluster size B."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rrcluster.errors import ConfigError
from rrcluster.report.drawing import Drawing, draw, legend
from rrcluster.report.series import nth_look

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


def standalone_svg(drawing: Drawing) -> str:
    """The SVG of a drawing as a file of its own."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return drawing.svg.replace("<svg", f"<svg {names}", 1)
