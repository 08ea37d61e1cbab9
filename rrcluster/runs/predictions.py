"""Predictions for the rows of a table: encode them by a run's rules, find each client's model, predict.

A client's cluster comes from a table of clusters, from labelled rows, or from the inputs of its rows if a method needs
no labels; else the predictions of all clusters are averaged by released sizes. Labels of rows to score are never read.
A labelled row with the inputs of a row to score is left out, one for each: no row chooses its own model.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rrcluster.data.cells import text_key
from rrcluster.data.encoding import NUMBER, read_names, read_numbers
from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.data.frames import encoded_rows, frame_population, to_table
from rrcluster.data.table_files import FILE_NAME, arrow, check_columns, read_table, table_names
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.errors import ConfigError, DataError, UnfitRows
from rrcluster.methods.method import Clients, Tools
from rrcluster.mixed.random_effects import probabilities
from rrcluster.runs.config import write_private
from rrcluster.settings import ColumnSettings
from rrcluster.spelling import MISSING, spelling
from rrcluster.types import Array

if TYPE_CHECKING:
    from rrcluster.runs.load import TrainedModels

_ROWS_AT_ONCE = 2**15
_NUMBERS_AT_ONCE = 2**24  # size limit of padded rows
_FILE, _LABELS, _INPUTS, _SIZES, _ONLY = range(5)
_BY = ("by the table of clusters", "by labelled rows", "by the inputs of their rows alone")


@dataclass(frozen=True, eq=False)
class Predictions:
    """The models' predictions for every row, in the order of the table. They show who is in which cluster: private."""

    client: Array | None  # (n,) names; None if the table names no clients
    cluster: Array  # (n,) -1 if unknown, or the row could not be read
    outputs: Array  # (n, classes) probabilities, or (n,) or (n, m) numbers; NaN if the row could not be read
    classes: tuple[str, ...]  # empty for numbers
    problems: Mapping[int, str]  # place of a row that could not be read -> column and rule
    basis: tuple[int, ...]  # number of clients by the source of their cluster, `_BY`; last with one model for all
    own_models: int = 0  # clients with their own random effects
    left_out: int = 0  # labelled rows that are also rows to score

    def __repr__(self) -> str:
        """Short: not who is in which cluster."""
        return f"Predictions({len(self.cluster)} rows, {len(self.problems)} of them unread)"

    @property
    def prediction(self) -> Array:
        """(n,) the most probable class, or the number; an empty text or NaN if the row could not be read."""
        if not self.classes:
            return self.outputs
        names = np.array([*self.classes, ""], dtype=object)
        unread = np.isnan(self.outputs[:, 0])
        return np.asarray(names[np.where(unread, -1, np.nan_to_num(self.outputs).argmax(axis=1))])

    def sentence(self) -> str:
        """The number of scored rows, the source of their clients' clusters, and any problems."""
        said = [f"{len(self.cluster) - len(self.problems):,} of {len(self.cluster):,} rows are scored."]
        said += ["They name no clients, so each row counts as one."] if self.client is None else []
        what = "rows" if self.client is None else "clients"
        counts = [f"{by} for {count:,} {what}" for by, count in zip(_BY, self.basis, strict=False) if count]
        said += [f"Clusters: {', '.join(counts)}."] if counts else []
        if self.basis[_SIZES]:
            said.append(f"{self.basis[_SIZES]:,} {what} of no known cluster: all models, averaged by released sizes.")
        said += ["One model serves all clients."] if self.basis[_ONLY] else []
        if self.own_models:
            said.append(f"{self.own_models:,} clients have random effects of their own, by their labelled rows.")
        if self.left_out:
            said.append(f"{self.left_out:,} labelled rows are among the rows to score and decided nothing.")
        if self.problems:
            place, problem = next(iter(sorted(self.problems.items())))
            said.append(f"{len(self.problems):,} rows could not be read; the first is row {place + 1}: {problem}.")
        return " ".join(said)

    def columns(self) -> dict[str, Any]:
        """As columns: row, client, cluster, prediction, a probability for each class, and the problem if any."""
        rows = len(self.cluster)
        columns: dict[str, Any] = {"row": np.arange(1, rows + 1)}
        columns |= {} if self.client is None else {"client": self.client}
        columns["cluster"] = self.cluster
        wide = self.outputs.ndim == 2 and not self.classes
        columns |= {f"prediction_{j}": values for j, values in enumerate(self.outputs.T)} if wide else {}
        columns |= {} if wide else {"prediction": self.prediction}
        columns |= {f"probability_{name}": self.outputs[:, j] for j, name in enumerate(self.classes)}
        problem = np.full(rows, "", dtype=object)
        problem[list(self.problems)] = list(self.problems.values())
        return columns | {"problem": problem}

    def to_frame(self) -> Any:
        """A pandas DataFrame of `columns`."""
        return import_module("pandas").DataFrame(self.columns())

    def write_csv(self, path: str | Path) -> Path:
        """Write `columns`, readable by the owner alone. Not into a run folder, which is made to be passed on."""
        pa = arrow()
        columns = {
            name: pa.array(values, mask=values < 0 if name == "cluster" else None, from_pandas=True)
            for name, values in self.columns().items()
        }
        content = pa.BufferOutputStream()
        arrow("pyarrow.csv").write_csv(pa.table(columns), content)
        return write_private(path, content.getvalue().to_pybytes())


def predict_rows(
    models: "TrainedModels", data: Any, *, cluster: int | None = None, clusters: Any = None, labelled: Any = None
) -> Predictions:
    """Score the rows of a table (`TrainedModels.predict`)."""
    encoder = _checked_encoder(models)
    table, owners, names = _rows_to_score(data, encoder)
    labelled_rows = labelled
    if labelled is not None and not isinstance(labelled, FederatedData):
        labelled_rows = frame_population(labelled, encoder, typed=False)
    scorer = _Scorer(models, cluster, _given_clusters(clusters, models.num_clusters), labelled_rows)
    problems = dict.fromkeys(np.flatnonzero(owners < 0).tolist(), f"column {encoder.client!r}: no value")
    chosen, outputs = np.full(len(table), -1), np.zeros(0)
    basis, with_effects, left_out = np.zeros(_ONLY + 1, dtype=np.int64), 0, 0
    for some in _chunks(owners):
        rows, inputs, unread = _encoded(table, some, encoder)
        problems |= unread
        if not len(rows):
            continue
        _check_width(inputs, models)
        clients, sizes = np.unique(owners[rows], return_counts=True)
        empty = np.zeros(len(rows), dtype=np.int64)  # without labels
        part = scorer.score(_Rows(inputs, sizes, empty), [names[client] if names else "" for client in clients])
        outputs = outputs if outputs.size else np.full((len(table), *part.outputs.shape[1:]), np.nan)
        outputs[rows], chosen[rows] = part.outputs, np.repeat(part.clusters, sizes)
        basis += np.bincount(part.basis, minlength=_ONLY + 1)
        with_effects, left_out = with_effects + part.own, left_out + part.left_out
    if not outputs.size:
        place, problem = min(problems.items())
        raise DataError(f"no row can be read; row {place + 1} is the first: {problem}.")
    client = np.array([*names, ""], dtype=object)[owners] if names else None
    return Predictions(
        client, chosen, outputs, encoder.class_names, problems, tuple(basis.tolist()), with_effects, left_out
    )


def _checked_encoder(models: "TrainedModels") -> ColumnSettings:
    if models.encoder is None:
        raise ConfigError(
            "the run's folder has no rules for columns: it was trained on arrays, or written by an earlier version. "
            "Encode rows as for training (rr.from_frame) and give predict(inputs, cluster=...), or train again."
        )
    if models.personal_layers:
        raise ConfigError(
            f"{models.method.name} leaves {', '.join(models.personal_layers)} on the clients, so the folder has no "
            "whole model; use rr.personalise with a client's own rows."
        )
    return models.encoder


def preprocessing(models: "TrainedModels") -> dict[str, Any]:
    """How cells become the network's inputs, and the meaning of its outputs, as plain data for other programs."""
    encoder = _checked_encoder(models)
    cells, form, columns, rules = encoder.encoding == "cells", models.model.form, [], encoder.without_dates()
    parts = [(name, part) for name in encoder.features for part in encoder.date_parts.get(name, ("",))]
    for (name, part), label in zip(parts, rules.features, strict=True):
        about: dict[str, Any] = {"column": name} | ({"part": part} if part else {})
        if label in rules.vocabulary:
            about["values"] = list(rules.vocabulary[label])
        elif label in rules.ranges:
            about["scale"] = list(rules.ranges[label])
        elif cells and not part:
            about["text_key"] = text_key(name).hex()
        about |= {"date": True} if rules.kinds.get(name) == "date" else {}
        columns.append(about | ({"missing": encoder.fills[name]} if name in encoder.fills else {}))
    low, high = encoder.ranges.get(str(encoder.target), (0.0, 1.0))
    return {
        "format": "rrcluster-preprocessing/1",
        "inputs": _INPUTS_OF_CELLS if cells else "float32: what every column gives, in this order",
        "columns": columns,
        "column": "values: 1 for the value of the cell, 0 for the others, then 1 if it is none of them; scale: "
        "(number - low) / (high - low); date: days since 1970; part: of a date in universal time (year, "
        "month, weekday, hour), and an empty cell where there is no date; missing: what an empty cell stands for",
        "empty": sorted(MISSING),
        "number": NUMBER,
        "text": "without space around it; true and false in small letters, which are the numbers 1 and 0; decimal "
        "numbers without zeros at their end; a date without midnight",
        "code": "1 + h modulo buckets; h: BLAKE2b of the text in UTF-8, 8 bytes, the highest first, by the column's "
        "text_key and the person 'rrcluster cell'",
        "buckets": form.buckets if cells and form is not None else 0,
        "outputs": {"logits_of": list(encoder.class_names)}
        if encoder.classes
        else {"number": encoder.target, "low": low, "high": high, "value": "low + (high - low) * output"},
    }


_INPUTS_OF_CELLS = (
    "float32: what every column gives, in this order, NaN for empty cells and for text; then a code for each of these, "
    "which is 0 but for text in a column with a text_key"
)


def _rows_to_score(data: Any, encoder: ColumnSettings) -> tuple[Any, Array, list[str] | None]:
    """The features of the rows, the number of each row's client (-1: unnamed), and the clients' names.

    Without a client column, each row is a separate client.
    """
    features, source = encoder.features, "the table"
    if isinstance(data, (str, Path)):
        path, source = Path(data), str(data)
        present = table_names(path)
        client = encoder.client if encoder.client in present else FILE_NAME if path.is_dir() else None
        table, _ = read_table(path, ColumnSettings(client=None if client == FILE_NAME else client or present[0]))
    else:
        table = to_table(data)
        client = encoder.client if encoder.client in table.column_names else None
    check_columns(table.column_names, ColumnSettings(features=features), source=source)
    if not len(table):
        raise DataError("the table has no rows to score; give at least one.")
    if client is None:
        return table.select(list(features)), np.arange(len(table)), None
    cells = read_names(table.column(client), client, ColumnSettings(client=client), row=_row)
    return table.select(list(features)), np.where(cells.missing, -1, cells.codes), list(cells.spellings)


def _row(place: int) -> str:
    return f"row {place + 1}"


def _chunks(owners: Array) -> Iterator[Array]:
    """Positions of rows, client after client, in chunks that contain all rows of their clients."""
    order = np.argsort(owners, kind="stable")[(owners < 0).sum() :]
    ends = np.flatnonzero(np.diff(owners[order], append=-1)) + 1 if len(order) else order
    start = 0
    while start < len(order):
        stop = ends[min(int(np.searchsorted(ends, start + _ROWS_AT_ONCE)), len(ends) - 1)]
        yield order[start:stop]
        start = stop


def _encoded(table: Any, rows: Array, encoder: ColumnSettings) -> tuple[Array, Array, dict[int, str]]:
    """The readable rows, their inputs, and the problems of the others, by position."""
    problems: dict[int, str] = {}
    while len(rows):
        part, numbers = table.take(rows), rows + 1
        try:
            return rows, encoded_rows(part, encoder, row=lambda place: f"row {numbers[place]}"), problems  # noqa: B023
        except UnfitRows as error:
            problems |= dict.fromkeys(rows[error.rows].tolist(), f"column {error.column!r}: {error.rule}")
            rows = rows[~error.rows]
    return rows, np.zeros(0, dtype=np.float32), problems


def _check_width(inputs: Array, models: "TrainedModels") -> None:
    if models.input_shape and inputs.shape[1:] != tuple(models.input_shape):
        raise DataError(
            f"the rows give {inputs.shape[1]} inputs, and the models take {models.input_shape[0]}; lists must be as "
            "long as in training."
        )


def _given_clusters(clusters: Any, count: int) -> dict[str, int]:
    """The cluster of each client in a table of clusters: a CSV from `assign`, an `Assignment` or a mapping."""
    if clusters is None:
        return {}
    if isinstance(clusters, (str, Path)):
        columns = ColumnSettings(client="client", features=("cluster",))
        table, _ = read_table(Path(clusters), columns)
        cells = read_names(table.column("client"), "client", columns, row=_row)
        names = [cells.spellings[code] for code in cells.codes]
        values = read_numbers(table.column("cluster"), "cluster", columns, row=_row)[:, 0].tolist()
    else:
        pairs = clusters.items() if isinstance(clusters, Mapping) else zip(clusters.client, clusters, strict=True)
        names, values = map(list, zip(*[(spelling(name) or "", cluster) for name, cluster in pairs], strict=True))
    if odd := [place for place, value in enumerate(values) if value not in range(count)]:
        raise DataError(f"clusters: {_row(odd[0])} has no cluster from 0 to {count - 1}; give the table of this run.")
    by_client = {name: int(value) for name, value in zip(names, values, strict=True)}
    if len(by_client) < len(names):
        raise DataError("clusters: a client is named twice; name each once.")
    return by_client


def _finished(outputs: Array, encoder: ColumnSettings) -> Array:
    """Probabilities of classes, or numbers in the target's own unit."""
    if encoder.classes:
        if outputs.shape[1:] != (len(encoder.classes),):
            raise ConfigError(
                f"the network has outputs {outputs.shape[1:]}, and there are {len(encoder.classes)} classes, "
                "so they are not logits; use predict(inputs, cluster=...) and convert its outputs to "
                "probabilities yourself."
            )
        return probabilities(outputs, "classes")
    low, high = encoder.ranges.get(str(encoder.target), (0.0, 1.0))
    values = outputs[:, 0] if outputs.shape[1:] == (1,) else outputs
    return np.asarray(low + (high - low) * values)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of c clients, one after the other."""

    inputs: Array  # (s, *input)
    sizes: Array  # (c,)
    targets: Array  # (s, *target)

    def cohorts(self, wanted: Array) -> Iterator[tuple[Array, Cohort]]:
        """The wanted clients (c,) with rows, batched by similar size; and their positions."""
        places = np.flatnonzero(wanted & (self.sizes > 0))
        places = places[np.argsort(self.sizes[places], kind="stable")]
        starts, width = np.cumsum(self.sizes) - self.sizes, max(1, self.inputs[:1].size)
        while len(places):
            padded = self.sizes[places] * np.arange(1, len(places) + 1) * width
            some = places[: max(1, np.searchsorted(padded, _NUMBERS_AT_ONCE))]
            within = np.arange(self.sizes[some[-1]])
            present = within < self.sizes[some, None]
            rows = np.where(present, starts[some, None] + within, 0)
            inputs, targets = self.inputs[rows], self.targets[rows]
            inputs[~present], targets[~present] = 0, 0
            yield some, Cohort.of_arrays(some, inputs, targets, self.sizes[some])
            places = places[len(some) :]


@dataclass(frozen=True, eq=False)
class _Part:
    """The scores of some clients' rows."""

    clusters: Array  # (c,)
    basis: Array  # (c,) places in `_BY`
    outputs: Array  # (s, ...)
    own: int = 0  # clients with random effects
    left_out: int = 0  # labelled rows


@dataclass(frozen=True, eq=False)
class _Scorer:
    """The models of a run, and the known facts about clients."""

    models: "TrainedModels"
    cluster: int | None  # for everybody
    given: Mapping[str, int]
    labelled: FederatedData | None

    @cached_property
    def _tools(self) -> Tools:
        return Tools(self.models.split, BatchedEngine(self.models.model), self.models.local, key=(0, 0))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {} if self.labelled is None else {name: place for place, name in enumerate(self.labelled.clients)}

    def score(self, rows: _Rows, names: Sequence[str]) -> _Part:
        """Scores of these clients' rows; an unnamed client has an empty name."""
        models, method = self.models.models, self.models.method
        only = 0 if self.models.num_clusters == 1 else self.cluster
        clusters = np.array([self.given.get(name, -1) if only is None else only for name in names])
        basis = np.where(clusters >= 0, _FILE if only is None else _ONLY, _SIZES)
        personal, has_own = np.zeros((len(names), 0), dtype=np.float32), np.zeros(len(names), dtype=bool)
        labelled, left_out = self._known(rows, names)
        for places, cohort in labelled.cohorts((clusters < 0) | bool(method.asks)):
            free = clusters[places] < 0
            scores = method.final_scores(models, cohort, tools=self._tools)
            basis[places[free]], clusters[places[free]] = _LABELS, scores.argmin(axis=1)[free]
            if method.asks and method.own_models is not None:
                vectors = self.models.split.vectors(models, clusters[places])
                fitted = method.own_models(models, Clients.without_memory(cohort), clusters[places], tools=self._tools)
                personal = personal if personal.size else np.zeros((len(names), fitted.shape[1]), dtype=np.float32)
                personal[places], has_own[places] = fitted, (fitted != vectors).any(axis=1)
        if method.asks:  # their scores read inputs alone
            for places, cohort in rows.cohorts(clusters < 0):
                basis[places] = _INPUTS
                clusters[places] = method.final_scores(models, cohort, tools=self._tools).argmin(axis=1)
        return _Part(clusters, basis, self._outputs(rows, clusters, personal, has_own), int(has_own.sum()), left_out)

    def _known(self, rows: _Rows, names: Sequence[str]) -> tuple[_Rows, int]:
        """The labelled rows of these clients, and the number left out because they are also rows to score."""
        none = _Rows(rows.inputs[:0], np.zeros(len(names), dtype=np.int64), rows.targets[:0])
        inputs, targets, sizes, left_out = [none.inputs], [none.targets], none.sizes, 0
        for place, start in enumerate(np.cumsum(rows.sizes) - rows.sizes):
            if self.labelled is None or names[place] not in self._places:
                continue
            own_inputs, own_targets = self.labelled.store.client(self._places[names[place]])
            scored = Counter((row + 0).tobytes() for row in rows.inputs[start : start + rows.sizes[place]])
            kept = []
            for labelled, row in enumerate(own_inputs):
                if scored[key := (row + 0).tobytes()]:  # -0 is 0
                    scored[key] -= 1
                else:
                    kept.append(labelled)
            left_out, sizes[place] = left_out + len(own_inputs) - len(kept), len(kept)
            inputs, targets = [*inputs, own_inputs[kept]], [*targets, own_targets[kept]]
        return _Rows(np.concatenate(inputs), sizes, np.concatenate(targets[1:] or targets)), left_out

    def _shares(self) -> list[float]:
        """Each cluster's share of the clients, by released sizes."""
        sizes = np.maximum(self.models.sizes, 0.0)
        if len(sizes) != self.models.num_clusters or not sizes.sum() > 0:
            raise ConfigError(
                "some clients have no known cluster, and the folder has no released sizes; give them in a "
                "table of clusters (--clusters, clusters=) or labelled rows (--labelled, labelled=)."
            )
        return [float(share) for share in sizes / sizes.sum()]

    def _outputs(self, rows: _Rows, clusters: Array, own: Array, has_own: Array) -> Array:
        """Probabilities or numbers (s, ...) of rows by their clients' own models, or else their clusters'."""
        models, encoder = self.models, _checked_encoder(self.models)
        members = np.repeat(np.arange(len(clusters)), rows.sizes)
        made: list[tuple[Array, Array]] = []  # positions, and their outputs
        for cluster in np.unique(clusters[~has_own]).tolist():
            places = np.flatnonzero(~has_own[members] & (clusters[members] == cluster))
            inputs, shares = rows.inputs[places], {cluster: 1.0} if cluster >= 0 else dict(enumerate(self._shares()))
            parts = [share * _finished(models.outputs(inputs, cluster=j), encoder) for j, share in shares.items()]
            made.append((places, np.sum(parts, axis=0)))
        starts = np.cumsum(rows.sizes) - rows.sizes
        for some, cohort in rows.cohorts(has_own):
            parameters = models.model.unflatten(torch.as_tensor(own[some]))
            with torch.no_grad():
                outputs = models.model.grouped(parameters, torch.as_tensor(cohort.inputs)).numpy()
            within = np.arange(outputs.shape[1])
            present = within < rows.sizes[some, None]
            made.append(((starts[some, None] + within)[present], _finished(outputs[present], encoder)))
        order = np.argsort(np.concatenate([places for places, _ in made]))
        return np.asarray(np.concatenate([outputs for _, outputs in made])[order])
