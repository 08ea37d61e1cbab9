"""Client data on a device: uploaded once where the whole population fits, else cohort by cohort."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from rrcluster.data.federated import Cohort, FederatedData
from rrcluster.engine.fast_cnn.gpu import padded_images
from rrcluster.models.model import FixedPart
from rrcluster.types import Array

_CLIENTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of some clients, one after another: sample i of the client at `place` is row offsets[place] + i."""

    inputs: Tensor  # (rows, *input_shape), or their features where a model begins with fixed ones
    targets: Tensor  # (rows, *target_shape)
    offsets: Array  # (places,) int64, on the host
    of_population: bool  # places are client ids; else positions in the cohort

    def starts(self, clients: Array) -> Array:
        """(n,) the first row of each client of a cohort, in the cohort's order."""
        return self.offsets[clients] if self.of_population else self.offsets

    @cached_property
    def images(self) -> Tensor:
        """The inputs as the kernels of the `cnn` read them."""
        return padded_images(self.inputs)


def population_bytes(data: FederatedData) -> int:
    """Device memory that the samples of a whole population take."""
    numbers = prod(data.input_shape) * data.input_dtype.itemsize + 8 * prod(data.target_shape)
    return int(data.sizes.sum()) * numbers


def population_table(data: FederatedData, device: torch.device, *, fixed: FixedPart | None = None) -> SampleTable:
    """Every client of the population, uploaded a few hundred at a time."""
    inputs, targets = [], []
    for first in range(0, data.num_clients, _CLIENTS_AT_ONCE):
        last = min(first + _CLIENTS_AT_ONCE, data.num_clients)
        part = cohort_table(data.cohort(np.arange(first, last)), device, fixed=fixed)
        inputs.append(part.inputs)
        targets.append(part.targets)
    offsets = np.cumsum(data.sizes) - data.sizes
    return SampleTable(torch.cat(inputs), torch.cat(targets), offsets, of_population=True)


def cohort_table(cohort: Cohort, device: torch.device, *, fixed: FixedPart | None = None) -> SampleTable:
    """The clients of one cohort, without padding; features instead of samples where the model begins with `fixed`."""
    real = np.arange(cohort.inputs.shape[1])[None, :] < cohort.sizes[:, None]
    inputs = torch.as_tensor(cohort.inputs[real], device=device)
    return SampleTable(
        inputs=inputs if fixed is None else fixed.of(inputs),
        targets=torch.as_tensor(cohort.targets[real], device=device),
        offsets=np.cumsum(cohort.sizes) - cohort.sizes,
        of_population=False,
    )
