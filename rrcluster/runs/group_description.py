"""A description of a run's groups, from its released models and sizes and from public facts about columns.

It is therefore as private as the models, and secure runs have it too. Effects are changes of a model's prediction as
one column moves and the others stay typical: a number across its declared range, a category against the average row, a
learnt scale from one standard deviation below its mean to one above.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from rrcluster.data.federated import FederatedData
from rrcluster.mixed.random_effects import probabilities
from rrcluster.models.model import Model
from rrcluster.models.table_linear import TableLinear
from rrcluster.rng import stream
from rrcluster.runs.experiment import Experiment
from rrcluster.runs.load import module_of
from rrcluster.runs.outcome import released_shares
from rrcluster.server.state import ServerState
from rrcluster.settings import ColumnSettings
from rrcluster.types import Array

_EFFECTS = 12  # effects listed
_MADE_UP = 2000  # rows on which models are compared


@dataclass(frozen=True, eq=False, repr=False)
class _Columns:
    """Rows for comparing models, as p numbers each."""

    names: tuple[str, ...]  # (c,)
    typical: Array  # (p,)
    low: Array  # (c, p) the typical row with one column low
    high: Array
    made_up: Array  # (rows, p)
    say: Callable[[Array], Array]  # (rows, p) -> (k, rows, outputs) probabilities, or (k, rows, 1) numbers


def describe_groups(experiment: Experiment, state: ServerState) -> dict[str, Any]:
    """Sizes, what each model says of a typical row, effects that differ most, and agreement; empty without columns."""
    columns = _columns(experiment, state)
    if columns is None:
        return {}
    effects = columns.say(columns.high) - columns.say(columns.low)  # (k, c, outputs)
    outputs = effects.shape[2]
    reported = range(1, 2) if outputs == 2 else range(outputs)
    apart = np.ptp(effects, axis=0) if len(effects) > 1 else np.abs(effects[0])
    places = sorted(
        ((c, j) for c in range(effects.shape[1]) for j in reported), key=lambda place: -float(apart[place])
    )[:_EFFECTS]
    names = _outputs(experiment.data, outputs)
    said, shares = columns.say(columns.made_up), released_shares(experiment, state)
    return {
        "classes": bool(experiment.data.num_classes),
        "outputs": [names[j] for j in reported],
        "typical": columns.say(columns.typical[None])[:, 0, list(reported)].tolist(),
        "effects": [
            {"column": columns.names[c], "output": names[j], "by_group": effects[:, c, j].tolist()} for c, j in places
        ],
        "agreement": _agreement(said).tolist(),
        "shares": [] if shares is None else list(shares["shares"]),
        "share_errors": [] if shares is None else list(shares["noise_std"]),
    }


def _outputs(data: FederatedData, count: int) -> list[str]:
    if count == 1:
        return [str(data.encoder.target) if data.encoder is not None else "value"]
    class_names = data.encoder.class_names if data.encoder is not None else ()
    return list(class_names) if len(class_names) == count else [str(place) for place in range(count)]


def _agreement(said: Array) -> Array:
    """(k, k) share of rows on which two models predict the same class; for numbers the correlation."""
    if said.shape[2] == 1:
        with np.errstate(invalid="ignore"):
            alike = np.corrcoef(said[..., 0]).reshape(len(said), len(said))
        return np.asarray(np.nan_to_num(alike, nan=1.0))
    classes = said.argmax(axis=2)
    return np.asarray((classes[:, None] == classes[None]).mean(axis=2))


def _columns(experiment: Experiment, state: ServerState) -> _Columns | None:
    data, model = experiment.data, experiment.model
    vectors = experiment.split.vectors(state.average, np.arange(state.average.num_clusters))
    modules = [module_of(model, vector) for vector in vectors]
    if model.form is not None and data.columns is not None:
        names, typical, low, high, rows = _learnt(model, modules[0], data.columns.names)
        answers = [cast(TableLinear, module).answer for module in modules]
    elif data.encoder is None or len(data.input_shape) != 1 or data.target_shape:
        return None
    else:
        names, typical, low, high, rows = _declared(data.encoder)
        answers = [cast(Any, module) for module in modules]
        if len(names) != data.input_shape[0]:
            return None  # lists of numbers, whose entries have no names

    def say(rows: Array) -> Array:
        inputs = torch.as_tensor(rows, dtype=torch.float32)
        with torch.no_grad():
            said = np.stack([answer(inputs).double().numpy().reshape(len(rows), -1) for answer in answers])
        said = probabilities(said, "classes") if data.num_classes else said
        return np.asarray(said)

    return _Columns(tuple(names), typical, low, high, rows, say)


_Rows = tuple[list[str], Array, Array, Array, Array]  # names, typical, low, high, synthetic


def _learnt(model: Model, module: Any, names: tuple[str, ...]) -> _Rows:
    """Columns that the model standardises itself, those in use, in standard deviations."""
    form = model.form
    assert form is not None
    texts = [
        f"{name}: {what}" for name in names for what in ("missing", *(f"text {j + 1}" for j in range(form.buckets)))
    ]
    encoded = [*names, *texts] if form.buckets else list(names)
    used = np.flatnonzero(module.gain.numpy(force=True))
    one, typical = np.eye(form.num_encoded)[used], np.zeros(form.num_encoded)
    rows = np.zeros((_MADE_UP, form.num_encoded))
    rows[:, used] = stream(0, "made-up rows").standard_normal((_MADE_UP, len(used)))
    return [encoded[place] for place in used], typical, -one, one, rows


def _declared(encoder: ColumnSettings) -> _Rows:
    """Declared columns: numbers on their ranges (0 to 1 where they have none), and categories, evenly."""
    rng, names, parts = stream(0, "made-up rows"), [], []
    for name in encoder.features:
        values = encoder.vocabulary.get(name)
        if values is None:
            names.append(name)
            parts.append((np.array([0.5]), np.zeros((1, 1)), np.ones((1, 1)), rng.random((_MADE_UP, 1))))
            continue
        names += [*(f"{name}={value}" for value in values), f"{name}: other"]
        m = len(values) + 1
        even, each = np.full(m, 1 / m), np.eye(m)
        parts.append((even, np.tile(even, (m, 1)), each, each[rng.integers(m, size=_MADE_UP)]))
    typical = np.concatenate([even for even, *_ in parts])
    low, high, start = np.tile(typical, (len(typical), 1)), np.tile(typical, (len(typical), 1)), 0
    for even, least, most, _ in parts:
        block = slice(start, start + len(even))
        low[block, block], high[block, block] = least, most
        start = block.stop
    return names, typical, low, high, np.concatenate([rows for *_, rows in parts], axis=1)
