"""Runs of mixed effects on tables: what a client ends up with, folders, resuming, hosts, secure runs, and refusals."""

import contextlib
import csv
import itertools
import json

import numpy as np
import pytest

import rrcluster as rr
from rrcluster import entropy
from rrcluster.errors import ConfigError, NotDeclared
from rrcluster.methods import METHODS, Clients, Tools
from rrcluster.report.values import effects_text
from rrcluster.runs.advise import questions_outlook
from rrcluster.runs.run import finish, resume_run, start
from rrcluster.settings import LocalSettings

ROUNDS = 18


def write_table(path, *, n=80, s=10, target="class", seed=0):
    """Rows with a number in odd units, a text, missing cells, a constant, and people who differ in their intercept."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "size", "colour", "same", "day", "y"])
        for person in range(n):
            own = 1.5 * rng.normal()
            for day in range(1 if person == 0 else s):
                size, colour = rng.normal(), rng.choice(["red", "green"])
                logit = 1.5 * size + (colour == "red") + own
                if target == "number":
                    answer = round(500 + 40 * (logit + 0.3 * rng.normal()), 2)
                elif target == "three":
                    answer = ["a", "b", "c"][int(np.digitize(logit + 0.5 * rng.normal(), [-1, 1]))]
                else:
                    answer = int(rng.random() < 1 / (1 + np.exp(-logit)))
                missing = rng.random() < 0.1
                writer.writerow([person, "" if missing else 1e4 + 100 * size, colour, 7, day, answer])
    return path


def settings(path, **changes):
    usual = {"data": str(path), "client": "person", "target": "y", "epsilon": 8, "delta": 1e-3, "num_rounds": ROUNDS}
    return usual | {"device": "cpu"} | changes


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table") / "people.csv", n=300)


@pytest.fixture(scope="module")
def finished(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "people"
    with pytest.warns(NotDeclared):
        return rr.run(**settings(table, out=out, num_rounds=40))


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_a_table_and_an_epsilon_are_enough(finished, table, tmp_path):
    stated = json.loads((finished.folder / "privacy.json").read_text(encoding="utf-8"))
    assert finished.epsilon <= 8
    assert stated["participation"]["name"] == "everybody"
    assert [question["rounds"] for question in stated["questions"]] == [2, 2, 4, 2, 2, 10, 3, 12, 3]
    assert finished.evaluation.accuracy > 0.68
    summary = json.loads((finished.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["random_effects"][0] > 0.3
    assert "clients differ from it by" in effects_text(summary)
    plain = rr.run(**settings(table, out=tmp_path / "plain", num_rounds=40, personal=False))
    assert plain.evaluation.accuracy < finished.evaluation.accuracy - 0.02
    assert effects_text(json.loads((plain.folder / "summary.json").read_text(encoding="utf-8"))).endswith("not help.")


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_the_folder_has_models_that_load_predict_and_assign(finished, table):
    models = rr.load(finished.folder)
    data = rr.from_frame(table, client="person", target="y", encoding="cells")
    inputs, targets = (np.concatenate(parts) for parts in zip(*map(data.store.client, range(50)), strict=True))
    outputs = models.predict(inputs, cluster=0)
    assert outputs.shape == (len(targets), 2)
    assert np.isfinite(outputs).all()
    assert (outputs.argmax(axis=1) == targets).mean() > 0.6
    assert len(rr.assign(models, data)) == 300
    assert rr.assign(models, (inputs, targets)) in range(models.num_clusters)


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_a_client_of_the_population_is_personalised_with_its_missing_cells(finished, table):
    models, population = rr.load(finished.folder), rr.from_frame(table, "person", "y", encoding="cells")
    inputs, targets = next(rows for rows in map(population.store.client, range(9)) if np.isnan(rows[0]).any())
    own = rr.personalise(models, (inputs, targets))
    assert own.cluster == rr.assign(models, (inputs, targets))
    assert np.isfinite(own.predict(inputs)).all()


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_a_client_ends_up_with_its_cluster_and_its_own_effects(finished, table):
    models = rr.load(finished.folder)
    data = rr.from_frame(table, client="person", target="y", encoding="cells")
    from rrcluster.engine.reference import ReferenceEngine

    method, engine = METHODS["mixed-effects"], ReferenceEngine(models.model)
    tools = Tools(models.split, engine, LocalSettings(), key=(0, 0))
    clients = Clients.without_memory(data.cohort(np.arange(40)))
    own = method.own_models(models.models, clients, np.zeros(40, dtype=int), tools=tools)
    alone = method.own_models(
        models.models, Clients.without_memory(data.cohort([7])), np.zeros(1, dtype=int), tools=tools
    )
    assert (own[7] == alone[0]).all()
    assert len({row.tobytes() for row in own}) == 40
    weights = next(layer for layer in models.model.layers if layer.name == "weight")
    others = np.setdiff1d(np.arange(own.shape[1]), np.arange(weights.start, weights.stop))
    assert (own[:, others] == models.split.vectors(models.models, np.zeros(1, dtype=int))[:, others]).all()


@pytest.mark.parametrize("target", ["three", "number"])
@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_several_classes_and_numbers(target, tmp_path):
    path = write_table(tmp_path / "people.csv", n=300, target=target)
    result = rr.run(**settings(path, out=tmp_path / "run", num_rounds=40))
    if target == "three":
        assert result.evaluation.accuracy > 0.6
    else:
        values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=5)
        assert result.evaluation.loss < 0.6 * values.var()


def digest(folder):
    names = ("models.safetensors", "rounds.jsonl", "privacy.json", "diagnostics.jsonl")
    texts = [(folder / name).read_bytes() for name in names[:3] if (folder / name).exists()]
    return b"".join(texts)


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_a_run_that_was_stopped_and_one_on_two_hosts_give_the_same_bits(tmp_path):
    path = write_table(tmp_path / "people.csv")
    whole = rr.run(**settings(path, out=tmp_path / "whole", processes=1))
    rr.run(**settings(path, out=tmp_path / "two", processes=2))
    running = start(rr.experiment(**settings(path, out=tmp_path / "stopped")))
    for _ in itertools.islice(running.rounds(), 11):
        pass
    running._stop()
    running.folder.release()
    finish(resume_run(tmp_path / "stopped"))
    assert digest(whole.folder) == digest(tmp_path / "two") == digest(tmp_path / "stopped")


@contextlib.contextmanager
def counted_bits(monkeypatch):
    """The same bits of the operating system in every run."""
    source = np.random.default_rng(5)
    with monkeypatch.context() as patched:
        patched.setattr(entropy.os, "urandom", source.bytes)
        yield


def test_a_secure_run_needs_declared_constants_and_its_bits_are_each_clients_own(tmp_path, monkeypatch):
    path = write_table(tmp_path / "people.csv", n=30)
    public = {"secure": True, "num_clients": 40, "classes": (0, 1), "delta": 1e-2}
    for missing in ("num_clients", "classes"):
        with pytest.raises(ConfigError, match=missing):
            rr.run(**settings(path, out=tmp_path / "no", **{k: v for k, v in public.items() if k != missing}))
    folders = []
    for name in ("first", "second"):
        with counted_bits(monkeypatch):
            folders.append(rr.run(**settings(path, out=tmp_path / name, **public)).folder)
    assert digest(folders[0]) == digest(folders[1])
    assert not (folders[0] / "diagnostics.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"algorithm": "mixed-effects", "mechanism": "identifier"}, "mechanism = joint"),
        ({"algorithm": "mixed-effects", "min_cluster_size": 3}, "nothing to rebalance"),
        ({"algorithm": "mixed-effects", "update_clip": 0.7}, "leave it out"),
        ({"algorithm": "mixed-effects", "participation": "schedule", "slots": 3}, "slots"),
        ({"algorithm": "mixed-effects", "model": "linear"}, "table-linear"),
        ({"num_rounds": 8}, "at least 18"),
        ({"private_evaluation": 0.25, "algorithm": "mixed-effects"}, "its own model"),
    ],
)
@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_what_does_not_go_together_is_refused_before_anything_is_spent(changes, text, table, tmp_path):
    with pytest.raises(ConfigError, match=text):
        rr.run(**settings(table, out=tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"min_cluster_size": 2}, {"local_lr": 0.5}, {"encoding": "declared"}])
def test_settings_of_other_methods_choose_ifca(changes, table):
    from rrcluster.runs.config import from_flat

    named = settings(table, **changes)
    assert from_flat(named).method.algorithm == "ifca"
    assert from_flat(settings(table)).method.algorithm == "mixed-effects"
    assert from_flat({}).method.algorithm == "ifca"


def test_large_populations_take_part_in_samples(table):
    from rrcluster.runs.config import from_flat

    large = from_flat(settings(table, num_clients=100_000, num_rounds=100)).privacy
    assert (large.participation, large.sample_rate, large.num_rounds) == ("poisson", 0.2, 100)
    small = from_flat(settings(table, num_rounds=100)).privacy
    assert (small.participation, small.num_rounds, small.update_clip) == ("everybody", 40, 1.0)


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_noise_that_hides_what_clients_share_is_said_before_anything_is_spent(table):
    hopeless = rr.experiment(**settings(table, epsilon=0.05))
    text = questions_outlook(hopeless.model.form, hopeless.plan)
    assert "300 clients" in text
    assert "times the epsilon" in text
    clear = rr.experiment(**settings(table))
    assert questions_outlook(clear.model.form, clear.plan) == ""


@pytest.mark.filterwarnings("ignore::rrcluster.errors.NotDeclared")
def test_a_rehearsal_without_noise_asks_the_same_questions(table, tmp_path):
    quiet = {"algorithm": "mixed-effects", "mechanism": "none", "epsilon": None}
    result = rr.run(**settings(table, out=tmp_path / "quiet", num_rounds=40) | quiet)
    summary = json.loads((result.folder / "summary.json").read_text(encoding="utf-8"))
    assert result.epsilon is None
    assert result.evaluation.accuracy > 0.68
    assert summary["random_effects"][0] > 0.3
