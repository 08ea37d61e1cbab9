"""The figures of a report: accuracy, epsilon spent and released sizes, over rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rrcluster.report.drawing import DASHES, GRID, INK, MARKERS, PALETTE, Drawing, draw, legend, plain
from rrcluster.report.estimate import Estimate, estimate
from rrcluster.report.files import number, write_atomic
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.notation import delta_text, epsilon_text, percent
from rrcluster.report.tables import chance_level, group_labels

_PANELS = 4  # of one figure of sizes; more methods get more figures
_MARKED = 25  # curves of at most so many points show them
_NAMED_CLUSTERS = 8  # more clusters than these are drawn but not named

Curve = tuple[list[int], list[Estimate]]


def draw_figures(groups: Sequence[RunGroup]) -> tuple[Drawing, ...]:
    """Every figure that the runs have values for. Needs matplotlib (`ConfigError` without it)."""
    labels = group_labels(groups)
    drawings = [_accuracy(groups, labels), _epsilon(groups, labels), *_sizes(groups, labels)]
    return tuple(drawing for drawing in drawings if drawing is not None)


def save_figures(drawings: Sequence[Drawing], folder: Path) -> tuple[Path, ...]:
    """Write each figure as PNG and PDF."""
    return tuple(
        write_atomic(folder / f"{drawing.name}.{kind}", content)
        for drawing in drawings
        for kind, content in (("png", drawing.png), ("pdf", drawing.pdf))
    )


def _accuracy(groups: Sequence[RunGroup], labels: Sequence[str]) -> Drawing | None:
    curves = {label: _accuracy_curve(group) for label, group in zip(labels, groups, strict=True)}
    curves = {label: curve for label, curve in curves.items() if curve[0]}
    if not curves:
        return None
    chance = chance_level(groups)
    several = any(point.half_width is not None for _, points in curves.values() for point in points)
    ends = "; ".join(f"{label} ends at {percent(points[-1].mean)}%" for label, (_, points) in curves.items())
    band = " Bands: 95% t-interval of the mean over seeds." if several else ""
    return draw(
        "accuracy",
        lambda figure: _paint_accuracy(figure, curves, chance),
        height=2.3 + 0.08 * len(curves),
        caption=f"Accuracy over rounds ({DIAGNOSTIC}).{band}",
        alt=f"Line chart of accuracy over rounds, {DIAGNOSTIC}: {ends}.",
    )


def _accuracy_curve(group: RunGroup) -> Curve:
    """Mean accuracy at the rounds that every seed evaluated."""
    seeds = [{entry.round_index: entry.accuracy for entry in run.diagnostics} for run in group.runs]
    shared = [at for at in seeds[0] if all(seed.get(at) is not None for seed in seeds)]
    points = [(at + 1, estimate(seed[at] for seed in seeds)) for at in sorted(shared)]
    kept = [(at, point) for at, point in points if point is not None]
    return [at for at, _ in kept], [point for _, point in kept]


def _paint_accuracy(figure: Any, curves: dict[str, Curve], chance: float | None) -> None:
    axes = figure.subplots()
    for place, (label, (rounds, points)) in enumerate(curves.items()):
        style = line_style(place, marked=len(rounds) <= _MARKED)
        axes.plot(rounds, [100 * point.mean for point in points], label=plain(label), **style)
        low, high = [100 * point.low for point in points], [100 * point.high for point in points]
        if low != high:
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.18, linewidth=0)
    if chance is not None:
        _level(axes, 100 * chance, f"chance ({100 * chance:g}%)", "dotted")
    axes.set(xlabel="round", ylabel="accuracy (%)")
    _whole_rounds(axes)
    axes.set_title(DIAGNOSTIC, loc="right", fontstyle="italic")
    legend(figure, axes)


def _epsilon(groups: Sequence[RunGroup], labels: Sequence[str]) -> Drawing | None:
    """Curves that are the same to the last digit are drawn once, under all their names."""
    named: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        spent = tuple(
            (entry.round_index + 1, entry.epsilon) for entry in group.first.rounds if entry.epsilon is not None
        )
        if group.first.private and spent:
            named.setdefault(spent, []).append(label)
    if not named:
        return None
    lines = 1 if len(named) == 1 else sum(len(names) for names in named.values())
    deltas = {group.first.delta for group in groups if group.first.private}
    at = f" at delta = {delta_text(next(iter(deltas)))}" if len(deltas) == 1 else ""
    ends = "; ".join(f"{', '.join(names)} up to {epsilon_text(curve[-1][1])}" for curve, names in named.items())
    return draw(
        "epsilon",
        lambda figure: _paint_epsilon(figure, named),
        height=2.1 + 0.13 * lines,
        caption=f"Epsilon spent over rounds{at}, client-level.",
        alt=f"Line chart of epsilon spent over rounds: {ends}.",
    )


def _paint_epsilon(figure: Any, named: dict[tuple[tuple[int, float], ...], list[str]]) -> None:
    axes = figure.subplots()
    for place, (curve, names) in enumerate(named.items()):
        rounds, spent = zip(*curve, strict=True)
        label = "all methods" if len(named) == 1 and len(names) > 1 else plain(",\n".join(names))
        axes.plot((0, *rounds), (0, *spent), label=label, **line_style(place, marked=False))
    axes.set(xlabel="round", ylabel="epsilon spent")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _whole_rounds(axes)
    legend(figure, axes)


def _sizes(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[Drawing]:
    panels = [
        (label, group.first)
        for label, group in zip(labels, groups, strict=True)
        if any(entry.sizes for entry in group.first.rounds)
    ]
    pages = [panels[first : first + _PANELS] for first in range(0, len(panels), _PANELS)]
    seeds = any(len(group.runs) > 1 for group in groups)
    return [draw_sizes(page, f"sizes-{at}" if at > 1 else "sizes", seeds) for at, page in enumerate(pages, start=1)]


def draw_sizes(panels: Sequence[tuple[str, Run]], name: str, several_seeds: bool) -> Drawing:
    """Released sizes over rounds, one panel per labelled run."""
    what = "Released cluster sizes over rounds: clients by their own choice, before any rebalancing."
    which = " The first seed of each method." if several_seeds else ""
    private = any(run.private for _, run in panels)
    noise = " Noise can make a size negative; it is shown as released." if private else ""
    methods = "; ".join(f"{label}: {run.num_clusters} clusters" for label, run in panels)
    return draw(
        name,
        lambda figure: _paint_sizes(figure, panels),
        height=0.75 + 1.25 * len(panels),
        caption=f"{what}{noise}{which}",
        alt=f"Line charts of released cluster sizes over rounds. {methods}.",
    )


def _paint_sizes(figure: Any, panels: Sequence[tuple[str, Run]]) -> None:
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, run) in zip(column, panels, strict=True):
        _paint_run_sizes(axes, run)
        axes.set_title(plain(label), loc="left")
        if not run.private:
            axes.set_title("exact, not private", loc="right", fontstyle="italic")
        axes.set_ylabel("clients")
    column[-1].set_xlabel("round")
    _whole_rounds(column[-1])
    _legend_of_all(figure, column)


def _paint_run_sizes(axes: Any, run: Run) -> None:
    rounds = [entry.round_index + 1 for entry in run.rounds if entry.sizes]
    for cluster in range(run.num_clusters):
        sizes = [entry.sizes[cluster] if cluster < len(entry.sizes) else None for entry in run.rounds if entry.sizes]
        label = f"cluster {cluster}" if run.num_clusters <= _NAMED_CLUSTERS else "_"
        values = [float("nan") if size is None else size for size in sizes]
        axes.plot(rounds, values, label=label, color=PALETTE[cluster % len(PALETTE)], linewidth=0.9)
    axes.axhline(0, color=GRID, linewidth=0.8, zorder=1)
    rate, clients = number(run.config.get("sample_rate")), number(run.config.get("num_clients"))
    if rate is not None and clients is not None:
        _level(axes, rate * clients / run.num_clusters, "expected if equal", "dashed")
    least = number(run.config.get("min_cluster_size"))
    if least:
        _level(axes, least, "B", "dotted")


def _legend_of_all(figure: Any, column: Sequence[Any]) -> None:
    """One legend for all panels: every name once."""
    every = [pair for axes in column for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(every)}
    names = sorted(unique, key=lambda label: (not label.startswith("cluster"), label))
    figure.legend([unique[name] for name in names], names, loc="outside lower center", ncols=3, columnspacing=1.2)


def line_style(place: int, *, marked: bool) -> dict[str, Any]:
    """Colour, dashes and marker of the line at a place: twelve that differ."""
    return {
        "color": PALETTE[place % len(PALETTE)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)] if marked else None,
    }


def _level(axes: Any, height: float, label: str, style: str) -> None:
    axes.axhline(height, color=INK, linestyle=style, linewidth=0.8, label=label)


def _whole_rounds(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)
