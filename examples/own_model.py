"""Your own network and your own data: any nn.Module without buffers, any list of arrays."""

import numpy as np
import torch
from torch import nn

import rrcluster as rr
from rrcluster.data import from_arrays
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.models import from_module
from rrcluster.rng import Streams
from rrcluster.simulation.evaluate import evaluate

# Two groups of clients that disagree: the label is the sign of the first feature, or its opposite.
rng = np.random.default_rng(0)
groups = np.arange(200) % 2
inputs = [rng.normal(size=(30, 5)).astype(np.float32) for _ in groups]
targets = [((x[:, 0] > 0) ^ bool(group)).astype(np.int64) for x, group in zip(inputs, groups, strict=True)]
test_inputs = rng.normal(size=(500, 5)).astype(np.float32)
truth = [((test_inputs[:, 0] > 0) ^ bool(group)).astype(np.int64) for group in range(2)]
data = from_arrays(inputs, targets, test_inputs=[test_inputs] * 2, test_targets=truth, groups=groups, num_classes=2)

torch.set_num_threads(1)
model = from_module(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)))
ifca = rr.ALGORITHMS["ifca"]
plan = rr.PrivacyPlan.build(
    coordinates=ifca.split(model).coordinates,
    num_clusters=2,
    num_clients=200,
    sample_rate=0.5,
    num_rounds=30,
    epsilon=8.0,
    delta=5e-4,
    update_clip=0.5,
)
engine = BatchedEngine(model)
for record in rr.simulate(data=data, model=model, algorithm=ifca, plan=plan, engine=engine, streams=Streams(0)):
    last = record

found = evaluate(last.state.average, data, algorithm=ifca, split=ifca.split(model), engine=engine)
print(f"epsilon {plan.epsilon():.2f}: accuracy {found.accuracy:.1%}, clusters found {found.clustering_accuracy:.1%}")
assert found.accuracy > 0.8
