"""After a run: load its models, and let a client find out which one is its own, without telling anybody."""

import tempfile
from pathlib import Path

import numpy as np

import rrcluster as rr

folder = Path(tempfile.mkdtemp()) / "run"
rr.run(data="fashion-mini", num_clients=400, num_rounds=12, sample_rate=0.25, epsilon=8, out=str(folder), device="cpu")

models = rr.load(folder)  # k models: released, hence public
data = rr.load_federated("fashion-mini", num_clients=400, seed=0)

client = data.cohort(np.array([7]))  # one client's own images, which stay with it
mine = rr.assign(models, (client.inputs[0], client.targets[0]))
labels = models.predict(client.inputs[0], cluster=mine).argmax(axis=1)
right = np.mean(labels == client.targets[0])
print(f"model {mine} of {models.num_clusters} is mine; on my own images it is right {right:.0%} of the time")

everybody = rr.assign(models, data)  # the same for a whole population, in a simulation
assert len(everybody) == 400
assert everybody[7] == mine
