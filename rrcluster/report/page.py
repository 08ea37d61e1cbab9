"""One self-contained HTML page: style, figures and privacy statements inline. All text from run folders is escaped."""

import html
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

from rrcluster.privacy.cost import epsilon_text
from rrcluster.report.drawing import Drawing, share_glyphs
from rrcluster.report.folders import CONFIG, DIAGNOSTIC, RunGroup
from rrcluster.report.groups_section import groups_section
from rrcluster.report.series import arenas, epsilon_series
from rrcluster.report.tables import TextTable, group_epsilon, group_labels, shared_settings, to_html
from rrcluster.report.values import (
    NOT_METHOD,
    again_text,
    dead_text,
    delta_text,
    differing,
    field_text,
    groups_text,
    number,
    start_text,
    value_text,
    words,
)
from rrcluster.storage import printable

_SOME_DEAD = (
    "By the released sizes some clusters look empty: hardly a client chooses their models, which hold little but "
    "noise. Use fewer clusters (-k), or another --init."
)
_NAMED = 4  # more methods than these are counted instead of listed


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
        groups=groups_section(groups, labels),
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
    groups: str = "",
    **sections: str,
) -> str:
    """The page's template, filled: plain text, notices (kind, text), facts by name, figures, and HTML of the sections.

    The sections are `groups` (with its heading), `table`, `statement`, `settings` and `reproduce`.
    """
    package = resources.files("rrcluster.report")
    template = Template(package.joinpath("page.html").read_text(encoding="utf-8"))
    letters, figures = share_glyphs(drawings)
    blocks = [figure_html(drawing, svg) for drawing, svg in zip(drawings, figures, strict=True)]
    terms = (f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items() if value)
    page = template.substitute(
        title=html.escape(title),
        style=package.joinpath("page.css").read_text(encoding="utf-8"),
        lead=html.escape(lead),
        notices="\n".join(f'<p class="banner {kind}" role="note">{_strong(text)}</p>' for kind, text in notices),
        facts="".join(terms),
        figures="\n".join(blocks) or "<p>No finished round to draw yet.</p>",
        letters=letters,
        groups=groups,
        **sections,
    )
    return printable(page)  # names and statements come from files that may contain anything


def page_title(groups: Sequence[RunGroup], out: Path) -> str:
    """The label of a single method, else the folder's name and the number of methods."""
    return groups[0].label if len(groups) == 1 else f"{out.resolve().name}: {_counted(groups)}"


def _counted(groups: Sequence[RunGroup]) -> str:
    """The number of methods; the same method at several epsilons is one."""
    methods = {entry.label for part in arenas(groups).values() for entry in epsilon_series(part)}
    if len(methods) == len(groups):
        return f"{len(groups)} methods"
    return f"{len(methods)} {'method' if len(methods) == 1 else 'methods'} in {len(groups)} settings"


def lead(groups: Sequence[RunGroup]) -> str:
    """The subject of the report, the coverage of its epsilon, and a survey's findings."""
    labels = group_labels(groups)
    names = f" ({'; '.join(labels)})" if len(labels) <= _NAMED else ""
    what = labels[0] if len(labels) == 1 else f"{_counted(groups)}{names}"
    found = {groups_text(run.summary) for group in groups for run in group.runs}
    survey = found.pop() if len(found) == 1 else ""  # else they disagree
    return " ".join(filter(None, [f"This report shows {what}: {shared_settings(groups)}.", _promise(groups), survey]))


def _promise(groups: Sequence[RunGroup]) -> str:
    private = sum(group.first.private for group in groups)
    if not private:
        return "No noise was added: nothing here is private."
    who = "It adds" if len(groups) == 1 else "The private ones add" if private < len(groups) else "All add"
    return (
        f"{who} noise for an epsilon that covers everything that one client contributes, in all rounds together: the "
        "smaller epsilon, the less the published models can tell about any one client."
    )


def _facts(groups: Sequence[RunGroup]) -> dict[str, str]:
    private = [group for group in groups if group.first.private]
    clusters = [group.first.num_clusters for group in groups if group.first.num_clusters > 1] or [1]
    pairs = _pairs(private)
    mixed = len({delta for _, delta in pairs}) > 1
    return {
        "epsilon": _range(f"{epsilon} (delta {delta})" if mixed else epsilon for epsilon, delta in pairs)
        or epsilon_text(None, private=False),
        "delta": "" if mixed else _range(delta for _, delta in pairs),
        "clusters": _range(str(count) for count in sorted(clusters)),
        "seeds": _range(str(count) for count in sorted(len(group.runs) for group in groups)),
    }


def _notices(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Verdicts, and warnings about files that are not private and unfinished runs, with method names unless for all."""
    warned: dict[tuple[str, str], list[str]] = {}
    dead = {run.path: dead_text(run.summary.get("dead_clusters")) for group in groups for run in group.runs}
    some = _SOME_DEAD if len(set(filter(None, dead.values()))) > 1 else ""  # one sentence for all methods
    for group, label in zip(groups, labels, strict=True):
        if group.first.verdict:
            warned[("verdict", f"Verdict ({DIAGNOSTIC}): {group.first.verdict}")] = [label]
    for group, label in zip(groups, labels, strict=True):
        for run in group.runs:
            if run.exposed:
                warned.setdefault(("danger", str(run.privacy["artefacts"])), []).append(label)
            if run.status != "finished":
                text = f"Not finished: a run is {run.status}; its epsilon is that of the whole plan."
                warned.setdefault(("warning", text), []).append(label)
            empty = dead[run.path] and (some or dead[run.path])
            for text in (start_text(run.privacy.get("started_from")), again_text(run.summary), empty):
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


def _strong(text: str) -> str:
    head, colon, rest = text.partition(":")
    return f"<strong>{html.escape(head + colon)}</strong>{html.escape(rest)}" if colon else html.escape(text)


def figure_html(drawing: Drawing, svg: str) -> str:
    """A figure with its caption and its alternative text."""
    return (
        f'<figure>\n<div class="plot" role="img" aria-label="{html.escape(drawing.alt)}">{svg}</div>\n'
        f"<figcaption>{html.escape(drawing.caption)}</figcaption>\n</figure>"
    )


def _pairs(private: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """Every distinct epsilon with its delta, in increasing order; those without a finite bound last."""
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
        parts.append(to_html(_differences(groups, labels, different)))
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


def _differences(groups: Sequence[RunGroup], labels: Sequence[str], names: Sequence[str]) -> TextTable:
    """Settings that differ, a column for each method; values other than the most frequent one are bold."""
    rows, unusual = [], set()
    for row, name in enumerate(names):
        values = [_setting(name, group.first.config.get(name)) for group in groups]
        usual, count = Counter(values).most_common(1)[0]
        marked = count > 1 or len(values) == 2
        unusual |= {(row, at) for at, value in enumerate(values, start=1) if not marked or value != usual}
        rows.append((words(name), *values))
    columns = ("Setting", *labels)
    return TextTable(
        "Where the methods differ",
        columns,
        tuple(rows),
        "Bold: what is unusual here.",
        bold=frozenset(unusual),
        text_columns=frozenset(range(len(columns))),
    )


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


_TITLES = {  # of fields whose names do not say it
    "unit": "Unit of privacy",
    "released": "What is released",
    "event": "Accounted per round",
    "selection": "Private selection",
    "participation": "Who takes part, and towards whom",
    "accountants": "Epsilon by each accountant: upper bounds for the same releases",
    "bracket": "Bounds on epsilon, rounding included",
    "profile": "Other epsilons and deltas that hold as well",
    "risk": "Bounds on guesses: true positives at 1% and 5% false alarms, advantage",
    "mu": "Mu (Gaussian differential privacy)",
    "recompute": "Recomputing epsilon with dp-accounting",
    "num_rounds": "Rounds",
    "reserve_rounds": "Reserve for repeated rounds",
    "num_releases": "Releases covered",
    "num_clients": "Clients",
    "not_covered": "NOT covered",
    "artefacts": "Files of the run",
}
_FURTHER = ("accountants", "participation", "bracket", "profile", "risk", "mu", "event", "recompute")  # folded away
_ELSEWHERE = frozenset({"private", "epsilon", "delta", "accountant", "risk_in_words"})  # in the claim


def statement_section(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """The claim to quote, every field of the statements, and further bounds folded away; equal values are merged."""
    by_label = list(zip(labels, groups, strict=True))
    private = [(label, group.first.privacy) for label, group in by_label if group.first.private]
    parts = [_no_privacy([label for label, group in by_label if not group.first.private])]
    if private:
        by_field = [entry for _, entry in private]
        parts += [
            _claim(private),
            _fields(private, [key for key in dict.fromkeys(chain(*by_field)) if key not in _FURTHER]),
            "<details><summary>Other bounds for the same releases: accountants, deltas, observers</summary>",
            _fields(private, _FURTHER),
            "</details>",
        ]
    return "\n".join(part for part in parts if part)


def _no_privacy(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    text = f"{html.escape(', '.join(labels))}. No noise was added, and nothing is guaranteed."
    return f'<p class="banner danger"><strong>No privacy:</strong> {text}</p>'


def _claim(private: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """One epsilon per statement, with its coverage, and whether the run's files have it."""
    lines = []
    for names, (epsilon, delta, what, covers, risk) in _merged([(label, _core(entry)) for label, entry in private]):
        lines.append(
            f'<div class="claim"><p class="for">{html.escape(", ".join(names))}</p>\n'
            f"<p><strong>epsilon = {epsilon} at delta = {delta}</strong> <small>{what}.</small></p>\n"
            f"<p>{html.escape(covers)}</p>\n<p>{html.escape(risk)}</p></div>"
        )
    return "\n".join(lines)


def _core(statement: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    reserve = number(statement.get("reserve_rounds")) or 0
    rounds = f"all {value_text(statement.get('num_rounds'))} rounds" + (
        f" and {reserve:g} in reserve" if reserve else ""
    )
    released = statement.get("released")
    items = "; ".join(map(value_text, released)) if isinstance(released, list) else value_text(released)
    whom = f"{value_text(statement.get('unit'))} ({value_text(statement.get('adjacency'))} neighbours)"
    covers = (
        f"Covers {whom}, in {rounds} together, at whatever round the run ends, and whatever is done with what was "
        f"released: {items}.{_towards(statement)} Accountant: {value_text(statement.get('accountant'))}."
    )
    not_private = "Of the plan; the files of this run are not private, as said above"
    what = "The one to quote" if statement.get("secure") is True else not_private
    epsilon, delta = number(statement.get("epsilon")), number(statement.get("delta"))
    said = statement.get("risk_in_words")  # folders of earlier versions have none
    return epsilon_text(epsilon), delta_text(delta), what, covers, value_text(said) if said else ""


def _towards(statement: Mapping[str, Any]) -> str:
    """The observers towards whom the stated epsilon holds, under the stated relation and assumptions."""
    federation, participation = statement.get("federation"), statement.get("participation")
    if isinstance(federation, Mapping) and federation.get("towards"):
        assumed = f" Assumed: {value_text(federation['assumed'])}." if federation.get("assumed") else ""
        return f" Towards: {value_text(federation['towards'])}.{assumed}"
    observers = participation.get("towards") if isinstance(participation, Mapping) else None
    claim = (statement.get("adjacency"), statement.get("epsilon"))
    for observer in observers if isinstance(observers, list) else []:
        if isinstance(observer, Mapping) and (observer.get("neighbours"), observer.get("epsilon")) == claim:
            return f" Towards: {value_text(observer.get('who'))}."
    return ""


def _fields(private: Sequence[tuple[str, Mapping[str, Any]]], keys: Iterable[str]) -> str:
    items = []
    for key in keys:
        values = [(label, _content(key, entry)) for label, entry in private if entry.get(key) not in (None, [], {}, "")]
        if key in _ELSEWHERE or not values:
            continue
        title = _TITLES.get(key, words(key).capitalize())
        exposed = any(entry.get("secure") is not True for _, entry in private)
        css = ' class="warning"' if key == "not_covered" or (key == "artefacts" and exposed) else ""
        items.append(f"<div{css}><dt>{html.escape(title)}</dt>{_definitions(values, everyone=len(private))}</div>")
    return f'<dl class="statement">\n{chr(10).join(items)}\n</dl>' if items else ""


def _definitions(values: Sequence[tuple[str, str]], *, everyone: int) -> str:
    """One definition if all methods have the same value, otherwise one per value with the names of its methods."""
    merged = _merged(values)
    if len(merged) == 1 and len(values) == everyone:
        return f"<dd>{merged[0][1]}</dd>"
    return "".join(
        f'<dd><span class="for">{html.escape(", ".join(names))}</span>{content}</dd>' for names, content in merged
    )


def _content(key: str, statement: Mapping[str, Any]) -> str:
    """A field's value as HTML; lists and mappings become lists."""
    value = statement[key]
    if key == "not_covered" and isinstance(value, list) and "diagnostic" not in str(value):
        value = [*value, f"Accuracy and every other number marked “{DIAGNOSTIC}” on this page."]
    if isinstance(value, list):
        return "<ul>" + "".join(f"<li>{html.escape(value_text(entry))}</li>" for entry in value) + "</ul>"
    if isinstance(value, dict):
        terms = (
            f"<li>{html.escape(words(str(name)))}: {html.escape(field_text(str(name), entry))}</li>"
            for name, entry in value.items()
        )
        return "<ul>" + "".join(terms) + "</ul>"
    return f"<p>{html.escape(value_text(value))}</p>"


def _merged(values: Sequence[tuple[str, Any]]) -> list[tuple[list[str], Any]]:
    """(names, value) for every different value, in order of appearance."""
    merged: dict[Any, list[str]] = {}
    for name, value in values:
        merged.setdefault(value, []).append(name)
    return [(names, value) for value, names in merged.items()]
