"""A backbone that was trained on public data, frozen, and a new last layer per cluster, trained privately.

4,000 images of fashion-mini are the public ones, the other 6,000 belong to 300 clients. The clients are in two groups
that name the classes differently. 650 parameters are trained, clipped and noised, not 50,890.
"""

import tempfile

import numpy as np
import torch
from torch import nn

import rrcluster as rr

images = rr.load_dataset("fashion-mini")
pixels = ((images.train_images / 255 - images.mean) / images.std).astype(np.float32).reshape(-1, 784)
labels, public = images.train_labels, 4000


def pretrained(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    """The features of a network trained on public images; stands for a checkpoint that you load."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(784, 64), nn.Tanh())
    network = nn.Sequential(features, nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(5):
        for batch in torch.randperm(len(targets)).split(50):
            optimiser.zero_grad()
            outputs = network(torch.as_tensor(inputs)[batch])
            nn.functional.cross_entropy(outputs, torch.as_tensor(targets)[batch]).backward()
            optimiser.step()
    return features


backbone = pretrained(pixels[:public], labels[:public]).requires_grad_(False)
before = [value.clone() for value in backbone.parameters()]
groups = np.arange(300) % 2
x = pixels[public:].reshape(300, 20, 784)  # 20 images each
y = (labels[public:].reshape(300, 20) + 5 * groups[:, None]) % 10  # the second group counts from 5
test_x = ((images.test_images / 255 - images.mean) / images.std).reshape(-1, 784)
test_y = [(images.test_labels + 5 * group) % 10 for group in range(2)]
data = rr.from_arrays(x, y, test_inputs=[test_x] * 2, test_targets=test_y, groups=groups, num_classes=10)
network = nn.Sequential(backbone, nn.Linear(64, 10))

with tempfile.TemporaryDirectory() as folder:
    settings = {"num_clusters": 2, "num_rounds": 20, "sample_rate": 0.2, "epsilon": 4, "delta": 1e-4}
    result = rr.run(data=data, model=network, update_clip=0.5, out=f"{folder}/run", **settings)
    print(f"epsilon {result.epsilon:.2f}: accuracy {result.evaluation.accuracy:.1%} (diagnostic, not private)")
    assert result.models.clustered.shape == (2, 650)  # the backbone is neither sent nor noised
    assert all(torch.equal(was, now) for was, now in zip(before, backbone.parameters(), strict=True))
