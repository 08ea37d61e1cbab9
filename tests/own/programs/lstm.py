import numpy as np
from torch import nn

import rrcluster as rr


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(10, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, ids):
        return self.head(self.lstm(self.embed(ids))[0])


text = np.random.default_rng(0).integers(10, size=(60, 8, 7))  # clients, windows, characters
data = rr.from_arrays(text[..., :-1], text[..., 1:], ids=True, num_classes=10, name="text")
rr.run(data=data, model=NextToken(), num_clusters=2, num_rounds=2, epsilon=8, delta=1e-3, out="lstm")
