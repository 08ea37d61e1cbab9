"""The settings of the runs as HTML: those that differ, those that are shared, and the commands to run them again."""

import html
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rrcluster.report.folders import CONFIG, RunGroup
from rrcluster.report.labels import NOT_METHOD, differing
from rrcluster.report.notation import value_text, words


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
    made = f"The runs were made with rrcluster {html.escape(', '.join(versions))}. " if versions else ""
    return (
        f"<p>{made}From the folder that holds this page, the commands below repeat every run with its settings and "
        f'seeds, and write a report like this one:</p>\n<pre class="scroll" tabindex="0"><code>{lines}</code></pre>'
    )


def _differences(groups: Sequence[RunGroup], labels: Sequence[str], names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in labels)
    rows = []
    for name in names:
        values = [_setting(group.first.config.get(name)) for group in groups]
        usual, count = Counter(values).most_common(1)[0]
        mark = count > 1 or len(values) == 2
        cells = [_marked(value, stands_out=not mark or value != usual) for value in values]
        rows.append(f'<tr><th scope="row">{html.escape(words(name))}</th>{"".join(cells)}</tr>')
    return (
        "<h3>Where the methods differ</h3>\n"
        '<div class="scroll" role="region" tabindex="0" aria-label="Settings that differ">\n'
        '<table aria-label="Settings that differ">\n'
        f'<thead><tr><th scope="col">Setting</th>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>\n</div>"
    )


def _marked(value: str, *, stands_out: bool) -> str:
    text = html.escape(value)
    return f"<td><mark>{text}</mark></td>" if stands_out else f"<td>{text}</td>"


def _term(name: str, value: object) -> str:
    return f"<div><dt>{html.escape(words(name))}</dt><dd>{html.escape(_setting(value))}</dd></div>"


def _setting(value: object) -> str:
    return "not set" if value is None else value_text(value)


def _command(group: RunGroup, out: Path) -> str:
    first = group.first
    config = os.path.relpath(first.path / CONFIG, out)
    many = len(group.runs) > 1
    folder = first.path.parent if many and first.path.name.startswith("seed-") else first.path
    name = "run" if folder.resolve() == out.resolve() else folder.resolve().name
    seeds = ["--seeds", *(str(run.seed) for run in group.runs if run.seed is not None)] if many else []
    return shlex.join(["rrcluster", "run", config, *seeds, "--out", f"again/{name}"])
