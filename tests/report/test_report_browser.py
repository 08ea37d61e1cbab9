"""The report in a real browser, at the width of a desk and of a hand, in light and in dark."""

from pathlib import Path

import pytest
from browser import Browser, find_browser

from rrcluster.report import make_report

CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
LABELS_OF_FIGURES = """[...document.querySelectorAll(".plot svg")].map(
    (svg) => 7 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""  # 7 points, in pixels on the screen

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_browser() is None, reason="no Chromium here; install one (Debian: chromium) to check the page"
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory, run_folder):
    """A page of three methods, and one of everything: epsilons, seeds, values of B, no privacy, long names."""
    few, many = tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("many")
    run_folder(few / "a", algorithm="fedavg", accuracy=0.58)
    run_folder(few / "b", accuracy=0.70)
    run_folder(few / "c", accuracy=0.75, rebalance="coin", min_cluster_size=15)
    for seed in (0, 1, 2):
        for epsilon in (1.0, 2.0, 8.0):
            for size in (0, 4, 8, 12):
                folder = many / f"e{epsilon:g}-B{size}" / f"seed-{seed}"
                accuracy = 0.6 + epsilon / 50 + seed / 100 + size / 200
                run_folder(
                    folder, accuracy=accuracy, epsilon=epsilon, seed=seed, rebalance="coin", min_cluster_size=size
                )
        run_folder(
            many / "none" / f"seed-{seed}", seed=seed, accuracy=0.8, mechanism="none", epsilon=None, status="stopped"
        )
    run_folder(many / "long", algorithm="an-algorithm-with-a-name-that-takes-more-room-than-there-is", accuracy=0.5)
    return {"few": make_report(few).page, "many": make_report(many).page}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("which", ["few", "many"])
def test_the_page_is_whole_and_legible(browser, pages, which, width, dark):
    browser.open(pages[which], width=width, dark=dark, mobile=width < 600)
    found = browser.run(CHECKS)
    assert {name: places for name, places in found.items() if places} == {}
    assert browser.complaints == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []
    labels = browser.run(LABELS_OF_FIGURES)
    assert len(labels) >= 5
    assert min(labels) >= 9


def test_dark_and_light_differ(browser, pages):
    colours = []
    for dark in (False, True):
        browser.open(pages["few"], width=1280, dark=dark)
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("document.querySelector('.lead').style.minWidth = '2000px'", "wider_than_the_window"),
        ("document.querySelector('.lead').style.color = '#bbbbbb'", "contrast_too_low"),
        ("document.querySelector('.lead').style.fontSize = '8px'", "text_too_small"),
        ("document.querySelector('.plot').style.width = '100px'", "figures_too_small"),
        ("document.body.append(Object.assign(new Image(), {src: 'nowhere.png'}))", "images_not_loaded"),
        ("document.querySelectorAll('.facts div')[1].style.marginLeft = '-60px'", "cells_overlap"),
        ("document.querySelector('#chart text').setAttribute('x', -30)", "labels_cut"),
    ],
)
def test_the_checks_can_fail(browser, pages, damage, check):
    browser.open(pages["few"], width=1280)
    browser.run(f"{damage}; 0")
    assert browser.run(CHECKS)[check]


def test_an_error_in_the_console_is_heard(browser, tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<!DOCTYPE html><title>x</title><script>nothing.at.all()</script><img src='missing.png'>")
    browser.open(page, width=1280)
    assert any("nothing is not defined" in complaint for complaint in browser.complaints)
    assert any("ERR_FILE_NOT_FOUND" in complaint for complaint in browser.complaints)
