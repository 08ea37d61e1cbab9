"""The privacy statements of the runs as HTML: what is guaranteed, how epsilon was computed, what is not covered."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rrcluster.privacy.cost import epsilon_text
from rrcluster.report.folders import DIAGNOSTIC, RunGroup
from rrcluster.report.render import to_html
from rrcluster.report.tables import TextTable
from rrcluster.report.values import NOTHING, delta_text, field_text, number, value_text, words

_TITLES = {
    "unit": "Unit of privacy",
    "mechanism": "Mechanism",
    "adjacency": "Adjacency",
    "sampling": "Sampling",
    "released": "What is released",
    "noise": "Noise",
    "event": "Accounted per round",
    "selection": "Private selection",
    "started_from": "Started from",
    "participation": "Who takes part, and towards whom",
    "bracket": "Bounds on epsilon, rounding included",
    "profile": "Other epsilons and deltas that hold as well",
    "mu": "Mu (Gaussian differential privacy)",
    "recompute": "Recomputing epsilon with dp-accounting",
    "num_rounds": "Rounds",
    "reserve_rounds": "Reserve for repeated rounds",
    "num_releases": "Releases covered",
    "secure": "Secure",
    "num_clients": "Clients",
    "notes": "Notes",
    "not_covered": "NOT covered",
    "artefacts": "Files of the run",
}
_FURTHER = ("participation", "bracket", "profile", "mu", "event", "recompute")  # folded away
_ELSEWHERE = frozenset({"private", "epsilon", "delta", "accountant", "accountants"})  # in the claim and its table


def statement_section(groups: Sequence[RunGroup], labels: Sequence[str]) -> str:
    """What to quote, every field of the statements, and further bounds folded away; equal values are merged."""
    named = list(zip(labels, groups, strict=True))
    private = [(label, group.first.privacy) for label, group in named if group.first.private]
    parts = [_no_privacy([label for label, group in named if not group.first.private])]
    if private:
        more = [to_html(_accountants(private)), _reasons(private), _fields(private, _FURTHER)]
        parts += [
            _claim(private),
            _fields(private, [key for key in _known(private) if key not in _FURTHER]),
            "<details><summary>Other bounds for the same releases: accountants, deltas, observers</summary>",
            *more,
            "</details>",
        ]
    return "\n".join(part for part in parts if part)


def _no_privacy(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    text = f"{html.escape(', '.join(labels))}. No noise was added, and nothing is guaranteed."
    return f'<p class="banner danger"><strong>No privacy:</strong> {text}</p>'


def _claim(private: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """One epsilon per statement, with what it covers, and whether the run's files have it."""
    lines = []
    for names, (epsilon, delta, what, covers) in _merged([(label, _core(entry)) for label, entry in private]):
        lines.append(
            f'<div class="claim"><p class="for">{html.escape(", ".join(names))}</p>\n'
            f"<p><strong>epsilon = {epsilon} at delta = {delta}</strong> <small>{what}.</small></p>\n"
            f"<p>{html.escape(covers)}</p></div>"
        )
    return "\n".join(lines)


def _core(statement: Mapping[str, Any]) -> tuple[str, str, str, str]:
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
    return epsilon_text(number(statement.get("epsilon"))), delta_text(number(statement.get("delta"))), what, covers


def _towards(statement: Mapping[str, Any]) -> str:
    """The observers whom the stated epsilon is towards, under the stated relation, and what that takes for granted."""
    federation, participation = statement.get("federation"), statement.get("participation")
    if isinstance(federation, Mapping) and federation.get("towards"):
        assumed = f" Assumed: {value_text(federation['assumed'])}." if federation.get("assumed") else ""
        return f" Towards: {value_text(federation['towards'])}.{assumed}"
    observers = participation.get("towards") if isinstance(participation, Mapping) else None
    stated = (statement.get("adjacency"), statement.get("epsilon"))
    for observer in observers if isinstance(observers, list) else []:
        if isinstance(observer, Mapping) and (observer.get("neighbours"), observer.get("epsilon")) == stated:
            return f" Towards: {value_text(observer.get('who'))}."
    return ""


def _accountants(private: Sequence[tuple[str, Mapping[str, Any]]]) -> TextTable:
    """One row per method, or per group of methods with equal values, and one column per accountant."""
    columns = list(dict.fromkeys(str(row.get("accountant")) for _, entry in private for row in _rows(entry)))
    rows = []
    for names, cells in _merged([(label, _accountant_cells(entry, columns)) for label, entry in private]):
        everyone = len(names) == len(private) > 1
        rows.append(("All private methods" if everyone else ", ".join(names), *cells))
    return TextTable(
        title="Epsilon by each accountant",
        columns=("Method", *columns),
        rows=tuple(rows),
        note="Each is an upper bound for the same releases, rounded up; the smallest valid one may be quoted.",
    )


def _accountant_cells(statement: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    by_name = {str(row.get("accountant")): row for row in _rows(statement)}
    cells = []
    for column in columns:
        row = by_name.get(column)
        value = number(row.get("epsilon")) if row else None
        missing = NOTHING if row is None else "does not apply" if row.get("reason") else epsilon_text(None)
        cells.append(missing if value is None else epsilon_text(value))
    return tuple(cells)


def _reasons(private: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    reasons = dict.fromkeys(
        (str(row.get("accountant")), str(row["reason"]))
        for _, entry in private
        for row in _rows(entry)
        if row.get("reason")
    )
    if not reasons:
        return ""
    items = "".join(f"<li><strong>{html.escape(name)}</strong>: {html.escape(reason)}</li>" for name, reason in reasons)
    return f"<h3>Why an accountant does not apply</h3>\n<ul>{items}</ul>"


def _rows(statement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = statement.get("accountants")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _known(private: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    return list(dict.fromkeys([*_TITLES, *(key for _, entry in private for key in entry)]))


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
