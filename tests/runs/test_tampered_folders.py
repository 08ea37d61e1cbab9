"""A folder whose files disagree on its cost is refused by every reader, in the same words; one that agrees by none."""

import json
import re
import shutil
from functools import reduce
from threading import Thread

import numpy as np
import pytest
import yaml

import rrcluster as rr
from rrcluster.cli import main
from rrcluster.errors import RunFolderError
from rrcluster.privacy.cost import folder_cost
from rrcluster.report.live import snapshot
from rrcluster.runs import private_selection
from rrcluster.runs.experiment import build_experiment
from rrcluster.runs.lock import bind
from rrcluster.runs.private_selection import SelectSettings, candidates
from rrcluster.runs.run import finish, resume, start
from rrcluster.runs.sweep import read_grid
from rrcluster.types import Coordinates

SETTINGS = {
    "data": "synthetic",
    "num_clients": 40,
    "num_clusters": 2,
    "num_rounds": 4,
    "sample_rate": 1.0,  # accounted in closed form
    "local_epochs": 1,
    "delta": 1e-3,
    "device": "cpu",
}
SECURE = {"noise_multiplier": 1.0, "secure": True, "reserve_rounds": 3}


def some_rounds(running, count):
    rounds = running.rounds()
    for _ in range(count):
        next(rounds)
    rounds.close()
    return running.folder.path


def stopped(path):
    return some_rounds(start(build_experiment(**SETTINGS, epsilon=4.0, out=str(path))), 3)


def killed(path):
    """What is on disk in the middle of a secure run, as a kill would leave it."""
    rounds = start(build_experiment(**SETTINGS, **SECURE, out=str(path.with_name("dying")))).rounds()
    next(rounds), next(rounds)
    shutil.copytree(path.with_name("dying"), path)
    rounds.close()


def resumed(path):
    """A secure run that died before the checkpoint of its second round, and charged that again."""
    running, state = start(build_experiment(**SETTINGS, **SECURE, out=str(path))), path / "checkpoint/state.safetensors"
    rounds = running.rounds()
    next(rounds)
    saved = state.read_bytes()
    next(rounds)
    rounds.close()
    state.write_bytes(saved)
    finish(resume(path))


def selection(path):
    settings = {**SETTINGS, "noise_multiplier": 3.0, "private_evaluation": 0.25, "server_lr": [0.5, 1.0]}
    draw, private_selection.draw_repetitions = private_selection.draw_repetitions, lambda *_, **__: 2
    try:
        grid = read_grid(settings | {"data": "fashion-mini", "out": str(path)}, source="grid.yaml", out="")
        private_selection.select(candidates(grid, SelectSettings()))
    finally:
        private_selection.draw_repetitions = draw


def add_on(path):
    plan = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, 3), num_clusters=2, num_clients=40, num_rounds=3, noise_multiplier=1.0, delta=1e-3
    )
    with rr.Server(plan, np.zeros((2, 3)), folder=path, seed=0) as server:
        for _ in range(2):
            ids = server.cohort()
            server.finish(np.ones((len(ids), 3)), np.zeros(len(ids), int), client_ids=ids)


def finished(path, **settings):
    rr.run(**SETTINGS | settings, out=str(path))


def started(path):
    finished(path.with_name("first"), noise_multiplier=1.0)
    finished(path, noise_multiplier=2.0, start_from=str(path.with_name("first")))


MAKE = {
    "seeded": lambda path: finished(path, epsilon=4.0, sample_rate=0.5),
    "stopped": stopped,
    "killed": killed,
    "resumed": resumed,
    "selection": selection,
    "add-on": add_on,
    "started": started,
    "limited": lambda path: finished(path, noise_multiplier=1.0, max_epsilon=4.5),
    "slots": lambda path: finished(path, epsilon=4.0, participation="schedule", slots=2),
    "k-ary": lambda path: finished(path, epsilon=8.0, mechanism="identifier", identifier="kary", sample_rate=0.5),
    "none": lambda path: finished(path, mechanism="none"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind, made when it is first asked for."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "run"
            MAKE[kind](made[kind])
        return made[kind]

    return of


def change(file, edit):
    """An edit of one JSON or YAML file."""
    parse, write = (yaml.safe_load, yaml.safe_dump) if file.endswith(".yaml") else (json.loads, json.dumps)

    def apply(run):
        content = parse((run / file).read_text())
        edit(content)
        (run / file).write_text(write(content))

    return file, apply


def put(file, name, value):
    """A value, or a function of the old one, in place of the one called `name`, as in `a.0.b`."""
    *outer, last = [int(part) if part.isdigit() else part for part in name.split(".")]

    def edit(content):
        inner = reduce(lambda level, part: level[part], outer, content)
        inner[last] = value(inner[last]) if callable(value) else value

    return change(file, edit)


def lines(file, edit):
    """Another list of lines, of which each is an object."""

    def apply(run):
        entries = [json.loads(line) for line in (run / file).read_text().splitlines()]
        (run / file).write_text("".join(json.dumps(line) + "\n" for line in edit(entries)))

    return file, apply


def both(*edits):
    """Several edits; the first one's file is named."""
    return edits[0][0], lambda run: [apply(run) for _, apply in edits]


def lost(file):
    return file, lambda run: (run / file).unlink()


def half(value):
    return value / 2


def twice(value):
    return value * 2


def more(value):
    return value + 1


def next_round(entries):
    return [*entries, entries[-1] | {"round": entries[-1]["round"] + 1}]


def other_noise(entries):
    return [line | {"event": line["event"] | {"noise_multiplier": 9.0}} for line in entries]


def blank(entries):
    return []


def cut(entries):
    return entries[:-1]


STATED, CONFIG, LEDGER, ROUNDS, SUMMARY = "privacy.json", "config.yaml", "ledger.jsonl", "rounds.jsonl", "summary.json"
EDITS = {
    "seeded": {
        "epsilon": put(STATED, "epsilon", 1.0),
        "epsilon, more": put(STATED, "epsilon", 5.0),
        "epsilon, a little": put(STATED, "epsilon", lambda value: value * 0.99999),
        "delta": put(STATED, "delta", 1e-5),
        "noise": put(STATED, "noise.noise_multiplier", twice),
        "noise std": put(STATED, "noise.noise_std", twice),
        "clip": put(STATED, "noise.update_clip", half),
        "rounds": put(STATED, "num_rounds", 2),
        "releases": put(STATED, "num_releases", 2),
        "reserve": put(STATED, "reserve_rounds", 3),
        "clients": put(STATED, "num_clients", twice),
        "secure": put(STATED, "secure", True),
        "called private": put(STATED, "private", True),
        "mechanism": put(STATED, "mechanism", "identifier"),
        "relation": put(STATED, "adjacency", "zero-out"),
        "accountant": put(STATED, "accountant", "rdp"),
        "another accountant's epsilon": put(STATED, "accountants.1.epsilon", half),
        "epsilon of those who see cohorts": put(STATED, "participation.towards.1.epsilon", half),
        "participations": put(STATED, "participation.most_participations", 2),
        "profile": put(STATED, "profile.0.delta", half),
        "risk, in words": put(STATED, "risk_in_words", lambda text: re.sub(r"at most [\d.]+%", "at most 1.1%", text)),
        "risk at 5%, in words": put(
            STATED, "risk_in_words", lambda text: re.sub(r", [\d.]+% while", ", 5.1% while", text)
        ),
        "no numbers in the words on risk": put(STATED, "risk_in_words", "Nobody can tell."),
        "bracket": put(STATED, "bracket.most", half),
        "no end of the bracket": put(STATED, "bracket.most", None),
        "no number in the bracket": put(STATED, "bracket.most", float("nan")),
        "nothing in the bracket": put(STATED, "bracket.most", 0),
        "delta, true": put(STATED, "delta", True),
        "recompute": put(STATED, "recompute.event.count", 2),
        "no event": change(STATED, lambda content: content.pop("event")),
        "no statement": lost(STATED),
        "event": put(STATED, "event.noise_multiplier", twice),
        "target": put(CONFIG, "epsilon", 2.0),
        "target, more": put(CONFIG, "epsilon", 8.0),
        "settings' rounds": put(CONFIG, "num_rounds", 8),
        "settings' reserve": put(CONFIG, "reserve_rounds", 8),
        "settings' rate": put(CONFIG, "sample_rate", 0.1),
        "settings' delta": put(CONFIG, "delta", 1e-5),
        "settings' clients": put(CONFIG, "num_clients", 400),
        "settings' accountant": put(CONFIG, "accountant", "rdp"),
        "settings secure": put(CONFIG, "secure", True),
        "settings' participation": put(CONFIG, "participation", "everybody"),
        "limit": put(CONFIG, "max_epsilon", 1.0),
        "emptied ledger": lines(LEDGER, blank),
        "lost ledger": lost(LEDGER),
        "cut ledger": lines(LEDGER, cut),
        "older ledger": lines(LEDGER, lambda entries: entries[:1]),
        "a charge from the middle": lines(LEDGER, lambda entries: [entries[0], *entries[2:]]),
        "a charge twice": lines(LEDGER, lambda entries: [*entries[:2], *entries[1:-1]]),
        "a charge too many": lines(LEDGER, next_round),
        "another round": lines(LEDGER, lambda entries: [*entries[:-1], entries[-1] | {"round": 40}]),
        "another event": lines(LEDGER, other_noise),
        "a round too many": lines(ROUNDS, next_round),
        "ledger and rounds cut": both(lines(LEDGER, cut), lines(ROUNDS, cut)),
        "ledger, rounds and summary of nothing": both(lines(LEDGER, blank), lost(ROUNDS), lost(SUMMARY)),
        "summary": put(SUMMARY, "epsilon", 1.0),
        "summary's delta": put(SUMMARY, "delta", 1e-5),
        "summary's noise": put(SUMMARY, "noise_multiplier", twice),
        "summary's rounds": put(SUMMARY, "rounds_done", 40),
        "summary's charges": put(SUMMARY, "releases_charged", 1),
    },
    "stopped": {
        "epsilon": put(STATED, "epsilon", 1.0),
        "cut ledger": lines(LEDGER, cut),
        "all but the checkpoint is older": both(
            lines(LEDGER, cut), lines(ROUNDS, cut), put(SUMMARY, "rounds_done", 2), put(SUMMARY, "releases_charged", 2)
        ),
    },
    "killed": {
        "cut ledger": lines(LEDGER, cut),
        "ledger and rounds cut": both(lines(LEDGER, cut), lines(ROUNDS, cut)),
        "noise": put(CONFIG, "noise_multiplier", 2.0),
    },
    "resumed": {
        "a repeated charge dropped": lines(LEDGER, lambda entries: [*entries[:2], *entries[3:]]),
        "a charge twice": lines(LEDGER, lambda entries: [*entries, entries[-1]]),
        "no reserve": put(STATED, "reserve_rounds", 0),
        "noise": put(CONFIG, "noise_multiplier", 2.0),
        "seeded": put(STATED, "secure", False),
        "not private": put(STATED, "private", False),
    },
    "selection": {
        "epsilon": put(STATED, "epsilon", half),
        "repetitions": put(STATED, "event.mean_repetitions", 2.0),
        "charges": put(STATED, "selection.charges", 2),
        "emptied ledger": lines(LEDGER, blank),
        "a charge twice": lines(LEDGER, twice),
        "noise": put(CONFIG, "noise_multiplier", 9.0),
        "not selected": (LEDGER, change(STATED, lambda content: content.pop("selection"))[1]),
    },
    "add-on": {
        "epsilon": put(STATED, "epsilon", 1.0),
        "delta": put(STATED, "delta", 1e-5),
        "emptied ledger": lines(LEDGER, blank),
        "cut ledger": lines(LEDGER, cut),
    },
    "started": {
        "epsilon of both": put(STATED, "started_from.epsilon_together", half),
        "epsilon of both, in words": put(STATED, "started_from.what", "the releases of both count: epsilon = 1.00."),
        "epsilon of both, in a note": put(STATED, "notes.0", "For a client in both: epsilon = 1.00 at delta = 0.001."),
        "releases of the first": put(STATED, "started_from.earlier.0.num_releases", 1),
        "no releases of the first": put(STATED, "started_from.earlier", []),
        "no first run": change(STATED, lambda content: content.pop("started_from")),
        "another first run": put(STATED, "started_from.run", "elsewhere"),
        "no first run, in the settings": put(CONFIG, "start_from", None),
    },
    "limited": {
        "no limit": put(CONFIG, "max_epsilon", None),
        "releases": put(STATED, "num_releases", more),
    },
    "slots": {
        "slots": put(CONFIG, "slots", 4),
        "slots stated": put(STATED, "participation.slots", 4),
        "participations": put(STATED, "participation.most_participations", 1),
        "noise std": put(STATED, "noise.noise_std", half),
    },
    "k-ary": {
        "share": put(CONFIG, "identifier_share", 0.1),
        "identifier": put(CONFIG, "identifier", "gaussian"),
        "kept": put(STATED, "noise.identifier.keep_probability", half),
    },
    "none": {
        "private": put(STATED, "private", True),
        "mechanism": put(CONFIG, "mechanism", "joint"),
    },
}
CASES = [pytest.param(kind, *edit, id=f"{kind}: {name}") for kind in EDITS for name, edit in EDITS[kind].items()]


def by_python(ask):
    """Exit status and error, as the command line would have them."""

    def read(run, capsys):
        try:
            ask(run)
        except RunFolderError as error:
            return 2, str(error)
        return 0, ""

    return read


def by_command(*arguments):
    def read(run, capsys):
        capsys.readouterr()
        given = [argument.replace("RUN", str(run)) for argument in arguments]
        return main(given), capsys.readouterr().err

    return read


def on_the_page(run, capsys):
    unread = snapshot([run])["unread"]
    return (2, "".join(unread)) if unread else (0, "")


def continued(run):
    plan = rr.PrivacyPlan.build(
        coordinates=Coordinates(0, 3), num_clusters=2, num_clients=40, num_rounds=3, noise_multiplier=1.0, delta=1e-3
    )
    rr.Server(plan, np.zeros((2, 3)), folder=run, seed=0).close()


def followed(run):
    rr.run(**SETTINGS, noise_multiplier=9.0, start_from=str(run), out=f"{run}-next", progress=False)


RUNS = {
    "report": by_command("report", "RUN", "--table-only"),
    "page": by_command("report", "RUN", "--out", "RUN-page"),
    "account": by_command("account", "RUN"),
    "live page": on_the_page,
    "watch": by_command("watch", "RUN", "--no-open"),
}
FINISHED = RUNS | {
    "load": by_python(rr.load),
    "assign": by_command("assign", "RUN", "--out", "RUN.csv"),
    "start from": by_python(followed),
}
UNFINISHED = RUNS | {"resume": by_python(resume)}
READERS = dict.fromkeys(MAKE, FINISHED) | {
    "stopped": UNFINISHED,
    "killed": UNFINISHED,
    "add-on": {"account": RUNS["account"], "rr.Server": by_python(continued)},
}


@pytest.mark.parametrize(("kind", "file", "edit"), CASES)
def test_a_folder_that_disagrees_with_itself_is_refused_by_every_reader(folders, tmp_path, capsys, kind, file, edit):
    run = shutil.copytree(folders(kind), tmp_path / "run")
    if kind == "killed":
        bind(run)  # as with --adopt
    edit(run)
    with pytest.raises(RunFolderError) as refusal:
        folder_cost(run)
    said = str(refusal.value)
    assert said.startswith(f"{run}/")
    assert file in said
    assert said.endswith("Restore the file, or run again with the same settings.")
    for name, read in READERS[kind].items():
        status, error = read(run, capsys)
        assert (name, status) == (name, 2)
        assert "".join(said.split()) in "".join(error.split()), name


@pytest.mark.parametrize("kind", MAKE)
def test_a_folder_that_agrees_is_refused_by_no_reader(folders, tmp_path, capsys, kind):
    run = shutil.copytree(folders(kind), tmp_path / "run")
    stated, cost = json.loads((run / "privacy.json").read_text()), folder_cost(run)
    assert stated["epsilon"] == (None if cost is None else pytest.approx(cost.epsilon, rel=1e-12))
    own = {"selection": ("start from", "assign"), "none": ("account", "start from"), "started": ("start from",)}
    apart = ("watch", "resume", "assign", *own.get(kind, ()))  # what waits, goes on, or has reasons of its own
    apart += ("start from",) if kind in ("slots", "k-ary", "resumed", "limited") else ()
    for name, read in READERS[kind].items():
        if name not in apart:
            assert (name, *read(run, capsys)[:1]) == (name, 0)


def test_a_folder_that_is_being_written_agrees_at_every_instant(tmp_path):
    """Charges come before releases, and the ledger is read last."""
    run = tmp_path / "run"
    running = start(build_experiment(**SETTINGS | SECURE | {"num_rounds": 20, "out": str(run)}))
    thread, reads = Thread(target=finish, args=(running,)), 0
    thread.start()
    while thread.is_alive():
        folder_cost(run)
        reads += 1
    thread.join()
    assert (run / "models.safetensors").exists()
    assert reads > 10


def test_a_run_without_its_settings_is_not_taken_for_a_server_of_ones_own(folders, tmp_path, capsys):
    run = shutil.copytree(folders("seeded"), tmp_path / "run")
    (run / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"config\.yaml: is missing or empty, so the run's cost is unknown"):
        folder_cost(run)
    assert main(["account", str(run)]) == 2
    assert "config.yaml" in capsys.readouterr().err


def test_a_mechanism_that_is_none_does_not_turn_the_comparison_of_noise_off(folders, tmp_path):
    run = shutil.copytree(folders("seeded"), tmp_path / "run")
    put(CONFIG, "mechanism", "jointly")[1](run)
    with pytest.raises(RunFolderError, match=r"config\.yaml: has mechanism = 'jointly', which is none"):
        folder_cost(run)
