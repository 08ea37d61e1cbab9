"""The documentation site in a real browser. Needs the extra [docs] and a Chromium."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, find_browser

ROOT = Path(__file__).parent.parent.parent
CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
PAGES = (
    "",
    "quick-start",
    "concepts",
    "privacy",
    "own-algorithm",
    "results",
    "theory",
    "paper",
    "methods/ifca",
    "changelog",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium here; install one (Debian: chromium)"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="the site needs the extra [docs]; `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=300)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_legible(browser, site, name, width, dark):
    page, mobile = site / name / "index.html", width < 600
    browser.open(page, width=width, dark=dark, mobile=mobile)
    browser.run("localStorage.clear()")  # the site remembers the palette of an earlier visit
    browser.open(page, width=width, dark=dark, mobile=mobile)
    assert browser.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert {check: places for check, places in browser.run(CHECKS).items() if places} == {}
    assert browser.complaints == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))] == []
