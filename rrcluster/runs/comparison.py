"""A comparison of a rehearsal's models with a constant and with one model for all.

Everything here is computed from raw held-out rows: a diagnostic, not private.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rrcluster.data.federated import FederatedData
from rrcluster.mixed.random_effects import probabilities
from rrcluster.rng import stream
from rrcluster.runs.experiment import Experiment, make_experiment
from rrcluster.runs.load import outputs_of
from rrcluster.simulation.clients import ClientMemory
from rrcluster.simulation.evaluate import judged_clients
from rrcluster.simulation.personalise import personalise_clients
from rrcluster.types import Array, Models

RUN, ONE, PERSONAL, CONSTANT = "this run", "one model for all", "one model, personalised", "constant"
NEW = ", new clients"
_LOSS = 0.01  # a client is hurt if it loses more: a point of accuracy, or a hundredth of its RMSE
_TELLS = 0.55  # AUC that is mentioned where accuracy is no better than a constant's
_FLIPS = 100  # draws for the effect of chance alone
_ERRORS = 2.0  # standard errors over clients that make a difference clear
_AT_ONCE = 256  # clients whose models are in memory together

Vectors = Callable[[FederatedData, Array], Array]  # for some clients of a population: (n, d), each one's model


@dataclass(frozen=True, eq=False, repr=False)
class Predicted:
    """Predictions for the test rows of some clients, row after row."""

    owners: Array  # (rows,) the client of each row: 0, 1, ... without gaps
    targets: Array  # (rows,) classes, or numbers
    outputs: Array  # (rows, classes) probabilities, or (rows,) numbers

    @property
    def errors(self) -> Array:
        """(rows,) 1 for a wrong class, or the squared error of a number."""
        if self.outputs.ndim == 2:
            return np.asarray(self.outputs.argmax(axis=1) != self.targets, dtype=np.float64)
        return np.asarray((self.outputs - self.targets) ** 2)

    def of_clients(self, errors: Array) -> Array:
        """(clients, ...) accuracy of each client, or its RMSE, from errors (rows, ...)."""
        starts = np.flatnonzero(np.diff(self.owners, prepend=-1))
        sizes = np.bincount(self.owners).reshape(-1, *[1] * (errors.ndim - 1))
        means = np.add.reduceat(errors, starts, axis=0) / sizes
        return np.asarray(1 - means if self.outputs.ndim == 2 else np.sqrt(means))


def figures(predicted: Predicted) -> dict[str, float | None]:
    """For classes accuracy, balanced accuracy, AUC and log loss; for numbers RMSE and R2.

    `accuracy`, `rmse_clients` and the worst decile are means over clients; the others over rows. None where a figure is
    undefined: AUC of one class, R2 of equal targets.
    """
    targets, outputs, errors = predicted.targets, predicted.outputs, predicted.errors
    each = np.sort(predicted.of_clients(errors))
    tenth = max(1, len(each) // 10)
    if outputs.ndim == 1:
        spread = ((targets - targets.mean()) ** 2).sum()
        return {
            "rmse": math.sqrt(errors.mean()),
            "r2": 1 - float(errors.sum() / spread) if spread else None,
            "rmse_clients": float(each.mean()),
            "worst_rmse": float(each[-tenth:].mean()),
        }
    classes = np.unique(targets)
    least = np.finfo(np.float64).eps
    said = np.clip(outputs[np.arange(len(targets)), targets], least, 1 - least)
    return {
        "accuracy": float(each.mean()),
        "accuracy_rows": float(1 - errors.mean()),
        "balanced_accuracy": float(np.mean([1 - errors[targets == label].mean() for label in classes])),
        "auc": _auc(targets, outputs, classes),
        "log_loss": float(-np.log(said).mean()),
        "worst_decile": float(each[:tenth].mean()),
    }


def _auc(targets: Array, outputs: Array, classes: Array) -> float | None:
    """Area under the ROC curve; of more than two classes the mean over those present, each against the rest."""
    from scipy.stats import rankdata

    if len(classes) < 2:
        return None
    areas = []
    for label in (1,) if outputs.shape[1] == 2 else classes:
        positive, ranks = targets == label, rankdata(outputs[:, label])
        pairs = positive.sum() * (~positive).sum()
        areas.append((ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / pairs)
    return float(np.mean(areas))


def hurt(predicted: Predicted, reference: Predicted) -> tuple[float, float]:
    """Share of clients that lose against the reference, and the expected share if both were equally good.

    The latter is the mean over draws that exchange every row's errors with probability one half: with a handful of
    rows, many clients lose by chance alone.
    """
    mine, other = predicted.errors, reference.errors

    def lose(one: Array, two: Array) -> Array:
        one, two = predicted.of_clients(one), predicted.of_clients(two)
        return np.asarray(one < two - _LOSS if predicted.outputs.ndim == 2 else one > two * (1 + _LOSS))

    rng, chance = stream(0, "exchanged errors"), []
    for _ in range(_FLIPS):
        exchanged = rng.random(len(mine)) < 0.5
        chance.append(lose(np.where(exchanged, other, mine), np.where(exchanged, mine, other)).mean())
    return float(lose(mine, other).mean()), float(np.mean(chance))


def gain(predicted: Predicted, reference: Predicted) -> tuple[float, bool]:
    """Mean gain over clients (points of accuracy, or percent less RMSE), and whether it is clear."""
    mine, other = (one.of_clients(one.errors) for one in (predicted, reference))
    classes = predicted.outputs.ndim == 2
    gains = mine - other if classes else other - mine
    error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    scale = 1.0 if classes else max(float(other.mean()), np.finfo(float).tiny)
    return 100 * float(gains.mean()) / scale, bool(abs(gains.mean()) > _ERRORS * error)


def compared(
    experiment: Experiment, models: Models, memory: ClientMemory | None, *, own_effects: bool
) -> dict[str, Any]:
    """Figures of a run's models and of its references, and a sentence; empty without test rows.

    `own_effects`: whether clients end up with their own models.
    """
    data, method, task = experiment.data, experiment.method, experiment.model.task
    if task.loss is not None or task.metric is not None or data.target_shape:
        return {}
    ids = judged_clients(data.num_clients, personal=method.personal and not method.asks)
    ways = {RUN: _end_with(experiment, models, memory)}
    k = models.num_clusters
    if experiment.config.output.references and experiment.start is None and (k > 1 or own_effects):
        ways |= _references(experiment, alone=k == 1)
    parts = {"": (data, ids)}
    if data.newcomers is not None:
        parts[NEW] = data.newcomers, judged_clients(data.newcomers.num_clients)
    said: dict[str, Predicted] = {}
    for suffix, (population, chosen) in parts.items():
        for name, vectors in ways.items():
            if (predicted := _predicted(experiment, vectors, population, chosen)) is not None:
                said[name + suffix] = predicted
        if RUN + suffix in said:
            said[CONSTANT + suffix] = _constant(data, ids, said[RUN + suffix])
    if RUN not in said:
        return {}
    groups = "groups" if k > 1 else "clients' own effects" if own_effects else "the run"
    constant = said[CONSTANT].outputs[0]
    return {
        "figures": {name: figures(predicted) | {"clients": _count(predicted)} for name, predicted in said.items()},
        "by_group": _by_group(experiment, models, ids, said) if k > 1 else [],
        "constant": int(constant.argmax()) if data.num_classes else float(constant),
        "verdict": verdict(said, groups=groups, constant=_named(experiment, constant)),
    }


def verdict(said: Mapping[str, Predicted], *, groups: str, constant: str) -> str:
    """One sentence: whether the run is better than a constant, and than one model for all."""
    run, fixed = said[RUN], said[CONSTANT]
    classes = run.outputs.ndim == 2
    unit = " points" if classes else "% of RMSE"
    over, clear = gain(run, fixed)
    better = clear and over > 0
    text = f"{'Better' if better else 'No better'} than always saying {constant} ({over:+.1f}{unit})"
    ranks = figures(run).get("auc") or 0.0
    text += f", though it tells classes apart (AUC {ranks:.2f})" * (not better and ranks > _TELLS)
    if ONE in said:
        over, clear = gain(run, said[ONE])
        how = f"{'gain' if over > 0 else 'lose'} {abs(over):.1f}{unit}" if clear else "gain nothing clear"
        text += f"; {groups} {how} over one model for all{'' if clear else f' ({over:+.1f}{unit})'}"
        share, chance = hurt(run, said[ONE])
        least = "1 point" if classes else "1% of RMSE"
        text += f"; {share:.0%} of clients lose more than {least} (chance alone: {chance:.0%})"
    if PERSONAL in said:
        over, clear = gain(run, said[PERSONAL])
        if not (clear and over > 0):
            text += f"; one model, personalised, {'is better' if clear else 'does as well'} (by {-over:.1f}{unit})"
    return text + "."


def _by_group(
    experiment: Experiment, models: Models, ids: Array, said: Mapping[str, Predicted]
) -> list[dict[str, Any]]:
    """For each cluster its clients, and their test accuracy under the run and under one model for all."""
    data, tools = experiment.data, experiment.hosts.host.side.tools
    scores = experiment.method.final_scores(models, data.cohort(ids), tools=tools)
    chosen, tested = scores.argmin(axis=1), data.test_of[ids] >= 0
    of_clients = {name: said[name].of_clients(said[name].errors) for name in (RUN, ONE) if name in said}
    groups = []
    for cluster in range(models.num_clusters):
        mine = chosen[tested] == cluster
        means = {
            name: float(accuracies[mine].mean()) if mine.any() else None for name, accuracies in of_clients.items()
        }
        groups.append({"clients": int((chosen == cluster).sum())} | means)
    return groups


def _named(experiment: Experiment, constant: Array) -> str:
    encoder = experiment.data.encoder
    if not experiment.data.num_classes:
        return f"{float(constant):.4g}"
    place = int(constant.argmax())
    return str(place) if encoder is None or not encoder.classes else encoder.class_names[place]


def _count(predicted: Predicted) -> int:
    return int(predicted.owners[-1]) + 1


def _end_with(experiment: Experiment, models: Models, memory: ClientMemory | None) -> Vectors:
    """The final models of clients under the run's method."""
    method, side = experiment.method, experiment.hosts.host.side

    def vectors(data: FederatedData, ids: Array) -> Array:
        cohort = data.cohort(ids)
        choices = method.final_scores(models, cohort, tools=side.tools).argmin(axis=1)
        if method.own_models is None:
            return side.split.vectors(models, choices)
        memories = memory if memory is not None and data is experiment.data else ClientMemory(0)
        return method.own_models(models, memories.of(ids.tolist()).recall(cohort), choices, tools=side.tools)

    return vectors


def _references(experiment: Experiment, *, alone: bool) -> dict[str, Vectors]:
    """One model for all at the same budget, and the same personalised; the run itself is not repeated."""
    asks = experiment.method.asks
    one, models = _one_model(experiment, personal=False)
    ways = {ONE: _end_with(one, models, None)}
    if asks and not alone:
        ways[PERSONAL] = _end_with(*_one_model(experiment, personal=True), None)
    elif not asks:

        def personal(data: FederatedData, ids: Array) -> Array:
            side = one.hosts.host.side
            fitted = personalise_clients(
                models, data, ids, method=one.method, model=one.model, engine=side.engine, local=one.local
            )
            return np.concatenate([result.vectors for _, result in fitted])

        ways[PERSONAL] = personal
    return ways


def _one_model(experiment: Experiment, *, personal: bool) -> tuple[Experiment, Models]:
    """The experiment with one model for all clients, and its released models."""
    config, asks = experiment.config, experiment.method.asks
    method = replace(
        config.method,
        algorithm=config.method.algorithm if asks else "fedavg",
        num_clusters=1,
        min_cluster_size=0,
        size_floor=None,
        personal=personal,
    )
    config = replace(
        config,
        method=method,
        privacy=replace(config.privacy, private_evaluation=0.0),
        server=replace(config.server, init="auto", init_rounds=None, start_from=None),
    )
    made = make_experiment(config, data=experiment.data)
    models = None
    try:
        for record in made.rounds():
            models = record.state.average
    finally:
        made.hosts.stop()
    assert models is not None  # a plan has at least one round
    return made, models


def _predicted(experiment: Experiment, vectors: Vectors, data: FederatedData, ids: Array) -> Predicted | None:
    """Predictions for the test rows of these clients; None if nobody has any."""
    model, tested = experiment.model, ids[data.test_of[ids] >= 0]
    owners, targets, outputs = [], [], []
    for first in range(0, len(tested), _AT_ONCE):
        some = tested[first : first + _AT_ONCE]
        for place, (client, vector) in enumerate(zip(some.tolist(), vectors(data, some), strict=True), first):
            rows = data.test_sets[data.test_of[client]]
            owners.append(np.full(len(rows.targets), place))
            targets.append(rows.targets)
            outputs.append(outputs_of(model, vector, torch.as_tensor(rows.inputs)).astype(np.float64))
    if not owners:
        return None
    values = np.concatenate(outputs)
    values = probabilities(values, "classes") if data.num_classes else values.reshape(len(values))
    return Predicted(np.concatenate(owners), np.concatenate(targets), values)


def _constant(data: FederatedData, ids: Array, tested: Predicted) -> Predicted:
    """The shares of classes among the training rows of these clients, or their mean, for every test row."""
    targets = np.concatenate([data.store.client(client)[1] for client in ids.tolist()])
    if not data.num_classes:
        return replace(tested, outputs=np.full(len(tested.targets), targets.mean(dtype=np.float64)))
    shares = np.bincount(targets, minlength=data.num_classes) / len(targets)
    return replace(tested, outputs=np.tile(shares, (len(tested.targets), 1)))
