import numpy as np
from torch import nn

import rrcluster as rr


def huber(outputs, targets):
    return nn.functional.huber_loss(outputs, targets, reduction="none").mean(1)


x = np.random.default_rng(0).normal(size=(60, 10, 5)).astype(np.float32)
data = rr.from_arrays(x, x[..., :2] * 3 - 1, name="two numbers")  # targets are vectors of two
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
budget = {"num_rounds": 2, "epsilon": 8, "delta": 1e-3}
rr.run(data=data, model=net, loss=huber, local_optimizer="adam", num_clusters=2, out="regression", **budget)
