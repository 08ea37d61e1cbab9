"""How the bundle of fashion-mini was made from the full files: `python fashion_mini_bundle.py OUT`."""

import lzma
import sys
from pathlib import Path

import numpy as np

from rrcluster.data.images import TEST_PER_CLASS, TRAIN_PER_CLASS, load_fashion_mnist

FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 2, "dict_size": 1 << 23}
]


def build(out):
    """Write the bundle. The content follows from the rule alone; compressed bytes may differ between liblzmas."""
    Path(out).write_bytes(lzma.compress(packed(load_fashion_mnist()), filters=FILTERS))


def packed(full):
    """The content of the bundle, by the rule, from the full dataset."""
    train = first_per_class(full.train_labels, TRAIN_PER_CLASS)
    test = first_per_class(full.test_labels, TEST_PER_CLASS)
    train_labels, test_labels = full.train_labels[train], full.test_labels[test]
    parts = (
        train_labels.astype(np.uint8),
        test_labels.astype(np.uint8),
        _by_class_and_column(full.train_images[train], train_labels),
        _by_class_and_column(full.test_images[test], test_labels),
    )
    return b"".join(part.tobytes() for part in parts)


def first_per_class(labels, count):
    """The positions, in order, of the first `count` labels of every class 0..9."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))


def _by_class_and_column(images, labels):
    return images[np.argsort(labels, kind="stable")].transpose(0, 2, 1)


if __name__ == "__main__":
    build(sys.argv[1])
