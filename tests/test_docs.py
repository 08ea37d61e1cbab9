"""The documentation: pages are reachable, links lead somewhere, code is that of the examples, named tests exist."""

import functools
import inspect
import json
import os
import pydoc
import re
import runpy
import subprocess
import sys
import tomllib
import unicodedata
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import yaml

import rrcluster
from rrcluster.settings import FIELDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [page for page in PAGES if DOCS / "results" not in page.parents]  # those are made of runs
GENERATED = {
    "changelog.md": ROOT / "CHANGELOG.md",
    "reference/settings.md": ROOT / "rrcluster" / "settings.py",
    "reference/datasets.md": ROOT / "rrcluster" / "data" / "natural_tables.json",
    **{f"notebooks/{path.stem}.md": path for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")},
}
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
README_WORDS = (
    *("client", "group", "server", "survey", "release", "differential privacy", "epsilon", "delta", "mechanism"),
    *("seed", "secure", "diagnostic", "audit", "threat model", "secure aggregation", "rr-cluster", "accuracy"),
    *("run folder", "member", "federation", "statement"),
)
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|source)\b[^>]*?\ssrc(?:set)?=\"([^\"]+)\"")
COMMAND = re.compile(r"^(?:\$ )?rrcluster ([a-z]+)(?: ([a-z]+)(?!\S))?(.*)$", re.MULTILINE)


def text_of(page):
    return CODE.sub("", page.read_text(encoding="utf-8"))


def nav_files(entries):
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, str):
                yield target
            else:
                yield from nav_files(target)


def anchors(page):
    """Ids of the headings, as the site makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def python_blocks(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_pages_are_few_and_short():
    """One page a question: whoever adds a page or many words takes others away."""
    assert len(WRITTEN) <= 28
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in WRITTEN) <= 40_000
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= 10_240


def test_every_page_of_a_study_is_made_of_its_data():
    made = runpy.run_path(str(ROOT / "tools" / "result_pages.py"))
    studies = sorted((DOCS / "results").glob("*/study.json"))
    assert len(studies) > 15
    for path in studies:
        assert (path.parent / "study.md").read_text() == made["page"](json.loads(path.read_text())), path


def test_every_page_is_in_the_navigation_once_and_every_entry_exists():
    nav = list(nav_files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert len(nav) == len(set(nav))
    written = {page.relative_to(DOCS).as_posix() for page in WRITTEN}
    assert written | set(GENERATED) == set(nav)
    assert all(path.is_file() for path in GENERATED.values())


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in (of_text or of_image for of_text, of_image in LINK.findall(text_of(page))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        beside = (page.parent / path).resolve() if path else page
        target = GENERATED.get(os.path.relpath(beside, DOCS), beside)
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", [*WRITTEN, ROOT / "README.md"], ids=lambda page: page.name)
def test_lines_of_text_are_at_most_a_hundred_columns(page):
    lines = [line for line in text_of(page).splitlines() if not line.startswith(("|", "<", "[!", "![")) and " " in line]
    assert [line for line in lines if len(re.sub(r"\]\(\S+?\)", "]", line)) > 100] == []


@pytest.fixture(scope="module")
def flags_of():
    """The flags that a command's help names."""

    @functools.cache
    def known(*command):
        answer = subprocess.run(
            [sys.executable, "-m", "rrcluster", *command, "--help-all"], capture_output=True, text=True, timeout=60
        )
        assert answer.returncode == 0, answer.stderr
        return set(FLAG.findall(answer.stdout)) | {"--help", "--help-all", "--plugin"}

    return known


def commands(page):
    """Every call of the program in a page: its command, and the flags given to it."""
    source = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = [line for block in CODE.findall(source) for line in block.splitlines()]
    inline = re.findall(r"`([^`]+)`", CODE.sub("", source))
    for line in (*blocks, *(re.sub(r"\s+", " ", text) for text in inline)):
        for name, action, rest in COMMAND.findall(line):
            command = (name, action) if name == "federation" and action else (name,)
            yield command, FLAG.findall(re.sub(r"\s#.*", "", rest))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_flags_of_commands_on_a_page_exist(page, flags_of):
    from rrcluster.cli import COMMANDS

    for command, flags in commands(page):
        assert command[0] in COMMANDS, f"{page.name}: rrcluster {command[0]}"
        assert set(flags) <= flags_of(*command), f"{page.name}: rrcluster {' '.join(command)}"


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("own-code.md", "own_model.py"),
    ],
)
def test_programs_on_pages_are_the_examples_which_are_run(page, example):
    assert (ROOT / "examples" / example).read_text() in python_blocks(page)


def test_the_budget_on_the_first_page_runs(tmp_path):
    *_, code = python_blocks("index.md")
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert "add-remove" in answer.stdout


def test_the_tests_named_on_the_page_of_the_paper_exist():
    page = (DOCS / "paper.md").read_text()
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    names = re.findall(r"(?:(test_\w+\.py))?`?(?:::)?\b(test_[a-z_0-9]+|TestFinding\d+)\b(?!\.py)", page)
    assert len(names) > 20
    for name in {name for _, name in names}:
        assert any(f"def {name}" in text or f"class {name}" in text for text in sources.values()), name
    for number in range(1, 20):
        assert f"\n### {number}. " in page


def test_the_badges_of_the_readme_are_true():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    badges = re.findall(r"img\.shields\.io/badge/([^)]+)\)", (ROOT / "README.md").read_text())
    versions, licence, paper = (badge.rsplit("-", 1)[0].replace("--", "-") for badge in badges)
    assert versions == "python-" + project["requires-python"].removeprefix(">=") + "%2B"
    assert licence == "license-" + project["license"]
    assert paper.removeprefix("arXiv-") in (ROOT / "CITATION.cff").read_text()


def test_the_python_reference_has_every_public_name():
    named = re.findall(r"^::: rrcluster\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), flags=re.MULTILINE)
    assert sorted([*named, "__version__"]) == sorted(rrcluster.__all__)


def test_every_field_on_the_python_reference_is_described():
    """By a docstring below it or by the comment of its line, which docs/field_comments.py shows."""
    names = re.findall(r"^::: (rrcluster\.[\w.]+)$", (DOCS / "reference" / "api.md").read_text(), flags=re.MULTILINE)
    classes = [entry for entry in map(pydoc.locate, names) if inspect.isclass(entry) and is_dataclass(entry)]
    assert len(classes) >= 7
    for one in classes:
        lines = inspect.getsource(one).splitlines()
        for entry in fields(one):
            place = next(at for at, line in enumerate(lines) if line.startswith(f"    {entry.name}: "))
            assert "  # " in lines[place] or lines[place + 1].lstrip().startswith('"""'), f"{one.__name__}.{entry.name}"


def test_the_page_of_settings_has_every_flag_of_the_command_line():
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    page = hooks["settings_page"]()
    entries = dict(re.findall(r"^### (.+) \{#(\w+)\}$", page, flags=re.MULTILINE))
    assert sorted(entries.values()) == sorted(FIELDS)  # each once, in one topic
    help_text = subprocess.run(
        [sys.executable, "-m", "rrcluster", "run", "--help-all"], capture_output=True, text=True, cwd=ROOT, timeout=60
    ).stdout
    sections = help_text[help_text.index("config.data options") :]
    offered = {flag for line in re.findall(r"^│ (-.*)$", sections, flags=re.MULTILINE) for flag in FLAG.findall(line)}
    assert {flag for heading in entries for flag in FLAG.findall(heading)} == offered - {"-h", "--help"}
    assert "### `--min-cluster-size`, `-B` {#min_cluster_size}\n\nRebalance clusters below" in page
    assert "*name* `sample_rate` · *value* number · *default* `0.1` · *affects* result" in page


def test_code_tests_and_audits_of_the_page_for_reviewers_exist():
    page = (DOCS / "is-this-private.md").read_text()
    places = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)
    assert len(places) > 25
    for path, name in places:
        folder = "tests" if Path(path).name.startswith("test_") else "rrcluster"
        source = (ROOT / folder / path).read_text()
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), f"{path}::{name}"
    audited = {
        check
        for row in re.findall(
            r"^\| \d? ?\| ([^|]+) \|", (DOCS / "results" / "audit" / "study.md").read_text(), flags=re.MULTILINE
        )
        for check in row.split(", ")
    }
    named = {check for names in re.findall(r"audit: ([^;]+);", page) for check in names.split(", ")}
    assert len(named) > 20
    assert named <= audited


PLACE = re.compile(r"`([\w/]+/(?:\w+\.\w+)?)(?:::([\w.]+))?`")  # a folder or a file, and a name in it


def test_code_that_the_page_on_the_architecture_names_exists():
    """The paper's lines among it."""
    places = PLACE.findall((DOCS / "architecture.md").read_text())
    assert len(places) > 80
    for path, names in places:
        found = ROOT / "rrcluster" / path if (ROOT / "rrcluster" / path).exists() else ROOT / path
        assert found.exists() or path == "checkpoint/", path  # of a run folder
        for name in names.split(".") if names else []:
            assert re.search(rf"^ *(def|class) {name}\b", found.read_text(), flags=re.MULTILINE), f"{path}::{names}"


def test_folders_and_files_of_the_repository_that_pages_name_exist():
    for page in (*WRITTEN, ROOT / "README.md", ROOT / "research" / "benchmarks" / "README.md"):
        named = re.findall(r"`((?:rrcluster|research|tests|examples|tools|deploy|docs)/[\w./-]*)`", page.read_text())
        assert [path for path in named if not (ROOT / path).exists()] == [], page


def test_the_glossary_has_the_words_of_the_readme():
    glossary = (DOCS / "glossary.md").read_text().lower()
    readme = " ".join((ROOT / "README.md").read_text().lower().split())
    explained = " ".join(re.findall(r"\*\*(.+?)\*\*", glossary, flags=re.DOTALL)).replace("\n", " ")
    for word in README_WORDS:
        assert word in readme, f"{word} is no longer in README"
        assert word in explained, f"{word} is not explained"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="the site needs the extra [docs]; `make docs` installs it and builds")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=quiet, timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert "WARNING" not in answer.stdout + answer.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        source = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?([^\"' >]+)", source)
        loaded += re.findall(r"<link(?![^>]*rel=\"?canonical)[^>]*\shref=[\"']?([^\"' >]+)", source)
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")), style.name


def test_the_site_has_the_examples_and_the_changelog(site):
    assert (site / "examples" / "grid.yaml").read_text() == (ROOT / "examples" / "grid.yaml").read_text()
    assert "Unreleased" in (site / "changelog.html").read_text()
    assert 'href="examples/grid.yaml"' in (site / "choosing.html").read_text()


def test_the_site_has_a_reference_and_the_notebooks(site):
    python = (site / "reference" / "api.html").read_text()
    assert 'id="rrcluster.from_frame"' in python
    assert "value of a cell" in " ".join(python.split())  # of the docstring
    assert "Measured on raw client data: not private." in python  # of the comment on a field
    notebook = (site / "notebooks" / "own_csv.html").read_text()
    assert "noise multiplier 1.08" in notebook  # what a cell printed
    assert (site / "examples" / "notebooks" / "own_csv.ipynb").is_file()
    assert 'id="reserve_rounds"' in (site / "reference" / "settings.html").read_text()


def test_every_page_names_the_version_of_the_code(site):
    for name in ("index.html", "choosing.html", "reference/api.html"):
        source = (site / name).read_text(encoding="utf-8")
        assert (
            f"<title>rrcluster {rrcluster.__version__}" in source
            or f"rrcluster {rrcluster.__version__}</title>" in source
        )
        assert "check out its tag" in source


def test_no_two_pages_have_one_address():
    """`x/README.md` and `x/index.md` would both be x/index.html on the site, and one of them would be lost."""
    assert not [page for page in DOCS.rglob("README.md") if (page.parent / "index.md").exists()]
