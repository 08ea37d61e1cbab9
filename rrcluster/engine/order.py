"""In which order a client visits its samples: a function of (seed, round, client id) alone."""

import numpy as np

from rrcluster.rng import client_words
from rrcluster.types import Array


def batch_orders(key: tuple[int, int], clients: Array, sizes: Array, *, epochs: int) -> Array:
    """(n, epochs, s) positions: for each client and epoch a uniform permutation of its samples, then its padding.

    Drawn per client, so neither the cohort around it nor the padding changes a client's order.
    """
    longest = int(sizes.max(initial=0))
    orders = np.empty((len(clients), epochs, longest), dtype=np.int64)
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        words = client_words(key, np.asarray(clients, dtype=np.int64)[same], epochs * int(size))
        shuffled = words.reshape(len(same), epochs, int(size)).argsort(axis=-1, kind="stable")
        orders[same, :, :size] = shuffled
        orders[same, :, size:] = np.arange(size, longest)
    return orders
