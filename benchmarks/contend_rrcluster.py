"""Ours: `engine = workers`, or the one named."""

import sys

import numpy as np
from workload import BATCH, EPOCHS, RATE, answer, load

from rrcluster.data.federated import Cohort
from rrcluster.engine import calls
from rrcluster.engine.pick_engine import pick_engine
from rrcluster.engine.protocol import CPU, LocalSettings
from rrcluster.models import make_model


def main(path, name="workers"):
    inputs, targets, starts = load(path)
    count, samples = targets.shape
    cohort = Cohort.of_arrays(np.arange(count), inputs, targets, np.full(count, samples))
    model = make_model("cnn", input_shape=(1, 28, 28), num_classes=10)
    engine = pick_engine(name, model=model, device=CPU)
    local = LocalSettings(RATE, EPOCHS, BATCH)

    def train(chosen):
        calls.train(engine, starts[chosen], cohort, local=local, key=(0, 0)).sum(axis=0)

    calls.losses(engine, starts[:1], cohort)  # the workers are there, as those of the others are
    answer(
        lambda: train(np.zeros(count, dtype=int)), lambda: train(calls.losses(engine, starts, cohort).argmin(axis=1))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
