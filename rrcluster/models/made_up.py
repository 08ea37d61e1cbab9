"""Samples with the shape of the data and none of its values: ids and numbers are drawn under a fixed seed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor, nn

from rrcluster.data.federated import IDS, FederatedData
from rrcluster.models.client_state import own_generators, seed_generators
from rrcluster.models.model import Model

_KEPT, _MOST_KEPT = 64, 1024  # samples that stay with a model: so many, or two of each class


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


def made_up_trial(model: Model, module: nn.Module, data: FederatedData, *, num_ids: int) -> tuple[Tensor, Tensor]:
    """Samples that stay with a model: inputs of several sizes, all classes, numbers far apart if a loss takes them."""
    count = min(max(_KEPT, 2 * (data.num_classes or 0)), _MOST_KEPT)
    inputs, targets = made_up_samples(data, num_ids=num_ids, count=count)
    if inputs.is_floating_point() and data.layout is None:
        sizes = torch.tensor([1.0, 0.1, 10.0, 1.0])[torch.arange(count) % 4]
        inputs *= sizes.reshape(-1, *[1] * (inputs.dim() - 1))
    if targets.is_floating_point():
        wide = targets + 10 * torch.randn(targets.shape, generator=torch.Generator().manual_seed(0))
        with suppress(Exception), seeded_generator(), torch.no_grad():  # it may take numbers from 0 to 1 alone
            if torch.isfinite(model.task.losses(model.task.outputs(module, inputs), wide)).all():
                targets[::2] = wide[::2]
    return inputs, targets
