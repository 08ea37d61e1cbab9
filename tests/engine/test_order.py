"""A client's order of samples is the same from numpy and from torch, whoever is beside it."""

import numpy as np
import pytest
import torch

from rrcluster.engine.local_steps import batch_orders, visits
from rrcluster.rng import Streams


@pytest.mark.parametrize("sizes", [[5, 5, 5], [1, 7, 12, 5, 12], [3], [0, 4]])
def test_visits_are_batch_orders_with_minus_one_for_padding(sizes, rng):
    sizes, clients = np.array(sizes), rng.choice(10**12, size=len(sizes))
    keys = [Streams(seed).client_key("batches", 3) for seed in range(len(sizes))]  # every client of a run of its own
    got = visits(torch.tensor(keys), torch.tensor(clients), torch.tensor(sizes), epochs=2, width=13).numpy()
    for place, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        alone = batch_orders(key, clients[place : place + 1], sizes[place : place + 1], epochs=2)[0]
        assert (got[place, :, :size] == alone).all()
        assert (got[place, :, size:] == -1).all()
