"""Client data on a device: uploaded once where the whole population fits, else cohort by cohort."""

from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.fast_cnn.gpu import FusedCnn
from rrcluster.models.model import FixedPart
from rrcluster.types import Array

_CLIENTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Table:
    """The samples of some clients, one after another: sample i of the client at `place` is row offsets[place] + i."""

    inputs: Tensor  # (rows, *input_shape), or their features where a model begins with fixed ones
    targets: Tensor  # (rows,)
    offsets: Array  # (places,) int64, on the host
    of_population: bool  # places are client ids; else they count the cohort's clients
    _images: list[Tensor] = field(default_factory=list, repr=False)

    def starts(self, clients: Array) -> Array:
        """(n,) the first row of each client of a cohort, given in the cohort's order."""
        return self.offsets[clients] if self.of_population else self.offsets

    def images(self, fused: FusedCnn) -> Tensor:
        """The inputs as the kernels read them, made once."""
        if not self._images:
            self._images.append(fused.images(self.inputs))
        return self._images[0]


def population_bytes(data: FederatedData) -> int:
    """Device memory that the samples of a whole population take."""
    return int(data.sizes.sum()) * (prod(data.input_shape) * data.input_dtype.itemsize + 8)


def population_table(data: FederatedData, device: torch.device, *, fixed: FixedPart | None = None) -> Table:
    """Every client of the population, uploaded some hundred at a time."""
    inputs, targets = [], []
    for first in range(0, data.num_clients, _CLIENTS_AT_ONCE):
        last = min(first + _CLIENTS_AT_ONCE, data.num_clients)
        part = cohort_table(data.cohort(np.arange(first, last)), device, fixed=fixed)
        inputs.append(part.inputs)
        targets.append(part.targets)
    offsets = np.cumsum(data.sizes) - data.sizes
    return Table(torch.cat(inputs), torch.cat(targets), offsets, of_population=True)


def cohort_table(cohort: Cohort, device: torch.device, *, fixed: FixedPart | None = None) -> Table:
    """The clients of one cohort, as the features of a model that begins with fixed ones; padding stays on the host."""
    real = np.arange(cohort.inputs.shape[1])[None, :] < cohort.sizes[:, None]
    inputs = torch.as_tensor(cohort.inputs[real], device=device)
    return Table(
        inputs=inputs if fixed is None else fixed.of(inputs),
        targets=torch.as_tensor(cohort.targets[real], device=device),
        offsets=np.cumsum(cohort.sizes) - cohort.sizes,
        of_population=False,
    )
