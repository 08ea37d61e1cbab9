"""A frozen backbone that was trained on public data, and a new last layer for each cluster, trained privately.

The public task is fashion-mini upright, to be told apart by a small network. The clients hold images of the same kind,
turned by 0, 90, 180 or 270 degrees; their heads read the backbone's features. 660 parameters are trained, not 51,594.
"""

import tempfile

import numpy as np
import torch
from torch import nn

import rrcluster as rr
from rrcluster.data import load_federated


def pretrained(images: np.ndarray, labels: np.ndarray) -> nn.Module:
    """Features of a network trained on public images; stands for a checkpoint that you load."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh())
    network = nn.Sequential(features, nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets = torch.as_tensor(images), torch.as_tensor(labels)
    for _ in range(5):
        for batch in torch.randperm(len(targets)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimiser.step()
    return features


public = load_federated("fashion-mini", num_clients=4, seed=1)
shown = [public.store.client(client) for client in range(4)]  # four clients, one for each rotation
backbone = pretrained(*(np.concatenate(parts) for parts in zip(*shown, strict=True))).requires_grad_(False)
before = [value.clone() for value in backbone.parameters()]

with tempfile.TemporaryDirectory() as folder:
    result = rr.run(
        data="fashion-mini",
        num_clients=1000,
        model=nn.Sequential(backbone, nn.Linear(64, 10)),
        num_rounds=40,
        epsilon=4,
        update_clip=0.5,
        out=f"{folder}/run",
    )
    print(f"epsilon {result.epsilon:.2f}: accuracy {result.evaluation.accuracy:.1%} (diagnostic, not private)")
    assert result.models.clustered.shape == (4, 64 * 10 + 10)  # the backbone is neither sent nor noised
    assert all(torch.equal(was, now) for was, now in zip(before, backbone.parameters(), strict=True))
