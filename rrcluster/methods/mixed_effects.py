"""Mixed effects: one linear model of a table's columns, or one per cluster, and each client's random effects on it.

Everything is estimated from answers to questions (rrcluster/mixed/): ranges of columns, their moments, clusters of
clients by their mean columns where these pay, the shared weights, and the size of the clients' deviations. Gradient
steps maximise the Laplace approximation of a mixed model's likelihood (Breslow, Clayton 1993), each client's effects at
their mode.
"""

from dataclasses import replace

import numpy as np

from rrcluster.data.federated import FederatedData
from rrcluster.errors import ConfigError
from rrcluster.methods.coordinate_split import Split
from rrcluster.methods.method import Clients, Method, Tools, Trained
from rrcluster.mixed.answers import TableQuestion, linear, precisions, rows_of
from rrcluster.mixed.questionnaire import facts_of
from rrcluster.mixed.questions import SMALL, Form
from rrcluster.mixed.random_effects import NEWTON_STEPS, fit_effects
from rrcluster.models.model import Model
from rrcluster.types import Array, Models

_CLUSTERED = ("place", "weight", "base")  # parameters of TableLinear that are clustered


def columns_and_weights(model: Model) -> Split:
    """Ranges, means and scales are shared; places and weights are clustered."""
    if model.form is None:
        raise ConfigError("algorithm = mixed-effects needs the columns of a table; use model = table-linear (auto).")
    indices = [np.arange(layer.start, layer.stop) for layer in model.layers if layer.name in _CLUSTERED]
    clustered = np.concatenate(indices)
    none = np.zeros(0, dtype=np.int64)
    return Split(np.setdiff1d(np.arange(model.num_parameters), clustered), clustered, none)


def nearest_place(models: Models, clients: Clients, *, tools: Tools) -> Array:
    """(n, k) squared distance of each client's mean columns from the clusters' places."""
    scores = np.zeros((len(clients.cohort.clients), models.num_clusters))
    if models.num_clusters == 1:
        return scores
    question = _question(models, tools)
    for places, rows in rows_of(question.form, clients.cohort, alone=False):
        apart = question.described(rows)[:, None] - question.facts.centres
        scores[places] = (apart * apart).sum(axis=2)
    return scores


def with_effects(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Array:
    """(n, d) the cluster's model with each client's random effects, at their mode given its training rows, from zero.

    Without random effects, and for a client without rows, the cluster's model.
    """
    question = _question(models, tools)
    form, facts = question.form, question.facts
    vectors = tools.split.vectors(models, clusters)
    intercept, slope = facts.chosen[1:].tolist()
    if max(intercept, slope) < 1.01 * SMALL:  # rounded to float32
        return vectors
    layer = next(layer for layer in tools.engine.model.layers if layer.name == "weight")
    weights = vectors[:, layer.start : layer.stop].reshape(len(vectors), form.num_outputs, -1)
    precision = precisions(intercept, slope, 1 + len(facts.active))
    columns = np.concatenate([[0], 1 + facts.active.astype(np.int64)])
    for places, rows in rows_of(form, clients.cohort, alone=False):
        encoded, base = question.columns(rows), facts.second[clusters[places]]
        offsets = linear(encoded, base)
        effects, _ = fit_effects(
            encoded, offsets, question.targets(rows), rows.mask, precision, kind=form.kind, steps=NEWTON_STEPS
        )
        fitted = weights[places]
        fitted[..., columns] = base + effects.transpose(0, 2, 1)
        has_rows = clients.cohort.sizes[places, None, None] > 0
        weights[places] = np.where(has_rows, fitted, weights[places])
    vectors[:, layer.start : layer.stop] = weights.reshape(len(vectors), -1)
    return vectors


def form_for(model: Model, data: FederatedData, *, num_rounds: int, most_clusters: int, personal: bool) -> Form | None:
    """The questionnaire for clients of this data, from public constants alone."""
    if model.form is None:
        return None
    facts = data.columns
    number = model.form.kind == "number"
    declared = () if facts is None else (*facts.ranges, *((facts.target_range,) if number else ()))
    return replace(
        model.form,
        declared=declared,
        num_rounds=num_rounds,
        most_clusters=most_clusters,
        personal=personal,
        ordered=data.ordered,
    )


def _question(models: Models, tools: Tools) -> TableQuestion:
    form = tools.engine.model.form
    assert form is not None
    return TableQuestion(replace(form, ordered=False), 0, facts_of(form, models))  # released models order no rows


def _train_nothing(models: Models, clients: Clients, clusters: Array, *, tools: Tools) -> Trained:  # noqa: ARG001
    raise AssertionError("clients of a questionnaire answer questions in every round")


MIXED_EFFECTS = Method(
    "mixed-effects",
    split=columns_and_weights,
    scores=nearest_place,
    local=_train_nothing,
    own_models=with_effects,
    one_model=True,
    asks=True,
)
