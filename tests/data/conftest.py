import numpy as np
import pytest

from rrcluster.data.build import load_dataset
from rrcluster.data.images import ImageDataset
from rrcluster.data.sources import locate
from rrcluster.errors import DataError
from rrcluster.rng import stream


@pytest.fixture
def rng(request):
    seed = 20170825
    print(f"seed {seed}")  # shown when the test fails
    return stream(seed, request.node.name)


@pytest.fixture(scope="session")
def full():
    """FashionMNIST as found in the standard places; a test that asks for it is skipped where it is not."""
    try:
        locate("fashion-mnist")
    except DataError as missing:
        pytest.skip(f"needs the full dataset: {missing}")
    return load_dataset("fashion-mnist")


@pytest.fixture
def four_images():
    """Four 2x2 training images that a person can turn by hand, and two test images."""
    images = np.array([[[10 * i + 1, 10 * i + 2], [10 * i + 3, 10 * i + 4]] for i in range(4)], dtype=np.uint8)
    return ImageDataset(images, np.array([0, 1, 0, 1]), images[:2], np.array([0, 1]), 2, 0.5, 0.25)
