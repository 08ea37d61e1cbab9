import numpy as np
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import rrcluster as rr

x = np.random.default_rng(0).normal(size=(60, 10, 6))
data = rr.from_arrays(x, (x[..., :3] > 0).astype(np.float32), name="tags")  # three labels, each 0 or 1
settings = {"num_clusters": 2, "num_rounds": 2, "epsilon": 8, "delta": 1e-3, "private_evaluation": 0.25}
loss = lambda outputs, tags: cross_entropy(outputs, tags, reduction="none").mean(1)  # noqa: E731
metric = lambda outputs, tags: ((outputs > 0) == (tags > 0.5)).float().mean(1)  # noqa: E731
rr.run(data=data, model=nn.Linear(6, 3), loss=loss, metric=metric, out="multilabel", **settings)
