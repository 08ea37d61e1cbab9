"""What the site shows from outside docs/: changelog, settings, datasets and notebooks as pages, and the examples."""

import json
import types
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object

from rrcluster import __version__
from rrcluster.settings import AFFECTS, SECTIONS, Flag

ROOT = Path(__file__).parent.parent
KINDS = {int: "whole number", float: "number", str: "text", bool: "on or off", Path: "path"}
SETTINGS_HEAD = """# Settings

Every setting of `rrcluster run`, made from its declaration. The heading is the flag of the command
line; *name* is the key in a YAML file and the argument of `rr.run`. A setting *affects* the result,
or only the place (where and on which machine a run is made) or the display (how closely a run is
watched, and what is written beside it).
"""
DATASETS_HEAD = """# Tables of real people

Each row's client is a person, a household or a place, named by a column. `rrcluster run --data NAME
--epsilon 4` trains on one; all but `wages` are fetched by `rrcluster data get NAME`
([how](../own-data.md#real-people)).
"""


def on_config(config: Any) -> Any:
    """Say on every page which version it describes: that of the code it is built with."""
    config.site_name = f"{config.site_name} {__version__}"
    config.copyright = (
        f"rrcluster {__version__}. For the pages of another version, check out its tag and run <code>make docs</code>."
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog, the settings, the notebooks and the examples to the files of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    files.append(File.generated(config, "reference/datasets.md", content=datasets_page()))
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".yaml"):
            files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
        files.append(File.generated(config, f"examples/notebooks/{path.name}", abs_src_path=str(path)))
    return files


def on_post_build(config: Any) -> None:
    """The search index as a script, too: from disk a page may load scripts, but no data (docs/disk-search.js)."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to ../examples become links to the copies on the site; "1.0 ± 0.2" stays in one line."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({up}../examples/", f"]({up}examples/").replace(" ± ", "\u00a0±\u00a0")


def notebook_page(path: Path) -> str:
    """A notebook as a page: text, code, and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(line for output in cell.get("outputs", ()) for line in output["text"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    parts.insert(1, f"[Download this page as a notebook](../examples/notebooks/{path.name}).")
    return "\n\n".join(parts) + "\n"


def datasets_page() -> str:
    """The tables of real people that can be asked for by name, from their recipes."""
    tables = json.loads((ROOT / "rrcluster" / "data" / "natural_tables.json").read_text(encoding="utf-8"))["tables"]
    rows = [f"| `{name}` | {table['description']} | {table['licence']} |" for name, table in sorted(tables.items())]
    return "\n".join(
        [DATASETS_HEAD, "| `--data` | who, and what is predicted | licence |", "| --- | --- | --- |", *rows, ""]
    )


def settings_page() -> str:
    """Every flag with its type, its default, what it affects and its help, from the declarations alone."""
    return SETTINGS_HEAD + "".join(_section(name, section) for name, section in SECTIONS.items())


def _section(name: str, section: type) -> str:
    helps = {entry.arg_name: entry.description for entry in parse_from_object(section).params}
    kinds, marked = get_type_hints(section), get_type_hints(section, include_extras=True)
    entries = [f"\n## {name.capitalize()}\n\n{section.__doc__}\n"]
    for setting in fields(section):
        flag = next((mark for mark in get_args(marked[setting.name]) if isinstance(mark, type(Flag()))), Flag())
        off = "no-" if setting.default is True else ""  # what is on is turned off
        flags = [f"--{off}{(flag.name or setting.name).replace('_', '-')}", *(flag.aliases or ())]
        hint = flag.help_behavior_hint  # for names: all that are known
        names = hint(setting.default) if callable(hint) else ""
        facts = {
            "name": f"`{setting.name}`",
            "value": f"`{flag.metavar}`" if flag.metavar not in (None, "INT") else _kind(kinds[setting.name]),
            "default": _default(setting.default),
            "affects": AFFECTS[setting.name],
        }
        entries.append(
            f"\n### {', '.join(f'`{text}`' for text in flags)} {{#{setting.name}}}\n\n"
            + f"{escape(helps[setting.name], quote=False)} {names}\n\n"
            + " · ".join(f"*{fact}* {value}" for fact, value in facts.items())
            + "\n"
        )
    return "".join(entries)


def _kind(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list: {_kind(get_args(kind)[0])}"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in get_args(kind) if part is not type(None))
    return KINDS[kind]


def _default(value: Any) -> str:
    """A default as it would be written; "none" where it is left out."""
    if value is None or value == ():
        return "none"
    return ("on" if value else "off") if isinstance(value, bool) else f"`{value}`"
