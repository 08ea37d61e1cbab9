"""One self-contained HTML page: style and figures inline. All text from run folders is escaped."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from rrcluster.report.claim import statement_section
from rrcluster.report.drawing import Drawing
from rrcluster.report.estimate import clear_best
from rrcluster.report.folders import DIAGNOSTIC, Run, RunGroup
from rrcluster.report.notation import delta_text, epsilon_text, percent, value_text
from rrcluster.report.render import to_html
from rrcluster.report.setting_table import reproduce_section, settings_section
from rrcluster.report.tables import TextTable, group_epsilon, group_labels, metric

_NAMED = 4  # more methods than these are counted, not listed


def render_page(groups: Sequence[RunGroup], *, table: TextTable, drawings: Sequence[Drawing], out: Path) -> str:
    """The whole report as one HTML document."""
    labels = group_labels(groups)
    return fill_page(
        title=page_title(groups, out),
        lead=lead(groups),
        notices=_notices(groups, labels),
        facts=_facts(groups),
        drawings=drawings,
        table=to_html(table),
        statement=statement_section(groups, labels),
        settings=settings_section(groups, labels),
        reproduce=reproduce_section(groups, out=out),
    )


def fill_page(
    *,
    title: str,
    lead: str,
    notices: Sequence[tuple[str, str]],
    facts: Mapping[str, str],
    drawings: Sequence[Drawing],
    **sections: str,
) -> str:
    """The page's template, filled: plain text, notices (kind, text), facts by name, figures, and HTML of the sections.

    The sections are `table`, `statement`, `settings` and `reproduce`.
    """
    package = resources.files("rrcluster.report")
    template = Template(package.joinpath("page.html").read_text(encoding="utf-8"))
    terms = (f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items() if value)
    return template.substitute(
        title=html.escape(title),
        style=package.joinpath("page.css").read_text(encoding="utf-8"),
        lead=html.escape(lead),
        notices="\n".join(f'<p class="banner {kind}" role="note">{_strong(text)}</p>' for kind, text in notices),
        facts="".join(terms),
        figures="\n".join(figure_html(drawing) for drawing in drawings) or "<p>No finished round to draw yet.</p>",
        **sections,
    )


def page_title(groups: Sequence[RunGroup], out: Path) -> str:
    """The label of a single method, else the folder's name and the number of methods."""
    return groups[0].label if len(groups) == 1 else f"{out.resolve().name}: {len(groups)} methods"


def lead(groups: Sequence[RunGroup]) -> str:
    """The report in a few sentences."""
    labels = group_labels(groups)
    data, partition = _common(groups, "data"), _common(groups, "partition")
    clients, rounds = _common(groups, "num_clients"), _common(groups, "num_rounds")
    named = f" ({'; '.join(labels)})" if len(labels) <= _NAMED else ""
    what = labels[0] if len(labels) == 1 else f"{len(labels)} methods{named}"
    where = f" on {data}" if data else ""
    where += f" ({partition})" if data and partition else ""
    where += f", spread over {clients} clients" if clients else ""
    where += f", for {rounds} rounds" if rounds else ""
    return " ".join(
        part for part in (f"This report shows {what}{where}.", _promise(groups), _winner(groups, labels)) if part
    )


def _promise(groups: Sequence[RunGroup]) -> str:
    private = [group for group in groups if group.first.private]
    if not private:
        return "No noise was added: nothing here is private."
    spent = _epsilons(private)
    delta = _range(delta_text(group.first.delta) for group in private)
    who = "It adds" if len(groups) == 1 else "The private ones add" if len(private) < len(groups) else "All add"
    return (
        f"{who} noise for epsilon = {spent} at delta = {delta}, which covers everything that one client contributes, "
        "in all rounds together: the smaller epsilon, the less the published models can tell about any one client."
    )


def _winner(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """The private method (or any, if none is private) with the highest accuracy, and whether the lead is clear."""
    private = any(group.first.private for group in groups)
    measured = [
        (value, label)
        for group, label in zip(groups, labels, strict=True)
        if (value := metric(group, "accuracy")) is not None and group.first.private == private
    ]
    if not measured:
        return ""
    best, label = max(measured, key=lambda entry: entry[0].mean)
    if len(measured) == 1:
        return f"Accuracy: {percent(best.mean)}% ({DIAGNOSTIC})."
    if best.half_width is None:
        trust = "one seed, so small differences may be chance"
    elif clear_best([value for value, _ in measured]) is not None:
        trust = "its interval over seeds lies above all others"
    else:
        trust = "not clearly more than the others, given the spread over seeds"
    among = " among the private methods" if private and len(measured) < len(groups) else ""
    return f"Highest accuracy{among}: {label}, {percent(best.mean)}% ({trust}; {DIAGNOSTIC})."


def _facts(groups: Sequence[RunGroup]) -> dict[str, str]:
    private = [group for group in groups if group.first.private]
    clusters = [group.first.num_clusters for group in groups if group.first.num_clusters > 1] or [1]
    return {
        "epsilon": _epsilons(private) or epsilon_text(None, private=False),
        "delta": _range(delta_text(group.first.delta) for group in private),
        "clients": _each(groups, "num_clients"),
        "clusters": _range(str(count) for count in sorted(clusters)),
        "rounds": _each(groups, "num_rounds"),
        "seeds": _range(str(count) for count in sorted(len(group.runs) for group in groups)),
    }


def _notices(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Warnings of files that are not private and of unfinished runs, with names of methods unless all are concerned."""
    warned: dict[tuple[str, str], list[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        for run in group.runs:
            if run.exposed:
                warned.setdefault(("danger", str(run.privacy["artefacts"])), []).append(label)
            if run.status != "finished":
                warned.setdefault(("warning", _unfinished(run)), []).append(label)
    notices = []
    for (kind, text), names in warned.items():
        whose = "" if len(set(names)) == len(groups) else f" ({_named_or_counted(names, len(groups))})"
        notices.append((kind, text + whose))
    return notices


def _named_or_counted(names: Sequence[str], total: int) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(different) if len(different) <= _NAMED else f"{len(different)} of {total} methods"


def _unfinished(run: Run) -> str:
    return f"Not finished: a run is {run.status}; its epsilon is that of the whole plan."


def _strong(text: str) -> str:
    head, colon, rest = text.partition(":")
    return f"<strong>{html.escape(head + colon)}</strong>{html.escape(rest)}" if colon else html.escape(text)


def figure_html(drawing: Drawing) -> str:
    """A figure with its caption and its alternative text."""
    return (
        f'<figure>\n<div class="plot" role="img" aria-label="{html.escape(drawing.alt)}">{drawing.svg}</div>\n'
        f"<figcaption>{html.escape(drawing.caption)}</figcaption>\n</figure>"
    )


def _common(groups: Sequence[RunGroup], name: str) -> str:
    """A setting's value if all groups share it, else an empty text."""
    values = {value_text(group.first.config.get(name)) for group in groups if name in group.first.config}
    return values.pop() if len(values) == 1 else ""


def _each(groups: Sequence[RunGroup], name: str) -> str:
    return _range(value_text(group.first.config[name]) for group in groups if name in group.first.config)


def _epsilons(private: Sequence[RunGroup]) -> str:
    """Every different epsilon in increasing order; those without a finite bound last."""
    ordered = sorted(private, key=lambda group: math.inf if group.first.epsilon is None else group.first.epsilon)
    return _range(group_epsilon(group) for group in ordered)


def _range(texts: Iterable[str]) -> str:
    """All different values, in order of appearance: "2.00, 8.00"."""
    return ", ".join(dict.fromkeys(texts))
