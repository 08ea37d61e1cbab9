"""Personalising: after the release a client fits its chosen model to its own rows, as far as that helps.

Everything happens on the client, from released models and its own training rows; nothing is sent, so it costs no
privacy. A client decides by cross-validation on its own rows how far to train, and whether to train all parameters or
the last layer: it picks the least loss on held-out rows if that is better than the released model by two standard
errors, else the released model. Then it trains that far on all its rows. Only the evaluation reads test rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rrcluster.data.arrays import SomeRows
from rrcluster.data.federated import FederatedData, Targets
from rrcluster.engine import protocol
from rrcluster.engine.protocol import Engine, LocalSettings, Question
from rrcluster.methods.method import Method, Tools
from rrcluster.models.model import Model
from rrcluster.simulation.evaluate import FEW_SETS, judge_own
from rrcluster.simulation.hosts import Host, Hosts
from rrcluster.types import Array, Models

EPOCHS = (1, 3, 10)  # candidate training lengths of a client
RATE = 0.25  # relative to the run's local rate, at which losses on a few held-out rows are too noisy
FOLDS = 5
LEAST_ROWS = FOLDS  # clients with fewer rows keep the released model
STANDARD_ERRORS = 2.0  # required improvement on held-out rows, in standard errors over the folds
_NUMBERS_AT_ONCE = 2**25  # candidates' parameters in memory: 128 MiB


@dataclass(frozen=True, repr=False)
class Personalised:
    """The final models of n clients."""

    vectors: Array  # (n, d) float32
    clusters: Array  # (n,) the released models they started from
    epochs: Array  # (n,) epochs of training from there; 0: none
    head_only: Array  # (n,) bool: whether only the last layer was trained


def fold_of_rows(targets: Targets) -> Array:
    """(size,) the fold in which each row is held out: in turn, in the order of the targets."""
    folds = np.zeros(len(targets), dtype=np.int64)
    order = np.argsort(targets, kind="stable") if targets.ndim == 1 else np.arange(len(targets))
    folds[order] = np.arange(len(targets)) % FOLDS
    return folds


def _rows_of_fold(targets: Targets, *, fold: int, held_out: bool) -> Array:
    """(size,) whether a row is held out in a fold, or is not."""
    return np.asarray((fold_of_rows(targets) == fold) == held_out)


def divided(data: FederatedData, fold: int) -> tuple[FederatedData, FederatedData]:
    """The population with the rows for fitting in one fold, and with the held-out ones."""
    held = (data.sizes + FOLDS - 1 - fold) // FOLDS
    fitted, held_out = (SomeRows(data.store, partial(_rows_of_fold, fold=fold, held_out=out)) for out in (False, True))
    return replace(data, sizes=data.sizes - held, store=fitted), replace(data, sizes=held, store=held_out)


def personalise_clients(
    models: Models,
    data: FederatedData,
    ids: Array,
    *,
    method: Method,
    model: Model,
    engine: Engine,
    local: LocalSettings,
) -> Iterator[tuple[Array, Personalised]]:
    """Batches of clients: their places in `ids`, and their final models.

    A client starts from the released model that the method would choose for all its rows. A client of fewer than
    `LEAST_ROWS` rows, or for whom no training clearly lowers the loss on held-out rows, keeps that model.
    """
    split, folds = method.split(model), [divided(data, fold) for fold in range(FOLDS)]
    tools = Tools(split, engine, replace(local, local_lr=RATE * local.local_lr, proximal=0.0), key=(0, 0))
    scopes = _scopes(model)
    at_once = clients_at_once(model)
    for first in range(0, len(ids), at_once):
        places = np.arange(first, min(first + at_once, len(ids)))
        clients = ids[places]
        scores = method.final_scores(models, data.cohort(clients), tools=tools)
        clusters = scores.argmin(axis=1)
        start = split.vectors(models, clusters)
        losses = np.stack([_held_out_losses(start, clients, fit, held, scopes, tools=tools) for fit, held in folds])
        best = np.where(data.sizes[clients] >= LEAST_ROWS, clearly_best(losses), 0)
        yield places, _trained_as_chosen(start, clusters, clients, data, best, scopes, tools=tools)


def personalised_accuracies(models: Models, ids: Array, hosts: Hosts) -> Array:
    """(n,) accuracy of each client's own model on its test set; NaN for clients without one. A diagnostic."""
    at_once = clients_at_once(hosts.host.side.engine.model)
    parts = [ids[first : first + at_once] for first in range(0, len(ids), at_once)]
    return np.concatenate(list(hosts.map(_part_accuracies, models, parts)))


def _part_accuracies(host: Host, models: Models, ids: Array) -> Array:
    data, side, accuracy = host.data, host.side, np.full(len(ids), np.nan)
    apart = len(data.test_sets) > FEW_SETS
    own = personalise_clients(
        models, data, ids, method=side.method, model=side.engine.model, engine=side.engine, local=side.local
    )
    for places, result in own:
        accuracy[places] = judge_own(side.engine, result.vectors, data.test_of[ids[places]], data, apart=apart)[1]
    return accuracy


def clients_at_once(model: Model) -> int:
    """The number of clients whose candidates are in memory together."""
    return max(1, _NUMBERS_AT_ONCE // (model.num_parameters * (1 + len(_scopes(model)) * len(EPOCHS))))


def _scopes(model: Model) -> tuple[Array | None, ...]:
    """Trainable parts: everything (None), and the last layer if that is not everything."""
    head = np.zeros(model.num_parameters, dtype=bool)
    head[model.head] = True
    return (None,) if head.all() else (None, head)


def clearly_best(losses: Array) -> Array:
    """(folds, n, m) losses of m candidates -> (n,) the one of least mean among those clearly better than the first.

    Clearly: the mean over the folds is lower by `STANDARD_ERRORS` standard errors of the differences; otherwise the
    first. A loss that is NaN or infinite is never chosen.
    """
    with np.errstate(invalid="ignore"):
        gains = losses[:, :, :1] - losses
        errors = gains.std(axis=0, ddof=1) / np.sqrt(len(losses))
        clear = gains.mean(axis=0) > STANDARD_ERRORS * errors
    return np.asarray(np.where(clear, losses.mean(axis=0), np.inf).argmin(axis=1))


def _held_out_losses(
    start: Array,
    clients: Array,
    fit: FederatedData,
    held: FederatedData,
    scopes: tuple[Array | None, ...],
    *,
    tools: Tools,
) -> Array:
    """(n, 1 + scopes * stages) mean loss on held-out rows: of the start, then of each scope after each stage."""
    candidates = [start]
    for trainable in scopes:
        vectors = start
        for stage in range(len(EPOCHS)):
            vectors = _stage(vectors, fit, clients, stage, trainable, tools=tools)
            candidates.append(vectors)
    stacked = np.stack(candidates, axis=1)
    questions = [Question(own, held.cohort([client])) for own, client in zip(stacked, clients, strict=True)]
    return np.concatenate([answer.loss for answer in tools.engine.measure(questions)])


def _trained_as_chosen(
    start: Array,
    clusters: Array,
    clients: Array,
    data: FederatedData,
    best: Array,
    scopes: tuple[Array | None, ...],
    *,
    tools: Tools,
) -> Personalised:
    """The chosen candidates, 0 for the start or 1 + scope * len(EPOCHS) + stage, trained on all rows."""
    vectors, stages = start.copy(), len(EPOCHS)
    scope, last = np.divmod(best - 1, stages)
    for number, trainable in enumerate(scopes):
        for stage in range(stages):
            rows = np.flatnonzero((best > 0) & (scope == number) & (last >= stage))
            if len(rows):
                vectors[rows] = _stage(vectors[rows], data, clients[rows], stage, trainable, tools=tools)
    epochs = np.where(best > 0, np.array(EPOCHS)[last], 0)
    return Personalised(vectors, clusters, epochs, (best > 0) & (scope == 1))


def _stage(
    vectors: Array, data: FederatedData, clients: Array, stage: int, trainable: Array | None, *, tools: Tools
) -> Array:
    """Train from one number of epochs to the next."""
    epochs = EPOCHS[stage] - (EPOCHS[stage - 1] if stage else 0)
    local, key = replace(tools.local, local_epochs=epochs), (1, stage)
    return protocol.train(tools.engine, vectors, data.cohort(clients), local=local, key=key, trainable=trainable)
