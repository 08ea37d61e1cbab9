import numpy as np
from torch import nn

import rrcluster as rr


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2)

    def forward(self, sequence):
        return self.head(self.layer(sequence).mean(1))


x = np.random.default_rng(0).normal(size=(60, 8, 5, 8))
data = rr.from_arrays(x, (x[..., 0].mean(2) > 0).astype(int), num_classes=2, name="sequences")
rr.run(data=data, model=Encoder(), num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3, out="transformer")
