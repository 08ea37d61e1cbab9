"""When `engine = auto` should start worker processes: what they cost to start, and what they save a round.

Clients with 20 samples, one epoch, batch 20, against one client at a time. `repaid` is the number of rounds after which
the start has paid for itself; the rule in rrcluster/engine/pick_engine.py is read off it.
"""

import time

import numpy as np
import torch

from rrcluster.data import from_arrays
from rrcluster.engine import calls
from rrcluster.engine.protocol import LocalSettings
from rrcluster.engine.reference import ReferenceEngine
from rrcluster.engine.workers.workers_engine import WorkersEngine
from rrcluster.models import make_model

SHAPES = {"cnn": (1, 28, 28), "cifar-cnn": (3, 32, 32), "lstm": (20,)}
SAMPLES, REPEATS = 20, 3


def seconds(engine, start, cohort):
    began = time.perf_counter()
    calls.train(engine, start, cohort, local=LocalSettings(local_epochs=1), key=(0, 0))
    return time.perf_counter() - began


def main():
    rng = np.random.default_rng(0)
    print(f"{torch.get_num_threads()} threads one by one; seconds")
    print(f"{'model':10} {'clients':>8} {'work':>8} {'one by one':>11} {'workers':>8} {'start':>6} {'repaid':>7}")
    for name, shape in SHAPES.items():
        model = make_model(name, input_shape=shape, num_classes=80)
        inputs = rng.integers(80, size=(SAMPLES, *shape)) if name == "lstm" else rng.normal(size=(SAMPLES, *shape))
        data = from_arrays([inputs], [rng.integers(80, size=SAMPLES)], num_classes=80, ids=name == "lstm")
        for count in (3, 30, 100):
            cohort, start = data.cohort([0] * count), np.repeat(model.init(rng=rng)[None], count, axis=0)
            with WorkersEngine(model) as workers:
                first = seconds(workers, start, cohort)
                fast = min(seconds(workers, start, cohort) for _ in range(REPEATS))
            slow = min(seconds(ReferenceEngine(model), start, cohort) for _ in range(REPEATS))
            repaid = (first - fast) / (slow - fast) if slow > fast else float("inf")
            work = count * SAMPLES * model.num_parameters
            print(f"{name:10} {count:8} {work:8.0e} {slow:11.3f} {fast:8.3f} {first - fast:6.2f} {repaid:7.1f}")


if __name__ == "__main__":
    main()
