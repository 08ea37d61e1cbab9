"""More clients than fit into memory: their samples stay in files, and a round reads its cohort's rows only."""

import resource
import tempfile
from pathlib import Path

import numpy as np

import rrcluster as rr

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

data = rr.from_rows(
    np.load("inputs.npy", mmap_mode="r"),
    np.load("targets.npy", mmap_mode="r"),
    np.arange(CLIENTS + 1) * SAMPLES,  # client i has rows offsets[i] to offsets[i + 1]
    num_classes=2,
    groups=groups,
    test_inputs=[inputs[:800]] * 2,
    test_targets=[(inputs[:800, 0] > 0) ^ bool(group) for group in range(2)],
)
settings = {"num_clusters": 2, "num_rounds": 30, "sample_rate": 0.001, "epsilon": 1.0, "delta": 1e-6}
with tempfile.TemporaryDirectory() as folder:
    result = rr.run(data=data, model="linear", update_clip=0.5, out=f"{folder}/run", **settings)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
accuracy, judged = result.evaluation.accuracy, result.evaluation.evaluated_clients
print(f"epsilon {result.epsilon:.2f}: accuracy {accuracy:.1%} on {judged} clients, {peak:.1f} GB")
assert accuracy > 0.8
