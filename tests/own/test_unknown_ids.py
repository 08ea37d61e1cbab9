"""Ids that a network cannot take stay off its device: on a GPU one of them ends every later computation."""

import numpy as np
import pytest
import torch

import rrcluster as rr
from rrcluster.client import ClientSide
from rrcluster.errors import DataError
from rrcluster.models import from_module
from rrcluster.models.probe import check_ids, fitted
from rrcluster.simulation.hosts import Host, answer_made_up


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2)

    def forward(self, words):
        return self.last(self.words(words).mean(1))


class Wrapped(Words):
    def forward(self, words):
        return super().forward(words % 10)


class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = torch.nn.Embedding(30, 2), torch.nn.Embedding(12, 2)

    def forward(self, user, item):
        return torch.cat([self.users(user), self.items(item)], dim=1) @ torch.ones(4, 2)


def words(largest):
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(10, size=(9, 4, 5)), rng.integers(2, size=(9, 4))
    inputs[7, 0, 0] = largest
    return rr.from_arrays(inputs, targets, num_classes=2, ids=True)


def answered(data, module, monkeypatch):
    """The clients that are computed in a secure round, before anybody can fail."""
    reached, answer = set(), ClientSide.answer

    def watched(self, guidance, clients, keys):
        reached.update(clients.cohort.clients.tolist())
        return answer(self, guidance, clients, keys)

    monkeypatch.setattr(ClientSide, "answer", watched)
    settings = {"num_clusters": 1, "num_rounds": 1, "sample_rate": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}
    rr.run(data=data, model=module, num_clients=9, **settings, secure=True, seed=None, device="cpu", processes=1)
    return reached


@pytest.mark.parametrize(("largest", "unusable"), [(9, set()), (10, {7}), (2**40, {7})])
def test_a_client_with_an_id_beyond_the_vocabulary_is_not_computed(largest, unusable, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert answered(words(largest), Words(), monkeypatch) == set(range(9)) - unusable


def test_ids_that_the_network_takes_by_its_own_rule_are_computed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert answered(words(12345), Wrapped(), monkeypatch) == set(range(9))


@pytest.mark.parametrize(("user", "item", "fits"), [(29, 11, True), (30, 11, False), (12, 12, False), (29, 0, True)])
def test_each_array_of_a_sample_has_its_own_vocabulary(user, item, fits):
    inputs = [(np.array([0, user]), np.array([0, item]))] * 3
    data = rr.from_arrays(inputs, [np.array([0, 1])] * 3, num_classes=2)
    model = fitted(from_module(Pairs()), data)
    if fits:
        check_ids(model, data.cohort([1]))
    else:
        with pytest.raises(DataError, match="ids that the network cannot take"):
            check_ids(model, data.cohort([1]))


def test_the_made_up_client_of_a_network_of_ids_is_computed(monkeypatch):
    settings = {"num_clients": 9, "num_clusters": 1, "num_rounds": 1, "noise_multiplier": 1.0, "delta": 1e-3}
    experiment = rr.experiment(data=words(10), model=Words(), **settings, secure=True, seed=None, device="cpu")
    tried = []

    def trial(function, argument, parts):
        tried.append(answer_made_up(Host.answer, experiment.hosts.host, argument, parts[0]))
        return (experiment.hosts.host.answer(argument, part) for part in parts)

    monkeypatch.setattr(experiment.hosts, "map", trial)
    assert len(list(experiment.rounds())) == 1
    assert tried[0].num_reports == 1
