import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rrcluster as rr
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.privacy.cost import digits_up, epsilon_text
from rrcluster.privacy.statement import statement
from rrcluster.report import make_report
from rrcluster.report.figures import draw_figures
from rrcluster.report.folders import find_runs
from rrcluster.report.page import lead, settings_section
from rrcluster.report.series import arenas
from rrcluster.report.tables import group_labels
from rrcluster.storage import write_file
from rrcluster.types import Coordinates

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Checker(HTMLParser):
    """Every tag is closed in order; collects ids, headings, links and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.text, self.headings = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.headings += [tag] if re.fullmatch(r"h\d", tag) else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(page: Path) -> tuple[str, Checker]:
    source = page.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(source)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith("#") for link in checker.links)
    assert not re.search(r"https?://", re.sub(r">[^<]*<", "><", source))
    assert "@import" not in source
    assert "url(" not in source.replace("url(#", "")
    return source, checker


def test_demo_report(demo):
    report = make_report(demo)
    assert report.page == demo / "report.html"
    assert [path.name for path in report.tables] == ["table.csv", "table.tex", "table.md"]
    assert {path.name for path in report.figures} == {
        f"{name}.{kind}" for name in ("accuracy", "worst-decile", "confusion", "sizes") for kind in ("png", "pdf")
    }
    for path in (*report.figures, *report.tables, report.page):
        assert path.stat().st_size > 100
    assert not list(demo.rglob(".*"))
    source, checker = check(report.page)
    assert checker.headings[0] == "h1"
    assert source.count("<svg") == 4 + 1  # the letters that they share
    assert source.count('role="img" aria-label=') == 4
    text = " ".join(checker.text)
    for words in (
        "demo: 3 methods",
        "RR-Cluster (IFCA), B=15",
        "NOT PRIVATE:",
        "seeded noise can be subtracted",
        "diagnostic, not private",
        "add-remove",
        "Poisson",
        "accountant: rdp; epsilon: ",
        "is for fixed-size cohorts under replace-one",
        "Choosing settings by looking at private data.",
        "rrcluster run rr-cluster/config.yaml --out again/rr-cluster",
        "prefers-color-scheme: dark",
    ):
        assert words in text
    assert str(demo.parent) not in source


def test_the_same_runs_give_the_same_bytes(demo, tmp_path):
    first, second = make_report([demo], out=tmp_path / "x" / "a"), make_report([demo], out=tmp_path / "x" / "b")
    for one, two in zip(first.figures, second.figures, strict=True):
        assert one.read_bytes() == two.read_bytes()
    pages = [path.read_text() for path in (first.page, second.page)]
    assert pages[0].replace("a: 3 methods", "") == pages[1].replace("b: 3 methods", "")


def test_a_single_run_without_privacy_or_diagnostics(tmp_path, run_folder):
    folder = run_folder(tmp_path / "plain", mechanism="none", epsilon=None, algorithm="fedavg", accuracy=None)
    report = make_report([folder])
    assert report.page.parent == folder
    assert {path.stem for path in report.figures} == {"sizes"}
    text = " ".join(check(report.page)[1].text)
    assert "nothing here is private" in text
    assert "No privacy:" in text
    assert "NOT PRIVATE:" in text
    assert "none (no privacy)" in text
    assert "No diagnostics" in text


def test_text_from_settings_is_escaped(tmp_path, run_folder):
    nasty = '<script>alert("x")</script>$x$ \\frac{& ${title}'
    run_folder(
        tmp_path / "a", algorithm=nasty, partition=nasty, privacy={"released": [nasty], "unit": nasty, nasty: nasty}
    )
    run_folder(tmp_path / "b", privacy={"artefacts": f"NOT PRIVATE: {nasty}"})
    source, checker = check(make_report(tmp_path, out=tmp_path / nasty.replace("/", "")).page)
    assert "<script" not in source
    assert nasty in "".join(checker.text)


def test_the_policy_allows_no_script(demo, figures):
    page = make_report(demo).page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_of_a_secure_run_one_epsilon_stands_out_with_what_it_covers(tmp_path, run_folder, figures):
    plan = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, 10),
        num_clusters=4,
        num_clients=1000,
        sample_rate=0.5,
        num_rounds=12,
        reserve_rounds=2,
        epsilon=4.0,
        secure=True,
    )
    stated = statement(plan)
    stated["participation"]["towards"][1]["who"] = "somebody else"
    page = make_report(run_folder(tmp_path / "a", accuracy=None, privacy=stated, reserve_rounds=2)).page
    page = page.read_text(encoding="utf-8")
    section = page[page.index('id="privacy"') : page.index('id="settings"')]
    quoted, folded = section.split("<details>")
    assert re.findall(r"epsilon = ([\d.]+)", quoted) == ["4.00"]
    for words in (
        "The one to quote",
        "all 12 rounds and 2 in reserve",
        "4 noisy sums of 10 clustered coordinates; 4 noisy cluster sizes",
        "observers of the",
    ):
        assert words in quoted
    seen = epsilon_text(plan.epsilon_seen())
    assert seen in folded
    assert seen not in quoted
    assert "somebody else" not in quoted
    half = stated["profile"][2]
    assert 1.99 < half["epsilon"] < 2
    assert f"epsilon: 2.00; delta: {digits_up(half['delta'], 3)}" in folded  # both rounded up
    assert str(plan.epsilon()) not in page


def test_of_a_federation_the_claim_says_towards_whom_and_what_is_assumed(tmp_path, run_folder, figures):
    about = {"towards": "everybody, the server included", "assumed": "at least 3 members follow the protocol"}
    about |= {"mode": "secure", "least_honest": 3, "most_colluders": 1}
    statement = {"secure": True, "artefacts": "Exact noise.", "adjacency": "zero-out", "federation": about}
    page = make_report(run_folder(tmp_path / "a", accuracy=None, privacy=statement)).page.read_text(encoding="utf-8")
    claim = re.search(r'<div class="claim">.*?</div>', page, re.DOTALL).group()
    assert "Towards: everybody, the server included. Assumed: at least 3 members follow the protocol." in claim


def test_seeds_have_bands_and_commands(tmp_path, run_folder):
    for seed, accuracy in enumerate((0.7, 0.72, 0.74)):
        run_folder(tmp_path / "many" / f"seed-{seed}", seed=seed, accuracy=accuracy)
    report = make_report(tmp_path / "many")
    checker = check(report.page)[1]
    text = " ".join(checker.text)
    assert report.page.parent == tmp_path / "many"
    assert "rrcluster run seed-0/config.yaml --seeds 0 1 2 --out again/run" in text
    assert "Bands: 95% t-interval" in text
    assert "The first seed of each method." in text


def test_unfinished_runs_are_announced(tmp_path, run_folder, figures):
    run_folder(tmp_path / "a", status="stopped")
    folder = run_folder(tmp_path / "b", num_clusters=8)
    (folder / "summary.json").unlink()
    (folder / "rounds.jsonl").unlink()
    (folder / "diagnostics.jsonl").unlink()
    text = " ".join(check(make_report(tmp_path).page)[1].text)
    assert "a run is stopped; its epsilon is that of the whole plan." in text
    assert "a run is unfinished; its epsilon is that of the whole plan." in text


def test_empty_clusters_of_several_runs_are_one_notice(tmp_path, run_folder, figures):
    run_folder(tmp_path / "a", summary={"dead_clusters": [1]})
    assert "cluster 1 looks empty" in make_report(tmp_path).page.read_text()
    run_folder(tmp_path / "b", algorithm="fesem", summary={"dead_clusters": [0, 2]})
    page = make_report(tmp_path).page.read_text()
    assert page.count("empty:</strong>") == page.count("some clusters look empty") == 1


def test_runs_on_different_data_are_in_arenas_of_their_own(tmp_path, run_folder):
    run_folder(tmp_path / "a", accuracy=0.7)
    run_folder(tmp_path / "d", accuracy=0.9, data="clients.csv", partition=None)
    assert list(arenas(find_runs([tmp_path]))) == ["fashion-mini, rotation", "clients.csv"]


def test_the_lead_says_what_a_survey_found(tmp_path, run_folder):
    found = {"groups_found": 3, "num_clusters": 8}
    run_folder(tmp_path / "a", init="survey", num_clusters=8, summary=found)
    text = "The survey found 3 groups; 5 of 8 clusters stay closed."
    assert lead(find_runs([tmp_path])).endswith(text)
    run_folder(tmp_path / "d", init="survey", num_clusters=8, epsilon=8.0, summary=found)
    assert lead(find_runs([tmp_path])).endswith(text)
    run_folder(tmp_path / "c", init="survey", num_clusters=8, seed=1, summary={**found, "groups_found": 2})
    assert "survey found" not in lead(find_runs([tmp_path]))  # seeds disagree


def test_settings_are_written_as_everywhere_on_the_page(tmp_path, run_folder):
    run_folder(tmp_path / "a", delta=5e-5, ratio=[])
    groups = find_runs([tmp_path])
    section = settings_section(groups, group_labels(groups))
    assert "<dt>delta</dt><dd>5e-5</dd>" in section
    assert "<dt>ratio</dt><dd>not set</dd>" in section


def test_a_run_before_its_first_round(tmp_path, run_folder):
    folder = run_folder(tmp_path / "a", accuracy=None)
    for name in ("summary.json", "rounds.jsonl"):
        (folder / name).unlink()
    report = make_report(folder)
    assert report.figures == ()
    assert "No finished round" in report.page.read_text()


def test_many_methods_get_more_figures(tmp_path, run_folder, figures):
    for k in range(2, 8):
        run_folder(tmp_path / f"k{k}", num_clusters=k, num_rounds=3, epsilon=float(k))
    drawings = draw_figures(find_runs([tmp_path]))
    assert [drawing.name for drawing in drawings] == [
        "accuracy",
        "worst-decile",
        "confusion",
        "sizes",
        "sizes-2",
    ]
    assert all("diagnostic, not private" in drawings[0].__dict__[field] for field in ("caption", "alt"))


def test_several_paths_are_reported_where_they_meet(demo, figures):
    assert make_report([demo / "dp-ifca", demo / "rr-cluster"]).page == demo / "report.html"
    with pytest.raises(RunFolderError, match="no run folder"):
        make_report([])


def test_writing_failure_names_the_file_and_leaves_no_rest(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RunFolderError, match=r"page\.html"):
        write_file(tmp_path / "taken" / "page.html", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunFolderError, match="folder"):
        write_file(tmp_path / "folder", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "taken"]


def test_figures_without_matplotlib(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"figures need matplotlib; run .pip install"):
        make_report(demo)
    assert not (demo / "report.html").exists()


def test_import_is_light():
    code = (
        "import sys, rrcluster.report\n"
        "print([name for name in ('torch', 'matplotlib', 'scipy', 'rich', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
