"""Personalising: by hand, against a slow twin, from training rows alone, and never for clients with few rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import rrcluster as rr
from rrcluster.data.arrays import from_arrays
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.errors import ConfigError
from rrcluster.methods import METHODS
from rrcluster.models import make_model
from rrcluster.report.folders import find_runs
from rrcluster.report.tables import results_table
from rrcluster.runs.load import TrainedModels
from rrcluster.settings import LocalSettings
from rrcluster.simulation import personalise as module
from rrcluster.simulation.hosts import Hosts

LOCAL = LocalSettings(local_lr=1.0, batch_size=4)


def skewed(rng, *, sizes=(40, 30, 1, 2, 4, 12), test_rows=30):
    """Clients whose labels all mean something else than the released models think: own training helps much."""
    turn = [rng.permutation(3) for _ in sizes]

    def rows(count, client):
        inputs = rng.normal(size=(count, 5))
        return inputs, turn[client][inputs[:, :3].argmax(axis=1)]

    train = [rows(size, client) for client, size in enumerate(sizes)]
    test = [rows(test_rows, client) for client in range(len(sizes))]
    return from_arrays(
        [x for x, _ in train],
        [y for _, y in train],
        test_inputs=[x for x, _ in test],
        test_targets=[y for _, y in test],
        num_classes=3,
    )


def released(rng, name="linear", k=2):
    model = make_model(name, input_shape=(5,), num_classes=3)
    method = METHODS["ifca"]
    return TrainedModels(method.init(model, num_clusters=k, rng=rng), model, method)


def personalised(models, data, engine=None, local=LOCAL):
    parts = module.personalise_clients(
        models.models,
        data,
        np.arange(data.num_clients),
        method=models.method,
        model=models.model,
        engine=engine or BatchedEngine(models.model),
        local=local,
    )
    ((places, result),) = parts
    assert places.tolist() == list(range(data.num_clients))
    return result


def test_folds_by_hand():
    targets = np.array([1, 0, 1, 0, 1, 0, 1])  # in order of the targets: rows 1 3 5 0 2 4 6
    assert module.fold_of_rows(targets).tolist() == [3, 0, 4, 1, 0, 2, 1]


def test_the_choice_by_hand():
    """Five folds; gains over the first candidate of 1 in each, of 2 on average but uncertain, of 3 clearly."""
    first = np.full(5, 9.0)
    sure, uncertain, best = first - 1, first - np.array([10, -6, 2, 6, -2]), first - np.array([3, 3.1, 2.9, 3, 3])
    assert module.clearly_best(np.stack([first, sure], -1)[:, None]).tolist() == [1]
    assert module.clearly_best(np.stack([first, uncertain], -1)[:, None]).tolist() == [0]
    assert module.clearly_best(np.stack([first, sure, uncertain, best], -1)[:, None]).tolist() == [3]
    assert module.clearly_best(np.stack([first, first, sure + 2], -1)[:, None]).tolist() == [0]
    assert module.clearly_best(np.stack([first, sure * np.nan, sure], -1)[:, None]).tolist() == [2]
    assert module.clearly_best(np.stack([first * np.inf, sure], -1)[:, None]).tolist() == [0]


def test_every_row_is_held_out_once(rng):
    data = skewed(rng)
    for client in range(data.num_clients):
        rows = sorted(map(tuple, data.store.client(client)[0]))
        held = []
        for fold in range(module.FOLDS):
            parts = module.divided(data, fold)
            fit, out = (part.store.client(client)[0] for part in parts)
            assert [len(fit), len(out)] == [part.sizes[client] for part in parts]
            assert sorted(map(tuple, np.concatenate([fit, out]))) == rows
            held += list(map(tuple, out))
        assert sorted(held) == rows


def test_clients_that_gain_train_and_clients_of_few_rows_keep_the_released_model(rng):
    models, data = released(rng), skewed(rng)
    result = personalised(models, data)
    start = models.split.vectors(models.models, result.clusters)
    unchanged = (result.vectors == start).all(axis=1)
    assert unchanged[[2, 3, 4]].all(), "1, 2 and 4 rows"
    assert result.epochs[[2, 3, 4]].tolist() == [0, 0, 0]
    assert not unchanged[[0, 1]].any()
    assert set(result.epochs.tolist()) <= {0, *module.EPOCHS}
    assert (result.clusters == rr.assign(models, data)).all()


def test_a_client_whose_held_out_rows_say_so_keeps_the_released_model(rng):
    models, data = released(rng, k=1), skewed(rng, sizes=(30,))

    class Misled(BatchedEngine):
        def measure(self, questions):
            answers = super().measure(questions)  # candidates in order: the further trained, the larger the loss
            return [answer._replace(loss=answer.loss + 9.0 * np.arange(answer.loss.shape[1])) for answer in answers]

    assert personalised(models, data).epochs[0] > 0
    worse = personalised(models, data, Misled(models.model))
    assert worse.epochs.tolist() == [0]
    assert (worse.vectors == models.split.vectors(models.models)).all()


def test_a_loss_that_is_no_number_is_not_chosen(rng):
    models, data = released(rng, k=1), skewed(rng, sizes=(30,))

    class Diverged(BatchedEngine):
        def measure(self, questions):
            answers = super().measure(questions)
            for answer in answers:
                answer.loss[:, 1:] = np.nan
            return answers

    assert personalised(models, data, Diverged(models.model)).epochs.tolist() == [0]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_slow_twin(rng, name):
    """One client at a time, by the reference engine, written out."""
    models, data = released(rng, name), skewed(rng, sizes=(40, 9, 3))
    engine, result = ReferenceEngine(models.model), personalised(models, data)
    head = np.zeros(models.model.num_parameters, dtype=bool)
    head[models.model.head] = True
    for client in range(data.num_clients):
        cluster = int(calls.losses(engine, models.split.vectors(models.models), data.cohort([client]))[0].argmin())
        start = models.split.vectors(models.models, np.array([cluster]))

        def path(population, trainable, client=client, start=start):
            vectors, done = [start], 0
            for stage, epochs in enumerate(module.EPOCHS):
                local = replace(LOCAL, local_lr=0.25, local_epochs=epochs - done)
                cohort = population.cohort([client])
                trained = calls.train(engine, vectors[-1], cohort, local=local, key=(1, stage), trainable=trainable)
                vectors.append(trained)
                done = epochs
            return vectors[1:]

        def candidates(population, start=start):
            scopes = [None] if head.all() else [None, head]
            return [start, *(vector for scope in scopes for vector in path(population, scope))]

        best = 0
        if data.sizes[client] >= 5:
            losses = []
            for fold in range(5):
                fit, held = module.divided(data, fold)
                losses.append([calls.losses(engine, one, held.cohort([client]))[0, 0] for one in candidates(fit)])
            best = int(module.clearly_best(np.array(losses)[:, None])[0])
        final = candidates(data)[best]
        np.testing.assert_allclose(result.vectors[client], final[0], atol=1e-4)
        assert result.clusters[client] == cluster


def test_test_rows_are_never_used_for_choosing(rng):
    models, data = released(rng), skewed(rng)
    other = replace(data, test_sets=tuple(replace(tests, targets=1 - tests.targets % 2) for tests in data.test_sets))
    without = replace(data, test_sets=(), test_of=np.full(data.num_clients, -1))
    results = [personalised(models, population).vectors for population in (data, other, without)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_accuracies_are_those_of_the_own_models_on_the_own_test_sets(rng, monkeypatch):
    models, data = released(rng), skewed(rng)
    engine, split = BatchedEngine(models.model), models.split
    hosts = Hosts.here(data, method=models.method, split=split, engine=engine, local=LOCAL)
    result, ids = personalised(models, data), np.arange(data.num_clients)
    own = rr.personalise(models, data, local_lr=1.0, batch_size=4)
    expected = [
        np.mean(mine.predict(tests.inputs).argmax(1) == tests.targets)
        for mine, tests in zip(own, data.test_sets, strict=True)
    ]
    for few in (16, 0):  # test set by test set, and client by client
        monkeypatch.setattr(module, "FEW_SETS", few)
        assert module.personalised_accuracies(models.models, ids, hosts) == pytest.approx(expected)
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", 1)  # client after client
    assert module.personalised_accuracies(models.models, ids, hosts) == pytest.approx(expected)
    assert result.vectors.shape == (data.num_clients, models.model.num_parameters)


def test_one_client_alone(rng):
    models, data = released(rng), skewed(rng)
    inputs, targets = data.store.client(0)
    own = rr.personalise(models, (inputs, targets), local_lr=1.0, batch_size=4)
    assert own.epochs in module.EPOCHS
    assert np.mean(own.predict(inputs).argmax(1) == targets) > np.mean(
        models.predict(inputs, cluster=own.cluster).argmax(1) == targets
    )
    plain = own.module()
    assert not plain.training
    np.testing.assert_allclose(
        plain(torch.as_tensor(inputs, dtype=torch.float32)).detach(), own.predict(inputs), atol=1e-6
    )
    assert repr(own) == f"PersonalModel(linear, from cluster {own.cluster}, {own.epochs} epochs on own rows)"
    few = rr.personalise(models, (inputs[:3], targets[:3]))
    assert few.epochs == 0
    assert np.array_equal(few.predict(inputs), models.predict(inputs, cluster=few.cluster))
    with pytest.raises(ConfigError, match="equal length"):
        rr.personalise(models, (inputs, targets[:-1]))


def test_a_run_has_the_column_on_request_and_a_secure_one_refuses(tmp_path, rng):
    data = skewed(rng, sizes=(30,) * 20)
    known = {"data": data, "model": "linear", "num_clusters": 2, "num_rounds": 2, "noise_multiplier": 1.0}
    known |= {"delta": 0.01, "sample_rate": 0.5, "local_lr": 1.0}
    plain = rr.run(**known, out=str(tmp_path / "plain")).evaluation
    personal = rr.run(**known, out=str(tmp_path / "personal"), personalise=True).evaluation
    assert plain.personalised_accuracy is None
    assert personal.personalised_accuracy > personal.accuracy + 0.05
    assert personal.personalised_worst_decile > personal.worst_decile
    own = rr.personalise(rr.load(tmp_path / "personal"), data)  # at the run's own rate
    right = [
        np.mean(mine.predict(test.inputs).argmax(1) == test.targets)
        for mine, test in zip(own, data.test_sets, strict=True)
    ]
    assert np.mean(right) == pytest.approx(personal.personalised_accuracy)
    assert str(replace(personal, personalised_accuracy=None, personalised_worst_decile=None)) == str(plain)
    assert "Personalised accuracy (%)" not in results_table(find_runs([tmp_path / "plain"])).columns
    table = results_table(find_runs([tmp_path / "personal"]))
    assert table.columns.index("Personalised accuracy (%)") in table.diagnostic
    with pytest.raises(ConfigError, match="personalise"):
        rr.run(**known, num_clients=20, secure=True, personalise=True, out=str(tmp_path / "secure"))


def test_clients_without_a_test_row_are_in_no_mean_and_no_file_says_nan(tmp_path, rng):
    inputs = [rng.normal(size=(12, 4)).astype(np.float32) for _ in range(30)]
    tests = [rng.normal(size=(4 if client % 3 else 0, 4)).astype(np.float32) for client in range(30)]
    labels, truth = ([(part[:, 0] > 0).astype(np.int64) for part in parts] for parts in (inputs, tests))
    data = rr.from_arrays(inputs, labels, test_inputs=tests, test_targets=truth, num_classes=2, name="some tests")
    run = {"num_clusters": 2, "num_rounds": 3, "noise_multiplier": 1.0, "delta": 1e-2, "device": "cpu"}
    found = rr.run(data=data, personalise=True, out=str(tmp_path / "run"), progress=False, **run).evaluation
    assert 0 <= found.personalised_worst_decile <= found.personalised_accuracy <= 1

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    lines = [
        line for path in tmp_path.rglob("*.json*") for line in path.read_text().split("\n") if path.suffix == ".jsonl"
    ]
    assert len(lines) > 6
    for line in filter(None, lines):
        json.loads(line, parse_constant=refuse)
