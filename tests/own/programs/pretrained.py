import numpy as np
import torch
from torch import nn

import rrcluster as rr

net = nn.Linear(6, 2)  # stands for a network trained on public data
x = np.random.default_rng(0).normal(size=(60, 10, 6))
data = rr.from_arrays(x, (x[..., 0] > 0).astype(int), num_classes=2, name="after pretraining")
experiment = rr.experiment(data=data, model=net, num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3)
start = experiment.method.init(experiment.model, num_clusters=2, rng=np.random.default_rng(0)).clustered
assert np.array_equal(start[0], torch.cat([net.weight.flatten(), net.bias]).detach().numpy())
rr.run(experiment)
