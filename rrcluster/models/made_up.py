"""Samples with the shape of the data and none of its values: ids and numbers are drawn under a fixed seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.data.federated import IDS, FederatedData
from rrcluster.models.client_state import own_generators, seed_generators
from rrcluster.models.model import Model


@contextmanager
def seeded_generator() -> Iterator[None]:
    """Draw under a fixed seed, by torch, numpy or Python; their generators are as before afterwards."""
    with own_generators():
        seed_generators(0)
        yield


def count_ids(model: Model, module: nn.Module, data: FederatedData) -> int:
    """How many ids every embedding has; 1 where the module does not take all of those."""
    num_ids = min((part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)), default=1)
    try:
        with seeded_generator(), torch.no_grad():
            model.task.outputs(module, made_up_samples(data, num_ids=num_ids, count=1)[0])
    except Exception:  # whatever a network may raise; the next call says why
        return 1
    return num_ids


def made_up_samples(data: FederatedData, *, num_ids: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets; ids are below `num_ids`."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(count, *data.input_shape)).astype(data.input_dtype)
    ids = generator.integers(num_ids, size=inputs.shape)
    if data.input_dtype == IDS:
        inputs[:] = ids
    if data.layout is not None:
        for part in data.layout.parts:
            if part.ids:
                inputs[:, part.start : part.stop] = ids[:, part.start : part.stop]
    labels = np.arange(count) // 2 % (data.num_classes or 2)  # 0, 0, 1: a loss that counts labels shows it
    targets = np.zeros((count, *data.target_shape), dtype=np.int64 if data.num_classes else np.float32)
    targets += labels.reshape(-1, *[1] * len(data.target_shape)).astype(targets.dtype)
    return torch.as_tensor(inputs), torch.as_tensor(targets)
