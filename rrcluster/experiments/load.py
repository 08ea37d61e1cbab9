"""Use what a run produced: load its models, and find which of them is yours."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.methods import ALGORITHMS, Clients, Method, Tools
from rrcluster.methods.coordinate_split import Split
from rrcluster.models import Model, make_model
from rrcluster.simulation.evaluate import choose_all
from rrcluster.storage import check_plain, parse_json
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class TrainedModels:
    """The k models of a finished run, ready to use."""

    models: Models
    model: Model
    algorithm: Method

    @property
    def num_clusters(self) -> int:
        """k."""
        return self.models.num_clusters

    @property
    def split(self) -> Split:
        """Which coordinates are shared, clustered, personal."""
        return self.algorithm.split(self.model)

    @property
    def input_dtype(self) -> type[np.generic]:
        """What the model takes: float32 numbers, or int64 ids."""
        return np.int64 if self.model.takes_ids else np.float32

    def _checked(self) -> "TrainedModels":
        """Itself, if the weights have the shapes that the network and the method need."""
        shared, clustered = self.models.shared, self.models.clustered
        wanted = self.split.coordinates
        if (
            clustered.ndim != 2
            or len(clustered) < 1
            or (shared.shape, clustered.shape[1])
            != (
                (wanted.shared,),
                wanted.clustered,
            )
        ):
            raise ValueError("weights of another shape")
        return self

    def predict(self, inputs: Any, *, cluster: int) -> Array:
        """Outputs (logits, or values for regression) of one cluster's model: (s, *input) -> (s, outputs)."""
        if not 0 <= cluster < self.num_clusters:
            raise ConfigError(f"cluster = {cluster} must lie in 0..{self.num_clusters - 1}.")
        vector = self.split.vectors(self.models, np.array([cluster]))[0]
        with torch.no_grad():
            outputs = self.model.single(
                self.model.unflatten(torch.as_tensor(vector)),
                torch.as_tensor(np.asarray(inputs, dtype=self.input_dtype)),
            )
        return np.asarray(outputs.numpy())


def load(run: str | Path) -> TrainedModels:
    """The models of a finished run folder."""
    path = Path(run) / "models.safetensors"
    if not path.exists():
        started = (Path(run) / "config.yaml").exists()
        way_out = f"finish the run with `rrcluster run --resume {run}`" if started else "give the folder of a run"
        raise RunFolderError(f"{run}: no models.safetensors; {way_out}.")
    try:
        check_plain(path)
        with safe_open(path, framework="np") as file:
            about = {name: parse_json(value) for name, value in (file.metadata() or {}).items()}
            models = Models(file.get_tensor("shared").astype(float), file.get_tensor("clustered").astype(float))
        algorithm = ALGORITHMS[about["algorithm"]]
        return TrainedModels(models, algorithm.adapt(_declared_model(about, models)), algorithm)._checked()
    except Exception as error:  # a damaged file fails in many ways inside the reader
        raise RunFolderError(
            f"{path}: cannot be read as models of rrcluster; the file is damaged. Run again with the same settings."
        ) from error


def _declared_model(about: dict[str, Any], models: Models) -> Model:
    """The network the file declares, refused before it is made if the weights in the file cannot be its own.

    Every model has a weight per input and per class at least, so a declared size beyond the weights present is a lie,
    and no memory is spent on it.
    """
    shape, classes = about["input_shape"], about["num_classes"]
    sizes = [*shape, classes + 1]
    present = models.shared.size + models.clustered.size
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(shape) > present or classes > present:
        raise ValueError("declared sizes do not fit the weights")
    return make_model(about["model"], input_shape=tuple(shape), num_classes=classes)


def assign(models: TrainedModels, data: Any) -> Any:
    """Which of the k models is mine? The one the run's method would choose for this data.

    `data` is one client's own samples, a pair (inputs, targets) of arrays as the model takes them (then the answer is
    one cluster number), or `FederatedData` (then one number per client). Nothing leaves the caller.
    """
    engine = BatchedEngine(models.model)
    if isinstance(data, FederatedData):
        return choose_all(models.models, data, algorithm=models.algorithm, split=models.split, engine=engine)
    inputs, targets = (np.asarray(part) for part in data)
    if len(inputs) == 0 or len(inputs) != len(targets):
        raise ConfigError(
            f"data must be (inputs, targets) of equal length above 0; found {len(inputs)}, {len(targets)}."
        )
    targets = targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)
    cohort = Cohort.of_arrays(
        np.zeros(1, dtype=np.int64), inputs[None].astype(models.input_dtype), targets[None], np.array([len(inputs)])
    )
    tools = Tools(models.split, engine, LocalSettings(), key=(0, 0))
    return int(models.algorithm.scores(models.models, Clients.without_memory(cohort), tools=tools)[0].argmin())
