"""More clients than fit into memory: their samples stay in files, and a round reads its cohort's rows only."""

import resource
from pathlib import Path

import numpy as np

import rrcluster as rr
from rrcluster.data import from_rows
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.models import make_model
from rrcluster.rng import Streams
from rrcluster.simulation.evaluate import evaluate

CLIENTS, SAMPLES, FEATURES = 200_000, 8, 10

# Two long files, client after client. Two groups disagree: the label is the sign of the first feature, or its opposite.
rng = np.random.default_rng(0)
shape = (CLIENTS * SAMPLES, FEATURES)
inputs = np.lib.format.open_memmap(Path("inputs.npy"), mode="w+", dtype=np.float32, shape=shape)
targets = np.lib.format.open_memmap(Path("targets.npy"), mode="w+", dtype=np.int64, shape=shape[:1])
groups = np.arange(CLIENTS) % 2
for first in range(0, len(targets), 400_000):
    rows = slice(first, first + 400_000)
    inputs[rows] = rng.normal(size=(400_000, FEATURES))
    targets[rows] = (inputs[rows, 0] > 0) ^ (np.arange(first, first + 400_000) // SAMPLES % 2 == 1)
inputs.flush(), targets.flush()

data = from_rows(
    np.load("inputs.npy", mmap_mode="r"),
    np.load("targets.npy", mmap_mode="r"),
    np.arange(CLIENTS + 1) * SAMPLES,  # client i has rows offsets[i] to offsets[i + 1]
    num_classes=2,
    groups=groups,
    test_inputs=[inputs[:800]] * 2,
    test_targets=[(inputs[:800, 0] > 0) ^ bool(group) for group in range(2)],
)
model = make_model("linear", input_shape=data.input_shape, num_classes=2)
ifca, engine = rr.ALGORITHMS["ifca"], BatchedEngine(model)
plan = rr.PrivacyPlan.build(
    coordinates=ifca.split(model).coordinates,
    num_clusters=2,
    num_clients=CLIENTS,
    sample_rate=0.001,
    num_rounds=30,
    epsilon=1.0,
    delta=1e-6,
    update_clip=0.5,
)
for record in rr.simulate(data=data, model=model, algorithm=ifca, plan=plan, engine=engine, streams=Streams(0)):
    last = record

found = evaluate(last.state.average, data, algorithm=ifca, split=ifca.split(model), engine=engine)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(
    f"epsilon {plan.epsilon():.2f}: accuracy {found.accuracy:.1%} on {found.evaluated_clients} clients, {peak:.1f} GB"
)
assert found.accuracy > 0.8
