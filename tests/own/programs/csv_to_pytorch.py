import numpy as np
import pandas as pd
from safetensors.torch import load_file
from torch import nn

import rrcluster as rr

frame = pd.DataFrame(np.random.default_rng(0).normal(size=(3000, 2))).assign(client=np.arange(3000) // 20)
frame.assign(label=((frame[0] > 0) ^ (frame.client % 2 == 1)).astype(int)).to_csv("clients.csv", index=False)
columns = {"client": "client", "target": "label", "classes": [0, 1]}
privacy = {"epsilon": 8, "delta": 1e-3, "num_rounds": 15, "sample_rate": 0.5}
rr.run(data="clients.csv", **columns, **privacy, model=nn.Linear(2, 2), num_clusters=2, local_lr=0.5, out="run")
table = rr.assign(rr.load("run", model=nn.Linear(2, 2)), rr.from_frame(pd.read_csv("clients.csv"), **columns))
assert {*zip(table.client.astype(int) % 2, table.cluster, strict=True)} in ({(0, 0), (1, 1)}, {(0, 1), (1, 0)})
table.write_csv("clusters.csv")
nn.Linear(2, 2).load_state_dict(load_file("run/cluster-0.safetensors"))
