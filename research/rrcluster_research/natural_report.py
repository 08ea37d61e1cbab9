"""The page and the figure of `natural`, from its measurements."""

from collections.abc import Sequence
from typing import Any

from rrcluster.report.drawing import INK, MARKERS, PALETTE, Drawing, draw
from rrcluster.report.tables import TextTable, to_markdown
from rrcluster.report.values import NOTHING, estimate
from rrcluster_research.natural_study import CONTENDERS, DELTA, EPSILONS, NEWEST, ONE, OURS, RANDOM, Measured
from rrcluster_research.verdicts import PairedDifference, compare

_DRAWN = ("personalised", "fedper", OURS, "known")  # beside one model
_WORDS = {RANDOM: "random rows held out", NEWEST: "each client's newest rows held out"}
_DECLARED_NOTE = (
    "Methods with declared columns read those that the recipe brings to about 0..1, by constants; their clip and rate "
    "were chosen on wages. FedPer needs two layers and has `mlp`, the others are linear. The default and one model are "
    "told nothing but the table, epsilon and delta."
)
_NOTE = (
    "Accuracy in %, mean over clients, on rows held out ({share:.0%} of each client's). A diagnostic, computed from "
    "raw data. epsilon is client-level at delta = {delta:g}; seeds differ in the noise, the rows held out are the "
    "same. Numbers in brackets: seeds, where they are not the most of the table."
)


def make_page(cells: Sequence[Measured], *, test_share: float, figure: str) -> str:
    """All measurements as Markdown."""
    lines = ["# Real people: one model, their own, and groups", ""]
    lines += [_NOTE.format(share=test_share, delta=DELTA), "", *_summary(cells)]
    if figure:
        lines += [f"![{_alt(cells)}]({figure})", ""]
    for rows in (RANDOM, NEWEST):
        for epsilon in EPSILONS:
            part = [cell for cell in cells if cell.rows == rows and cell.epsilon in (epsilon, None)]
            if any(cell.epsilon == epsilon for cell in part):
                lines += [f"## Epsilon {epsilon:g}, {_WORDS[rows]}", ""]
                lines += [to_markdown(_table(part, "accuracy")), to_markdown(_clients_table(part))]
    lines += ["## Against every other method", "", to_markdown(_against(cells)), *_how()]
    return "\n".join(lines).rstrip() + "\n"


def _summary(cells: Sequence[Measured]) -> list[str]:
    """One sentence for each kind of rows and budget."""
    lines = []
    for rows in (RANDOM, NEWEST):
        for epsilon in EPSILONS:
            part = [cell for cell in cells if (cell.rows, cell.epsilon, cell.method) == (rows, epsilon, OURS)]
            gains = [_mean(part, table, OURS, "gain") for table in _tables(part)]
            known = [gain for gain in gains if gain is not None]
            if known:
                lines.append(
                    f"- Epsilon {epsilon:g}, {_WORDS[rows]}: the default is above one model on "
                    f"{sum(gain > 0 for gain in known)} of {len(known)} tables, by {sum(known) / len(known):.1f} on "
                    f"average; its least gain is {min(known):+.1f}."
                )
    return [*lines, ""] if lines else []


def _tables(cells: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(cell.table for cell in cells))


def _values(cells: Sequence[Measured], table: str, method: str, measure: str) -> dict[int, float]:
    """By seed."""
    return {cell.seed: getattr(cell, measure) for cell in cells if (cell.table, cell.method) == (table, method)}


def _mean(cells: Sequence[Measured], table: str, method: str, measure: str) -> float | None:
    known = estimate(_values(cells, table, method, measure).values())
    return None if known is None else known.mean


def _table(cells: Sequence[Measured], measure: str) -> TextTable:
    """A row for each table, a column for each method."""
    methods = [name for name in CONTENDERS if any(cell.method == name for cell in cells)]
    most = max(len(_values(cells, cell.table, cell.method, measure)) for cell in cells)

    def text(table: str, method: str) -> str:
        values = _values(cells, table, method, measure)
        known = estimate(values.values())
        few = f" ({known.count})" if known is not None and known.count != most and CONTENDERS[method].noisy else ""
        return NOTHING if known is None else f"{known.mean:.1f}{few}"

    return _text_table(
        "Accuracy",
        ["table", "clients", *(CONTENDERS[name].label for name in methods)],
        [[table, _clients(cells, table), *(text(table, name) for name in methods)] for table in _tables(cells)],
        f"{most} seeds." if most > 1 else "One seed.",
    )


def _clients(cells: Sequence[Measured], table: str) -> str:
    return f"{next(cell.clients for cell in cells if cell.table == table):,}"


def _clients_table(cells: Sequence[Measured]) -> TextTable:
    """The effect of the default on clients, against one model."""
    rows = []
    for table in _tables(cells):
        ours, one = (_values(cells, table, name, "accuracy") for name in (OURS, ONE))
        tested = compare(ours, one, measure="accuracy")
        own = {name: _mean(cells, table, OURS, name) for name in ("worst_decile", "hurt", "hurt_by_chance", "helped")}
        first = [cell for cell in cells if (cell.table, cell.method) == (table, OURS)]
        if not first or own["hurt"] is None:
            continue
        worst = _mean(cells, table, ONE, "worst_decile")
        rows.append(
            [
                table,
                _gain_text(tested, _mean(cells, table, OURS, "gain")),
                f"{first[0].gain_error:.1f}",
                f"{worst:.1f} to {own['worst_decile']:.1f}" if worst is not None else NOTHING,
                f"{own['hurt']:.0f}%",
                f"{own['hurt_by_chance']:.0f}%",
                f"{own['helped']:.0f}%",
                _found(first),
            ]
        )
    head = ["table", "gain", "error over clients", "worst decile", "hurt", "by chance", "helped", "clusters, effects"]
    note = (
        "The default against one model. gain: with its 95% interval and one-sided p over seeds; error over clients: "
        "the standard error of the gain of one run. hurt: clients with fewer right answers than by one model; by "
        "chance: as many would be if a coin decided who is right wherever the two differ."
    )
    return _text_table("What the default does to clients", head, rows, note)


def _found(cells: Sequence[Measured]) -> str:
    effects = cells[0].effects
    sizes = f"{effects[0]:g}, {effects[1]:g}" if effects and max(effects) > 0.011 else "none"
    return f"{cells[0].clusters}; {sizes}"


def _gain_text(tested: PairedDifference | None, gain: float | None) -> str:
    if tested is None:
        return NOTHING if gain is None else f"{gain:+.1f}"
    interval = f" ± {tested.difference.half_width:.1f}" if tested.difference.half_width is not None else ""
    return f"{tested.difference.mean:+.1f}{interval} (p = {max(tested.p_higher, 1e-6):.1g})"


def _against(cells: Sequence[Measured]) -> TextTable:
    """Paired over tables: the default less each other method, seeds that both have."""
    rows = []
    for kind in (RANDOM, NEWEST):
        for epsilon in EPSILONS:
            part = [cell for cell in cells if cell.rows == kind and cell.epsilon in (epsilon, None)]
            if not any(cell.epsilon == epsilon for cell in part):
                continue
            for name in CONTENDERS:
                pairs = [
                    (_shared(part, table, OURS, name), _shared(part, table, name, OURS)) for table in _tables(part)
                ]
                known = {place: pair for place, pair in enumerate(pairs) if None not in pair}
                tested = compare(
                    *({place: pair[k] for place, pair in known.items()} for k in (0, 1)), measure="accuracy"
                )
                if name != OURS and tested is not None:
                    above = sum(ours > other for ours, other in known.values())
                    label = f"epsilon {epsilon:g}, {_WORDS[kind]}"
                    rows.append([label, CONTENDERS[name].label, _gain_text(tested, None), f"{above} of {len(known)}"])
    note = (
        "Mean over tables of the default's accuracy less the other's, its 95% interval, and a one-sided paired t-test."
    )
    return _text_table(
        "Paired over tables", ["rows", "other method", "the default gains", "above it on tables"], rows, note
    )


def _shared(cells: Sequence[Measured], table: str, method: str, other: str) -> Any:
    """Mean accuracy over the seeds that both methods have; over all where one of them has no noise."""
    values, others = (_values(cells, table, name, "accuracy") for name in (method, other))
    quiet = not (CONTENDERS[method].noisy and CONTENDERS[other].noisy)
    known = estimate(value for seed, value in values.items() if quiet or seed in others)
    return None if known is None or not others else known.mean


def _text_table(title: str, head: list[str], rows: list[list[str]], note: str) -> TextTable:
    return TextTable(title=title, columns=tuple(head), rows=tuple(map(tuple, rows)), note=note)


def _how() -> list[str]:
    lines = ["## What was run", ""]
    told = {
        "constant": "no model: the most common class of all training rows",
        "known": "the default, once for the clients of each true group (which are disjoint, so at the same epsilon)",
        "local": "50 epochs on the client's own rows; nothing is sent",
    }
    for name, contender in CONTENDERS.items():
        settings = ", ".join(f"{key} = {value}" for key, value in contender.settings.items())
        more = told.get(name, "")
        after = "personalised after the release" if contender.personalised else ""
        lines.append(f"- {contender.label}: {'; '.join(filter(None, (more, settings, after)))}.")
    lines += ["", _DECLARED_NOTE, ""]
    return [*lines, "What each table is: `rrcluster data describe NAME`."]


def draw_figure(cells: Sequence[Measured]) -> Drawing:
    """At the larger epsilon, random rows: each table's methods on one line, from one model to the best."""
    part = [cell for cell in cells if cell.rows == RANDOM and cell.epsilon == EPSILONS[0]]
    tables = _tables(part)

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for place, table in enumerate(reversed(tables)):
            found = {name: _mean(part, table, name, "accuracy") for name in (ONE, *_DRAWN)}
            known = [value for value in found.values() if value is not None]
            axes.plot([min(known), max(known)], [place, place], color="#c9ced6", linewidth=1.2, zorder=1)
            for k, (name, value) in enumerate(found.items()):
                if value is not None:
                    colour = (INK, PALETTE[4], PALETTE[3], PALETTE[0], PALETTE[2])[k]
                    size, above = {OURS: (6.5, 3), "known": (9.0, 4)}.get(name, (4.5, 2))
                    look = {"markerfacecolor": "none", "markeredgewidth": 1.2} if name == "known" else {}
                    label = CONTENDERS[name].label if place == len(tables) - 1 or name == "known" else None
                    axes.plot(
                        value,
                        place,
                        MARKERS[k],
                        color=colour,
                        markersize=size,
                        zorder=above,
                        label=label,
                        linestyle="none",
                        **look,
                    )
        axes.set_yticks(range(len(tables)), list(reversed(tables)))
        axes.set_xlabel("accuracy, mean over clients (%)")
        axes.set_ylim(-0.6, len(tables) - 0.4)
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=3)

    caption = f"Tables of real people at epsilon {EPSILONS[0]:g}, delta {DELTA:g}; random rows held out."
    return draw("natural", paint, height=1.1 + 0.28 * len(tables), width=5.6, caption=caption, alt=_alt(cells))


def _alt(cells: Sequence[Measured]) -> str:
    part = [cell for cell in cells if cell.rows == RANDOM and cell.epsilon == EPSILONS[0]]
    told = []
    for table in _tables(part):
        one, ours = (_mean(part, table, name, "accuracy") for name in (ONE, OURS))
        if one is not None and ours is not None:
            told.append(f"{table} {one:.0f} to {ours:.0f}")
    return f"Accuracy from one model to the default at epsilon {EPSILONS[0]:g}: " + ", ".join(told)
