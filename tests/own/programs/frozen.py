import numpy as np
from torch import nn

import rrcluster as rr

backbone = nn.Sequential(nn.Linear(6, 32), nn.ReLU()).requires_grad_(False)
net = nn.Sequential(backbone, nn.Linear(32, 2))
before = [value.clone() for value in net.state_dict().values()]
x = np.random.default_rng(0).normal(size=(60, 10, 6))
data = rr.from_arrays(x, (x[..., 0] > 0).astype(int), num_classes=2, name="probe")
result = rr.run(data=data, model=net, num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3, out="frozen")
assert result.models.clustered.shape == (2, 32 * 2 + 2)  # the head alone is released
assert all(was.equal(now) for was, now in zip(before, net.state_dict().values(), strict=True))
