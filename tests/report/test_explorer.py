"""The chart and the tables of a report's page: what they are drawn from, and in a browser what a reader does."""

import json
import re

import pytest
from browser import Browser, find_browser

from rrcluster.report import find_runs, make_report
from rrcluster.report.explorer import as_data_block, explorer_data

NASTY = '</script><script>document.title = "taken"</script><img src=x onerror="document.title = 1">'
in_a_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium here; install one (Debian: chromium) to check the page"
)


def test_the_chart_has_the_values_of_the_files(tmp_path, run_folder):
    for seed, accuracy in enumerate((0.70, 0.72)):
        run_folder(tmp_path / f"seed-{seed}", seed=seed, accuracy=accuracy, num_rounds=4)
    (line,) = explorer_data(find_runs([tmp_path]))["lines"]
    rounds, means, halves = line["values"]["accuracy"]
    assert (rounds[-1], means[-1]) == (4, 71.0)
    assert halves[-1] == pytest.approx(12.706, rel=1e-3)
    assert line["promise"] == "epsilon 4.00, delta 1e-4"
    assert min(line["values"]["smallest"][1]) < 0  # as released


def test_a_long_run_is_thinned_and_ends_with_its_last_round(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", num_rounds=4)
    line = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[-1])
    lines = [json.dumps({**line, "round": at, "accuracy": at / 5000}) for at in range(5000)]
    (folder / "diagnostics.jsonl").write_text("\n".join(lines) + "\n")
    (shown,) = explorer_data(find_runs([tmp_path]))["lines"]
    rounds, means, _ = shown["values"]["accuracy"]
    assert len(rounds) <= 400
    assert (rounds[-1], means[-1]) == (5000, 99.98)


def test_a_data_block_cannot_be_left():
    block = as_data_block({"label": NASTY})
    assert not set(block) & set("<>&")
    assert json.loads(block)["label"] == NASTY


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory, run_folder):
    folder = tmp_path_factory.mktemp("explorer")
    run_folder(folder / "a", algorithm="fedavg", accuracy=0.583)
    run_folder(folder / "b", accuracy=0.701)
    run_folder(folder / "c", accuracy=0.752, rebalance="coin", min_cluster_size=15)
    run_folder(folder / "d", accuracy=0.764, epsilon=8.0)
    run_folder(folder / "e", accuracy=0.4, algorithm=NASTY)
    return make_report(folder).page


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({selector!r})].map((entry) => entry.textContent)")


def mouse(browser, kind, x, y):
    pressed = kind != "mouseMoved"
    button = "left" if pressed else "none"
    browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(pressed))


def values_at(browser, round_number):
    """Hover over the chart at a round of twelve: what the tip says there, by line."""
    x, y = browser.run(
        "(() => { const box = chart.getBoundingClientRect(), scale = box.width / drawn.width;"
        f"return [box.x + scale * drawn.x({round_number}), box.y + box.height / 2] }})()"
    )
    mouse(browser, "mouseMoved", x, y)
    head, *lines = browser.run("[...tip.children].map((part) => part.innerText.trim())")
    assert head == f"round {round_number}"
    return dict(line.rsplit("\n", 1) for line in lines)


def click_a_line(browser):
    """Press on the middle of the last line drawn, with the mouse."""
    x, y = browser.run(
        "(() => { const path = [...document.querySelectorAll('#chart .target')].pop();"
        "const place = path.getPointAtLength(path.getTotalLength() / 2).matrixTransform(path.getScreenCTM());"
        "return [place.x, place.y] })()"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        mouse(browser, kind, x, y)


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize(("width", "dark"), [(375, True), (1280, False)])
def test_a_reader_explores_the_page(browser, page, width, dark):
    browser.open(page, width=width, height=1400, dark=dark, mobile=width < 600)
    browser.run("chart.scrollIntoView({block: 'center'})")
    assert values_at(browser, 12) == {
        f"DP-{NASTY}": "40.0%",
        "DP-FedAvg": "58.3%",
        "DP-IFCA, epsilon 4": "70.1%",
        "RR-Cluster (IFCA), B=15": "75.2%",
        "DP-IFCA, epsilon 8": "76.4%",
    }
    assert values_at(browser, 6)["DP-FedAvg"] == f"{58.3 * (1 - 0.5 / 6):.1f}%"
    assert browser.run("tip.getBoundingClientRect().right") <= width
    before = browser.run("document.querySelectorAll('#chart .series').length")
    click_a_line(browser)
    assert browser.run("document.querySelectorAll('#chart .series').length") == before - 1
    assert browser.run("document.querySelectorAll('#runs input:checked').length") == before - 1
    browser.run("(axis.value = 'epsilon', axis.dispatchEvent(new Event('change')))")
    assert "epsilon" in texts(browser, "#chart text")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("[some.hidden, bands.hidden]") == [True, True]  # five lines of one seed each: no such hints
    assert browser.run("document.title").startswith("explorer")  # no name of a run was executed
    assert browser.complaints == []
    assert [url for url in browser.requests() if not url.startswith("file:")] == []


@pytest.mark.slow
@in_a_browser
def test_a_reader_sorts_and_filters_a_table(browser, page):
    browser.open(page, width=1280)
    browser.run("document.querySelectorAll('.sort')[2].click()")
    rows = [float(text) for text in texts(browser, "main table.cards tbody tr td:nth-child(3)")[:5]]
    assert rows == sorted(rows) == [40.0, 58.3, 70.1, 75.2, 76.4]
    browser.run("document.querySelectorAll('.sort')[2].click()")
    assert texts(browser, "main table.cards tbody tr td:nth-child(3)")[:5] == [f"{value}" for value in reversed(rows)]
    browser.run(
        "(() => { const box = document.querySelector('main input[type=search]');"
        "box.value = 'fedavg'; box.dispatchEvent(new Event('input')) })()"
    )
    shown = browser.run(
        "[...document.querySelectorAll('table.cards')[0].tBodies[0].rows].filter((row) => !row.hidden).length"
    )
    assert shown == 1


@pytest.mark.slow
@in_a_browser
def test_a_reader_sorts_a_table_on_a_phone(browser, page):
    browser.open(page, width=375, mobile=True)
    browser.run(
        "(() => { const box = document.querySelector('main select.narrow');"
        "box.value = '2 down'; box.dispatchEvent(new Event('change')) })()"
    )
    assert browser.run("document.querySelector('main table.cards tbody tr').innerText.includes('76.4')")


@pytest.mark.slow
@in_a_browser
def test_a_chart_without_a_chosen_run_says_so(browser, page):
    browser.open(page, width=1280)
    browser.run("document.getElementById('none').click()")
    assert browser.run("nothing.hidden") is False
    browser.run("document.getElementById('all').click()")
    assert browser.run("nothing.hidden") is True
    assert browser.complaints == []


@pytest.mark.slow
@in_a_browser
def test_a_page_without_runs_to_compare_has_no_chart(browser, tmp_path):
    from rrcluster.report.page import fill_page

    sections = dict.fromkeys(("table", "statement", "settings", "reproduce"), "<p>none</p>")
    (tmp_path / "page.html").write_text(fill_page(title="x", lead="x", notices=[], facts={}, drawings=[], **sections))
    browser.open(tmp_path / "page.html", width=1280)
    assert browser.run("document.getElementById('explore').hidden") is True
    assert browser.complaints == []


@pytest.mark.slow
def test_a_page_of_twenty_runs_of_a_hundred_rounds_is_below_a_megabyte(tmp_path, run_folder):
    for algorithm in ("fedavg", "ifca", "fesem", "fedcam", "fedper"):
        for epsilon in (2.0, 4.0):
            for size in (0, 10):
                name = f"{algorithm}-{epsilon}-{size}"
                settings = {"algorithm": algorithm, "epsilon": epsilon, "min_cluster_size": size, "rebalance": "coin"}
                folder = run_folder(tmp_path / name, num_rounds=100, **settings)
                line = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[-1])
                lines = [json.dumps({**line, "round": at, "accuracy": 0.5 + at / 317}) for at in range(100)]
                (folder / "diagnostics.jsonl").write_text("\n".join(lines) + "\n")
    content = make_report(tmp_path).page.read_bytes()
    assert len(content) < 1_000_000
    assert len(json.loads(re.search(rb'id="data">(.*?)</script>', content).group(1))["lines"]) == 20
