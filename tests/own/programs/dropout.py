import numpy as np
from torch import nn

import rrcluster as rr

rng, group = np.random.default_rng(0), np.arange(100) % 2
inputs = [rng.normal(size=(12, 4)) for _ in group]
targets = [((x[:, 0] > 0) ^ bool(g)).astype(int) for x, g in zip(inputs, group, strict=True)]
data = rr.from_arrays(inputs, targets, groups=group, num_classes=2, name="signs")
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
result = rr.run(data=data, model=net, num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3, out="dropout")
print(f"epsilon {result.epsilon:.2f}")
