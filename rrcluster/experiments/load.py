"""Use what a run produced: load its models, and find which of them is yours."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from rrcluster.algorithms import ALGORITHMS, Algorithm, Clients, Tools
from rrcluster.algorithms.split import Split
from rrcluster.contract import LocalSettings
from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.batched import BatchedEngine
from rrcluster.engine.evaluate import choose_all
from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.models import Model, make_model
from rrcluster.types import Array, Models


@dataclass(frozen=True)
class TrainedModels:
    """The k models of a finished run, ready to use."""

    models: Models
    model: Model
    algorithm: Algorithm

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
        raise RunFolderError(f"{run}: no models.safetensors; finish the run with `rrcluster run --resume {run}`.")
    try:
        with safe_open(path, framework="np") as file:
            about = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
            models = Models(file.get_tensor("shared").astype(float), file.get_tensor("clustered").astype(float))
        algorithm = ALGORITHMS[about["algorithm"]]
        shape, classes = tuple(about["input_shape"]), int(about["num_classes"])
        model = algorithm.adapt(make_model(about["model"], input_shape=shape, num_classes=classes))
        return TrainedModels(models, model, algorithm)
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise RunFolderError(f"{path}: cannot be read as models of rrcluster; the file is damaged.") from error


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
    cohort = Cohort(
        np.zeros(1, dtype=np.int64), inputs[None].astype(models.input_dtype), targets[None], np.array([len(inputs)])
    )
    tools = Tools(models.split, engine, LocalSettings(), key=(0, 0))
    return int(models.algorithm.scores(models.models, Clients.without_memory(cohort), tools=tools)[0].argmin())
