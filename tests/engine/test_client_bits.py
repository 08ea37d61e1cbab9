"""In a secure run no bit of a client's half of a round depends on who else takes part.

Others are permuted, removed, and replaced by clients with other samples and other numbers of them; losses of all
models, updates, choices, evaluations and answers to a survey must then be equal to the last bit.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rrcluster.client import ClientKeys, ClientSide
from rrcluster.data.arrays import from_arrays
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.methods import METHODS
from rrcluster.models import from_module, make_model
from rrcluster.privacy.plan import PrivacyPlan
from rrcluster.rng import Streams
from rrcluster.server.choice import ChoiceRules
from rrcluster.server.server import Guidance
from rrcluster.server.survey import SurveyQuestion
from rrcluster.settings import LocalSettings
from rrcluster.simulation.clients import ClientMemory, FaultKeys, Faults
from rrcluster.simulation.hosts import Host, RoundTask, parts_of
from rrcluster.types import Models

FEW, MANY = 60, 300
IMAGES = ("edges", "edges-mlp", "pooled-linear", "cnn")
NETWORKS = ("linear", "linear", "mlp", "mlp", "regression", "trigram", "own", *IMAGES)
ALGORITHMS = ("ifca", "ifca", "fedprox", "fedcam", "fesem-memoryless", "fedper-memoryless", "mr-mtl")
CPU = torch.device("cpu")


class SingleReports:
    """A mechanism that asks hosts for single reports, so that they can be compared."""

    sums = False

    def __init__(self, mechanism):
        self._mechanism = mechanism

    def __getattr__(self, name):
        return getattr(self._mechanism, name)


class Round:
    """A round of random shapes: a network, its models, and data of clients who come in two versions each."""

    def __init__(self, rng):
        self.rng, self.num_clients = rng, int(rng.integers(2, 24))
        self.network = str(rng.choice(NETWORKS))
        self.classes = 0 if self.network == "regression" else int(rng.integers(2, 12))
        width = int(rng.integers(1, 70))
        self.shape = (1, 28, 28) if self.network in IMAGES else (width + 2,) if self.network == "trigram" else (width,)
        self.largest = 20 if self.network in IMAGES else int(rng.integers(2, 70))
        self.model = self._model()
        optimiser = rng.choice([("sgd", 0.0), ("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
        self.local = LocalSettings(
            local_lr=0.1,
            local_epochs=int(rng.integers(1, 3)),
            batch_size=int(rng.integers(1, 25)),
            local_optimizer=str(optimiser[0]),
            local_momentum=float(optimiser[1]),
        )
        if not self.local.plain_sgd:
            self.model = replace(self.model, accelerated="")
        method = METHODS[str(rng.choice(ALGORITHMS))]
        if method.name == "fedper-memoryless" and self.model.one_layer:  # it shares the layers below the last
            method = METHODS["ifca"]
        self.method = replace(method, scores=self._recorded(method.scores))
        self.model = method.adapt(self.model)
        self.k = method.num_clusters(int(rng.integers(1, min(6, self.num_clients + 1))))
        self.split = method.split(self.model)
        self.samples = [[self._client(), self._client()] for _ in range(self.num_clients)]
        starts = self.model.starts(self.k, rng=rng).astype(np.float64)
        close = starts[:1] + 10.0 ** rng.uniform(-9, 0) * (starts - starts[:1])  # gaps that last bits may decide
        self.models = self.split.models(close.astype(np.float32))
        self.task = RoundTask(self._guidance(), ClientKeys.of_round(Streams(3), 0), FaultKeys((0, 0), (0, 0)))
        self.scores = {}

    def _model(self):
        if self.network == "own":
            layers = nn.Linear(self.shape[0], 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, self.classes)
            return from_module(nn.Sequential(*layers), fresh=True)
        name = "linear" if self.network == "regression" else self.network
        return make_model(name, input_shape=self.shape, num_classes=self.classes, ids=self.network == "trigram")

    def _client(self):
        size = int(self.rng.integers(1, self.largest))
        if self.network == "trigram":
            inputs = self.rng.integers(0, self.classes, (size, *self.shape))
        else:
            inputs = self.rng.standard_normal((size, *self.shape)).astype(np.float32)
        if not self.classes:
            return inputs, self.rng.standard_normal(size).astype(np.float32)
        return inputs, self.rng.integers(0, self.classes, size)

    def _recorded(self, scores):
        def recorded(models, clients, *, tools):
            found = scores(models, clients, tools=tools)
            self.scores |= {client: row.tobytes() for client, row in zip(clients.cohort.clients, found, strict=True)}
            return found

        return recorded

    def _guidance(self):
        rules, question, room = ChoiceRules.plain(self.k), None, self.split.coordinates.clustered
        r = int(self.rng.integers(1, 4))
        if self.rng.random() < 0.3 and max(10, self.k * (1 + r)) <= room and not self.split.coordinates.shared:
            basis, _ = np.linalg.qr(self.rng.standard_normal((min(48, room), r)))
            stage = str(self.rng.choice(["spread", "skew", "centres", "start"]))
            centres = self.rng.standard_normal((self.k, r))
            question = SurveyQuestion(stage, self.models.clustered[0], basis, centres, 0.3)
        return Guidance(0, self.models, Models(self.models.shared, self.models.clustered), rules, question)

    def plan(self):
        evaluated = {"private_evaluation": 0.2} if self.classes and not self.method.personal else {}
        return PrivacyPlan.build(
            coordinates=self.split.coordinates,
            num_clusters=self.k,
            num_clients=self.num_clients,
            sample_rate=0.5,
            num_rounds=2,
            update_clip=0.3,
            delta=1e-2,
            mechanism="joint",
            noise_multiplier=1.0,
            secure=True,
            **evaluated,
        )

    def bits(self, order, versions):
        """{client: all bits of its half of the round}, where the clients `order` take part, in this order."""
        inputs, targets = zip(
            *(both[version] for both, version in zip(self.samples, versions, strict=True)), strict=True
        )
        trigrams = self.network == "trigram"
        data = from_arrays(list(inputs), list(targets), num_classes=self.classes, ids=trigrams)
        engine = pick_engine("auto", model=self.model, device=CPU, alone=True)
        mechanism = SingleReports(self.plan().mechanism)
        side = ClientSide(self.method, self.split, engine, self.local, mechanism)
        host = Host(data, side, Faults(), discreet=True)
        memory = ClientMemory(self.method.memory_width(self.model))
        torch.set_num_threads(1)
        self.scores.clear()
        (part,) = parts_of(np.array(order), memory, self.num_clients)
        answer = host.answer(self.task, part)
        reports, found = answer.reports, {}
        for row, client in enumerate(np.asarray(reports.client_ids).tolist()):
            sent = [reports.updates[row], reports.choices[row]]
            sent += [] if reports.evaluations is None else [reports.evaluations[row]]
            found[client] = (self.scores.get(client), *(np.asarray(part).tobytes() for part in sent))
        return found, reports


def _dependent(rng):
    """Whether a client's bits change with the others, in a round of random shapes."""
    round_ = Round(rng)
    everybody, first = list(range(round_.num_clients)), [0] * round_.num_clients
    bits, reports = round_.bits(everybody, first)
    assert len(bits) == round_.num_clients, "every client answers"
    mechanism = round_.plan().mechanism
    judged = [None] * len(bits) if reports.evaluations is None else reports.evaluations
    rows = zip(reports.updates, reports.choices, judged, strict=True)
    single = sum(mechanism.message(update, choice, evaluation=evaluation) for update, choice, evaluation in rows)
    differs = not np.array_equal(mechanism.sum_messages(reports), single)
    stay = rng.choice(everybody, size=int(rng.integers(1, len(everybody) + 1)), replace=False).tolist()
    changed = [0 if client in stay else 1 for client in everybody]
    others = [(rng.permutation(everybody).tolist(), first), (stay, first), (everybody, changed)]
    others += [(rng.permutation(everybody).tolist(), changed)]
    for order, versions in others:
        found, _ = round_.bits(order, versions)
        differs |= any(found[client] != bits[client] for client in stay)
    return differs, round_.network


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_nobodys_bits_depend_on_others_in_a_secure_run(count):
    found = [_dependent(np.random.default_rng([count, shape])) for shape in range(count)]
    dependent = [network for differs, network in found if differs]
    assert not dependent, f"{len(dependent)} of {count} random shapes, of {sorted(set(dependent))}"
    assert {network for _, network in found} == set(NETWORKS)
