"""Accuracy over rounds, with one panel per epsilon where there are several."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rrcluster.report.drawing import Drawing, draw, near_chance, whole_numbers
from rrcluster.report.estimate import estimate
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.line_chart import Curve, CurvePanel, bands_note, paint_panels, panels_height
from rrcluster.report.notation import percent
from rrcluster.report.series import arenas, epsilon_series, style_places
from rrcluster.report.tables import chance_level, group_labels

PANELS = 4  # of one figure; more panels make more figures


def draw_accuracy(groups: Sequence[RunGroup]) -> list[Drawing]:
    """Convergence: mean accuracy over rounds, with bands over seeds."""
    panels = [panel for panel in _panels(groups) if panel.curves]
    pages = [panels[first : first + PANELS] for first in range(0, len(panels), PANELS)]
    chance = chance_level(groups)
    return [
        draw_rounds(page, f"accuracy-{number}" if number > 1 else "accuracy", chance=chance)
        for number, page in enumerate(pages, 1)
    ]


def draw_rounds(
    panels: Sequence[CurvePanel], name: str, *, title: str = "Accuracy over rounds", chance: float | None = None
) -> Drawing:
    """Panels of accuracy over rounds as one figure."""
    curves = [(panel, curve) for panel in panels for curve in panel.curves]
    ends = "; ".join(
        f"{curve.label}{f' ({panel.title})' if panel.title else ''} ends at {percent(curve.points[-1].mean)}%"
        for panel, curve in curves
    )
    near = near_chance(chance, (point for _, curve in curves for point in curve.points))
    reference = (f"chance ({100 * chance:g}%)", 100 * chance) if chance is not None and near else None
    note = f" Chance level: {100 * chance:g}%." if chance is not None and not near else ""

    def paint(figure: Any) -> None:
        column = paint_panels(figure, panels, xlabel="round", ylabel="accuracy (%)", reference=reference)
        whole_numbers(column[-1])

    return draw(
        name,
        paint,
        height=panels_height(panels),
        caption=f"{title} ({DIAGNOSTIC}).{bands_note(panels)}{note}",
        alt=f"Line chart: {title[0].lower()}{title[1:]}, {DIAGNOSTIC}: {ends}.",
    )


def accuracy_curve(runs: Iterable[Run], *, label: str, place: int) -> Curve:
    """Mean accuracy of runs that differ in the seed, at the rounds that every one of them evaluated."""
    seeds = [{entry.round_index: entry.accuracy for entry in run.diagnostics} for run in runs]
    shared = [at for at in (seeds[0] if seeds else ()) if all(seed.get(at) is not None for seed in seeds)]
    return Curve.through(((at + 1, estimate(seed[at] for seed in seeds)) for at in shared), label=label, place=place)


def _panels(groups: Sequence[RunGroup]) -> list[CurvePanel]:
    """All methods in one panel; one panel per context and epsilon where a method was run at several epsilons."""
    several = any(len(entry.groups) > 1 for part in arenas(groups).values() for entry in epsilon_series(part))
    if not several and len(arenas(groups)) == 1:
        labels = group_labels(groups)
        return [_panel("", [(label, place, groups[place]) for place, label in enumerate(labels)])]
    panels: list[CurvePanel] = []
    styles = style_places(groups)
    for title, part in arenas(groups).items():
        at: dict[float, list[tuple[str, int, RunGroup]]] = {}
        for entry in epsilon_series(part):
            for epsilon, group in zip(entry.places, entry.groups, strict=True):
                label = entry.label if math.isfinite(epsilon) else group.label
                at.setdefault(epsilon, []).append((label, styles[entry.label], group))
        for epsilon in sorted(at):
            named = "no privacy" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
            panels.append(_panel(f"{title}, {named}" if title else named, at[epsilon]))
    return panels


def _panel(title: str, entries: Sequence[tuple[str, int, RunGroup]]) -> CurvePanel:
    curves = [accuracy_curve(group.runs, label=label, place=place) for label, place, group in entries]
    return CurvePanel(title, tuple(curve for curve in curves if curve.at))
