import numpy as np
from torch import nn

import rrcluster as rr


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.context = nn.Embedding(30, 4), nn.Linear(3, 4)

    def forward(self, item, context):
        return (self.item(item) * self.context(context)).sum(-1, keepdim=True)


rng = np.random.default_rng(0)
inputs = [{"item": rng.integers(30, size=10), "context": rng.normal(size=(10, 3))} for _ in range(60)]
data = rr.from_arrays(inputs, [rng.normal(size=10) for _ in inputs], name="ratings")
rr.run(data=data, model=Ratings(), num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3, out="recommender")
