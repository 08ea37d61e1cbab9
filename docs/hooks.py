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

Every setting of `rrcluster run` by topic, made from its declaration. Each topic begins with the
values that people use; below, the heading is the flag of the command line, and *name* is the key in
a YAML file and the argument of `rr.run`. A setting *affects* the result, or only the place (where
and on which machine a run is made) or the display (how closely a run is watched, and what is
written beside it).
"""
# Topic -> setting -> usual values. Every setting belongs to one topic (tests/test_docs.py).
TOPICS = {
    "Budget": {
        "epsilon": "1 to 8; 4 for tables; the smaller, the stronger the guarantee",
        "delta": "a tenth of 1 / clients, or less",
        "num_rounds": "50 to 100; 40 for mixed effects",
        "secure": "on for everything that leaves your hands, off for rehearsals",
        "reserve_rounds": "0 in rehearsals; 5 to a tenth of the rounds with `--secure`",
        "max_epsilon": "left out; the epsilon at which a run must end, where noise is given",
        "noise_multiplier": "left out: it follows from epsilon",
        "accountant": "`pld`",
    },
    "Your table": {
        "data": "a path, or a name of `rrcluster data list`",
        "client": "the column of the person, household or device",
        "target": "the column to predict",
        "features": "left out: all other columns",
        "regression": "on where the target is a number",
        "classes": "all of them; `--secure` requires the list",
        "encoding": "`auto`",
        "categories": "known values of text columns, where clients are few",
        "scale": "known ranges, such as `age=0,100`",
        "missing": "a harmless value for declared columns; left out where cells decide",
        "types": "Parquet and frames alone",
        "test_share": "0.2 to 0.3",
        "test_column": "where a split exists",
        "time": "the date or number by which rows arrive",
        "group": "where true groups are known, for diagnostics",
        "new_clients": "0.1, to see how unknown clients are served",
        "filled_from_data": "written by `rrcluster data describe`",
        "num_clients": "left out in rehearsals; a generous bound with `--secure`",
        "max_samples": "left out; a few hundred where few clients have very many rows",
        "data_folder": "left out",
    },
    "Groups and personal models": {
        "algorithm": "`auto`: mixed effects on tables, IFCA elsewhere",
        "num_clusters": "4 to 8: at most so many are opened",
        "personal": "on",
        "init": "`auto`; `independent` where you know the number of groups",
        "init_rounds": "left out",
        "exploration": "1; 0 where there are no groups",
        "min_cluster_size": "0; `rrcluster advise` names a value where one helps",
        "size_floor": "left out",
        "memory": "0.9",
        "start_from": "a finished run whose models are trained further",
    },
    "Who takes part": {
        "participation": "`poisson`; `everybody` where participation is visible",
        "sample_rate": "0.1 to 0.3; cohorts of 100 or more",
        "slots": "10, with `schedule`",
        "slot_key": "fixed once, before anybody enrols",
        "mechanism": "`joint`",
        "identifier": "`gaussian`, with `--mechanism identifier`",
        "identifier_share": "0.5",
        "count_weight": "0.25",
    },
    "Network and local training": {
        "model": "`auto`; few parameters under noise",
        "update_clip": "0.2 to 0.4 for the networks here, chosen on public data; 1 in mixed effects",
        "local_lr": "0.05 on images, 0.1 to 0.5 on scaled columns",
        "local_epochs": "1 to 5",
        "batch_size": "20",
        "proximal": "0: the method's own",
        "local_optimizer": "`sgd`",
        "local_momentum": "0",
        "server_lr": "1",
        "server_momentum": "0; 0.5 with few rounds",
        "average_last": "0.5",
    },
    "Accuracy inside the budget": {
        "private_evaluation": "0.25",
        "evaluation_loss_bound": "4",
    },
    "Simulated clients": {
        "partition": "`rotation` for groups, `dirichlet` for skewed labels",
        "ratio": "equal groups",
        "concentration": "0.1 (skewed) to 1 (mild)",
        "samples_per_client": "20 to 100",
        "dropout": "0 to 0.3",
        "hostile": "0 to 0.1",
    },
    "Seeds, folders and machine": {
        "seed": "0",
        "seeds": "3 to 5 for intervals",
        "name": "left out",
        "out": "a folder per run",
        "device": "`auto`",
        "engine": "`auto`",
        "processes": "left out: one per core where that pays",
        "capacity": "left out; less where memory runs out",
        "precision": "`auto`",
        "evaluate_every": "left out: ten times in a run",
        "references": "on",
        "personalise": "on in rehearsals with networks",
        "tensorboard": "off",
        "keep_checkpoint": "off",
    },
}
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
    """Every flag by topic: usual values, then type, default, effect and help, from the declarations alone."""
    return SETTINGS_HEAD + "".join(_topic(topic, usual) for topic, usual in TOPICS.items())


def _topic(topic: str, usual: dict[str, str]) -> str:
    defaults = {name: _default(_DECLARED[name].default).strip("`") for name in usual}
    rows = [f"| [`{name}`](#{name}) | {defaults[name]} | {text} |" for name, text in usual.items()]
    table = "\n".join(["| setting | default | usual |", "| --- | --- | --- |", *rows])
    return f"\n## {topic}\n\n{table}\n" + "".join(_entry(name) for name in usual)


_DECLARED = {setting.name: setting for section in SECTIONS.values() for setting in fields(section)}
_SECTION_OF = {setting.name: section for section in SECTIONS.values() for setting in fields(section)}


def _entry(name: str) -> str:
    setting, section = _DECLARED[name], _SECTION_OF[name]
    helps = {entry.arg_name: entry.description for entry in parse_from_object(section).params}
    marks = get_args(get_type_hints(section, include_extras=True)[name])
    flag = next((mark for mark in marks if isinstance(mark, type(Flag()))), Flag())
    off = "no-" if setting.default is True else ""  # the flag turns it off
    flags = [f"--{off}{(flag.name or name).replace('_', '-')}", *(flag.aliases or ())]
    hint = flag.help_behavior_hint  # for registered names: their list
    names = hint(setting.default) if callable(hint) else ""
    facts = {
        "name": f"`{name}`",
        "value": f"`{flag.metavar}`" if flag.metavar not in (None, "INT") else _kind(get_type_hints(section)[name]),
        "default": _default(setting.default),
        "affects": AFFECTS[name],
    }
    return (
        f"\n### {', '.join(f'`{text}`' for text in flags)} {{#{name}}}\n\n"
        + f"{escape(helps[name], quote=False)} {names}\n\n"
        + " · ".join(f"*{fact}* {value}" for fact, value in facts.items())
        + "\n"
    )


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
