"""Where the time of a round goes: clients per second, batched beside one client at a time, in one run on one machine.

Workload: 100 clients x 40 images of fashion-mini, 5 local epochs of SGD, batch 20. Ratios carry over to other machines
better than seconds do; results with machine and date are in research/benchmarks/README.md.
"""

import platform
import time

import numpy as np
import torch

from rrcluster.data.build import load_federated
from rrcluster.engine import protocol as calls
from rrcluster.engine.batched.batched_engine import BatchedEngine
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.models import make_model

COHORT, REPEATS = 100, 3


def clients_per_second(engine, start, cohort):
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        calls.train(engine, start, cohort, local=LocalSettings(), key=(0, 0))
        best = min(best, time.perf_counter() - began)
    return len(start) / best


def main():
    data = load_federated("fashion-mini", num_clients=1000, seed=0)
    cohort = data.cohort(np.arange(COHORT))
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'model':8} {'batched':>10} {'one by one':>12} {'ratio':>7}   clients per second")
    for name in ("linear", "mlp", "cnn"):
        model = make_model(name, input_shape=data.input_shape, num_classes=data.num_classes)
        start = np.repeat(model.init(rng=np.random.default_rng(0))[None], COHORT, axis=0)
        fast, slow = (clients_per_second(kind(model), start, cohort) for kind in (BatchedEngine, ReferenceEngine))
        print(f"{name:8} {fast:10.0f} {slow:12.0f} {fast / slow:7.2f}")


if __name__ == "__main__":
    main()
