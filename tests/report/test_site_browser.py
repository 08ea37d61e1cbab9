"""The documentation site in a real browser. Needs the extra [docs] and a Chromium."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from browser import Browser, find_browser

ROOT = Path(__file__).parent.parent.parent
CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
PAGES = (
    "index",
    "quick-start",
    "concepts",
    "privacy",
    "own-method",
    "results",
    "theory",
    "paper",
    "methods/ifca",
    "changelog",
    "gallery",
    "notebooks/laptop_federation",
    "reference/api",
    "reference/settings",
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
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_legible(browser, site, name, width, dark):
    page, mobile = site / f"{name}.html", width < 600
    browser.open(page, width=width, dark=dark, mobile=mobile)
    browser.run("localStorage.clear()")  # the site remembers the palette of an earlier visit
    browser.open(page, width=width, dark=dark, mobile=mobile)
    assert browser.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert {check: places for check, places in browser.run(CHECKS).items() if places} == {}
    assert browser.complaints == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_picture_of_the_idea_fits_the_window(browser, site):
    shown = []
    for width in (375, 1280):
        browser.open(site / "index.html", width=width, mobile=width < 600)
        shown.append(browser.run("document.querySelector('picture img').currentSrc.split('/').pop()"))
    assert shown == ["idea-narrow.svg", "idea.svg"]


@pytest.mark.parametrize("width", [375, 1280])
def test_the_search_finds_pages_from_disk(browser, site, width):
    browser.open(site / "concepts.html", width=width, mobile=width < 600)
    assert browser.run(SEARCH.replace("WORD", "rebalancing")) >= 3
    assert browser.complaints == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_the_search_finds_pages(browser, site):
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open_address(f"http://127.0.0.1:{server.server_port}/index.html", width=1280)
        found = browser.run(SEARCH.replace("WORD", "rebalancing"))
        server.shutdown()
    assert found >= 3
    assert browser.complaints == []


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


SEARCH = """(async () => {
  const box = document.querySelector("[data-md-component=search-query]");
  box.focus();
  box.value = "WORD";
  box.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true, key: "n"}));
  for (let turn = 0; turn < 100 && !document.querySelector(".md-search-result__item"); turn += 1)
    await new Promise((done) => setTimeout(done, 100));
  return document.querySelectorAll(".md-search-result__item").length;
})()"""
