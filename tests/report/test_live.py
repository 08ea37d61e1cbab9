"""The live page: what it shows of a run, to whom, and in a browser while a run goes on."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from browser import Browser, find_browser

from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.report.folders import read_run
from rrcluster.report.live import LivePage, snapshot
from rrcluster.runs.experiment import make_experiment


@pytest.fixture
def served():
    pages = []

    def start(*paths):
        page = LivePage(paths)
        threading.Thread(target=page.serve_forever, daemon=True).start()
        pages.append(page)
        return page

    yield start
    for page in pages:
        page.shutdown()
        page.server_close()


def get(page, path, *, token=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    headers = {} if host is None else {"Host": host}
    connection.request("GET", f"{path}?token={page.token if token is None else token}", headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


def test_the_state_is_what_the_folder_says(tmp_path, run_folder):
    run_folder(tmp_path / "a", accuracy=0.7, num_rounds=12)
    (run,) = snapshot([tmp_path])["runs"]
    assert (run["round"], run["rounds"], run["status"], run["seed"]) == (12, 12, "finished", 0)
    assert (run["epsilon"], run["delta"]) == ("4.00", "1e-4")
    assert run["diagnostic"][-1] == [12, 0.7]
    assert len(run["sizes"]) == 4
    assert run["seconds_left"] is None


def test_of_a_secure_run_settings_and_round_alone_are_shown(tmp_path, run_folder):
    run_folder(tmp_path / "a", accuracy=None, privacy={"secure": True})
    (run,) = snapshot([tmp_path])["runs"]
    settings = {"name", "label", "data", "secure", "private", "rounds", "epsilon", "delta"}
    assert set(run) == settings | {"status", "round", "report"}


def test_runs_of_a_reproduction_are_followed_and_link_to_its_report(tmp_path, run_folder, served):
    table = tmp_path / "reproduce" / "fashion"
    run_folder(table / "ifca" / "seed-0", accuracy=0.7)
    (table / "reproduction.json").write_text("{}", encoding="utf-8")
    for path in (tmp_path / "reproduce", table):
        (run,) = snapshot([path])["runs"]
        assert run["data"] == "fashion-mini"
        assert run["label"]
        assert not run["report"]
    page = served(table)
    assert get(page, "/state")[0] == 200
    assert page.report(run["name"]) is None
    (table / "report.html").write_text("<p>the table</p>", encoding="utf-8")
    assert json.loads(get(page, "/state")[1])["runs"][0]["report"]
    address = urlsplit(f"/report?run={quote(run['name'])}&token={page.token}")
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    connection.request("GET", address.geturl())
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"<p>the table</p>")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for path, token in ((f"/report?run={quote(run['name'])}&", "wrong"), ("/report?run=/etc&", page.token)):
        connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
        connection.request("GET", f"{path}token={token}")
        assert connection.getresponse().status in (403, 404)


def test_a_run_without_accuracy_is_drawn_by_its_loss(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", accuracy=None, num_rounds=12)
    lines = [json.dumps({"round": t, "accuracy": None, "loss": 2 - t / 8}) for t in (5, 11)]
    (folder / "diagnostics.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (run,) = snapshot([tmp_path])["runs"]
    assert (run["measure"], run["diagnostic"]) == ("loss", [[6, 1.375], [12, 0.625]])


def test_a_survey_is_announced_and_its_answer_shown(tmp_path, run_folder):
    begins = {"initialisation": {"init": "survey", "rounds": 9}}
    run_folder(tmp_path / "a", privacy=begins, summary={"groups_found": 3, "num_clusters": 4})
    (run,) = snapshot([tmp_path])["runs"]
    assert (run["survey_rounds"], run["groups"]) == (9, "The survey found 3 groups; 1 of 4 clusters stay closed.")
    run_folder(tmp_path / "a", privacy={"initialisation": {"init": "independent", "rounds": None}})
    (run,) = snapshot([tmp_path])["runs"]
    assert (run["survey_rounds"], run["groups"]) == (0, "")


def test_an_epsilon_is_not_rounded_down(tmp_path, run_folder):
    run_folder(tmp_path / "a", epsilon=4.0015)
    assert snapshot([tmp_path])["runs"][0]["epsilon"] == "4.01"


def test_the_load_is_not_shown_beside_a_secure_run(tmp_path, run_folder):
    run_folder(tmp_path / "a", accuracy=None, privacy={"secure": True})
    assert snapshot([tmp_path])["load"] is None


def test_an_accuracy_that_is_released_round_by_round_is_shown_while_the_run_goes_on(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", num_rounds=2)
    (folder / "summary.json").unlink()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[-1]["private_evaluation"] = {"accuracy": 0.61}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert snapshot([tmp_path])["runs"][0]["released_accuracy"] == 0.61


def test_what_did_not_change_is_not_read_again(tmp_path, run_folder, monkeypatch):
    folder, shown, reads = run_folder(tmp_path / "a", num_rounds=3), {}, []
    monkeypatch.setattr("rrcluster.report.live.read_run", lambda path: reads.append(path) or read_run(path))
    first = snapshot([tmp_path], shown)
    assert snapshot([tmp_path], shown)["runs"] == first["runs"]
    assert len(reads) == 1
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "sizes": [1.0] * 4, "denominators": [1.0] * 4}) + "\n")
    assert snapshot([tmp_path], shown)["unread"] == []
    assert len(reads) == 2


def test_a_run_that_cannot_be_read_stays_on_the_page_for_a_moment(tmp_path, run_folder, monkeypatch):
    folder, shown = run_folder(tmp_path / "a"), {}
    first = snapshot([tmp_path], shown)
    (folder / "privacy.json").write_text("{")
    again = snapshot([tmp_path], shown)
    assert (again["runs"], again["unread"]) == (first["runs"], [])
    monkeypatch.setattr("rrcluster.report.live._STALE", -1.0)
    later = snapshot([tmp_path], shown)
    assert (later["runs"], len(later["unread"])) == ([], 1)  # its cost is unknown


def test_a_sweep_is_followed_run_by_run(tmp_path, run_folder):
    for name in ("update_clip=0.1", "update_clip=0.2"):
        for seed in (0, 1):
            run_folder(tmp_path / "sweep" / name / f"seed-{seed}", seed=seed)
    (tmp_path / "sweep" / "update_clip=0.2" / "seed-1" / "summary.json").unlink()
    runs = snapshot([tmp_path / "sweep"])["runs"]
    assert len(runs) == 4
    assert [run["status"] for run in runs] == ["unfinished", "finished", "finished", "finished"]


def test_long_curves_are_thinned_and_end_with_the_last_point(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", accuracy=0.7, num_rounds=12)
    line = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[-1])
    lines = [json.dumps({**line, "round": t, "accuracy": t / 1000}) for t in range(1000)]
    (folder / "diagnostics.jsonl").write_text("\n".join(lines) + "\n")
    (run,) = snapshot([tmp_path])["runs"]
    assert len(run["diagnostic"]) <= 200
    assert run["diagnostic"][-1] == [1000, 0.999]


def test_a_folder_that_cannot_be_read_yet_stops_nothing(tmp_path, run_folder):
    run_folder(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("")
    state = snapshot([tmp_path, tmp_path / "nowhere"])
    assert len(state["runs"]) == 1
    (reason,) = state["unread"]
    assert reason.startswith(f"{tmp_path / 'b' / 'privacy.json'}: missing")


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "an empty folder"])
def test_a_run_that_has_not_begun_is_waited_for_by_name(tmp_path, run_folder, there):
    folder = tmp_path / "soon"
    if there:
        folder.mkdir()
    before = snapshot([folder])
    assert (before["runs"], before["not_begun"], before["unread"]) == ([], [str(folder)], [])
    run_folder(folder)
    after = snapshot([folder])
    assert (len(after["runs"]), after["not_begun"]) == (1, [])


def test_a_run_that_no_longer_writes_says_since_when(tmp_path, run_folder):
    """A killed run would otherwise have the same seconds left for ever; of a secure run no time is shown."""
    for name, secure in (("a", False), ("b", True), ("c", False)):
        folder = run_folder(tmp_path / name, accuracy=None, privacy={"secure": secure})
        (folder / "summary.json").unlink()
        for path in folder.iterdir():
            os.utime(path, (time.time() - 100 * (name != "c"),) * 2)
    silent, fresh, secret = sorted(snapshot([tmp_path])["runs"], key=lambda run: (run["secure"], run["name"]))
    assert 100 <= silent["silent"] < 130
    assert fresh["silent"] is None
    assert "silent" not in secret


def test_only_the_address_that_was_printed_opens_it(tmp_path, run_folder, served):
    run_folder(tmp_path / "a")
    page = served(tmp_path)
    assert get(page, "/")[0] == get(page, "/state")[0] == 200
    assert get(page, "/state", token="wrong")[0] == get(page, "/", token="")[0] == 403
    assert get(page, "/state", host="attacker.example")[0] == 403  # a name that was made to point here
    assert get(page, "/../checkpoint/private")[0] == 404
    assert urlsplit(page.address).hostname == "127.0.0.1"
    headers = get(page, "/")[2]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_watching_writes_nothing(tmp_path, run_folder, served):
    run_folder(tmp_path / "a")
    page = served(tmp_path)

    def files():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = files()
    for _ in range(3):
        get(page, "/state")
    assert files() == before


@pytest.mark.parametrize(("arguments", "error"), [([], ConfigError), (["a-file"], RunFolderError)])
def test_what_cannot_be_watched_is_refused(tmp_path, monkeypatch, arguments, error):
    from rrcluster.cli.watch_command import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("no folder")
    with pytest.raises(error):
        main(arguments)
    with pytest.raises(ConfigError, match="port = 70000"):
        main(["runs", "--port", "70000"])


def test_run_prints_the_address_of_a_page_that_follows_it(tmp_path, monkeypatch, capsys):
    """The page is served while the run goes on, and gone when it has ended."""
    from rrcluster.cli import main
    from rrcluster.report import live

    seen, first = [], []
    state = live.LivePage.state
    monkeypatch.setattr(live.LivePage, "__init__", _noted(live.LivePage.__init__, seen))

    def make_slowly(config, **more):
        first.append(json.loads(state(seen[0])))
        return make_experiment(config, **more)

    monkeypatch.setattr("rrcluster.runs.experiment.make_experiment", make_slowly)

    def ask(_, figures):
        page = seen[0]
        seen.append(json.loads(state(page))["runs"])

    monkeypatch.setattr("rrcluster.runs.progress._callables", lambda *_, **__: [ask])
    flags = ["--rounds", "2", "--clients", "60", "--mechanism", "none", "--model", "linear"]
    assert main(["run", "--watch", *flags, "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().err
    assert f"Watching this run, until it ends: {seen[0].address}" in said
    (before,) = first  # the page is open before there is a folder
    assert (before["runs"], before["doing"]) == ([], "Loading fashion-mini and calibrating the noise")
    assert json.loads(state(seen[0]))["doing"] == ""
    assert [[run["round"] for run in runs] for runs in seen[1:]] == [[1], [2]]
    with pytest.raises(ConnectionRefusedError):
        get(seen[0], "/state")
    for words in ("clients of the first round are training", "rrcluster report", "rrcluster assign"):
        assert words in said
    assert 'rrcluster.load("' in said


def _noted(make, seen):
    def noted(page, *arguments, **options):
        make(page, *arguments, **options)
        seen.append(page)

    return noted


CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if (executable := find_browser()) is None:
        pytest.skip("no Chromium here; install one (Debian: chromium) to check the page")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_follows_a_run_in_a_browser(tmp_path, run_folder, served, browser, width, dark):
    begins = {"initialisation": {"init": "survey", "rounds": 6}}
    folder = run_folder(tmp_path / "<img src=x onerror=alert(1)>", accuracy=0.7, num_rounds=12, privacy=begins)
    (folder / "summary.json").unlink()
    rounds = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(rounds[:5]))
    page = served(tmp_path)
    browser.open_address(page.address, width=width, dark=dark, mobile=width < 600)
    text = wait_for(browser, "round", "5 of 12, looking for groups until round 6", "load")
    assert browser.run("document.title") == "41% · rrcluster"
    assert "<img src=x" in text  # as text
    assert "diagnostic, not private" in text
    run_folder(tmp_path / "secret", accuracy=None, privacy={"secure": True})
    assert "load" not in wait_for(browser, "nothing else is shown")
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(rounds[5])
    began = time.monotonic()
    assert "looking for groups" not in wait_for(browser, "round", "6 of 12")
    assert time.monotonic() - began < 2
    assert {check: places for check, places in browser.run(CHECKS).items() if places} == {}
    assert browser.complaints == []
    assert {urlsplit(url).netloc for url in browser.requests()} == {f"127.0.0.1:{page.server_port}"}


@pytest.mark.slow
def test_a_wrong_token_shows_nothing_of_a_run(tmp_path, run_folder, served, browser):
    run_folder(tmp_path / "a")
    page = served(tmp_path)
    for address in (page.address[:-4] + "nope", page.address.partition("?")[0]):
        browser.open_address(address, width=1280)
        assert browser.run("document.body.innerText") == "wrong token: open the address that was printed"
    browser.open_address(page.address, width=1280)
    wait_for(browser, "12 of 12, finished")
    page.token = "another"
    assert "wrong token" in wait_for(browser, "No answer")


@pytest.mark.slow
def test_a_card_that_did_not_change_stays_as_it_is(tmp_path, run_folder, served, browser):
    """Else a text that a reader selects would be taken away every second."""
    run_folder(tmp_path / "a")
    page = served(tmp_path)
    browser.open_address(page.address, width=1280)
    wait_for(browser, "12 of 12, finished")
    browser.run("document.querySelector('article').dataset.marked = 'yes'")
    run_folder(tmp_path / "b", seed=1)
    wait_for(browser, "2 runs", "seed 1")
    assert browser.run("document.querySelectorAll('article[data-marked]').length") == 1


@pytest.mark.slow
def test_a_run_that_goes_on_is_never_two_seconds_ahead_of_its_page(tmp_path, browser):
    """`watch` before `run`, as two people would: the page waits for the run, then shows each round in time."""
    folder, program = tmp_path / "run", [sys.executable, "-m", "rrcluster"]
    flags = ["--rounds", "150", "--clients", "400", "--out", str(folder), "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*program, "watch", "--no-open", str(folder)], **quiet) as watch:
        assert "no run there yet" in watch.stderr.readline()
        browser.open_address(re.search(r"http://\S+", watch.stderr.readline()).group(), width=1280)
        wait_for(browser, f"Waiting for a run in {folder}")
        with subprocess.Popen([*program, "run", *flags], **quiet) as run:
            written, shown = [], []
            while run.poll() is None:
                written.append((time.monotonic(), rounds_on_disk(folder)))
                seen = re.search(r"(\d+) of 150", browser.run("document.body.innerText"))
                shown.append((time.monotonic(), int(seen.group(1)) if seen else 0))
                time.sleep(0.05)
            assert run.returncode == 0, run.stderr.read()
        wait_for(browser, "150 of 150, finished")
        watch.terminate()
    assert len({rounds for _, rounds in shown}) >= 4  # it was seen on its way
    for moment, rounds in shown:
        assert rounds >= max((count for at, count in written if at <= moment - 2), default=0)


def rounds_on_disk(folder):
    path = folder / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_a_browser_follows_a_run_to_its_end(tmp_path, browser):
    flags = ["--rounds", "8", "--clients", "60", "--mechanism", "none", "--model", "linear", "--out", tmp_path / "run"]
    command = [sys.executable, "-m", "rrcluster", "run", "--watch", *map(str, flags)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        address = re.search(r"http://\S+", run.stderr.readline()).group()
        browser.open_address(address, width=1280)
        shown = wait_for(browser, "8 of 8, finished")  # the command waits until an open page has seen the end
        assert "IFCA" in shown
        assert "none (no privacy)" in shown
        said = run.stderr.read()
    assert run.returncode == 0, said


def wait_for(browser, *texts):
    began = time.monotonic()
    while time.monotonic() - began < 60:
        shown = browser.run("document.body.innerText")
        if all(text in shown for text in texts):
            return shown
        time.sleep(0.1)
    raise AssertionError(f"{texts} never came: {shown}")
