"""Your own network and your own data: an nn.Module, and one array of inputs and one of targets per client."""

import tempfile

import numpy as np
from torch import nn

import rrcluster as rr

# Two groups of clients that disagree: the label is the sign of the first feature, or its opposite.
rng = np.random.default_rng(0)
groups = np.arange(200) % 2
inputs = [rng.normal(size=(30, 5)).astype(np.float32) for _ in groups]
targets = [((x[:, 0] > 0) ^ bool(group)).astype(np.int64) for x, group in zip(inputs, groups, strict=True)]
test_inputs = rng.normal(size=(500, 5)).astype(np.float32)
truth = [((test_inputs[:, 0] > 0) ^ bool(group)).astype(np.int64) for group in range(2)]
data = rr.from_arrays(inputs, targets, test_inputs=[test_inputs] * 2, test_targets=truth, groups=groups, num_classes=2)

with tempfile.TemporaryDirectory() as folder:
    result = rr.run(
        data=data,
        model=nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)),
        num_clusters=2,
        sample_rate=0.5,
        num_rounds=30,
        epsilon=8,
        delta=5e-4,
        update_clip=0.5,
        out=f"{folder}/run",
    )
    found = result.evaluation
    print(
        f"epsilon {result.epsilon:.2f}: accuracy {found.accuracy:.1%}, "
        f"clusters found {found.clustering_accuracy:.1%} (diagnostics, not private)"
    )
    assert found.accuracy > 0.8
