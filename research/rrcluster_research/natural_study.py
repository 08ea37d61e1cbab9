"""`natural`: real people's tables, methods side by side, every client's accuracy: runs in this process, no folders.

A part is a table, random or newest rows held out, a budget and a seed; its cells are methods. Each cell is compared
with one model of the same part, client by client and row by row. Measurements are kept in one file, so that an
interrupted study can continue.
"""

import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch.func import functional_call

from rrcluster.data.catalogue import SOURCES
from rrcluster.data.federated import ClientStore, FederatedData, Inputs, Targets
from rrcluster.errors import DataError
from rrcluster.methods.method import Tools
from rrcluster.mixed.questionnaire import Questionnaire
from rrcluster.runs.config import from_flat
from rrcluster.runs.experiment import Experiment, load_population, make_experiment
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.personalise import personalise_clients
from rrcluster.storage import write_json
from rrcluster.types import Array
from rrcluster_research.recipes import EXPLORING, PUBLISHED

TABLES = ("wages", "movielens", "star", "counties", "players", "storms", "schools", "flights")
RANDOM, NEWEST = "random", "newest"
EPSILONS = (4.0, 1.0)
MANY_SEEDS, FEW_SEEDS = (0, 1, 2, 3, 4), (0, 1)
DELTA, TEST_SHARE = 1e-4, 0.3
_DECLARED = {"encoding": "declared", "update_clip": 1.0, "local_lr": 0.5}  # chosen on wages, seed 0
_MIXED = {"algorithm": "mixed-effects"}  # the default for tables, and without noise
_ONE = {**_MIXED, "num_clusters": 1, "personal": False}
CHUNK = 256  # clients whose models are computed together


@dataclass(frozen=True)
class Contender:
    """A method of the study."""

    label: str
    settings: Mapping[str, Any]
    personalised: bool = False  # by training after the release
    by_group: bool = False  # once for the clients of each true group
    noisy: bool = True
    many_seeds: bool = False


ONE, OURS = "one", "default"
CONTENDERS: dict[str, Contender] = {
    "constant": Contender("always the most common class", {}, noisy=False),
    ONE: Contender("one model", _ONE, many_seeds=True),
    "personalised": Contender("one model, personalised", {"algorithm": "fedavg", **_DECLARED}, personalised=True),
    "fedper": Contender("FedPer", {"algorithm": "fedper", **_DECLARED}),
    "mr-mtl": Contender("MR-MTL", {"algorithm": "mr-mtl", **_DECLARED}),
    "ifca": Contender("IFCA with exploration", {"algorithm": "ifca", **_DECLARED, **EXPLORING}),
    OURS: Contender("rrcluster, the default", _MIXED, many_seeds=True),
    "known": Contender("true groups known", _MIXED, by_group=True),
    "local": Contender("own model of each client", {"algorithm": "local", **_DECLARED, **PUBLISHED}, noisy=False),
    "one-no-noise": Contender("one model, without noise", _ONE, noisy=False),
    "default-no-noise": Contender("the default, without noise", _MIXED, noisy=False),
}


@dataclass(frozen=True)
class Part:
    """The common conditions of compared methods."""

    table: str
    rows: str  # which rows are held out: random, or the newest
    epsilon: float | None  # None: without noise
    seed: int


@dataclass(frozen=True)
class Measured:
    """A cell: figures over the clients with test rows, in % of them or of their rows. Diagnostic, not private."""

    table: str
    rows: str
    epsilon: float | None
    seed: int
    method: str
    accuracy: float
    worst_decile: float
    gain: float  # over one model, mean over clients
    gain_error: float  # its standard error over clients
    hurt: float  # share of clients with a lower accuracy than by one model
    hurt_by_chance: float  # the same if a coin decided every row that the two models disagree on
    helped: float
    clusters: int
    effects: tuple[float, ...]  # sizes of random intercepts and slopes, if any
    clients: int
    seconds: float


def parts_of(tables: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> list[tuple[Part, tuple[str, ...]]]:
    """Every part and its methods: all on the first seed, then those with many seeds on all, then the rest.

    An interrupted study has thus measured every table. `seeds` applies to all methods; by default each has its own.
    """
    first, *more = seeds or MANY_SEEDS
    noisy = [name for name in methods if CONTENDERS[name].noisy]
    often = [name for name in noisy if CONTENDERS[name].many_seeds]
    seldom = [name for name in noisy if not CONTENDERS[name].many_seeds]
    passes: list[tuple[int, float | None, list[str]]]
    passes = [(first, None, [name for name in methods if not CONTENDERS[name].noisy])]
    passes += [(seed, epsilon, noisy if seed == first else often) for seed in (first, *more) for epsilon in EPSILONS]
    passes += [(seed, epsilon, seldom) for seed in more if seeds or seed in FEW_SEEDS for epsilon in EPSILONS]
    return [
        (Part(table, rows, epsilon, seed), own)
        for seed, epsilon, chosen in passes
        for rows in (RANDOM, NEWEST)
        for table in tables
        if rows == RANDOM or SOURCES[table].time
        if (own := tuple(n for n in chosen if "group" in SOURCES[table].columns or not CONTENDERS[n].by_group))
    ]


def run_study(
    file: Path, plan: Sequence[tuple[Part, tuple[str, ...]]], *, data_folder: str | None = None
) -> Iterator[tuple[int, Part, str]]:
    """Measure what the file lacks; yields the number of finished parts and the part under way."""
    cells = {key_of(cell): cell for cell in read_cells(file)}
    for done, (part, methods) in enumerate(plan):
        missing = [name for name in methods if (*asdict(part).values(), name) not in cells]
        if not missing:
            continue
        one = None
        for name in (ONE, *(name for name in missing if name != ONE)):
            yield done, part, name
            began = time.perf_counter()
            judge_by = ONE if part.epsilon is not None else "one-no-noise"
            right, facts = _rows_right(part, judge_by if name == ONE else name, data_folder)
            one = right if one is None else one
            if name in missing:
                cell = _measured(part, name, right, one, facts, time.perf_counter() - began)
                cells[key_of(cell)] = cell
        write_json(file, {"delta": DELTA, "test_share": TEST_SHARE, "cells": [asdict(cell) for cell in cells.values()]})


def key_of(cell: Measured) -> tuple[Any, ...]:
    """Its part and method."""
    return cell.table, cell.rows, cell.epsilon, cell.seed, cell.method


def read_cells(file: Path) -> list[Measured]:
    """The measurements so far."""
    if not file.exists():
        return []
    entries = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return [Measured(**entry | {"effects": tuple(entry["effects"])}) for entry in entries]


def absent_tables(tables: Sequence[str], data_folder: str | None) -> dict[str, str]:
    """Tables whose file is missing, each with how to get it."""
    from rrcluster.data.sources import table_file

    absent = {}
    for table in tables:
        try:
            table_file(table, data_folder)
        except DataError as problem:
            absent[table] = str(problem)
    return absent


Rights = list[Array]  # for each client with test rows, whether each row is answered correctly
Facts = tuple[int, tuple[float, ...]]  # clusters, and sizes of random effects


def _rows_right(part: Part, name: str, data_folder: str | None) -> tuple[Rights, Facts]:
    if name == "constant":
        data = _population(part.table, part.rows, "cells", data_folder)
        return _constant_right(data), (1, ())
    contender = CONTENDERS[name]
    experiment = _experiment(part, contender, data_folder)
    if not contender.by_group:
        return trained_right(experiment, personalised=contender.personalised)
    data, found = experiment.data, dict[int, Array]()
    for group in range(data.num_groups):
        members = np.flatnonzero(data.groups == group)
        own = _experiment(part, contender, data_folder, _members(data, members))
        found.update(zip(members[data.test_of[members] >= 0], trained_right(own)[0], strict=True))
    return [found[client] for client in sorted(found)], (data.num_groups, ())


def _experiment(
    part: Part, contender: Contender, data_folder: str | None, data: FederatedData | None = None
) -> Experiment:
    noise = {"mechanism": "none"} if part.epsilon is None else {"epsilon": part.epsilon, "delta": DELTA}
    settings: dict[str, Any] = {"data": part.table, "test_share": TEST_SHARE, "seed": part.seed, "device": "cpu"}
    settings |= {"data_folder": data_folder, "processes": 1, **noise, **contender.settings}
    settings |= {"time": SOURCES[part.table].time} if part.rows == NEWEST else {}
    settings |= {} if data is None else {"num_clients": data.num_clients, "num_clusters": 1}
    encoding = contender.settings.get("encoding", "cells")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = data or _population(part.table, part.rows, encoding, data_folder)
        return make_experiment(from_flat(settings), data=known)


@cache
def _population(table: str, rows: str, encoding: str, data_folder: str | None) -> FederatedData:
    settings = {"data": table, "test_share": TEST_SHARE, "encoding": encoding, "data_folder": data_folder}
    settings |= {"time": SOURCES[table].time} if rows == NEWEST else {}
    return load_population(from_flat(settings))


@dataclass(frozen=True, eq=False)
class _MemberStore:
    store: ClientStore
    members: Array

    def client(self, client: int) -> tuple[Inputs, Targets]:
        """The samples of a client."""
        return self.store.client(int(self.members[client]))


def _members(data: FederatedData, members: Array) -> FederatedData:
    """The population of these clients alone."""
    return replace(
        data,
        sizes=data.sizes[members],
        groups=np.zeros(len(members), dtype=np.int64),
        num_groups=0,
        store=_MemberStore(data.store, members),
        test_of=data.test_of[members],
        clients=tuple(data.clients[member] for member in members),
    )


def trained_right(experiment: Experiment, *, personalised: bool = False) -> tuple[Rights, Facts]:
    """Train, give every client its final model, and evaluate it on the client's test rows."""
    state, memory = None, ClientMemory(0)
    for record in experiment.rounds():
        state, memory = record.state, record.memory or memory
    assert state is not None
    method, data, model = experiment.method, experiment.data, experiment.model
    tools = Tools(experiment.split, experiment.engine, experiment.local, key=(0, 0))
    right: Rights = []
    for first in range(0, data.num_clients, CHUNK):
        ids = np.arange(first, min(first + CHUNK, data.num_clients))
        clients = memory.recall(data.cohort(ids))
        choices = method.final_scores(state.average, clients.cohort, tools=tools).argmin(axis=1)
        vectors = experiment.split.vectors(state.average, choices)
        if method.own_models is not None:
            vectors = method.own_models(state.average, clients, choices, tools=tools)
        elif personalised:
            own = personalise_clients(
                state.average, data, ids, method=method, model=model, engine=tools.engine, local=tools.local
            )
            vectors = np.concatenate([result.vectors for _, result in own])
        tests = data.test_of[ids]
        right += [_right(experiment, vectors[row], int(tests[row])) for row in np.flatnonzero(tests >= 0)]
    form = method.form(model)
    chosen = [] if form is None else Questionnaire.of(form, state.learnt).facts.chosen.tolist()
    return right, (int(chosen[0]) if chosen else state.average.num_clusters, tuple(chosen[1:]))


def _right(experiment: Experiment, vector: Array, test: int) -> Array:
    """Which rows of a test set a model answers correctly."""
    tests, model = experiment.data.test_sets[test], experiment.model
    parameters = {name: values[0] for name, values in model.unflatten(torch.as_tensor(vector)[None]).items()}
    with torch.no_grad():
        outputs = functional_call(model.module, parameters, (torch.as_tensor(tests.inputs),))
    return np.asarray(outputs.argmax(dim=1).numpy() == tests.targets)


def _constant_right(data: FederatedData) -> Rights:
    counts = np.zeros(data.num_classes, dtype=np.int64)
    for client in range(data.num_clients):
        counts += np.bincount(data.store.client(client)[1], minlength=data.num_classes)
    return [data.test_sets[place].targets == counts.argmax() for place in data.test_of[data.test_of >= 0]]


def _measured(part: Part, name: str, right: Rights, one: Rights, facts: Facts, seconds: float) -> Measured:
    own, others = (np.array([rows.mean() for rows in each]) for each in (right, one))
    gains, tenth = own - others, max(1, len(own) // 10)
    return Measured(
        **asdict(part),
        method=name,
        accuracy=100 * float(own.mean()),
        worst_decile=100 * float(np.sort(own)[:tenth].mean()),
        gain=100 * float(gains.mean()),
        gain_error=100 * float(gains.std(ddof=1)) / math.sqrt(len(gains)),
        hurt=100 * float((gains < 0).mean()),
        hurt_by_chance=100 * float(np.mean([*map(hurt_by_chance, right, one)])),
        helped=100 * float((gains > 0).mean()),
        clusters=facts[0],
        effects=tuple(round(size, 3) for size in facts[1]),
        clients=len(own),
        seconds=round(seconds, 1),
    )


def hurt_by_chance(right: Array, other: Array) -> float:
    """Probability that a client has fewer right answers than by the other model, with a coin for each differing row."""
    differ = int((right != other).sum())
    return float(binom.cdf((differ - 1) // 2, differ, 0.5)) if differ else 0.0
