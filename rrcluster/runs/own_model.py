"""`rr.personalise`: a released model, fitted on the client to the client's own data."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rrcluster.data.arrays import from_arrays
from rrcluster.data.federated import FederatedData
from rrcluster.engine.pick_engine import stacked_or_single
from rrcluster.models import Model, fitted
from rrcluster.runs.load import TrainedModels, module_of, one_client
from rrcluster.simulation.personalise import personalise_clients
from rrcluster.types import Array


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """The model that a client ends up with. It is made of the client's own data: private."""

    model: Model
    vector: Array  # (d,) float32
    cluster: int  # the released model that it started from
    epochs: int  # passes over the client's own rows from there; 0: the released model as it is
    head_only: bool  # whether only the last layer was trained

    def __repr__(self) -> str:
        """Short: not the weights, which are private."""
        return f"PersonalModel({self.model.name}, from cluster {self.cluster}, {self.epochs} epochs on own rows)"

    def module(self) -> nn.Module:
        """A plain `nn.Module` with the client's own weights, in eval mode: a copy, yours to use and to change."""
        return module_of(self.model, self.vector)

    def predict(self, inputs: Any) -> Array:
        """Outputs (logits, or values for regression): (s, *input) -> (s, outputs)."""
        with torch.no_grad():
            parameters = self.model.unflatten(torch.as_tensor(self.vector))
            outputs = self.model.single(parameters, self.model.input_tensor(inputs))
        return np.asarray(outputs.numpy())


def personalise(
    models: TrainedModels, data: Any, *, local_lr: float | None = None, batch_size: int | None = None
) -> Any:
    """Fit a released model to one's own data, on the client: nothing leaves the caller, so it costs no privacy.

    `data` is one client's own training rows, a pair (inputs, targets) of arrays as the model takes them (then the
    answer is one `PersonalModel`), or `FederatedData` (then a list, one for each client). The client starts from the
    model that `assign` would give it. How far it trains (0, 1, 3 or 10 epochs, all parameters or the last layer) it
    decides by cross-validation on its own rows: 0 where no training clearly helps, and with fewer than five rows.
    `local_lr` (of which a quarter is used) and `batch_size` are those of the run unless they are given.
    """
    run = models.local
    rate, size = run.local_lr if local_lr is None else local_lr, run.batch_size if batch_size is None else batch_size
    local = replace(run, local_lr=rate, batch_size=size)
    alone = not isinstance(data, FederatedData)
    if alone:
        one_client(models, data)  # refuses what the models do not take; samples of several arrays stay as they are
        inputs, targets = data
        classes = _num_classes(models.model, inputs, np.asarray(targets))
        data = from_arrays([inputs], [targets], num_classes=classes, ids=models.model.takes_ids)
    results = personalise_clients(
        models.models,
        data,
        np.arange(data.num_clients),
        method=models.method,
        model=models.model,
        engine=stacked_or_single(fitted(models.model, data)),
        local=local,
    )
    own = [
        PersonalModel(models.model, *(column.item() if column.ndim == 0 else column for column in row))
        for _, result in results
        for row in zip(result.vectors, result.clusters, result.epochs, result.head_only, strict=True)
    ]
    return own[0] if alone else own


def _num_classes(model: Model, inputs: Any, targets: Array) -> int:
    """Outputs of the network for classes, 0 for regression."""
    if targets.dtype.kind == "f":
        return 0
    with torch.no_grad():
        parameters = dict(model.module.named_parameters())
        return int(model.single(parameters, model.input_tensor(inputs)[:1]).shape[-1])
