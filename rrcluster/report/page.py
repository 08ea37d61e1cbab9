"""One self-contained HTML page: style and figures inline. All text from run folders is escaped."""

import html
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from rrcluster.privacy.cost import epsilon_text
from rrcluster.report.drawing import Drawing, share_glyphs
from rrcluster.report.folders import CONFIG, DIAGNOSTIC, Run, RunGroup
from rrcluster.report.render import to_html
from rrcluster.report.series import arenas, epsilon_series
from rrcluster.report.statement_html import statement_section
from rrcluster.report.tables import TextTable, group_epsilon, group_labels, metric
from rrcluster.report.values import (
    NOT_METHOD,
    clear_best,
    dead_text,
    delta_text,
    differing,
    groups_text,
    number,
    percent,
    start_text,
    value_text,
    words,
)
from rrcluster.settings import data_label
from rrcluster.storage import printable

_SOME_DEAD = (
    "By the released sizes some clusters look empty: hardly a client chooses their models, which hold little but "
    "noise. Use fewer clusters (-k), or another --init."
)
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
    letters, figures = share_glyphs(drawings)
    shown = [figure_html(drawing, svg) for drawing, svg in zip(drawings, figures, strict=True)]
    terms = (f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items() if value)
    page = template.substitute(
        title=html.escape(title),
        style=package.joinpath("page.css").read_text(encoding="utf-8"),
        lead=html.escape(lead),
        notices="\n".join(f'<p class="banner {kind}" role="note">{_strong(text)}</p>' for kind, text in notices),
        facts="".join(terms),
        figures="\n".join(shown) or "<p>No finished round to draw yet.</p>",
        letters=letters,
        **sections,
    )
    return printable(page)  # names and statements come from files that may hold anything


def page_title(groups: Sequence[RunGroup], out: Path) -> str:
    """The label of a single method, else the folder's name and the number of methods."""
    return groups[0].label if len(groups) == 1 else f"{out.resolve().name}: {_counted(groups)}"


def _counted(groups: Sequence[RunGroup]) -> str:
    """How many methods there are; the same method at several epsilons is one."""
    methods = {entry.label for part in arenas(groups).values() for entry in epsilon_series(part)}
    if len(methods) == len(groups):
        return f"{len(groups)} methods"
    return f"{len(methods)} {'method' if len(methods) == 1 else 'methods'} in {len(groups)} settings"


def lead(groups: Sequence[RunGroup]) -> str:
    """The report in a few sentences."""
    labels = group_labels(groups)
    data, partition = _common(groups, "data"), _common(groups, "partition")
    clients, rounds = _common(groups, "num_clients"), _common(groups, "num_rounds")
    named = f" ({'; '.join(labels)})" if len(labels) <= _NAMED else ""
    what = labels[0] if len(labels) == 1 else f"{_counted(groups)}{named}"
    where = f" on {data_label(str(data))}" if data else ""
    where += f" ({partition})" if data and partition else ""
    where += f", spread over {clients} clients" if clients else ""
    where += f", for {rounds} rounds" if rounds else ""
    parts = (f"This report shows {what}{where}.", _promise(groups), _winner(groups, labels), _surveys(groups, labels))
    return " ".join(part for part in parts if part)


def _promise(groups: Sequence[RunGroup]) -> str:
    private = [group for group in groups if group.first.private]
    if not private:
        return "No noise was added: nothing here is private."
    pairs = _pairs(private)
    deltas = {delta for _, delta in pairs}
    if len(deltas) == 1:
        spent = f"epsilon = {_range(epsilon for epsilon, _ in pairs)} at delta = {pairs[0][1]}"
    else:
        spent = " and ".join(f"epsilon = {epsilon} at delta = {delta}" for epsilon, delta in pairs)
    who = "It adds" if len(groups) == 1 else "The private ones add" if len(private) < len(groups) else "All add"
    return (
        f"{who} noise for {spent}, which covers everything that one client contributes, "
        "in all rounds together: the smaller epsilon, the less the published models can tell about any one client."
    )


def _winner(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """The private method (or any, if none is private) with the highest accuracy, and whether the lead is clear.

    Empty for runs on different data, whose accuracies say nothing about each other.
    """
    if len(arenas(groups)) > 1:
        return ""
    private = any(group.first.private for group in groups)
    measured = [
        (value, label)
        for group, label in zip(groups, labels, strict=True)
        if (value := metric(group, "accuracy")) is not None and group.first.private == private
    ]
    if not measured:
        return ""
    best = max((value for value, _ in measured), key=lambda value: value.mean)
    if len(measured) == 1:
        return f"Accuracy: {percent(best.mean)}% ({DIAGNOSTIC})."
    first = [label for value, label in measured if percent(value.mean) == percent(best.mean)]  # as the table shows them
    if best.half_width is None:
        trust = "one seed, so small differences may be chance"
    elif clear_best([value for value, _ in measured]) is not None:
        trust = "its interval over seeds lies above all others"
    else:
        trust = "not clearly more than the others, given the spread over seeds"
    among = " among the private methods" if private and any(not group.first.private for group in groups) else ""
    return f"Highest accuracy{among}: {percent(best.mean)}% by {' and '.join(first)} ({trust}; {DIAGNOSTIC})."


def _surveys(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """What surveys found: of each method whose runs agree, or of all methods together where they agree."""
    found: dict[str, list[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        texts = {groups_text(run.summary) for run in group.runs}
        if len(texts) == 1 and (text := texts.pop()):
            found.setdefault(text, []).append(label)
    if len(found) == 1 and (len(groups) == 1 or max(map(len, found.values())) > 1):
        return next(iter(found)) if len(groups) == 1 else next(iter(found)).replace("The", "Every", 1)
    if sum(map(len, found.values())) > _NAMED:
        return ""
    return " ".join(f"{', '.join(names)}: {text[0].lower()}{text[1:]}" for text, names in found.items())


def _facts(groups: Sequence[RunGroup]) -> dict[str, str]:
    private = [group for group in groups if group.first.private]
    clusters = [group.first.num_clusters for group in groups if group.first.num_clusters > 1] or [1]
    pairs = _pairs(private)
    mixed = len({delta for _, delta in pairs}) > 1
    return {
        "epsilon": _range(f"{epsilon} (delta {delta})" if mixed else epsilon for epsilon, delta in pairs)
        or epsilon_text(None, private=False),
        "delta": "" if mixed else _range(delta for _, delta in pairs),
        "clients": _each(groups, "num_clients"),
        "clusters": _range(str(count) for count in sorted(clusters)),
        "rounds": _each(groups, "num_rounds"),
        "seeds": _range(str(count) for count in sorted(len(group.runs) for group in groups)),
    }


def _notices(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Warnings of files that are not private and of unfinished runs, with names of methods unless all are concerned."""
    warned: dict[tuple[str, str], list[str]] = {}
    dead = {run.path: dead_text(run.summary.get("dead_clusters")) for group in groups for run in group.runs}
    some = _SOME_DEAD if len(set(filter(None, dead.values()))) > 1 else ""  # one sentence for all, whichever they are
    for group, label in zip(groups, labels, strict=True):
        for run in group.runs:
            if run.exposed:
                warned.setdefault(("danger", str(run.privacy["artefacts"])), []).append(label)
            if run.status != "finished":
                warned.setdefault(("warning", _unfinished(run)), []).append(label)
            for text in (start_text(run.privacy.get("started_from")), dead[run.path] and (some or dead[run.path])):
                if text:
                    warned.setdefault(("warning", text), []).append(label)
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


def figure_html(drawing: Drawing, svg: str) -> str:
    """A figure with its caption and its alternative text."""
    return (
        f'<figure>\n<div class="plot" role="img" aria-label="{html.escape(drawing.alt)}">{svg}</div>\n'
        f"<figcaption>{html.escape(drawing.caption)}</figcaption>\n</figure>"
    )


def _common(groups: Sequence[RunGroup], name: str) -> str:
    """A setting's value if all groups share it, else an empty text."""
    values = {value_text(group.first.config.get(name)) for group in groups if name in group.first.config}
    return values.pop() if len(values) == 1 else ""


def _each(groups: Sequence[RunGroup], name: str) -> str:
    return _range(value_text(group.first.config[name]) for group in groups if name in group.first.config)


def _pairs(private: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """Every different epsilon with its delta, in increasing order; those without a finite bound last."""
    ordered = sorted(private, key=lambda group: math.inf if group.first.epsilon is None else group.first.epsilon)
    return list(dict.fromkeys((group_epsilon(group), delta_text(group.first.delta)) for group in ordered))


def _range(texts: Iterable[str]) -> str:
    """All different values, in order of appearance: "2.00, 8.00"."""
    return ", ".join(dict.fromkeys(texts))


def settings_section(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """A table of the settings that differ, with unusual values marked, and a list of the others."""
    configs = [group.first.config for group in groups]
    different = differing(configs)
    shared = [name for name in dict.fromkeys(key for config in configs for key in config) if name not in NOT_METHOD]
    parts = []
    if different:
        parts.append(_differences(groups, labels, different))
    if same := [name for name in shared if name not in different]:
        items = "".join(_term(name, configs[0].get(name)) for name in same)
        title = "The same for all methods" if len(groups) > 1 else "All settings"
        parts.append(f'<h3>{title}</h3>\n<dl class="settings">{items}</dl>')
    return "\n".join(parts)


def reproduce_section(groups: Sequence[RunGroup], *, out: Path) -> str:
    """The commands that run every method again, to be run in the folder of the page."""
    commands = [_command(group, out) for group in groups]
    lines = html.escape("\n".join([*commands, "rrcluster report again"]))
    versions = sorted(
        {str(run.summary["version"]) for group in groups for run in group.runs if "version" in run.summary}
    )
    origin = f"The runs were made with rrcluster {html.escape(', '.join(versions))}. " if versions else ""
    return (
        f"<p>{origin}From the folder that holds this page, the commands below repeat every run with its settings and "
        f'seeds, and write a report like this one:</p>\n<pre class="scroll" tabindex="0"><code>{lines}</code></pre>'
    )


def _differences(groups: Sequence[RunGroup], labels: Sequence[str], names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in labels)
    rows = []
    for name in names:
        values = [_setting(name, group.first.config.get(name)) for group in groups]
        usual, count = Counter(values).most_common(1)[0]
        mark = count > 1 or len(values) == 2
        cells = [_marked(value, stands_out=not mark or value != usual) for value in values]
        rows.append(f'<tr><th scope="row">{html.escape(words(name))}</th>{"".join(cells)}</tr>')
    return (
        "<h3>Where the methods differ</h3>\n"
        '<div class="scroll" role="region" tabindex="0" aria-label="Settings that differ">\n'
        '<table aria-label="Settings that differ" class="fixed">\n'
        f'<thead><tr><th scope="col">Setting</th>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>\n</div>"
    )


def _marked(value: str, *, stands_out: bool) -> str:
    text = html.escape(value)
    return f"<td><mark>{text}</mark></td>" if stands_out else f"<td>{text}</td>"


def _term(name: str, value: object) -> str:
    return f"<div><dt>{html.escape(words(name))}</dt><dd>{html.escape(_setting(name, value))}</dd></div>"


def _setting(name: str, value: object) -> str:
    if value is None or value in ((), []):
        return "not set"
    return delta_text(number(value)) if name == "delta" else value_text(value)


def _command(group: RunGroup, out: Path) -> str:
    first = group.first
    config = os.path.relpath(first.path / CONFIG, out)
    many = len(group.runs) > 1
    folder = first.path.parent if many and first.path.name.startswith("seed-") else first.path
    name = "run" if folder.resolve() == out.resolve() else folder.resolve().name
    seeds = ["--seeds", *(str(run.seed) for run in group.runs if run.seed is not None)] if many else []
    return shlex.join(["rrcluster", "run", config, *seeds, "--out", f"again/{name}"])
