"""Use a finished run: load its models, export them to plain PyTorch or ONNX, and find the model of a client.

A file cluster-N.safetensors has the content for `module.load_state_dict`: the released weights of the cluster, and
untrained values (constant buffers, frozen layers) from the module. Personal layers (the last one under FedPer) stay on
the clients; in the file they are zero, the initial value of a client, and its metadata names them.
"""

import copy
import csv
import io
import json
import math
import warnings
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from rrcluster import registry
from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import Cohort, FederatedData, TableColumns
from rrcluster.data.frames import is_frame
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.pick_engine import stacked_or_single
from rrcluster.engine.protocol import LocalSettings
from rrcluster.errors import ConfigError, RunFolderError, install_extra
from rrcluster.methods import METHODS, Method, Tools
from rrcluster.methods.coordinate_split import Split
from rrcluster.models import Model, fitted, from_module, make_model, shipped_model
from rrcluster.privacy.cost import folder_cost
from rrcluster.runs.config import write_private
from rrcluster.runs.predictions import Predictions, predict_rows, preprocessing
from rrcluster.settings import ColumnSettings, declared_columns, refuse_files
from rrcluster.simulation.evaluate import score_all
from rrcluster.simulation.personalise import personalise_clients
from rrcluster.storage import WAY_OUT, json_text, parse_json, read_mapping, read_tensors, write_json
from rrcluster.types import Array, Models


@dataclass(frozen=True, eq=False)
class Assignment:
    """One row per client. Indexing, comparison and numpy treat it as the array of cluster numbers."""

    client: Array  # (M,) ids or names
    cluster: Array  # (M,) the cluster of least score, which under IFCA is the loss
    margin: Array  # (M,) how much worse the second-best cluster is; NaN with a single cluster

    @classmethod
    def of_scores(cls, client: Array, scores: Array) -> "Assignment":
        """From each client's score (M, k) of each cluster; less is better."""
        ordered = np.sort(scores, axis=1)
        margin = ordered[:, 1] - ordered[:, 0] if scores.shape[1] > 1 else np.full(len(scores), np.nan)
        return cls(np.asarray(client), scores.argmin(axis=1), margin)

    def __repr__(self) -> str:
        """Short: the number of clients per cluster, not who they are."""
        return f"Assignment({len(self)} clients, {np.bincount(self.cluster).tolist()} in clusters 0, 1, ...)"

    def __len__(self) -> int:
        """M."""
        return len(self.cluster)

    def __getitem__(self, place: Any) -> Any:
        """The cluster of one client, or of several, by position."""
        return self.cluster[place]

    def __eq__(self, other: object) -> Any:
        """Elementwise comparison of cluster numbers."""
        return self.cluster == other

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The cluster numbers as an array."""
        return np.array(self.cluster, dtype=dtype) if copy or dtype is not None else self.cluster

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns client, cluster and margin."""
        return import_module("pandas").DataFrame(vars(self))

    def to_json(self) -> str:
        """The table as JSON, a list of rows; a margin of NaN is null."""
        rows = zip(*(column.tolist() for column in vars(self).values()), strict=True)
        return json_text([dict(zip(vars(self), row, strict=True)) for row in rows])

    def write_csv(self, path: str | Path) -> Path:
        """Write the table, readable by its owner alone. Not into a run folder, which is made to be passed on."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(vars(self))
        for client, cluster, margin in zip(self.client.tolist(), self.cluster.tolist(), self.margin, strict=True):
            rows.writerow([client, cluster, "" if np.isnan(margin) else f"{margin:.6g}"])
        return write_private(path, text.getvalue())


FORMAT = "rrcluster-cluster/1"


def module_of(model: Model, vector: Array) -> nn.Module:
    """A copy of the model's module with the trained weights in `vector` (d,), in eval mode."""
    module, values = copy.deepcopy(model.module).cpu(), model.unflatten(torch.as_tensor(vector))
    with torch.no_grad():
        for name, parameter in module.named_parameters():  # shared weights have one name
            if name in values:
                parameter.copy_(values[name])
    return module.eval()


def outputs_of(model: Model, vector: Array, inputs: Tensor) -> Array:
    """Outputs (s, outputs) of a model with the trained weights `vector` (d,) for inputs (s, *input)."""
    with torch.no_grad():
        return np.asarray(model.single(model.unflatten(torch.as_tensor(vector)), inputs).numpy())


@dataclass(frozen=True)
class TrainedModels:
    """The k models of a run, ready to use. Clusters are numbered from 0."""

    models: Models  # flat vectors, as released
    model: Model  # the network
    method: Method  # determines how clients choose
    input_shape: tuple[int, ...] = ()  # of one sample
    local: LocalSettings = field(default_factory=LocalSettings)  # how clients trained
    encoder: ColumnSettings | None = None  # public rules that turn a table's rows into inputs; None without a table
    sizes: tuple[float, ...] = ()  # released cluster sizes; empty if unknown

    def __repr__(self) -> str:
        """Short: not the weights."""
        return f"TrainedModels({self.num_clusters} x {self.model.name}, {self.method.name})"

    @property
    def num_clusters(self) -> int:
        """k."""
        return self.models.num_clusters

    @property
    def split(self) -> Split:
        """The split of coordinates into shared, clustered, personal."""
        return self.method.split(self.model)

    @property
    def input_dtype(self) -> type[np.generic]:
        """The type of the model's inputs: float32 numbers, or int64 ids."""
        return np.int64 if self.model.takes_ids else np.float32

    def module(self, cluster: int) -> nn.Module:
        """A plain `nn.Module` with the weights of one cluster, in eval mode: a copy, yours to use and to change.

        Layers that stay on the clients (the last one under FedPer) are zero; `personal_layers` names them.
        """
        return module_of(self.model, self._vector(cluster))

    def state_dict(self, cluster: int) -> dict[str, Tensor]:
        """Every parameter and buffer of one cluster by name, for `module.load_state_dict`; copies."""
        by_name = {
            name: value for name, value in self.module(cluster).state_dict().items() if isinstance(value, Tensor)
        }
        return {name: value.detach().clone().contiguous() for name, value in by_name.items()}

    @property
    def personal_layers(self) -> list[str]:
        """Layers with parts that never left the clients, and so are zero here."""
        places = self.split.personal
        return [layer.name for layer in self.model.layers if ((layer.start <= places) & (places < layer.stop)).any()]

    def files(self, about: dict[str, Any]) -> dict[str, bytes]:
        """Name and content of every cluster's file; `about` goes into the metadata."""
        files = {}
        for cluster in range(self.num_clusters):
            facts = about | {"format": FORMAT, "cluster": cluster, "personal": self.personal_layers}
            metadata = {name: json.dumps(value) for name, value in facts.items()}
            files[f"cluster-{cluster}.safetensors"] = save(self.state_dict(cluster), metadata=metadata)
        return files

    def onnx(self, cluster: int, path: str | Path) -> Path:
        """Write the model of one cluster as an ONNX file with a variable number of samples. Needs the extra `onnx`.

        For models of a table, a .json file of the same name describes how cells become inputs.
        """
        module = self.module(cluster)
        for package in ("onnx", "onnxscript"):
            try:
                import_module(package)
            except ImportError as error:
                raise ConfigError(f"ONNX files need the package {package}; {install_extra('onnx')}.") from error
        sample = torch.zeros((2, *self.input_shape), dtype=torch.int64 if self.model.takes_ids else torch.float32)
        batches = ({0: torch.export.Dim.DYNAMIC},)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the exporter's own, about its own parts
                program = torch.onnx.export(module, (sample,), dynamo=True, dynamic_shapes=batches, verbose=False)
        except Exception as error:  # the exporter fails in as many ways as there are operators
            raise ConfigError(
                f"model {self.model.name}: PyTorch cannot export it to ONNX ({type(error).__name__}); use "
                "cluster-N.safetensors with the module itself."
            ) from error
        assert program is not None  # with dynamo
        program.save(str(path))
        if self.encoder is not None:
            write_json(Path(path).with_suffix(".json"), preprocessing(self))
        return Path(path)

    def _vector(self, cluster: int) -> Array:
        if not 0 <= cluster < self.num_clusters:
            raise ConfigError(f"cluster = {cluster} must lie in 0..{self.num_clusters - 1}.")
        return np.asarray(self.split.vectors(self.models, np.array([cluster]))[0])

    def _checked(self) -> "TrainedModels":
        """These models, if the weights have the shapes of network and method."""
        shared, clustered = self.models.shared, self.models.clustered
        wanted, columns = self.split.coordinates, clustered.shape[1:]
        if (
            len(columns) != 1
            or len(clustered) < 1
            or (shared.shape, columns) != ((wanted.shared,), (wanted.clustered,))
        ):
            raise ValueError("weights of another shape")
        return self

    def predict(
        self, rows: Any, *, cluster: int | None = None, clusters: Any = None, labelled: Any = None
    ) -> "Predictions | Array":
        """Predictions for the rows of a table (a frame, or a file's path): `Predictions`, probabilities or numbers.

        The table needs the features of the run, and its column of clients where these are known. A client's cluster is
        the one that `clusters` names (a table of `assign`, its path, or a mapping), else that of its rows in
        `labelled`, a table with the run's columns; else, where the method compares inputs alone (mixed effects), that
        of its rows; else no one's: all models are averaged by released sizes. Under mixed effects `labelled` also gives
        clients their own random effects. `cluster` is one for everybody. A labelled row with the inputs of a row to
        score is left out, one for each, so that no row chooses the model that scores it. A row that cannot be read has
        no prediction and a problem, and the others are scored.

        For encoded inputs (s, *input), and `cluster`, the outputs of its model (s, outputs): logits, or numbers.
        """
        if isinstance(rows, (str, Path)) or (is_frame(rows) and self.model.task.layout is None):
            return predict_rows(self, rows, cluster=cluster, clusters=clusters, labelled=labelled)
        if cluster is None:
            raise ConfigError("inputs that are encoded already need cluster=, the model to use.")
        return self.outputs(rows, cluster=cluster)

    def outputs(self, inputs: Any, *, cluster: int) -> Array:
        """Outputs (logits, or values for regression) of one cluster's model: (s, *input) -> (s, outputs)."""
        return outputs_of(self.model, self._vector(cluster), self.checked_inputs(inputs))

    def checked_inputs(self, inputs: Any) -> Tensor:
        """The inputs for the network; ConfigError for samples of the wrong shape."""
        rows, shape = self.model.input_tensor(inputs), tuple(self.input_shape)
        if shape and tuple(rows.shape[1:]) != shape:  # sequences may have another length than in the run
            try:
                self.module(0)(rows[:1])
            except (RuntimeError, ValueError, IndexError):
                raise ConfigError(
                    f"samples of shape {tuple(rows.shape[1:])} are given, and the run's models take {shape}; encode "
                    "them by the same rules (rr.from_frame does)."
                ) from None
        return rows


def load(run: str | Path, *, model: nn.Module | Model | None = None) -> TrainedModels:
    """The models of a finished run folder; `model` is the network if the run trained a user's."""
    path = Path(run) / "models.safetensors"
    if not path.exists():
        started = (Path(run) / "config.yaml").exists()
        way_out = f"finish the run with `rrcluster run --resume {run}`" if started else "give the folder of a run"
        raise RunFolderError(f"{run}: no models.safetensors; {way_out}.")
    if any((Path(run) / name).exists() for name in ("config.yaml", "privacy.json", "ledger.jsonl")):
        folder_cost(Path(run))  # refuses an edited folder; models may also be passed on alone
    try:
        tensors, metadata = read_tensors(path)
        about = {name: parse_json(value) for name, value in metadata.items()}
        models = Models(tensors["shared"].astype(float), tensors["clustered"].astype(float))
        declared = about["model"], about["algorithm"], tuple(about["input_shape"])
        if not all(isinstance(name, str) for name in declared[:2]):
            raise ValueError("invalid names")
        finite = np.isfinite(models.shared).all() and np.isfinite(models.clustered).all()
    except Exception as error:  # a damaged file fails in many ways inside the reader
        raise _damaged(path) from error
    if not finite:
        raise RunFolderError(
            f"{path}: has weights that are not finite numbers: training diverged, or the file is damaged. Run "
            "again, if necessary with a lower local_lr."
        )
    _check_known(run, *declared[:2], given=model is not None)
    local, sizes = _local_settings(Path(run) / "config.yaml"), _released_sizes(Path(run) / "summary.json")
    method = METHODS[declared[1]]
    if model is not None:
        network = method.adapt(model if isinstance(model, Model) else from_module(model))
        _check_layers(run, network, about.get("layers"))
    try:
        if model is None:
            network = method.adapt(_declared_model(about, models))
        network = network.taking(about.get("inputs"))
        rules = about.get("encoder")
        refuse_files(rules or {})
        encoder = None if rules is None else declared_columns(**rules)
        return TrainedModels(models, network, method, declared[2], local, encoder, sizes)._checked()
    except Exception as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> RunFolderError:
    return RunFolderError(
        f"{path}: cannot be read as models of rrcluster; the file is damaged. Run again with the same settings."
    )


def _released_sizes(path: Path) -> tuple[float, ...]:
    """The clusters' released sizes, by the run's summary; empty if models were passed on without it."""
    sizes = read_mapping(path).get("sizes", ()) if path.exists() else ()
    if not isinstance(sizes, (list, tuple)) or not all(type(size) in (int, float) for size in sizes):
        raise RunFolderError(f"{path}: has sizes that are not numbers; the file is damaged. {WAY_OUT}")
    return tuple(sizes)


def _local_settings(path: Path) -> LocalSettings:
    """The clients' training settings, by the run's config.yaml; defaults if models were passed on without it."""
    settings = read_mapping(path) if path.exists() else {}
    return LocalSettings(**{part.name: settings[part.name] for part in fields(LocalSettings) if part.name in settings})


def _check_known(run: str | Path, model: str, method: str, *, given: bool) -> None:
    """Refuse unknown names: those of the user's own networks and methods."""
    if not given and model not in registry.MODELS:
        raise ConfigError(
            f"{run}: the run trained a user's network, {model!r}, which is not registered here; pass it: "
            "rr.load(run, model=module), with the same layers."
        )
    if method not in registry.METHODS:
        raise ConfigError(
            f"{run}: the run used a user's method, {method!r}; register it first: "
            f'rr.register("method", {method!r}, method).'
        )


def _check_layers(run: str | Path, model: Model, declared: Any) -> None:
    """Refuse a network with layers other than the run's; folders of version 0.1 do not list them."""
    layers = [[layer.name, *layer.shape] for layer in model.layers]
    if declared is None or layers == declared:
        return
    first, there = next(pair for pair in zip_longest(layers, declared) if pair[0] != pair[1])
    raise ConfigError(
        f"{run}: the network given has {_layer(first)} where the run trained {_layer(there)}; give a module built as "
        "the run's was."
    )


def _layer(layer: Any) -> str:
    return "no further layer" if not isinstance(layer, list) else f"{layer[0]} {tuple(layer[1:])}"


def _declared_model(about: dict[str, Any], models: Models) -> Model:
    """The network declared in the file, refused before construction if the file's weights cannot be its own.

    Every built-in model has at least one weight per input and per class, so a declared size beyond the weights present
    is refused before memory is allocated.
    """
    shape, classes = about["input_shape"], about["num_classes"]
    if shipped_model(about["model"]).own:
        return make_model(about["model"], input_shape=tuple(shape), num_classes=classes)
    sizes = [*shape, classes + 1]
    present = models.shared.size + models.clustered.size
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(shape) > present or classes > present:
        raise ValueError("declared sizes do not fit the weights")
    return make_model(about["model"], input_shape=tuple(shape), num_classes=classes)


def one_client(models: TrainedModels, data: Any) -> tuple[Array, Array]:
    """One client's own samples as arrays, if they are (inputs, targets) for the models."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ConfigError(
            f"data = {type(data).__name__} should be one client's (inputs, targets), or a population: "
            "rr.from_frame makes one of a table or file, rr.from_arrays of arrays."
        )
    inputs, targets = models.checked_inputs(data[0]).numpy(), np.asarray(data[1])
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ConfigError(
            f"data must be (inputs, targets) of equal length above 0; found {len(inputs)}, {len(targets)}."
        )
    return inputs, targets


def assign(models: TrainedModels, data: Any) -> Any:
    """The cluster that the run's method would choose for this data.

    `data` is one client's own samples, a pair (inputs, targets) of arrays for the model (then the answer is one cluster
    number), or `FederatedData` (then an `Assignment`: client, cluster and margin, used like an array of cluster
    numbers). Nothing leaves the caller. Who is in which cluster is private.
    """
    engine = BatchedEngine(models.model)
    if isinstance(data, FederatedData):
        scores = score_all(models.models, data, method=models.method, split=models.split, engine=engine)
        return Assignment.of_scores(np.array(data.clients) if data.clients else np.arange(data.num_clients), scores)
    inputs, targets = one_client(models, data)
    targets = targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)
    cohort = Cohort.of_arrays(np.zeros(1, dtype=np.int64), inputs[None], targets[None], np.array([len(inputs)]))
    tools = Tools(models.split, engine, LocalSettings(), key=(0, 0))
    return int(models.method.final_scores(models.models, cohort, tools=tools)[0].argmin())


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """A client's final model. It is made of the client's own data: private."""

    model: Model
    vector: Array  # (d,) float32
    cluster: int  # the released model it started from
    epochs: int  # passes over the client's own rows; 0: the released model itself
    head_only: bool  # whether only the last layer was trained

    def __repr__(self) -> str:
        """Short: not the weights, which are private."""
        return f"PersonalModel({self.model.name}, from cluster {self.cluster}, {self.epochs} epochs on own rows)"

    def module(self) -> nn.Module:
        """A plain `nn.Module` with the client's own weights, in eval mode: a copy, yours to use and to change."""
        return module_of(self.model, self.vector)

    def predict(self, inputs: Any) -> Array:
        """Outputs (logits, or values for regression): (s, *input) -> (s, outputs)."""
        return outputs_of(self.model, self.vector, self.model.input_tensor(inputs))


def personalise(
    models: TrainedModels, data: Any, *, local_lr: float | None = None, batch_size: int | None = None
) -> Any:
    """Fit a released model to one's own data, on the client: nothing leaves the caller, so it costs no privacy.

    `data` is one client's own training rows, a pair (inputs, targets) of arrays for the model (then the answer is one
    `PersonalModel`), or `FederatedData` (then a list, one for each client). The client starts from the model that
    `assign` would give it. Cross-validation on its own rows decides how far it trains (0, 1, 3 or 10 epochs, all
    parameters or the last layer): 0 where no training clearly helps, and with fewer than five rows. `local_lr` (of
    which a quarter is used) and `batch_size` default to those of the run.
    """
    run = models.local
    rate, size = run.local_lr if local_lr is None else local_lr, run.batch_size if batch_size is None else batch_size
    local = replace(run, local_lr=rate, batch_size=size)
    alone = not isinstance(data, FederatedData)
    if alone:
        one_client(models, data)  # refuses unusable data; samples of several arrays stay as they are
        inputs, targets = data
        classes = _num_classes(models.model, inputs, np.asarray(targets))
        form = models.model.form
        cells = None  # NaN is a missing cell, where there are codes beside values
        if form is not None and form.buckets:
            cells = TableColumns(("",) * form.num_columns, form.buckets, (None,) * form.num_columns)
        data = from_arrays([inputs], [targets], num_classes=classes, ids=models.model.takes_ids, columns=cells)
    results = personalise_clients(
        models.models,
        data,
        np.arange(data.num_clients),
        method=models.method,
        model=models.model,
        engine=stacked_or_single(fitted(models.model, data)),
        local=local,
    )
    personal = [
        PersonalModel(models.model, *(column.item() if column.ndim == 0 else column for column in row))
        for _, result in results
        for row in zip(result.vectors, result.clusters, result.epochs, result.head_only, strict=True)
    ]
    return personal[0] if alone else personal


def _num_classes(model: Model, inputs: Any, targets: Array) -> int:
    """Outputs of the network for classes, 0 for regression."""
    if targets.dtype.kind == "f":
        return 0
    with torch.no_grad():
        parameters = dict(model.module.named_parameters())
        return int(model.single(parameters, model.input_tensor(inputs)[:1]).shape[-1])
